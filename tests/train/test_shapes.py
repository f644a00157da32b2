"""What is said of batches in few shapes, and which steps are compiled by themselves."""

import re

import keras
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.data import FewShapes, TokenBatches
from train import loop, translation

from .conftest import SETTINGS


def test_batches_of_any_shape_are_refused_on_several_devices_of_jax(monkeypatch):
    sides = [[[4, 5], [6], [7, 8, 9]]] * 2
    any_shape, few = TokenBatches(*sides, 8, 4), TokenBatches(*sides, 8, 4, shapes=FewShapes(2))
    loop.check_shares(any_shape, 4)
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(ValueError, match=r"--shapes 16, .* Received: --shapes 0, 4 devices\."):
        loop.check_shares(any_shape, 4)
    loop.check_shares(any_shape, 1)
    loop.check_shares(few, 4)


@pytest.mark.slow
def test_one_shape_for_a_long_tail_is_told_in_one_line(tmp_path, caplog):
    lines = ["a b\tb a\n"] * 60 + ["a b c d e f g h\th g f e d c b a\n"]
    (tmp_path / "pairs.tsv").write_text("".join(lines))
    pairs = [f"--tsv={tmp_path}/pairs.tsv", f"--valid-tsv={tmp_path}/pairs.tsv"]
    small = [
        *SETTINGS,
        "--vocabulary-size=270",
        "--steps=1",
        "--average=1",
        f"--run={tmp_path}/run",
    ]
    translation.main([*pairs, *small, "--shapes=1"])
    [message] = [message for message in caplog.messages if "padding" in message]
    assert re.fullmatch(
        r"\d\d % of the batches is padding with at most 1 shape\. Allow .*", message
    )


@pytest.mark.parametrize(("kinds", "expected"), [(["GPU"], True), ([], False)])
def test_steps_are_compiled_by_themselves_where_there_is_a_gpu(monkeypatch, kinds, expected):
    ids = keras.Input((None,), dtype="int32")
    model = kt.training.Model(ids, keras.layers.Dense(3)(keras.layers.Embedding(3, 2)(ids)))
    monkeypatch.setattr(
        tf.config, "list_logical_devices", lambda kind=None: [k for k in kinds if k == kind]
    )
    model.compile("sgd", kt.TokenCrossentropy())
    assert model.jit_compile is expected
    model.compile("sgd", kt.TokenCrossentropy(), run_eagerly=True)
    assert model.jit_compile is False, "eager steps are not"
