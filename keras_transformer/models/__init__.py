"""Models as functions that return functional Keras models."""

from keras_transformer.models.translation import translation

__all__ = ["translation"]
