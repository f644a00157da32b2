"""Models as functions that return functional Keras models."""

from keras_transformer.models.bert_models import (
    bert,
    bert_backbone,
    bert_classifier,
    bert_pretraining,
    bert_token_labeller,
)
from keras_transformer.models.decoder_only import language_model
from keras_transformer.models.encoder_decoder import translation
from keras_transformer.models.encoder_only import classifier
from keras_transformer.models.gpt2_model import gpt2
from keras_transformer.models.lora import add_lora, merge_lora
from keras_transformer.models.xl_model import transformer_xl

__all__ = [
    "add_lora",
    "bert",
    "bert_backbone",
    "bert_classifier",
    "bert_pretraining",
    "bert_token_labeller",
    "classifier",
    "gpt2",
    "language_model",
    "merge_lora",
    "transformer_xl",
    "translation",
]
