"""The same weights in Keras's own attention layers give the same numbers."""

import itertools

import keras
import numpy as np
import pytest

from keras_transformer.layers import MultiHeadAttention
from tests.reference import array, fill, normal, pair

BATCH, TARGET, SOURCE, DIM, SOURCE_DIM = 2, 5, 7, 6, 11


def copy_weights(ours, theirs):
    """Keras keeps one kernel (dim, heads, width) for each projection, ours are (out, in)."""
    ends = list(
        itertools.accumulate(
            heads * dim for heads, dim in (ours._query_heads, ours._key_heads, ours._value_heads)
        )
    )
    if ours._self_attention:
        parts = [np.split(array(weight), ends[:-1]) for weight in pair(ours.query_key_value) if
                 weight is not None]  # fmt: skip
    else:
        parts = [
            [array(query), *np.split(array(key_value), [ends[1] - ends[0]])]
            for query, key_value in zip(pair(ours.query), pair(ours.key_value), strict=True)
            if query is not None
        ]
    outputs = [array(weight) for weight in pair(ours.output_projection) if weight is not None]
    dense = theirs._query_dense, theirs._key_dense, theirs._value_dense, theirs._output_dense
    for layer, *weights in zip(dense, *([*p, o] for p, o in zip(parts, outputs, strict=True)),
                               strict=True):  # fmt: skip
        layer.kernel.assign(weights[0].T.reshape(layer.kernel.shape))
        if len(weights) > 1:
            layer.bias.assign(weights[1].reshape(layer.bias.shape))


def drawn_case(seed):
    """Arguments of both constructors, inputs and arguments of a call."""
    rng = np.random.default_rng(seed)
    arguments = {
        "num_heads": int(rng.integers(1, 5)),
        "key_dim": int(rng.integers(1, 6)),
        "value_dim": [None, 3][rng.integers(2)],
        "use_bias": bool(rng.integers(2)),
    }
    inputs = [normal(BATCH, TARGET, DIM)]
    source = TARGET
    if rng.integers(3):
        source = SOURCE
        inputs.append(normal(BATCH, SOURCE, SOURCE_DIM))
        if rng.integers(2):
            inputs.append(normal(BATCH, SOURCE, SOURCE_DIM))
    shapes = {
        "query_mask": (BATCH, TARGET),
        "value_mask": (BATCH, source),
        "key_mask": (BATCH, source),
        "attention_mask": [(BATCH, TARGET, source), (TARGET, source)][rng.integers(2)],
    }
    call = {name: rng.random(shape) < 0.8 for name, shape in shapes.items() if rng.integers(2)}
    if rng.integers(2):
        call = {name: mask.astype("int32") for name, mask in call.items()}
    if len(inputs) < 3:
        call.pop("key_mask", None)  # Keras warns of it
    call["use_causal_mask"] = bool(rng.integers(2))
    return arguments, inputs, call


@pytest.mark.parametrize("seed", range(24))
def test_attention_equals_keras(seed):
    arguments, inputs, call = drawn_case(seed)
    ours, theirs = MultiHeadAttention(**arguments), keras.layers.MultiHeadAttention(**arguments)
    to_itself = len(inputs) == 1
    theirs_inputs = inputs * 2 if to_itself else inputs
    ours(*inputs)
    theirs(*theirs_inputs)
    copy_weights(fill(ours), theirs)
    expected, weights = theirs(*theirs_inputs, **call, return_attention_scores=True)
    computed, scores = ours(*inputs, **call, return_attention_scores=True)
    # Of a row that may attend to nothing, Keras takes a mean, and we nothing.
    some = array(scores).sum(axis=(1, 3)) > 0.5
    assert some.any(), "the case compares something"
    np.testing.assert_allclose(array(computed)[some], array(expected)[some], atol=1e-5)
    every = np.swapaxes(array(scores), 1, 2), np.swapaxes(array(weights), 1, 2)
    np.testing.assert_allclose(every[0][some], every[1][some], atol=1e-5)
    assert (every[0][~some] == 0).all(), "zeros where nothing is allowed"
    np.testing.assert_allclose(array(ours(*inputs, **call)), array(computed), atol=1e-5)


def test_the_positional_arguments_are_those_of_keras():
    inputs = normal(2, 5, 6), normal(2, 7, 6)
    ours, theirs = (
        each(3, 4, 5, 0.2, False) for each in (MultiHeadAttention, keras.layers.MultiHeadAttention)
    )
    ours(*inputs), theirs(*inputs)
    names = "num_heads", "key_dim", "value_dim", "dropout", "use_bias"
    assert [ours.get_config()[name] for name in names] == [
        theirs.get_config()[name] for name in names
    ]
    assert ours.count_params() == theirs.count_params()


@pytest.mark.parametrize("inputs", [1, 2])
def test_scores_are_part_of_a_functional_model(inputs):
    shapes = [(None, 6), (7, 6)][:inputs]
    symbols = [keras.Input(shape) for shape in shapes]
    outputs, scores = MultiHeadAttention(2)(*symbols, return_attention_scores=True)
    assert tuple(scores.shape) == (None, 2, None, [None, 7][inputs - 1])
    model = keras.Model(symbols, [outputs, scores])
    vectors = [normal(2, 5, 6), normal(2, 7, 6)][:inputs]
    _, computed = model.predict(vectors, verbose=0)
    np.testing.assert_allclose(computed.sum(axis=-1), 1, atol=1e-5)


@pytest.mark.parametrize("key_value_heads", [1, 2, 6])
@pytest.mark.parametrize("masked", [False, True])
def test_shared_heads_equal_keras(key_value_heads, masked):
    inputs = normal(2, 5, 6), normal(2, 7, 6)
    ours = MultiHeadAttention(6, key_dim=4, num_key_value_heads=key_value_heads)
    theirs = keras.layers.GroupQueryAttention(4, 6, key_value_heads)
    ours(*inputs), theirs(*inputs)
    copy_weights(fill(ours), theirs)
    call = {"attention_mask": np.random.random((2, 5, 7)) < 0.8} if masked else {}
    expected = theirs(*inputs, **call)
    np.testing.assert_allclose(array(ours(*inputs, **call)), array(expected), atol=1e-5)


def test_the_implicit_masks_of_value_and_key_are_used():
    query = normal(2, 5, 6)
    value, key = (
        keras.layers.Embedding(9, SOURCE_DIM, mask_zero=True)(np.array(ids))
        for ids in ([[3, 4, 0, 5], [2, 2, 2, 2]], [[3, 4, 5, 0], [1, 0, 2, 2]])
    )
    layer = MultiHeadAttention(2)
    scores = array(layer(query, value, key, return_attention_scores=True)[1])
    allowed = np.array([[True, True, False, False], [True, False, True, True]])
    assert ((scores > 0) == allowed[:, None, None]).all()


def test_masks_of_another_shape_are_refused():
    layer = MultiHeadAttention(2)
    inputs = normal(2, 5, 6), normal(2, 7, 6)
    for name in ("query_mask", "value_mask", "key_mask"):
        with pytest.raises(ValueError, match=rf"{name} must have the shape|padding_mask must"):
            layer(*inputs, **{name: np.ones((2, 3), bool)})
