"""The arrays of a checkpoint, known by name, shape and dtype before any is read."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.convert.tables import (
    BUFFERS,
    ConversionError,
    check_dtype,
    check_shape,
    first_of,
)


class Entry(NamedTuple):
    """An array of a checkpoint.

    Args:
        shape: a tuple.
        dtype: name of the dtype, e.g. "float32".
        read: returns the array.
    """

    shape: tuple[int, ...]
    dtype: str
    read: Any


class Weights(Mapping):
    """The arrays of a checkpoint, {name: array}; each is read when it is asked for.

    Args:
        entries: {name: `Entry`}.

    Examples:
        >>> import numpy as np
        >>> weights = Weights.of({"bert.a": np.zeros((2, 3))}).renamed(lambda name: name[5:])
        >>> weights.shape("a"), float(weights["a"].sum())
        ((2, 3), 0.0)
    """

    def __init__(self, entries):
        self._entries = entries

    @classmethod
    def of(cls, arrays):
        """The `Weights` of arrays in memory, {name: array}; also of tensors and lists."""
        arrays = {
            name: array if hasattr(getattr(array, "dtype", None), "name") else np.asarray(array)
            for name, array in arrays.items()
        }
        return cls({
            name: Entry(array.shape, array.dtype.name, lambda array=array: array)
            for name, array in arrays.items()
        })  # fmt: skip

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
        """These arrays and others.

        Raises:
            ConversionError: if both have an array of one name.
        """
        if twice := sorted(self._entries.keys() & other._entries.keys()):
            raise ConversionError(f"Each array must be there once. Received: {twice[0]} twice.")
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
                raise ConversionError(
                    f"Each array must be there once. Received: {new_name(name)} twice, with and "
                    "without a prefix or under its older name."
                )
            entries[new_name(name)] = entry
        return Weights(entries)

    def matching(self, pattern):
        """The names in which a compiled regular expression finds something."""
        return [name for name in self if pattern.search(name)]

    def without(self, pattern):
        """The arrays of all other names than those of `matching`."""
        found = set(self.matching(pattern))
        return Weights({name: each for name, each in self._entries.items() if name not in found})

    def check(self, shapes, family):
        """Compares a config with the checkpoint, before a model is built that may be too large.

        Args:
            shapes: {name: shape}, of the table of each vocabulary and of some array of the last
                block. A tuple of names stands for the first one that is there.
            family: name of the family, for messages.

        Raises:
            ConversionError: if an array is missing, has another shape, or a dtype other than those
                of floating-point numbers.
        """
        for names, shape in shapes.items():
            name = first_of((names,) if isinstance(names, str) else names, self, family)
            check_shape(name, shape, self.shape(name))
        for name, entry in self._entries.items():
            if not BUFFERS.search(name):
                check_dtype(name, entry.dtype)
