"""One table a family: which arrays of a foreign checkpoint stand in which of our variables.

The same table reads a checkpoint and writes one.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np


class ConversionError(ValueError):
    """A folder, file or model that cannot be converted, in one line."""


def same(array):
    return array


class Row(NamedTuple):
    """One variable of ours and the arrays of theirs that it holds.

    Args:
        variable: of the model.
        names: of the arrays, in their naming. Several lie one below the other in ours, along
            the first axis, in equal parts.
        transpose: whether theirs are (input, output) where ours is (output, input), or the
            other way round.
        to_ours: maps the joined array, transposed already, to ours, e.g. permutes its columns.
        to_theirs: the inverse.
        missing: what stands for an array that a checkpoint lacks, of one number; None if it must
            have the array.
    """

    variable: Any
    names: tuple[str, ...]
    transpose: bool = False
    to_ours: Callable = same
    to_theirs: Callable = same
    missing: float | None = None


def projection_rows(projection, names, **options):
    """The rows of a projection of ours, the pair of kernel and bias or None.

    Args:
        projection: as of `add_projection`.
        names: of their layers, to which ".weight" and ".bias" are added.
        **options: of `Row`, for the kernel.
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
    """Gives our variables the numbers of a checkpoint: all of them or, after an error, none.

    Args:
        rows: the table of a model.
        arrays: {name: array} of the checkpoint; others than those of the table are ignored.
        family: whose weights these are, for messages.

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
    """The numbers of our variables in the naming of a family.

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
    """The shape of each of their arrays, transposed, if together they have ours."""
    # What `to_ours` takes is told by what its inverse gives.
    joined = row.to_theirs(np.broadcast_to(np.float32(0), shape)).shape
    return (joined[0] // len(row.names), *joined[1:])
