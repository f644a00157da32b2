"""The product of many vectors and one matrix."""

import keras
from keras import ops


def project(inputs, kernel, bias=None):
    """Multiplies every vector by a kernel, as one product of two matrices.

    The same numbers as `ops.matmul`, which on TensorFlow takes a dozen small operations
    more to learn the shape, again at every step of decoding.

    Args:
        inputs: (..., input_dim).
        kernel: (output_dim, input_dim), a row for each output.
        bias: (output_dim,), or None.

    Returns:
        (..., output_dim), in the dtype of `inputs`.

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
    """The number of rows for a reshape: -1 where it is not known.

    Where it is, a length of 0 keeps its rows. ONNX can have one unknown axis only.
    """
    return -1 if inputs.shape[0] is None else inputs.shape[0]


def highest_at_least(inputs, least, axis):
    """The highest number along an axis, or `least` where all are lower or there is none."""
    if keras.backend.backend() != "torch":
        return ops.max(inputs, axis=axis, initial=least)
    # There, `initial` needs a CPU.
    if 0 in inputs.shape:
        shape = list(inputs.shape)
        del shape[axis]
        return ops.full(shape, least, dtype=inputs.dtype)
    return ops.maximum(ops.max(inputs, axis=axis), least)
