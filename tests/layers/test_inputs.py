"""A layer is called with what it was built for, or says what it takes."""

import itertools

import keras
import numpy as np
import pytest

from keras_transformer import layers
from tests.reference import array, normal

ATTENTIONS = {
    "MultiHeadAttention": (2,),
    "AdditiveAttention": (2,),
    "RelativeAttention": (2,),
    "SlicedAttention": (2,),
    "SparseAttention": (2, "fixed", 3, 2),
}
BLOCKS = {
    "EncoderBlock": (),
    "DecoderBlock": (),
    "TransformerXLBlock": (),
    "Encoder": (2,),
    "Decoder": (2,),
    "TransformerXL": (2,),
}
BLOCK = {"num_heads": 2, "intermediate_dim": 7}
OTHERS = {"SinusoidalEncoding": (), "PositionEmbedding": (11,), "SequencePooling": ("max",)}
OF_VECTORS = {**ATTENTIONS, **BLOCKS, **OTHERS}
OF_IDS = {"TokenEmbedding": (11, 6), "TokenDropout": (0.5,)}


def made(name):
    named = BLOCK if name in BLOCKS else {}
    return getattr(layers, name)(*{**OF_VECTORS, **OF_IDS}[name], **named)


def outputs_of(layer, *inputs, **masks):
    """The first of the outputs, where a stack returns its memories too."""
    return array(keras.tree.flatten(layer(*inputs, **masks))[0])


@pytest.mark.parametrize("shape", [(2, 3, 5, 8), (5, 8), (8,), (2, 3, 5, 7, 8)])
@pytest.mark.parametrize("name", OF_VECTORS)
def test_vectors_have_three_axes(name, shape):
    message = r"must be vectors of the shape \(batch, length, dim\).*Received: \w+ of shape"
    with pytest.raises(ValueError, match=message):
        made(name)(normal(*shape))
    layer = made(name)
    layer(normal(2, 3, 8))
    with pytest.raises(ValueError, match=message):
        layer(normal(*shape))


@pytest.mark.parametrize("shape", [(5,), (2, 3, 5)])
@pytest.mark.parametrize("name", OF_IDS)
def test_ids_have_two_axes(name, shape):
    with pytest.raises(ValueError, match=r"integers of the shape \(batch, length\).*Received: "):
        made(name)(np.ones(shape, "int32"), training=True)


@pytest.mark.parametrize("shape", [(2, 0, 8), (0, 3, 8), (0, 0, 8)])
@pytest.mark.parametrize("name", [*OF_VECTORS, "FeedForward"])
def test_rows_without_tokens_keep_their_shape(name, shape):
    layer = layers.FeedForward(7) if name == "FeedForward" else made(name)
    expected = (shape[0], 8) if name == "SequencePooling" else shape
    assert outputs_of(layer, normal(*shape)).shape == expected
    assert outputs_of(layer, normal(2, 3, 8)).shape[-1] == 8, "and the layer is of use after that"


@pytest.mark.parametrize("name", [*ATTENTIONS, *BLOCKS])
def test_the_width_is_that_of_the_first_call(name):
    layer = made(name)
    layer(normal(2, 3, 8))
    with pytest.raises(ValueError, match=r"must be as wide as .*: 8 numbers.*\(2, 3, 6\)"):
        layer(normal(2, 3, 6))


def test_a_network_takes_any_axes_before_the_last():
    layer = layers.FeedForward(7)
    vectors = normal(2, 3, 5, 8)
    expected = outputs_of(layer, vectors)
    np.testing.assert_allclose(outputs_of(layer, vectors[0, 1]), expected[0, 1], atol=1e-6)
    for wrong in (normal(8), normal(3, 7)):
        with pytest.raises(ValueError, match="incompatible with the layer"):
            layer(wrong)


