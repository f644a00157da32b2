"""Which class a model has that version 0.2, or an earlier one, saved as a plain `Model`."""

import keras

from keras_transformer.models.bert_models import (
    BertClassifierModel,
    BertModel,
    BertPretrainingModel,
    BertTokenLabellerModel,
)
from keras_transformer.models.decoder_only import LanguageModel
from keras_transformer.models.encoder_decoder import TranslationModel
from keras_transformer.models.encoder_only import ClassifierModel
from keras_transformer.models.xl_model import TransformerXLModel


def class_of_config(config):
    """The class of a model that version 0.2, or an earlier one, saved as a plain `Model`.

    Args:
        config: of a functional model.

    Returns:
        A subclass of `TextModel`; None for a model of another kind, also one that adds layers to
        one of ours.
    """
    names = {layer["name"] for layer in config["layers"]}
    outputs = {part for part in keras.tree.flatten(config["output_layers"]) if part in names}
    with_tokens = BertTokenLabellerModel
    if {"pooler", "pooling"} & names:
        with_tokens = BertClassifierModel
    # The layers that give the outputs, and others that tell the models apart.
    kinds = [
        ({"target_embedding"}, {"encoder", "decoder"}, TranslationModel),
        ({"output_projection"}, {"encoder", "decoder"}, TranslationModel),
        ({"output_bias"}, {"encoder", "decoder"}, TranslationModel),
        ({"embedding"}, {"recurrence"}, TransformerXLModel),
        ({"embedding"}, {"positions", "decoder"}, LanguageModel),
        ({"encoder", "pooler"}, {"token_embedding"}, BertModel),
        (
            {"masked_token_bias", "next_sentence"},
            {"token_embedding"},
            BertPretrainingModel,
        ),
        ({"head"}, {"token_embedding", "encoder"}, with_tokens),
        ({"head"}, {"embedding", "positions", "encoder"}, ClassifierModel),
    ]
    for ends, others, model_class in kinds:
        if outputs == ends and others <= names:
            return model_class
    return None
