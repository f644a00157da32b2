"""Keras layers that fit into anyone's model, on every Keras backend."""

from keras_transformer.layers.additive_attention import AdditiveAttention
from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.decoder import Decoder, DecoderBlock
from keras_transformer.layers.dropout import ReproducibleDropout
from keras_transformer.layers.embedding import TokenDropout, TokenEmbedding
from keras_transformer.layers.encoder import Encoder, EncoderBlock
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.pooling import SequencePooling
from keras_transformer.layers.position_bias import ALiBi, RelativePositionBias
from keras_transformer.layers.positions import PositionEmbedding, SinusoidalEncoding
from keras_transformer.layers.relative_attention import RelativeAttention
from keras_transformer.layers.rotary_embedding import RotaryEmbedding
from keras_transformer.layers.sliced_attention import SlicedAttention
from keras_transformer.layers.sparse_attention import SparseAttention
from keras_transformer.layers.transformer_xl import TransformerXL, TransformerXLBlock

__all__ = [
    "ALiBi",
    "AdditiveAttention",
    "Decoder",
    "DecoderBlock",
    "Encoder",
    "EncoderBlock",
    "FeedForward",
    "MultiHeadAttention",
    "PositionEmbedding",
    "RelativeAttention",
    "RelativePositionBias",
    "ReproducibleDropout",
    "RotaryEmbedding",
    "SequencePooling",
    "SinusoidalEncoding",
    "SlicedAttention",
    "SparseAttention",
    "TokenDropout",
    "TokenEmbedding",
    "TransformerXL",
    "TransformerXLBlock",
]
