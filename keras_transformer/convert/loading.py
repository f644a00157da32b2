"""Loads a folder with another library's model, of any family."""

import dataclasses
import importlib
from typing import Any

from keras_transformer.convert.folder import ModelFolder
from keras_transformer.convert.settings import HARMLESS
from keras_transformer.convert.tables import ConversionError

# The module that reads each `model_type` in config.json; it has `read(folder) -> Converted`.
# A config.json with a `class_name` is a KerasHub preset.
FAMILIES = {
    "bert": "bert",
    "distilbert": "distilbert",
    "gpt2": "gpt2",
    "m2m_100": "m2m100",
    "marian": "marian",
    "roberta": "roberta",
}
# Settings of every family that would change its numbers at any other value.
NEUTRAL = {
    "quantization_config": (None,),
    "pruned_heads": ({}, None),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "tie_encoder_decoder": (False,),
}


@dataclasses.dataclass(frozen=True)
class Converted:
    """A released model, converted to ours.

    Args:
        command: the command of `train/` whose runs hold such models: "translation",
            "language_model", "classification", or "pretraining" for a backbone.
        model: the Keras model with its weights; for BERT, the backbone with the folder's heads.
        tokenizer: one of `tokenizers`.
        target_tokenizer: the tokenizer of translations; None if it is `tokenizer`.
        settings: `SearchSettings`, `SamplingSettings`, or None.
        labels: the names of a classifier's labels.
        config: the settings of the command that describe the model, e.g. its dimensions.
    """

    command: str
    model: Any
    tokenizer: Any
    target_tokenizer: Any = None
    settings: Any = None
    labels: tuple = ()
    config: dict = dataclasses.field(default_factory=dict)


def read(path):
    """Reads a released model of any family.

    Args:
        path: path of a folder with config.json, *.safetensors (or pytorch_model.bin if torch is
            installed) and the tokenizer's files; of a KerasHub preset; or of an OpenNMT-tf run.

    Returns:
        `Converted`: model, tokenizer and settings.

    Raises:
        ConversionError: a ValueError, if the folder, one of its files, its family or one of its
            settings is not supported.
    """
    from keras_transformer.convert import opennmt
    from keras_transformer.convert.generation import KNOWN

    if opennmt.is_run(path):
        return opennmt.read(path)
    folder = ModelFolder(path)
    family = folder.settings.given("model_type")
    is_preset = family is None and folder.settings.has("class_name")
    if family not in [*FAMILIES] and not is_preset:
        raise ConversionError(
            f"{path} must hold a model of type {', '.join(sorted(FAMILIES))}, or a preset of "
            f"KerasHub. Received: model_type={family!r:.80}."
        )
    name = "keras_hub_presets" if is_preset else FAMILIES[family]
    folder.settings.without_effect(HARMLESS | KNOWN)
    try:
        for setting, neutral in NEUTRAL.items():
            folder.settings.one_of(setting, *neutral)
        found = importlib.import_module(f"keras_transformer.convert.{name}").read(folder)
        folder.settings.warn_of_unread()
        return found
    except ConversionError as error:
        # Those of weights and tokenizers do not know the folder.
        message = str(error) if str(path) in str(error) else f"{path}: {error}"
        raise ConversionError(message) from None


def load(path, source_language=None, target_language=None):
    """Loads a released model that works on texts.

    Args:
        path: path of a folder, as for `read`.
        source_language: for M2M100 and NLLB, the language to translate from, e.g. "en" or
            "eng_Latn"; None for the one that the folder names.
        target_language: likewise the language to translate to.

    Returns:
        A `serving.Translator`, `serving.Generator` or `serving.Classifier`.

    Raises:
        ConversionError: as for `read`; or if the model alone does nothing with texts, such as
            the backbone of BERT.
        ValueError: if a multilingual model does not know a language, or no language is given.
    """
    from keras_transformer import serving

    converted = read(path)
    given = converted.model, converted.tokenizer, converted.target_tokenizer
    if converted.command == "translation":
        languages = {"source_language": source_language, "target_language": target_language}
        tokenizers = serving.in_languages(*given[1:], converted.config, **languages)
        return serving.Translator(converted.model, *tokenizers, settings=converted.settings)
    if converted.command == "language_model":
        return serving.Generator(*given[:2], settings=converted.settings)
    if converted.command == "classification":
        return serving.Classifier(*given[:2], converted.labels, converted.config["max_length"])
    raise ConversionError(
        f"{path} holds a model that alone does nothing with texts. Call `read`, which returns the "
        "model and its tokenizer."
    )
