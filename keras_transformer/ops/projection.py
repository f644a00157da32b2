"""The product of many vectors and one matrix."""

import keras
from keras import ops


def project(inputs, kernel, bias=None):
    """Multiplies vectors, (..., input_dim), by a kernel, (output_dim, input_dim), as one product.

    The numbers are those of `ops.matmul`, for which TensorFlow runs a dozen small operations to
    learn the shape, at every step of decoding. Adds `bias`, (output_dim,), unless it is None.

    Examples:
        >>> tuple(project(keras.ops.zeros((5, 3, 2)), keras.ops.zeros((7, 2))).shape)
        (5, 3, 7)
    """
    rows = ops.reshape(inputs, (-1, inputs.shape[-1]))
    outputs = ops.matmul(rows, ops.transpose(ops.cast(kernel, inputs.dtype)))
    if bias is not None:
        outputs = outputs + ops.cast(bias, inputs.dtype)
    return ops.reshape(outputs, (known_rows(inputs), *ops.shape(inputs)[1:-1], kernel.shape[0]))


def known_rows(inputs):
    """The number of rows for a reshape: -1 if it is not known.

    If it is known, a length of 0 keeps its rows. ONNX allows one unknown axis only.
    """
    return -1 if inputs.shape[0] is None else inputs.shape[0]


def highest_at_least(inputs, least, axis):
    """The highest number along an axis, but at least `least`, also of none."""
    if keras.backend.backend() != "torch":
        return ops.max(inputs, axis=axis, initial=least)
    # There, `initial` needs a CPU.
    if 0 in inputs.shape:
        shape = list(inputs.shape)
        del shape[axis]
        return ops.full(shape, least, dtype=inputs.dtype)
    return ops.maximum(ops.max(inputs, axis=axis), least)
