"""The one-call check of every public layer."""

import numpy as np
import pytest

from keras_transformer import layers
from tests.layer_check import check_layer
from tests.reference import normal

HEADS = {"num_heads": 2, "intermediate_dim": 7}
# Projections of one input are one kernel: two weights each for query-key-value and output in
# self-attention; for query, key-value and output in attention to a source.
SELF_ATTENTION, CROSS_ATTENTION, FEED_FORWARD, NORM = 4, 6, 4, 2
ENCODER_BLOCK = SELF_ATTENTION + FEED_FORWARD + 2 * NORM
DECODER_BLOCK = SELF_ATTENTION + CROSS_ATTENTION + FEED_FORWARD + 3 * NORM
CASES = {
    "self-attention": ("MultiHeadAttention", {"num_heads": 2}, ["target"], SELF_ATTENTION),
    "cross-attention": (
        "MultiHeadAttention",
        {"num_heads": 5, "key_dim": 3},
        ["target", "source"],
        CROSS_ATTENTION,
    ),
    "attention without bias": (
        "MultiHeadAttention",
        {"num_heads": 3, "use_bias": False, "kernel_initializer": "he_normal"},
        ["target"],
        2,
    ),
    "self-attention of today": (
        "MultiHeadAttention",
        {
            "num_heads": 6,
            "key_dim": 4,
            "value_dim": 3,
            "num_key_value_heads": 2,
            "rotary": {"rotary_dim": 2, "scaling": {"type": "linear", "factor": 2.0}},
            "query_key_norm": 1e-6,
            "soft_cap": 2.0,
        },
        ["target"],
        SELF_ATTENTION + 2,
    ),
    "feed-forward, gated": (
        "FeedForward",
        {"intermediate_dim": 7, "gated": True, "activation": "silu"},
        ["target"],
        FEED_FORWARD,
    ),
    "feed-forward": ("FeedForward", {"intermediate_dim": 7}, ["target"], FEED_FORWARD),
    "feed-forward, gelu": (
        "FeedForward",
        {"intermediate_dim": 7, "activation": "gelu"},
        ["target"],
        FEED_FORWARD,
    ),
    "encoder block": ("EncoderBlock", HEADS, ["target"], ENCODER_BLOCK),
    "encoder block, post-norm": (
        "EncoderBlock",
        {**HEADS, "normalize_first": False, "activation": "silu"},
        ["target"],
        ENCODER_BLOCK,
    ),
    "encoder": ("Encoder", {**HEADS, "num_layers": 3}, ["target"], 3 * ENCODER_BLOCK + NORM),
    "encoder, post-norm": (
        "Encoder",
        {**HEADS, "num_layers": 2, "normalize_first": False},
        ["target"],
        2 * ENCODER_BLOCK,
    ),
    "decoder block": ("DecoderBlock", HEADS, ["target", "source"], DECODER_BLOCK),
    "decoder": (
        "Decoder",
        {**HEADS, "num_layers": 2},
        ["target", "source"],
        2 * DECODER_BLOCK + NORM,
    ),
    "decoder, post-norm": (
        "Decoder",
        {**HEADS, "num_layers": 2, "normalize_first": False},
        ["target", "source"],
        2 * DECODER_BLOCK,
    ),
    "sinusoidal encoding": ("SinusoidalEncoding", {"max_wavelength": 100}, ["target"], 0),
    "position embedding": ("PositionEmbedding", {"max_sequence_length": 11}, ["target"], 1),
}


@pytest.mark.parametrize("case", CASES)
def test_layer_passes_every_check(case, tmp_path):
    name, arguments, inputs, num_weights = CASES[case]
    given = {"target": normal(2, 5, 6), "source": normal(2, 3, 4)}
    tensors = tuple(given[name] for name in inputs)
    layer_class = getattr(layers, name)
    check_layer(layer_class, arguments, tensors, (2, 5, 6), num_weights, tmp_path)


@pytest.mark.parametrize("scale", [True, False])
def test_token_embedding_passes_every_check(scale, tmp_path):
    arguments = {"vocabulary_size": 11, "hidden_dim": 6, "scale": scale}
    ids = np.array([[7, 3, 0], [10, 1, 2]], "int32")
    check_layer(layers.TokenEmbedding, arguments, (ids,), (2, 3, 6), 1, tmp_path)
