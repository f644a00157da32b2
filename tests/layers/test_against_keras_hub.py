"""The same weights in KerasHub's own layers give the same numbers."""

import keras
import numpy as np
import pytest

from keras_transformer.layers import DecoderBlock, EncoderBlock, SinusoidalEncoding
from tests.reference import array, fill, normal, pair

hub = pytest.importorskip("keras_hub").layers
NORMS = pytest.mark.parametrize("normalize_first", [True, False], ids=["pre-norm", "post-norm"])
REAL = np.array([[True] * 3 + [False] * 2, [True] * 5])
SOURCE_REAL = np.array([[True] * 7, [True] * 2 + [False] * 5])


def copy_attention(ours, theirs):
    """KerasHub keeps one kernel (dim, heads, key_dim) for each projection, ours are (out, in)."""
    if hasattr(ours, "query_key_value"):
        parts = [np.split(array(weight), 3) for weight in pair(ours.query_key_value)]
    else:
        parts = [
            [array(query), *np.split(array(key_value), 2)]
            for query, key_value in zip(pair(ours.query), pair(ours.key_value), strict=True)
        ]
    dense = (theirs.query_dense, theirs.key_dense, theirs.value_dense)
    for layer, kernel, bias in zip(dense, *parts, strict=True):
        layer.kernel.assign(kernel.T.reshape(layer.kernel.shape))
        layer.bias.assign(bias.reshape(layer.bias.shape))
    kernel, bias = (array(weight) for weight in pair(ours.output_projection))
    theirs.output_dense.kernel.assign(kernel.T.reshape(theirs.output_dense.kernel.shape))
    theirs.output_dense.bias.assign(bias)


def copy_block(ours, theirs):
    copy_attention(ours.self_attention, theirs._self_attention_layer)
    theirs._self_attention_layer_norm.set_weights(ours.around_self_attention.norm.get_weights())
    for dense, projection in (
        (theirs._feedforward_intermediate_dense, ours.feed_forward.widen),
        (theirs._feedforward_output_dense, ours.feed_forward.narrow),
    ):
        dense.set_weights([array(projection.kernel).T, array(projection.bias)])
    theirs._feedforward_layer_norm.set_weights(ours.around_feed_forward.norm.get_weights())


@NORMS
def test_encoder_block_equals_keras_hub(normalize_first):
    inputs, real = normal(2, 5, 6), keras.ops.array(REAL)
    ours = EncoderBlock(num_heads=3, intermediate_dim=7, normalize_first=normalize_first)
    theirs = hub.TransformerEncoder(7, 3, normalize_first=normalize_first)
    ours(inputs), theirs(inputs)
    copy_block(fill(ours), theirs)
    expected = theirs(inputs, padding_mask=real)
    np.testing.assert_allclose(array(ours(inputs, padding_mask=real)), array(expected), atol=1e-5)


@NORMS
def test_decoder_block_equals_keras_hub(normalize_first):
    inputs, source = normal(2, 5, 6), normal(2, 7, 11)
    ours = DecoderBlock(num_heads=3, intermediate_dim=7, normalize_first=normalize_first)
    theirs = hub.TransformerDecoder(7, 3, normalize_first=normalize_first)
    ours(inputs, source), theirs(inputs, source)
    copy_block(fill(ours), theirs)
    copy_attention(ours.cross_attention, theirs._cross_attention_layer)
    theirs._cross_attention_layer_norm.set_weights(ours.around_cross_attention.norm.get_weights())
    real, source_real = keras.ops.array(REAL), keras.ops.array(SOURCE_REAL)
    expected = theirs(inputs, source, decoder_padding_mask=real, encoder_padding_mask=source_real)
    computed = ours(inputs, source, padding_mask=real, source_padding_mask=source_real)
    np.testing.assert_allclose(array(computed), array(expected), atol=1e-5)


@pytest.mark.parametrize("start", [0, 5])
def test_sinusoidal_encoding_equals_keras_hub(start):
    inputs = normal(2, 7, 6)
    pattern = array(hub.SinePositionEncoding()(inputs, start_index=start))
    encoded = array(SinusoidalEncoding()(inputs, start=start))
    np.testing.assert_allclose(encoded, inputs + pattern, atol=1e-5)
