"""Transformers on Keras 3 and TensorFlow, from the paper to production.

Layers, models and training parts are here and run on every Keras backend. What reads,
searches and serves text is TensorFlow's and is imported by its own name:
`keras_transformer.tokenizers`, `keras_transformer.data`, `keras_transformer.decoding`,
`keras_transformer.serving`.
"""

from keras_transformer.layers import (
    AdditiveAttention,
    Decoder,
    DecoderBlock,
    Encoder,
    EncoderBlock,
    FeedForward,
    MultiHeadAttention,
    PositionEmbedding,
    RelativeAttention,
    SequencePooling,
    SinusoidalEncoding,
    SlicedAttention,
    SparseAttention,
    TokenDropout,
    TokenEmbedding,
    TransformerXL,
    TransformerXLBlock,
)
from keras_transformer.models import (
    bert,
    bert_classifier,
    bert_pretraining,
    bert_token_labeller,
    classifier,
    gpt2,
    language_model,
    transformer_xl,
    translation,
)
from keras_transformer.ops import (
    causal_mask,
    combine_masks,
    local_mask,
    padding_mask,
    valid_length_mask,
)
from keras_transformer.training import (
    Adam,
    InverseSqrtWarmup,
    Model,
    Perplexity,
    PretrainingLoss,
    TokenAccuracy,
    TokenCrossentropy,
)

__version__ = "0.1.0"

__all__ = [
    "Adam",
    "AdditiveAttention",
    "Decoder",
    "DecoderBlock",
    "Encoder",
    "EncoderBlock",
    "FeedForward",
    "InverseSqrtWarmup",
    "Model",
    "MultiHeadAttention",
    "Perplexity",
    "PositionEmbedding",
    "PretrainingLoss",
    "RelativeAttention",
    "SequencePooling",
    "SinusoidalEncoding",
    "SlicedAttention",
    "SparseAttention",
    "TokenAccuracy",
    "TokenCrossentropy",
    "TokenDropout",
    "TokenEmbedding",
    "TransformerXL",
    "TransformerXLBlock",
    "bert",
    "bert_classifier",
    "bert_pretraining",
    "bert_token_labeller",
    "causal_mask",
    "classifier",
    "combine_masks",
    "gpt2",
    "language_model",
    "local_mask",
    "padding_mask",
    "transformer_xl",
    "translation",
    "valid_length_mask",
]
