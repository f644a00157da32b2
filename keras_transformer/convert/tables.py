"""One table per family: which arrays of a foreign checkpoint belong to which of our variables.

The same table reads a checkpoint and writes one.
"""

import importlib.util
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np


class ConversionError(ValueError):
    """Explains in one line why a folder, file or model cannot be converted."""


def require(library):
    """Raises ConversionError if a library is not installed."""
    if importlib.util.find_spec(library) is None:
        raise ConversionError(f"This format needs {library}. Install it.")


def lines_of(error):
    """The lines of an error's message, at least one."""
    return (str(error).strip() or type(error).__name__).splitlines()


def same(array):
    return array


class Row(NamedTuple):
    """One of our variables and the foreign arrays that it holds.

    Args:
        variable: variable of the model.
        names: names of the arrays in the checkpoint. Several are stacked in our variable along
            the first axis, in equal parts.
        transpose: whether theirs are (input, output) where ours is (output, input), or the
            other way round.
        to_ours: maps the joined and already transposed array to ours, e.g. permutes its columns.
        to_theirs: the inverse.
        missing: the number that fills an array that a checkpoint lacks; None if the checkpoint
            must have the array.
    """

    variable: Any
    names: tuple[str, ...]
    transpose: bool = False
    to_ours: Callable = same
    to_theirs: Callable = same
    missing: float | None = None


def projection_rows(projection, names, **options):
    """The rows of one of our projections, a pair of kernel and bias or None.

    Args:
        projection: as from `add_projection`.
        names: names of their layers, to which ".weight" and ".bias" are appended.
        **options: options of `Row` for the kernel.
    """
    kernel, bias = projection
    yield Row(kernel, tuple(f"{name}.weight" for name in names), **options)
    if bias is not None:
        yield Row(bias, tuple(f"{name}.bias" for name in names))


def norm_rows(norm, name):
    """The rows of a `keras.layers.LayerNormalization`."""
    yield Row(norm.gamma, (f"{name}.weight",))
    yield Row(norm.beta, (f"{name}.bias",))


def assign(rows: Iterable[Row], arrays: Mapping[str, Any], family: str):
    """Assigns the numbers of a checkpoint to our variables: all of them or, after an error, none.

    Args:
        rows: the table of a model.
        arrays: {name: array} of the checkpoint; arrays that are not in the table are ignored.
        family: name of the family, for messages.

    Raises:
        ConversionError: if an array is missing or has the wrong shape.
    """
    values = []
    for row in rows:
        shape = tuple(row.variable.shape)
        if row.missing is not None and row.names[0] not in arrays:
            values.append((row.variable, np.full(shape, row.missing, "float32")))
            continue
        parts = []
        for name in row.names:
            if name not in arrays:
                raise ConversionError(
                    f"The weights of {family} must include {name}. Received: {len(arrays)} arrays."
                )
            part = np.asarray(arrays[name], "float32")
            parts.append(part.T if row.transpose else part)
        theirs = _shape_of_parts(row, shape)
        for name, part in zip(row.names, parts, strict=True):
            if part.shape != theirs:
                wanted, received = (s[::-1] if row.transpose else s for s in (theirs, part.shape))
                raise ConversionError(
                    f"{name} must have the shape {wanted} in this model. Received: {received}."
                )
        values.append((row.variable, row.to_ours(np.concatenate(parts))))
    for variable, value in values:
        variable.assign(value)


def arrays_of(rows: Iterable[Row]):
    """The numbers of our variables under the names of a family.

    Args:
        rows: the table of a model.

    Returns:
        {name: float32 array}.
    """
    arrays = {}
    for row in rows:
        value = row.to_theirs(keras.ops.convert_to_numpy(row.variable).astype("float32"))
        for name, part in zip(row.names, np.split(value, len(row.names)), strict=True):
            arrays[name] = np.ascontiguousarray(part.T if row.transpose else part)
    return arrays


def _shape_of_parts(row, shape):
    """The shape of each of their arrays, transposed, so that together they have our shape."""
    # The inverse of `to_ours` returns the shape that `to_ours` accepts.
    joined = row.to_theirs(np.broadcast_to(np.float32(0), shape)).shape
    return (joined[0] // len(row.names), *joined[1:])
