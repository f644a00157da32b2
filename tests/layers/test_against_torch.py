"""The same weights in PyTorch's own layers give the same numbers."""

import numpy as np
import pytest

from keras_transformer.layers import (
    Decoder,
    DecoderBlock,
    Encoder,
    EncoderBlock,
    MultiHeadAttention,
)
from keras_transformer.layers.normalization import RMSNormalization
from tests.reference import array, fill, normal
from tests.torch_weights import copy_attention, copy_decoder_block, copy_encoder_block, copy_norm

torch = pytest.importorskip("torch")
nn = torch.nn
pytestmark = pytest.mark.oracle
NORMS = pytest.mark.parametrize("normalize_first", [True, False], ids=["pre-norm", "post-norm"])
ACTIVATIONS = pytest.mark.parametrize("activation", ["relu", "gelu"])
# Torch marks the positions to ignore, we those to keep.
REAL = np.array([[True] * 3 + [False] * 2, [True] * 5])
SOURCE_REAL = np.array([[True] * 7, [True] * 2 + [False] * 5])
FUTURE = torch.triu(torch.ones(5, 5, dtype=torch.bool), diagonal=1)


def numbers(tensor):
    return tensor.detach().cpu().numpy()


def tensor(array):
    return torch.tensor(array, device="cpu")


@pytest.mark.parametrize("cross", [False, True])
def test_attention_and_its_weights_equal_torch(cross):
    query, source = normal(2, 5, 6), normal(2, 7, 6)
    ours = MultiHeadAttention(3)
    given, real = ((query, source), SOURCE_REAL) if cross else ((query,), REAL)
    ours(*given)
    theirs = nn.MultiheadAttention(6, 3, batch_first=True)
    copy_attention(fill(ours), theirs)
    value = tensor(given[-1])
    outputs, weights = theirs(
        tensor(query), value, value, key_padding_mask=tensor(~real), average_attn_weights=False
    )
    np.testing.assert_allclose(array(ours(*given, padding_mask=real)), numbers(outputs), atol=1e-5)
    scores = ours.attention_scores(*given, padding_mask=real)
    np.testing.assert_allclose(array(scores), numbers(weights), atol=1e-5)


def test_rms_normalisation_equals_torch():
    inputs = normal(2, 5, 6)
    ours, theirs = RMSNormalization(epsilon=1e-3), nn.RMSNorm(6, eps=1e-3)
    ours(inputs)
    theirs.weight.data = tensor(array(fill(ours).scale))
    np.testing.assert_allclose(array(ours(inputs)), numbers(theirs(tensor(inputs))), atol=1e-5)


@NORMS
@ACTIVATIONS
def test_encoder_block_equals_torch(normalize_first, activation):
    inputs = normal(2, 5, 6)
    ours = EncoderBlock(
        num_heads=3, intermediate_dim=7, activation=activation, normalize_first=normalize_first
    )
    ours(inputs)
    theirs = nn.TransformerEncoderLayer(
        6, 3, 7, 0.0, activation, batch_first=True, norm_first=normalize_first
    )
    copy_encoder_block(fill(ours), theirs)
    expected = theirs(tensor(inputs), src_key_padding_mask=tensor(~REAL))
    np.testing.assert_allclose(
        array(ours(inputs, padding_mask=REAL))[REAL], numbers(expected)[REAL], atol=1e-5
    )


@NORMS
@ACTIVATIONS
def test_decoder_block_equals_torch(normalize_first, activation):
    inputs, source = normal(2, 5, 6), normal(2, 7, 6)
    ours = DecoderBlock(
        num_heads=3, intermediate_dim=7, activation=activation, normalize_first=normalize_first
    )
    ours(inputs, source)
    theirs = nn.TransformerDecoderLayer(
        6, 3, 7, 0.0, activation, batch_first=True, norm_first=normalize_first
    )
    copy_decoder_block(fill(ours), theirs)
    expected = theirs(
        tensor(inputs),
        tensor(source),
        tgt_mask=FUTURE,
        tgt_key_padding_mask=tensor(~REAL),
        memory_key_padding_mask=tensor(~SOURCE_REAL),
    )
    computed = ours(inputs, source, padding_mask=REAL, source_padding_mask=SOURCE_REAL)
    np.testing.assert_allclose(array(computed), numbers(expected), atol=1e-5)


@NORMS
def test_encoder_and_decoder_equal_torch(normalize_first):
    inputs, source = normal(2, 5, 6), normal(2, 7, 6)
    encoder, decoder = (
        Encoder(2, num_heads=3, intermediate_dim=7, normalize_first=normalize_first),
        Decoder(3, num_heads=3, intermediate_dim=7, normalize_first=normalize_first),
    )
    decoder(inputs, encoder(source))
    theirs = nn.Transformer(6, 3, 2, 3, 7, 0.0, batch_first=True, norm_first=normalize_first)
    for ours, layer, copy in (
        (fill(encoder), theirs.encoder, copy_encoder_block),
        (fill(decoder), theirs.decoder, copy_decoder_block),
    ):
        for block, torch_block in zip(ours.blocks, layer.layers, strict=True):
            copy(block, torch_block)
        if normalize_first:
            copy_norm(ours.norm, layer.norm)
        else:
            layer.norm = None  # torch normalises twice at the end of a post-norm stack
    expected = theirs(
        tensor(source),
        tensor(inputs),
        tgt_mask=FUTURE,
        src_key_padding_mask=tensor(~SOURCE_REAL),
        memory_key_padding_mask=tensor(~SOURCE_REAL),
    )
    memory = encoder(source, padding_mask=SOURCE_REAL)
    computed = decoder(inputs, memory, source_padding_mask=SOURCE_REAL)
    np.testing.assert_allclose(array(computed), numbers(expected), atol=1e-5)
