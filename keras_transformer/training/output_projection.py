"""The last layer of a model, if the loss can be computed together with it."""

import dataclasses

import keras

from keras_transformer.training.internals import last_call


@dataclasses.dataclass(frozen=True)
class OutputProjection:
    features_of: keras.Model  # the model up to its output projection
    layer: keras.layers.Layer  # the projection, e.g. a `TokenEmbedding`


def find_projection(model):
    """An `OutputProjection` if the last layer multiplies by a `projection_table`, else None.

    Also None if a subclass has a `call` of its own, for a layer of another dtype than what it
    multiplies, in float64, which the projected losses would round to float32, in float16, in which
    their exponentials would overflow, and with a table that is not kept in float32.
    """
    outputs = getattr(model, "outputs", None) or []
    if len(outputs) != 1:
        return None
    layer, arguments, inputs = last_call(outputs[0])
    if not hasattr(layer, "projection_table") or not arguments.get("reverse", False):
        return None
    features = inputs[0]
    if _class_with(layer, "call") is not _class_with(layer, "projection_table"):
        return None
    if layer.compute_dtype != features.dtype:
        return None
    is_float32 = keras.backend.standardize_dtype(layer.projection_table.dtype) == "float32"
    if features.dtype not in ("float32", "bfloat16") or not is_float32:
        return None
    return OutputProjection(keras.Model(model.input, features), layer)


def _class_with(layer, name):
    """The class from which a layer has an attribute."""
    return next((cls for cls in type(layer).__mro__ if name in vars(cls)), None)
