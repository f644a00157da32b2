"""Arguments of attention, blocks and stacks, drawn together: one model, computed in every way."""

import random

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.ops import attention, chunked_attention
from tests.models.test_todays_blocks import token_by_token
from tests.reference import array, fill

IDS, LENGTH = 23, 7
SIZES = {"num_layers": 2, "hidden_dim": 24, "num_heads": 6, "intermediate_dim": 10, "dropout": 0.0}
CHOICES = {
    "normalization": ("layer", "rms"),
    "gated": (False, True),
    "use_bias": (False, True),
    "activation": ("relu", "silu", "gelu"),
    "normalize_first": (False, True),
    "position_bias": (None, None, {"type": "alibi"}, {"type": "t5"}),
    "attention_pattern": (
        *(None, None),
        {"pattern": "local", "block_size": 2},
        {"pattern": "strided", "block_size": 3},
        {"pattern": "fixed", "block_size": 3, "summary_size": 1},
    ),
    "tie_output": (False, True),
}
ATTENTION = {
    "rotary": (
        *(None, {}, {"rotary_dim": 2}, {"interleaved": True}),
        {"scaling": {"type": "linear", "factor": 4.0}},
    ),
    "num_key_value_heads": (None, 1, 2, 3),
    "query_key_norm": (None, 1e-6),
    "soft_cap": (None, None, 2.0),
    "value_dim": (None, None, 5),
    "use_output_bias": (None, False, True),
}


def drawn(number):
    """Arguments of `language_model`."""
    draw = random.Random(number)
    picked = {name: draw.choice(values) for name, values in CHOICES.items()}
    attention = {name: draw.choice(values) for name, values in ATTENTION.items()}
    attention = {name: value for name, value in attention.items() if value is not None}
    return picked | {"attention_arguments": attention}


def built(number):
    """A model of drawn arguments; None if they do not go together, in one line that says why."""
    arguments = drawn(number)
    try:
        return fill(kt.language_model(IDS, **SIZES, **arguments))
    except ValueError as error:
        pattern, attention = arguments["attention_pattern"], arguments["attention_arguments"]
        alone = arguments["position_bias"] or "soft_cap" in attention
        assert pattern is not None and alone, f"{arguments}: {error}"
        return None


def gradients(model, ids):
    import tensorflow as tf

    with tf.GradientTape() as tape:
        logits = model(ids, training=True)
        loss = keras.ops.mean(keras.ops.logsumexp(logits, axis=-1) - logits[..., 5])
    return [logits, *tape.gradient(loss, model.trainable_variables)]


def check_alike(ours, expected):
    for one, other in zip(map(array, ours), map(array, expected), strict=True):
        np.testing.assert_allclose(one, other, atol=3e-5 * max(1, abs(other).max()))


MARKS = [*[pytest.mark.slow] * 4, pytest.mark.soak, [], *[pytest.mark.soak] * 14]


@pytest.mark.parametrize(
    "number", [pytest.param(number, marks=marks) for number, marks in enumerate(MARKS)]
)
def test_a_drawn_model_is_the_same_in_every_way(number, monkeypatch, tmp_path):
    model = built(number)
    if model is None:
        return
    ids = np.random.default_rng(number).integers(1, IDS, (2, LENGTH)).astype("int32")
    expected = array(model.logits(ids))
    for length in (None, LENGTH):  # growing and static
        stepped, _ = token_by_token(model, ids, length, beams=2)
        check_alike([stepped[:, 0], stepped[:, 1]], [expected, expected])
    _, cache = model.prefill(ids[:, :4], None, 4, model.start_cache(2, 1))
    scores, _ = model.step(ids[:, 4:5], np.zeros((2, 1), "int32"), 4, cache)
    check_alike([scores[:, 0]], [expected[:, 4]])
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(array(again.logits(ids)), expected)
    if keras.backend.backend() != "tensorflow":
        return
    import tensorflow as tf

    whole = gradients(model, ids)
    check_alike(whole[:1], [expected])
    check_alike(tf.function(lambda: gradients(model, ids), jit_compile=True)(), whole)
    monkeypatch.setattr(attention, "MIN_WEIGHTS", 1)
    monkeypatch.setattr(chunked_attention, "CHUNK_ROWS", 3)
    for jit_compile in (False, True):
        check_alike(tf.function(lambda: gradients(model, ids), jit_compile=jit_compile)(), whole)
