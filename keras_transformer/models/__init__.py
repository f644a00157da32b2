"""Models as functions that return functional Keras models."""

from keras_transformer.models.bert import (
    bert,
    bert_backbone,
    bert_classifier,
    bert_pretraining,
    bert_token_labeller,
)
from keras_transformer.models.classifier import classifier
from keras_transformer.models.gpt2 import gpt2
from keras_transformer.models.language_model import language_model
from keras_transformer.models.transformer_xl import transformer_xl
from keras_transformer.models.translation import translation

__all__ = [
    "bert",
    "bert_backbone",
    "bert_classifier",
    "bert_pretraining",
    "bert_token_labeller",
    "classifier",
    "gpt2",
    "language_model",
    "transformer_xl",
    "translation",
]
