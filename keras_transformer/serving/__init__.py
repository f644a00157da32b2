"""SavedModels that TensorFlow Serving answers from: text in, text or labels out."""

from keras_transformer.serving.classifier import Classifier, ClassifierFunctions
from keras_transformer.serving.generator import (
    Generator,
    GeneratorFunctions,
    SamplingSettings,
    after_control_ids,
)
from keras_transformer.serving.precision import with_dtype
from keras_transformer.serving.publishing.export import export, validate
from keras_transformer.serving.settings import ModelFunctions, SearchSettings
from keras_transformer.serving.translator import Translator

__all__ = [
    "Classifier",
    "ClassifierFunctions",
    "Generator",
    "GeneratorFunctions",
    "ModelFunctions",
    "SamplingSettings",
    "SearchSettings",
    "Translator",
    "after_control_ids",
    "export",
    "validate",
    "with_dtype",
]
