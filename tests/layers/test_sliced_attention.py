"""Heads that see a slice of the vectors, beside those that see the whole."""

import keras
import numpy as np
import pytest

from keras_transformer.layers import MultiHeadAttention, TokenEmbedding
from keras_transformer.layers.sliced_attention import SlicedAttention
from keras_transformer.ops import causal_mask, valid_length_mask
from tests import reference
from tests.layer_check import check_layer
from tests.reference import array, exact, fill, normal

HEADS, DIM = 3, 5  # of every slice
INPUTS = (2, 7, HEADS * DIM)


def built(layer, inputs):
    layer(inputs)
    return fill(layer)


def head_by_head(layer, inputs, mask=None):
    """Outputs and weights, from slices of the inputs and of the layer's weights."""
    contexts, weights = [], []
    for head in range(HEADS):
        queries = keys = values = inputs[..., DIM * head : DIM * (head + 1)]
        if layer.use_projections:
            kernels = np.split(exact(layer.query_key_value), 3 * HEADS)[3 * head : 3 * head + 3]
            queries, keys, values = (values @ kernel.T for kernel in kernels)
        weights.append(reference.attention_weights(queries, keys, mask))
        contexts.append(weights[-1] @ values)
    outputs = np.concatenate(contexts, axis=-1)
    if layer.use_projections:
        outputs = outputs @ exact(layer.output_projection.kernel).T + exact(
            layer.output_projection.bias
        )
    return outputs, np.stack(weights, axis=1)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("use_projections", [False, True])
def test_every_head_equals_numpy_on_its_slice(use_projections, masked):
    inputs = normal(*INPUTS)
    layer = built(SlicedAttention(HEADS, use_projections), inputs)
    real = np.array([[True] * 5 + [False] * 2, [True] * 7])
    mask = real[:, None] & np.tril(np.ones((7, 7), bool)) if masked else None
    masks = {"padding_mask": keras.ops.array(real), "attention_mask": causal_mask(7)}
    outputs, weights = head_by_head(layer, inputs, mask)
    masks = masks if masked else {}
    np.testing.assert_allclose(array(layer(inputs, **masks)), outputs, atol=1e-5)
    np.testing.assert_allclose(array(layer.attention_scores(inputs, **masks)), weights, atol=1e-5)


def test_one_head_without_projections_is_a_softmax_of_the_inputs_with_themselves():
    inputs = normal(*INPUTS)
    powers = np.exp(inputs @ inputs.swapaxes(1, 2) / np.sqrt(HEADS * DIM))
    expected = powers / powers.sum(axis=-1, keepdims=True) @ inputs
    layer = SlicedAttention(1, use_projections=False)
    np.testing.assert_allclose(array(layer(inputs)), expected, atol=1e-5)
    assert not layer.weights, "nothing is learned"


def test_a_narrow_head_sees_its_slice_and_a_wide_one_everything():
    inputs = normal(*INPUTS)
    changed = inputs.copy()
    changed[:, 2, DIM : 2 * DIM] += 1.0  # the slice of the second head
    wide = MultiHeadAttention(HEADS, key_dim=HEADS * DIM)
    differences = {}
    for layer in (SlicedAttention(HEADS), SlicedAttention(HEADS, use_projections=False), wide):
        built(layer, inputs)
        before, after = (array(layer.attention_scores(x)) for x in (inputs, changed))
        differences[layer] = np.abs(before - after).max(axis=(0, 2, 3)) > 1e-3
    narrow, plain, whole = differences.values()
    assert narrow.tolist() == plain.tolist() == [False, True, False], "heads whose scores change"
    assert whole.tolist() == [True, True, True], "heads whose scores change"


def test_wide_heads_equal_numpy_and_keep_the_whole_width():
    inputs = normal(*INPUTS)
    layer = built(MultiHeadAttention(HEADS, key_dim=HEADS * DIM), inputs)
    outputs, weights = reference.multi_head_attention(layer, inputs)
    np.testing.assert_allclose(array(layer(inputs)), outputs, atol=2e-5)
    np.testing.assert_allclose(array(layer.attention_scores(inputs)), weights, atol=1e-5)


def test_weights_are_as_many_as_the_table_of_the_docstring_says():
    width = HEADS * DIM
    kernels = {
        SlicedAttention(HEADS): 3 * width * width / HEADS,
        MultiHeadAttention(HEADS, use_bias=False): 3 * width * width,
        MultiHeadAttention(HEADS, key_dim=width, use_bias=False): 3 * width * width * HEADS,
    }
    for layer, expected in kernels.items():
        layer(normal(*INPUTS))
        assert np.prod(layer.weights[0].shape) == expected, layer.name


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "bfloat16"])
def test_a_row_with_nothing_to_attend_to_gives_zeros(dtype):
    layer = SlicedAttention(HEADS, use_projections=False, dtype=dtype)
    lengths = np.array([[0, 3, 1, 0, 2, 7, 7], [5, 5, 5, 5, 0, 1, 2]])
    mask = valid_length_mask(keras.ops.array(lengths), 7)
    outputs = array(layer(normal(*INPUTS), attention_mask=mask))
    assert (outputs[lengths == 0] == 0).all(), "outputs"
    assert np.abs(outputs[lengths != 0]).sum(axis=-1).all(), "outputs of other rows"


def test_the_implicit_mask_of_keras_is_respected():
    vectors = TokenEmbedding(11, 6)(np.array([[3, 5, 2, 0, 0]], "int32"))
    layer = SlicedAttention(2)
    np.testing.assert_allclose(
        array(layer(vectors))[:, :3], array(layer(array(vectors)[:, :3])), atol=1e-5
    )


@pytest.mark.parametrize("use_projections", [False, True])
def test_it_passes_every_check(use_projections, tmp_path):
    arguments = {"num_heads": HEADS, "use_projections": use_projections}
    weights = 3 if use_projections else 0
    check_layer(SlicedAttention, arguments, (normal(*INPUTS),), INPUTS, weights, tmp_path)


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"at least 1. Received: num_heads=0"):
        SlicedAttention(0)
    with pytest.raises(ValueError, match=r"divisible by num_heads.*hidden_dim=7, num_heads=2"):
        SlicedAttention(2)(normal(2, 3, 7))
