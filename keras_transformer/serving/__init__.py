"""SavedModels that TensorFlow Serving answers from: text in, text out."""

from keras_transformer.serving.export import export, validate
from keras_transformer.serving.modules import Translator
from keras_transformer.serving.precision import with_dtype
from keras_transformer.serving.settings import ModelFunctions, SearchSettings

__all__ = [
    "ModelFunctions",
    "SearchSettings",
    "Translator",
    "export",
    "validate",
    "with_dtype",
]
