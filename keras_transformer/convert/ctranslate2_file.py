"""The file model.bin of CTranslate2: its variables, without CTranslate2.

It holds, in little-endian order, a version, the name and revision of a specification, variables
(name, shape, type, bytes) and, from version 3 on, aliases of variables.
"""

import math
import pathlib
import struct
from typing import NamedTuple

import ml_dtypes
import numpy as np

from keras_transformer.convert.tables import ConversionError, Entry, Weights

NEWEST = 6  # version of the file
TYPES = ("float32", "int8", "int16", "int32", "float16", "bfloat16")
OLD_TYPES = {4: "float32", 2: "int16", 1: "int8"}  # by the bytes of a number, before version 4
GLOBAL_SCALE = 1000.0  # of 16-bit weights that older versions stored without a scale
MAX_RANK = 4
MOST_USES = 4  # of all numbers; one table may serve both sides and the output


class Stored(NamedTuple):
    """A variable of the file: its shape, name of its type, and the place of its bytes."""

    shape: tuple[int, ...]
    dtype: str
    offset: int


class ModelFile:
    """A file model.bin; arrays are read when they are asked for.

    Args:
        path: of the file.

    Attributes:
        version: of the format.
        specification: name of the specification of the model.
        revision: of the specification.
        weights: the `Weights` of its arrays; those of 8 and 16 bits are multiplied out.
        scalars: {name: number, or text of a variable of characters}.

    Raises:
        ConversionError: if the file is damaged, or of another version or another quantisation.
    """

    def __init__(self, path):
        self.path = pathlib.Path(path)
        try:
            with open(self.path, "rb") as self._file:
                self._size = self.path.stat().st_size
                stored, aliases = self._read()
        except OSError as error:
            raise ConversionError(f"{self.path} cannot be read: {error}") from None
        count = sum(math.prod(variable.shape) for variable in stored.values())
        for alias, name in aliases:
            # CTranslate2 gives the scale of a variable an alias, too.
            for ending in ("", "_scale", "_zero"):
                if name + ending in stored:
                    stored.setdefault(alias + ending, stored[name + ending])
        if sum(math.prod(variable.shape) for variable in stored.values()) > MOST_USES * count:
            self._damaged(f"its aliases repeat {count} numbers more than {MOST_USES} times")
        self.scalars, entries = {}, {}
        for name, variable in stored.items():
            if name.endswith("_scale") and name.removesuffix("_scale") in stored:
                continue
            if not variable.shape:
                self.scalars[name] = self._load(variable).item()
            elif variable.dtype == "int8" and len(variable.shape) == 1:
                self.scalars[name] = self._load(variable).tobytes().decode("utf-8", "replace")
            else:
                entries[name] = self._entry(name, variable, stored)
        self.weights = Weights(entries)

    def _read(self):
        """The variables, {name: `Stored`}, and the aliases, a list of pairs of names."""
        self.version = self._number("I")
        if not 2 <= self.version <= NEWEST:
            raise ConversionError(
                f"{self.path} must be of version 2 to {NEWEST}. Received: {self.version}."
            )
        self.specification, self.revision = self._text(), self._number("I")
        stored = {}
        for _ in range(self._number("I")):
            name = self._text()
            if name in stored:
                self._damaged(f"{name} occurs twice")
            stored[name] = self._variable(name)
        aliases = []
        if self.version >= 3:
            aliases = [(self._text(), self._text()) for _ in range(self._number("I"))]
        if self._file.tell() != self._size:
            self._damaged(f"it should end after {self._file.tell()} bytes")
        return stored, aliases

    def _variable(self, name):
        rank = self._number("B")
        if rank > MAX_RANK:
            self._damaged(f"{name} has {rank} axes")
        shape = tuple(self._number("I") for _ in range(rank))
        kind, count = self._number("B"), self._number("I")
        dtype = OLD_TYPES.get(kind)
        if self.version >= 4:
            dtype = TYPES[kind] if kind < len(TYPES) else None
        if dtype is None:
            self._damaged(f"{name} is of an unknown type, {kind}")
        size = math.prod(shape) * np.dtype(_numpy_type(dtype)).itemsize
        if size != count * (1 if self.version >= 4 else kind) or 0 in shape:
            self._damaged(f"{name} has the shape {shape} and {count} numbers or bytes")
        offset = self._file.tell()
        if size > self._size - offset:
            self._damaged(f"{name} is cut off")
        self._file.seek(size, 1)
        return Stored(shape, dtype, offset)

    def _entry(self, name, variable, stored):
        """The `Entry` of an array, multiplied out if it has a scale."""
        scale = stored.get(f"{name}_scale")
        is_awq = f"{name}_zero" in stored
        if is_awq or variable.dtype == "int32":
            raise ConversionError(
                f"{self.path}: {name} must have floating-point numbers, or whole ones of 8 or 16 "
                f"bits. Received: {'4 bits (AWQ)' if is_awq else 'int32'}."
            )
        if scale is None and variable.dtype != "int16":
            if variable.dtype == "int8":
                self._damaged(f"{name} has 8 bits and no {name}_scale")
            return Entry(variable.shape, variable.dtype, lambda: self._load(variable))
        if scale is not None and scale.shape not in ((), variable.shape[:1]):
            self._damaged(f"{name}_scale has the shape {scale.shape}")

        def multiplied_out():
            divisor = np.float32(GLOBAL_SCALE)
            if scale is not None:
                divisor = self._load(scale).astype("float32")
                divisor = divisor.reshape([-1] + [1] * (len(variable.shape) - 1))
            with np.errstate(all="ignore"):  # what is not finite is refused where it is read
                return self._load(variable).astype("float32") / divisor

        return Entry(variable.shape, "float32", multiplied_out)

    def _load(self, variable):
        """The numbers of a variable."""
        with open(self.path, "rb") as file:
            file.seek(variable.offset)
            dtype, count = _numpy_type(variable.dtype), math.prod(variable.shape)
            numbers = np.fromfile(file, dtype, count)
        if numbers.size < count:
            self._damaged("it has been cut since it was opened")
        return numbers.reshape(variable.shape)

    def _number(self, kind):
        size = struct.calcsize(f"<{kind}")
        content = self._file.read(size)
        if len(content) < size:
            self._damaged(f"it ends after {self._size} bytes")
        return struct.unpack(f"<{kind}", content)[0]

    def _text(self):
        """A string, which ends with a zero."""
        length = self._number("H")
        content = self._file.read(length)
        if len(content) < length or content[-1:] != b"\0":
            self._damaged(f"a name before byte {self._file.tell()} does not end")
        try:
            return content[:-1].decode()
        except UnicodeDecodeError:
            self._damaged(f"a name before byte {self._file.tell()} is not UTF-8")

    def _damaged(self, reason):
        raise ConversionError(f"{self.path} is damaged: {reason}.")


def _numpy_type(name):
    if name == "bfloat16":
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name).newbyteorder("<")
