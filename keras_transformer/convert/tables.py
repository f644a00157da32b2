"""The arrays of a checkpoint, and the table that says to which of our variables each belongs.

A family has one table, which reads checkpoints and writes them. Most of it is a dictionary from
the paths of our layers to the names of theirs, which `rows_of` turns into rows.
"""

import contextlib
import importlib.util
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np

from keras_transformer.tokenizers.control_ids import END_ID, PAD_ID, START_ID

FLOATS = ("float32", "float16", "bfloat16", "float64")
# What checkpoints hold besides weights: positions and masks of GPT-2, BERT, Llama and others.
BUFFERS = re.compile(r"(^|\.)(position_ids|attn\.(masked_)?bias|rotary_emb\.inv_freq)$")
NUM_NAMED = 20  # of the arrays that a warning is about
# How the names of arrays end in Hugging Face's checkpoints, by the names of our variables.
ENDINGS = {
    "kernel": ".weight",
    "bias": ".bias",
    "gamma": ".weight",
    "beta": ".bias",
    "embeddings": ".weight",
}


class ConversionError(ValueError):
    """Explains in one line why a folder, file or model cannot be converted.

    Of a line of more than 2,000 characters, which quotes a file, the middle is left out.
    """

    def __str__(self):
        said = super().__str__()
        return said if len(said) <= 2000 else f"{said[:1500]} … {said[-400:]}"


class ArrayError(ConversionError):
    """Explains what is wrong with an array, without the file that holds it."""


@contextlib.contextmanager
def name_in_array_errors(file):
    """Puts the file of the arrays before the message of an `ArrayError`."""
    try:
        yield
    except ArrayError as error:
        raise ConversionError(f"{file}: {error}") from None


def require(library):
    """Raises ConversionError if a library is not installed."""
    if importlib.util.find_spec(library) is None:
        raise ConversionError(f"This format needs {library}. Install it.")


class Entry(NamedTuple):
    """An array of a checkpoint.

    Args:
        shape: a tuple.
        dtype: name of the dtype, e.g. "float32".
        read: returns the array.
    """

    shape: tuple[int, ...]
    dtype: str
    read: Callable


class Weights(Mapping):
    """The arrays of a checkpoint, {name: array}; each is read when it is asked for.

    Args:
        entries: {name: `Entry`}.

    Examples:
        >>> weights = Weights.of({"bert.a": np.zeros((2, 3))}).renamed(lambda name: name[5:])
        >>> weights.shape("a"), float(weights["a"].sum())
        ((2, 3), 0.0)
    """

    def __init__(self, entries):
        self._entries = entries

    @classmethod
    def of(cls, arrays):
        """The `Weights` of arrays in memory, {name: array}; also of tensors and lists."""
        entries = {}
        for name, array in arrays.items():
            if not hasattr(getattr(array, "dtype", None), "name"):
                array = np.asarray(array)
            entries[name] = Entry(array.shape, array.dtype.name, lambda array=array: array)
        return cls(entries)

    def __getitem__(self, name):
        entry = self._entries[name]
        check_dtype(name, entry.dtype)
        return entry.read()

    def __contains__(self, name):
        return name in self._entries

    def __iter__(self):
        return iter(self._entries)

    def __len__(self):
        return len(self._entries)

    def shape(self, name):
        return self._entries[name].shape

    def rows(self, name):
        """The first dimension of an array, 0 if it has none."""
        return next(iter(self.shape(name)), 0)

    def joined(self, other):
        """These arrays together with those of another checkpoint.

        Raises:
            ConversionError: if both have an array of one name.
        """
        if twice := sorted(self._entries.keys() & other._entries.keys()):
            raise ArrayError(f"Each array must occur once. Received: {twice[0]} twice.")
        return Weights({**self._entries, **other._entries})

    def renamed(self, new_name):
        """The same arrays under other names.

        Args:
            new_name: function from a name to the new one.

        Raises:
            ConversionError: if two arrays would have the same name.
        """
        entries = {}
        for name, entry in self._entries.items():
            if new_name(name) in entries:
                raise ArrayError(
                    f"Each array must occur once. Received: {new_name(name)} twice, with and "
                    "without a prefix or under its older name."
                )
            entries[new_name(name)] = entry
        return Weights(entries)

    def without(self, pattern):
        """The arrays in whose names a compiled regular expression finds nothing."""
        return Weights({n: entry for n, entry in self._entries.items() if not pattern.search(n)})

    def check(self, shapes, family):
        """Compares a config with the checkpoint, before a model is built that may be too large.

        Args:
            shapes: {name: shape}, of the table of each vocabulary and of some array of the last
                block. A tuple of names stands for the first one that is there.
            family: name of the family, for messages.

        Raises:
            ConversionError: if an array is missing or has another shape.
        """
        for names, shape in shapes.items():
            name = first_of((names,) if isinstance(names, str) else names, self, family)
            check_shape(name, shape, self.shape(name))


