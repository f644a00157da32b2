"""Trained models in use: texts in, texts, labels or numbers out, from Python or as a SavedModel.

`Translator`, `Classifier`, `Answerer` and `Generator` answer in this process. Their `export`
publishes them for TensorFlow Serving, once a process that imports no Python code of this library
has answered from the export as they do.
"""

from keras_transformer.serving.answerer import Answer, Answerer
from keras_transformer.serving.classifier import Classifier
from keras_transformer.serving.generator import Generator
from keras_transformer.serving.languages import in_languages
from keras_transformer.serving.run_folder import RunFolder
from keras_transformer.serving.settings import SamplingSettings, SearchSettings
from keras_transformer.serving.translator import Hypothesis, Translator

__all__ = [
    "Answer",
    "Answerer",
    "Classifier",
    "Generator",
    "Hypothesis",
    "RunFolder",
    "SamplingSettings",
    "SearchSettings",
    "Translator",
    "in_languages",
]
