"""Copies a trained model to another dtype."""

import keras


def with_dtype(model, dtype):
    """Copies a functional model with its weights to another dtype.

    In "bfloat16" a model trained in float32 or mixed_bfloat16 is faster to serve and takes half
    the disk space and memory; its softmax, log-probabilities and logits stay float32.

    Args:
        model: a functional Keras model whose layers accept `dtype`.
        dtype: dtype of weights and computation, "float32" or "bfloat16".

    Returns:
        A model of the same class with the same layer names, not compiled; the original is
        unchanged.

    Raises:
        ValueError: if `dtype` is neither of these.

    Examples:
        >>> inputs = keras.Input((3,))
        >>> model = keras.Model(inputs, keras.layers.Dense(2, name="last")(inputs))
        >>> with_dtype(model, "bfloat16").get_layer("last").kernel.dtype
        'bfloat16'
    """
    if dtype not in ("float32", "bfloat16"):
        raise ValueError(f'dtype must be "float32" or "bfloat16". Received: dtype={dtype!r}.')

    def in_dtype(layer):
        is_layer = isinstance(layer, keras.layers.Layer)  # not an operation of keras.ops
        if not is_layer or isinstance(layer, keras.layers.InputLayer):
            return layer.__class__.from_config(layer.get_config())
        return layer.__class__.from_config({**layer.get_config(), "dtype": dtype})

    copy = keras.models.clone_model(model, clone_function=in_dtype)
    for target, source in zip(copy.weights, model.weights, strict=True):
        target.assign(keras.ops.cast(source, target.dtype))
    return copy
