"""Trained models at work: texts in, texts or labels out, from Python or as a SavedModel.

`Translator`, `Classifier` and `Generator` answer in this process and publish themselves for
TensorFlow Serving. What is published is a module of their own, checked by a process that
imports no Python code of ours.
"""

from keras_transformer.models.functions import (
    ClassifierFunctions,
    GeneratorFunctions,
    TranslatorFunctions,
)
from keras_transformer.serving.classifier import Classifier
from keras_transformer.serving.classifier_module import ClassifierModule
from keras_transformer.serving.generator import Generator
from keras_transformer.serving.generator_module import GeneratorModule, after_control_ids
from keras_transformer.serving.precision import with_dtype
from keras_transformer.serving.publishing.export import export, validate
from keras_transformer.serving.run_folder import RunFolder
from keras_transformer.serving.settings import SamplingSettings, SearchSettings
from keras_transformer.serving.translator import Hypothesis, Translator
from keras_transformer.serving.translator_module import TranslatorModule

__all__ = [
    "Classifier",
    "ClassifierFunctions",
    "ClassifierModule",
    "Generator",
    "GeneratorFunctions",
    "GeneratorModule",
    "Hypothesis",
    "RunFolder",
    "SamplingSettings",
    "SearchSettings",
    "Translator",
    "TranslatorFunctions",
    "TranslatorModule",
    "after_control_ids",
    "export",
    "validate",
    "with_dtype",
]
