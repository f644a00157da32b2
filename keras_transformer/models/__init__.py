"""Models: functions that build them, and their classes."""

from keras_transformer.models.bert_models import (
    BertClassifierModel,
    BertModel,
    BertPretrainingModel,
    BertQuestionAnsweringModel,
    BertTokenLabellerModel,
    bert,
    bert_backbone,
    bert_classifier,
    bert_pretraining,
    bert_question_answering,
    bert_token_labeller,
)
from keras_transformer.models.copies import with_dtype
from keras_transformer.models.decoder_only import LanguageModel, language_model
from keras_transformer.models.encoder_decoder import TranslationModel, translation
from keras_transformer.models.encoder_only import ClassifierModel, classifier
from keras_transformer.models.gpt2_model import gpt2
from keras_transformer.models.lora import add_lora, merge_lora
from keras_transformer.models.text_model import TextModel
from keras_transformer.models.xl_model import TransformerXLModel, transformer_xl

__all__ = [
    "BertClassifierModel",
    "BertModel",
    "BertPretrainingModel",
    "BertQuestionAnsweringModel",
    "BertTokenLabellerModel",
    "ClassifierModel",
    "LanguageModel",
    "TextModel",
    "TransformerXLModel",
    "TranslationModel",
    "add_lora",
    "bert",
    "bert_backbone",
    "bert_classifier",
    "bert_pretraining",
    "bert_question_answering",
    "bert_token_labeller",
    "classifier",
    "gpt2",
    "language_model",
    "merge_lora",
    "transformer_xl",
    "translation",
    "with_dtype",
]
