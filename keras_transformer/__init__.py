"""Transformers on Keras 3 and TensorFlow, from the paper to production.

Layers, models and what trains them are imported here and run on every Keras backend. The other
rooms are imported when they are first used, as `keras_transformer.serving.Translator`. Those that
read, search and serve text need TensorFlow: `tokenizers`, `decoding`, `serving` and what in `data`
uses a tokenizer. Batches of token ids need none.
"""

import importlib

from keras_transformer.layers import (
    AdditiveAttention,
    ALiBi,
    Decoder,
    DecoderBlock,
    Encoder,
    EncoderBlock,
    FeedForward,
    MultiHeadAttention,
    PositionEmbedding,
    RelativeAttention,
    RelativePositionBias,
    ReproducibleDropout,
    RotaryEmbedding,
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
    add_lora,
    bert,
    bert_classifier,
    bert_pretraining,
    bert_question_answering,
    bert_token_labeller,
    classifier,
    gpt2,
    language_model,
    merge_lora,
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
    FunctionalModel,
    InverseSqrtWarmup,
    Model,
    Perplexity,
    PretrainingLoss,
    TokenAccuracy,
    TokenCrossentropy,
)

__version__ = "1.0.0.dev0"

ROOMS = ("convert", "data", "decoding", "figures", "serving", "tokenizers")

__all__ = [
    "ALiBi",
    "Adam",
    "AdditiveAttention",
    "Decoder",
    "DecoderBlock",
    "Encoder",
    "EncoderBlock",
    "FeedForward",
    "FunctionalModel",
    "InverseSqrtWarmup",
    "Model",
    "MultiHeadAttention",
    "Perplexity",
    "PositionEmbedding",
    "PretrainingLoss",
    "RelativeAttention",
    "RelativePositionBias",
    "ReproducibleDropout",
    "RotaryEmbedding",
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
    "add_lora",
    "bert",
    "bert_classifier",
    "bert_pretraining",
    "bert_question_answering",
    "bert_token_labeller",
    "causal_mask",
    "classifier",
    "combine_masks",
    "gpt2",
    "language_model",
    "local_mask",
    "merge_lora",
    "padding_mask",
    "transformer_xl",
    "translation",
    "valid_length_mask",
]


def __getattr__(name):
    if name in ROOMS:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return [*globals(), *ROOMS]
