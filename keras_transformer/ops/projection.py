"""The product of many vectors and one matrix."""

import contextlib
import contextvars

import keras
from keras import ops

_columns = contextvars.ContextVar("columns", default=None)  # as `with_columns` got them


@contextlib.contextmanager
def with_columns(columns):
    """Within it, `project` multiplies by other variables that hold kernels the other way round.

    With few rows that is faster on most processors: oneDNN copies a kernel of (output, input) at
    every step of decoding, and TensorFlow's own product takes up to seven times as long.

    Args:
        columns: {id of a kernel: a variable, (input_dim, output_dim or more)}. What it holds beyond
            output_dim is not used.
    """
    token = _columns.set(columns)
    try:
        yield
    finally:
        _columns.reset(token)


def columns_of(kernel):
    """The variable that holds a kernel the other way round here, or None."""
    return (_columns.get() or {}).get(id(kernel))


def project(inputs, kernel, bias=None):
    """Multiplies vectors, (..., input_dim), by a kernel, (output_dim, input_dim), as one product.

    The numbers are those of `ops.matmul`, for which TensorFlow runs a dozen small operations to
    learn the shape, at every step of decoding. Adds `bias`, (output_dim,), unless it is None.

    Examples:
        >>> tuple(project(keras.ops.zeros((5, 3, 2)), keras.ops.zeros((7, 2))).shape)
        (5, 3, 7)
    """
    rows = ops.reshape(inputs, (-1, inputs.shape[-1]))
    columns = columns_of(kernel)
    if columns is None:
        columns = ops.transpose(ops.cast(kernel, inputs.dtype))
    outputs = ops.matmul(rows, ops.cast(columns, inputs.dtype))
    if columns.shape[1] != kernel.shape[0]:
        outputs = outputs[:, : kernel.shape[0]]
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
