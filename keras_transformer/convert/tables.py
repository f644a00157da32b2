"""One table per family: which arrays of a foreign checkpoint belong to which of our variables.

The same table reads a checkpoint and writes one.
"""

import importlib.util
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np

FLOATS = ("float32", "float16", "bfloat16", "float64")
# What checkpoints hold besides weights: positions and masks of GPT-2, BERT and their relatives.
BUFFERS = re.compile(r"(^|\.)(position_ids|attn\.(masked_)?bias)$")
NUM_NAMED = 20  # of the arrays that a warning is about


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
        twins: further names under which a checkpoint may hold the array of a row with one name.
            The first of all that is there is read; any other must be equal.
    """

    variable: Any
    names: tuple[str, ...]
    transpose: bool = False
    to_ours: Callable = same
    to_theirs: Callable = same
    missing: float | None = None
    twins: tuple[str, ...] = ()


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
        arrays: {name: array} of the checkpoint. A warning names those that are not in the table,
            except positions and masks.
        family: name of the family, for messages.

    Raises:
        ConversionError: if an array is missing, has the wrong shape, has numbers that are not
            finite in float32 or of another dtype than `FLOATS`, or differs from its twin.
    """
    values, known = [], set()
    for row in rows:
        known.update(row.names, row.twins)
        shape = tuple(row.variable.shape)
        if row.missing is not None and row.names[0] not in arrays:
            values.append((row.variable, np.full(shape, row.missing, "float32")))
            continue
        parts = []
        theirs = _shape_of_parts(row, shape)
        for name in row.names:
            part = _array(name, row.twins, arrays, family)
            check_shape(name, theirs[::-1] if row.transpose else theirs, part.shape)
            parts.append(part.T if row.transpose else part)
        values.append((row.variable, row.to_ours(np.concatenate(parts))))
    for variable, value in values:
        variable.assign(value)
    left = [name for name in arrays if name not in known and not BUFFERS.search(name)]
    if left:
        others = f" and {len(left) - NUM_NAMED} others" if len(left) > NUM_NAMED else ""
        logging.getLogger(__name__).warning(
            "This model of %s has no place for these arrays, which were not read: %s%s.",
            family, ", ".join(left[:NUM_NAMED]), others,
        )  # fmt: skip


def first_of(names, arrays, family):
    """The first of some names that a checkpoint has.

    Raises:
        ConversionError: if it has none of them.
    """
    for name in names:
        if name in arrays:
            return name
    raise ConversionError(
        f"The weights of {family} must include {names[0]}. Received: {len(arrays)} arrays."
    )


def check_shape(name, wanted, received):
    """Raises ConversionError if an array has another shape than a model needs."""
    if tuple(received) != tuple(wanted):
        raise ConversionError(
            f"{name} must have the shape {tuple(wanted)} in this model. "
            f"Received: {tuple(received)}."
        )


def check_dtype(name, dtype):
    """Raises ConversionError if an array has another dtype than weights have."""
    if dtype not in FLOATS:
        raise ConversionError(
            f"{name} must be in {' or '.join(FLOATS)}; quantised weights are not supported. Save "
            f"the model without quantisation. Received: {dtype}."
        )


def in_float32(name, array):
    """An array of weights in float32.

    Raises:
        ConversionError: if its dtype is none of `FLOATS`, or a number is not finite.
    """
    array = np.asarray(array)
    check_dtype(name, array.dtype.name)
    with np.errstate(over="ignore"):
        array = array.astype("float32")
    if not np.isfinite(array).all():
        raise ConversionError(
            f"{name} must have finite numbers within the range of float32. Received: "
            f"{np.count_nonzero(~np.isfinite(array))} of {array.size} that are not."
        )
    return array


def _array(name, twins, arrays, family):
    """An array in float32, once it is equal to all of its twins that are there."""
    there = [other for other in (name, *twins) if other in arrays]
    name = first_of((name, *twins), arrays, family)
    array = in_float32(name, arrays[name])
    for twin in there[1:]:
        if not np.array_equal(array, in_float32(twin, arrays[twin])):
            raise ConversionError(
                f"{twin} must be equal to {name}, because this model of {family} has one array for "
                "both. Received: different numbers."
            )
    return array


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