def unchanged(array):
    return array


class Row(NamedTuple):
    """One of our variables and the foreign arrays that it holds.

    Args:
        variable: variable of the model.
        names: names of the arrays in the checkpoint. Several are stacked in our variable along
            the first axis.
        transpose: whether theirs are (input, output) where ours is (output, input), or the
            other way round.
        shape: the shape of each array, if it has the same numbers in more axes than ours, such as
            an axis of heads.
        to_ours: maps the joined and already transposed array to ours, e.g. permutes its columns.
        to_theirs: the inverse.
        missing: the number that fills the arrays if a checkpoint has none of them; None if it must
            have them.
        twins: further names under which a checkpoint may hold the array of a row with one name.
            The first one that the checkpoint has is read; any other must be equal to it.
        sizes: that of each array along the axis of stacking; equal ones if None.
    """

    variable: Any
    names: tuple[str, ...]
    transpose: bool = False
    shape: tuple[int, ...] | None = None
    to_ours: Callable = unchanged
    to_theirs: Callable = unchanged
    missing: float | None = None
    twins: tuple[str, ...] = ()
    sizes: tuple[int, ...] | None = None


def rows_of(owner, names, prefix="", endings=ENDINGS, transpose=False):
    """The rows of the layers of a model or of a block.

    Args:
        owner: the model or block.
        names: {path: names} with the path of each layer in `owner`, such as
            "self_attention.query", and the name of their layer. Several names, separated by spaces,
            are stacked in one layer of ours. A layer that `owner` lacks has no rows.
        prefix: what all of their names begin with.
        endings: {name of a variable: how the name of its array ends}.
        transpose: whether their kernels are the transpose of ours.
    """
    for path, theirs in names.items():
        layer = layer_at(owner, path)
        for attribute, ending in endings.items():
            variable = getattr(layer, attribute, None)
            if variable is not None:
                yield Row(
                    variable,
                    tuple(f"{prefix}{name}{ending}" for name in theirs.split()),
                    transpose=transpose and attribute == "kernel",
                    sizes=getattr(layer, "widths", None) if " " in theirs else None,
                )


def layer_at(owner, path):
    """The layer at a path such as "encoder.norm", None if there is none."""
    for name in path.split("."):
        owner = getattr(owner, name, None)
    return owner


class VocabularyPermutation:
    """The order of a foreign vocabulary: their id for each of our ids.

    Ours begin with pad, unknown, start and end. If their sequences start with the padding token or
    the end token, its row appears twice.

    Args:
        their_id_of: their id for each of ours, an integer array that contains all of their ids.

    Attributes:
        their_id_of: the argument.
        our_id_of: our id for each of theirs, an integer array; the first one of a row that
            appears twice.
        text_id_of: the same, but of the end token our end, even if it is our start as well.
        repeats_start: whether the row of the start token appears twice.

    Examples:
        >>> order = VocabularyPermutation([3, 0, 1, 2, 4])
        >>> order.our_id_of.tolist()
        [1, 2, 3, 0, 4]
    """

    def __init__(self, their_id_of):
        self.their_id_of = np.asarray(their_id_of)
        self.our_id_of = np.empty(max(their_id_of) + 1, int)
        self.our_id_of[self.their_id_of[::-1]] = np.arange(len(self.their_id_of))[::-1]
        self.text_id_of = self.our_id_of.copy()
        self.text_id_of[self.their_id_of[END_ID]] = END_ID
        self.repeats_start = self.their_id_of[START_ID] in self.their_id_of[[PAD_ID, END_ID]]

    def __len__(self):
        """How many ids we have."""
        return len(self.their_id_of)

    def row(self, variable, *names, **options):
        """The `Row` of a variable with one row, or one number, for each id.

        Args:
            variable: of the model.
            *names: the name of their array, then those of its twins.
            **options: further options of `Row`.
        """
        mapping = {
            "to_ours": lambda a: a[self.their_id_of],
            "to_theirs": lambda a: a[self.our_id_of],
        }
        return Row(variable, names[:1], twins=names[1:], **mapping | options)


