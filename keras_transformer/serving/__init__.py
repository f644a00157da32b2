"""Trained models in use: texts in, texts or labels out, from Python or as a SavedModel.

`Translator`, `Classifier` and `Generator` answer in this process; `export` publishes them for
TensorFlow Serving. An export holds a `TranslatorModule`, `ClassifierModule` or `GeneratorModule`,
and is checked by a process that imports no Python code of this library.
"""

from keras_transformer.models.copies import with_dtype
from keras_transformer.serving.classifier import Classifier
from keras_transformer.serving.classifier_module import ClassifierModule
from keras_transformer.serving.generator import Generator
from keras_transformer.serving.generator_module import AfterControlIds, GeneratorModule
from keras_transformer.serving.languages import in_languages
from keras_transformer.serving.publishing.export import export, validate
from keras_transformer.serving.run_folder import RunFolder
from keras_transformer.serving.settings import SamplingSettings, SearchSettings
from keras_transformer.serving.translator import Hypothesis, Translator
from keras_transformer.serving.translator_module import TranslatorModule

__all__ = [
    "Classifier",
    "ClassifierModule",
    "Generator",
    "GeneratorModule",
    "Hypothesis",
    "RunFolder",
    "SamplingSettings",
    "SearchSettings",
    "Translator",
    "TranslatorModule",
    "AfterControlIds",
    "export",
    "in_languages",
    "validate",
    "with_dtype",
]
