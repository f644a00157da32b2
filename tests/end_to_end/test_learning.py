"""A model that cannot learn what a child can is broken, whatever its parts say."""

import functools

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.decoding import BeamSearch

pytestmark = pytest.mark.slow

START, END, VOCABULARY = 2, 3, 13


def batches(rng, reverse):
    """Endless batches of random digits and what is to be said of them."""
    while True:
        words = rng.integers(4, VOCABULARY, (64, 5))
        said = words[:, ::-1] if reverse else words
        starts, ends = np.full((64, 1), START), np.full((64, 1), END)
        source = np.concatenate([words, ends], axis=1)
        target = np.concatenate([starts, said], axis=1)
        yield {"source_ids": source, "target_ids": target}, np.concatenate([said, ends], axis=1)


@pytest.mark.parametrize(
    "reverse",
    [pytest.param(False, id="copy", marks=pytest.mark.soak), pytest.param(True, id="reverse")],
)
def test_it_learns_to_repeat(reverse):
    model = kt.translation(
        VOCABULARY, num_layers=1, hidden_dim=32, intermediate_dim=64, num_heads=2, dropout=0.0
    )
    model.compile(
        kt.Adam(kt.InverseSqrtWarmup(peak_rate=0.01, warmup_steps=50)),
        loss=kt.TokenCrossentropy(),
        metrics=[kt.TokenAccuracy()],
    )
    rng = np.random.default_rng(5)
    model.fit(batches(rng, reverse), steps_per_epoch=600, verbose=0)
    inputs, labels = next(batches(rng, reverse))
    encoded = model.encode(inputs["source_ids"])
    found = BeamSearch(1)(
        functools.partial(model.step, encoded),
        model.start_cache(encoded, 1),
        limits=np.full(64, 9),
        start_id=START,
        end_id=END,
    )
    said = found.token_ids.numpy()[:, 0]
    assert said.shape[1] >= labels.shape[1]
    exact = (said[:, : labels.shape[1]] == labels).all(axis=1) & (found.lengths.numpy()[:, 0] == 6)
    assert exact.mean() > 0.95