def our_order(size, *control):
    """Their id for each of ours: the control ids, then the others in the same order."""
    return np.array([*control, *(index for index in range(size) if index not in control)])


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
        is_missing = row.missing is not None and not any(name in arrays for name in row.names)
        parts = []
        for name, shape in zip(row.names, _shapes_of_parts(row), strict=True):
            if is_missing:
                part = np.full(shape, row.missing, "float32")
            else:
                part = _array(name, row.twins, arrays, family)
                check_shape(name, row.shape or shape, part.shape)
                part = part.reshape(shape)
            parts.append(part.T if row.transpose else part)
        values.append((row.variable, row.to_ours(np.concatenate(parts))))
    for variable, value in values:
        variable.assign(value)
    unread = [name for name in arrays if name not in known and not BUFFERS.search(name)]
    if unread:
        others = f" and {len(unread) - NUM_NAMED} others" if len(unread) > NUM_NAMED else ""
        logging.getLogger(__name__).warning(
            "This model of %s has no place for these arrays, which were not read: %s%s.",
            family, ", ".join(unread[:NUM_NAMED]), others,
        )  # fmt: skip


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
        ends = len(row.names) if row.sizes is None else np.cumsum(row.sizes)[:-1]
        for name, part in zip(row.names, np.split(value, ends), strict=True):
            part = part.T if row.transpose else part
            arrays[name] = np.ascontiguousarray(part.reshape(row.shape or part.shape))
    return arrays


def first_of(names, arrays, family):
    """The first of some names that a checkpoint has.

    Raises:
        ConversionError: if it has none of them.
    """
    for name in names:
        if name in arrays:
            return name
    raise ArrayError(
        f"The weights of {family} must include {names[0]}. Received: {len(arrays)} arrays."
    )


def check_shape(name, wanted, received):
    """Raises ConversionError if an array has another shape than a model needs."""
    if tuple(received) != tuple(wanted):
        raise ArrayError(
            f"{name} must have the shape {tuple(wanted)} in this model. "
            f"Received: {tuple(received)}."
        )


def check_dtype(name, dtype):
    """Raises ConversionError if an array has another dtype than weights have."""
    if dtype not in FLOATS:
        raise ArrayError(
            f"{name} must be in {' or '.join(FLOATS)}; quantised weights are not supported. Save "
            f"the model without quantisation. Received: {dtype}."
        )


def finite_float32(name, array):
    """An array of weights in float32.

    Raises:
        ConversionError: if its dtype is none of `FLOATS`, or a number is not finite.
    """
    array = np.asarray(array)
    check_dtype(name, array.dtype.name)
    with np.errstate(over="ignore"):
        array = array.astype("float32")
    if not np.isfinite(array).all():
        raise ArrayError(
            f"{name} must have finite numbers within the range of float32. Received: "
            f"{np.count_nonzero(~np.isfinite(array))} of {array.size} that are not."
        )
    return array


def _array(name, twins, arrays, family):
    """An array in float32, equal to each twin that the checkpoint has."""
    present = [other for other in (name, *twins) if other in arrays]
    name = first_of((name, *twins), arrays, family)
    array = finite_float32(name, arrays[name])
    for twin in present[1:]:
        if not np.array_equal(array, finite_float32(twin, arrays[twin])):
            raise ArrayError(
                f"{twin} must be equal to {name}, because this model of {family} has one array for "
                "both. Received: different numbers."
            )
    return array


def _shapes_of_parts(row):
    """The shape of each of their arrays, without further axes."""
    # The inverse of `to_ours` returns the shape that `to_ours` accepts.
    joined = row.to_theirs(np.broadcast_to(np.float32(0), tuple(row.variable.shape))).shape
    sizes = row.sizes or [joined[0] // len(row.names)] * len(row.names)
    shapes = [(size, *joined[1:]) for size in sizes]
    return [shape[::-1] for shape in shapes] if row.transpose else shapes