@pytest.mark.parametrize("name", ["DecoderBlock", "Decoder"])
def test_a_source_is_given_always_or_never(name):
    inputs, source = normal(2, 5, 8), normal(2, 3, 6)
    without, with_source = made(name), made(name)
    without(inputs)
    with_source(inputs, source)
    with pytest.raises(ValueError, match=r"built without source, and.*\(2, 3, 6\) for deco"):
        without(inputs, source)
    with pytest.raises(ValueError, match=r"built with a source.*own future.*source=None for deco"):
        with_source(inputs)
    for given in ({"source_padding_mask": np.ones((2, 3), bool)},
                  {"source_attention_mask": np.ones((2, 5, 3), bool)}):  # fmt: skip
        with pytest.raises(ValueError, match=r"Masks of a source need one.*Received: source=None"):
            without(inputs, **given)
    with pytest.raises(ValueError, match=r"source must be as wide as .*: 6 numbers per token"):
        with_source(inputs, normal(2, 3, 8))
    for layer, arguments in ((without, (inputs, source)), (with_source, (inputs,))):
        with pytest.raises(ValueError, match="The layer was built with"):
            layer.attention_scores(*arguments)


def test_attention_to_a_value_is_built_for_one():
    query, value = normal(2, 5, 8), normal(2, 3, 6)
    layer = layers.MultiHeadAttention(2)
    layer(query)
    for given in (value, query):
        with pytest.raises(ValueError, match=r"built without value.*Give it in every call.*shape"):
            layer(query, given)
    to_another = layers.MultiHeadAttention(2)
    to_another(query, value)
    with pytest.raises(ValueError, match=r"value must be as wide as .*: 6 numbers per token"):
        to_another(query)
    to_itself = layers.MultiHeadAttention(2)
    np.testing.assert_array_equal(array(to_itself(query, query)), array(to_itself(query)))


@pytest.mark.parametrize("name", ["RelativeAttention", "TransformerXLBlock"])
def test_a_memory_may_come_and_go_and_is_as_wide_as_the_inputs(name):
    layer = made(name)
    inputs = normal(2, 5, 8)
    expected = array(layer(inputs))
    assert not np.allclose(array(layer(inputs, normal(2, 3, 8))), expected)
    np.testing.assert_array_equal(array(layer(inputs)), expected)
    with pytest.raises(ValueError, match=r"memory must be as wide as .*: 8 numbers.*\(2, 3, 6\)"):
        layer(inputs, normal(2, 3, 6))
    with pytest.raises(ValueError, match=r"padding_mask must have the shape \(batch, 8\).*\(2, 5"):
        layer(inputs, normal(2, 3, 8), padding_mask=np.ones((2, 5), bool))


def test_a_stack_has_a_memory_for_each_block():
    stack = made("TransformerXL")
    inputs, memory = normal(2, 5, 8), normal(2, 3, 8)
    with pytest.raises(ValueError, match=r"one tensor for each block. Received: 1 memories for 2"):
        stack(inputs, [memory])
    with pytest.raises(ValueError, match=r"memory must be vectors.*\(2, 3\)"):
        stack(inputs, [memory, memory[..., 0]])


MASKED = [*ATTENTIONS, *BLOCKS, "SequencePooling"]
WRONG = [(2, 4), (2, 1), (2, 5, 5), (5,)]


@pytest.mark.parametrize(("name", "shape"), list(itertools.product(MASKED, WRONG)))
def test_a_padding_mask_has_a_value_for_each_token(name, shape):
    layer = made(name)
    message = r"padding_mask must have the shape \(batch, 5\), one value for each token. Received"
    with pytest.raises(ValueError, match=message):
        layer(normal(2, 5, 8), padding_mask=np.ones(shape, bool))


@pytest.mark.parametrize("name", ["SinusoidalEncoding", "PositionEmbedding"])
def test_segments_have_a_number_for_each_token(name):
    for shape in ((2, 1), (2, 4), (5,)):
        with pytest.raises(ValueError, match=r"segments must have the shape \(batch, 5\)"):
            made(name)(normal(2, 5, 8), segments=np.zeros(shape, "int32"))
