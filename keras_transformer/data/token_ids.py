"""Token ids of many texts, one after another in one array."""

import functools
import itertools
import pathlib
import tempfile
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from keras_transformer.arguments import read_texts
from keras_transformer.files import checksum_of, file_checksum
from keras_transformer.tokenizers.control_ids import END_ID, PAD_ID, START_ID

if TYPE_CHECKING:
    import tensorflow as tf

_TEXTS_PER_TOKENIZER_CALL = 1024
_ROWS_AT_A_TIME = 2**18
LARGEST_ID = 2**31 - 1  # int32


class IdRows:
    """Rows of ids, of any lengths, one after another in one array.

    Batches take them wherever they take a ragged tensor or sequences of integers: use them for ids
    that are in such an array already. Keeps the array, which may be a file mapped into memory, and
    where each row starts.

    Args:
        values: the ids of all rows, integers (ids,); for documents of sentences, the `IdRows` of
            all sentences, or those of a prepared folder.
        lengths: length of each row, in ids or in sentences, integers (rows,).

    Attributes:
        values: what was given.
        starts: where each row starts and, as the last entry, the end, int64 (rows + 1,).
        lengths: the length of each row.

    Raises:
        ValueError: if the lengths are not integers, one is negative, or they do not add up to that
            of the values.

    Examples:
        >>> ids = IdRows(np.array([4, 5, 6]), [1, 2])
        >>> len(ids), ids.to_list()
        (2, [[4], [5, 6]])
    """

    def __init__(self, values, lengths):
        lengths = np.asarray(lengths)
        if lengths.ndim != 1 or (len(lengths) and lengths.dtype.kind not in "iu"):
            raise ValueError(
                "lengths must be integers (rows,). "
                f"Received: {lengths.dtype.name} of shape {lengths.shape}."
            )
        lengths = lengths.astype(np.int64)
        if not isinstance(values, IdRows) and not hasattr(values, "is_checked"):
            values = np.asanyarray(values) if len(values) else np.zeros(0, np.int32)
        self.values, self.starts = values, np.append(0, np.cumsum(lengths))
        if lengths.min(initial=0) < 0 or self.starts[-1] != len(values):
            raise ValueError(
                "lengths must be at least 0 and add up to the length of values. Received: "
                f"{len(lengths)} lengths, the smallest {lengths.min(initial=0)}, with a sum of "
                f"{self.starts[-1]}, and {len(values)} values."
            )

    def __len__(self):
        return len(self.starts) - 1

    @functools.cached_property
    def lengths(self) -> np.ndarray:
        return np.diff(self.starts)

    def to_list(self) -> list:
        """The rows as lists."""
        is_nested = isinstance(self.values, IdRows)
        values = self.values.to_list() if is_nested else self.values.tolist()
        return [values[start:end] for start, end in itertools.pairwise(self.starts.tolist())]

    @property
    def num_ids(self) -> int:
        """The number of ids of all rows."""
        return len(self.values)

    def take(self, rows) -> "IdRows":
        """The rows of these numbers, integers (rows,), in their order, int32."""
        rows = np.asarray(rows, np.int64)
        return self.read(self.starts[rows], self.starts[rows + 1] - self.starts[rows])

    def read(self, starts, lengths) -> "IdRows":
        """Rows that start and end anywhere in the ids of all rows one after another, int32.

        Args:
            starts: the place of the first id of each row, integers (rows,).
            lengths: the number of ids of each, or of all, integers (rows,) or ().
        """
        starts = np.asarray(starts, np.int64)
        lengths = np.broadcast_to(lengths, starts.shape)
        values = np.asarray(self.values[ranges(starts, lengths)])
        return IdRows(values.astype(np.int32, copy=False), lengths)

    def checksum(self) -> int:
        """A number that changes with any id, or with where a row starts."""
        if not isinstance(self.values, np.ndarray):
            return zlib.crc32(self.starts, self.values.checksum())
        return checksum_of([np.asarray(self.values, np.int32), self.starts])

    def padded(self, num_rows=-1, length=-1) -> np.ndarray:
        """An array, (num_rows, length), with 0 behind each row, and rows of 0 behind the last one.

        -1 stands for the number of rows, and for the longest length, at least 1.
        """
        lengths = self.lengths
        num_rows = len(lengths) if num_rows < 0 else num_rows
        length = int(lengths.max(initial=1)) if length < 0 else length
        padded = np.full((num_rows, length), PAD_ID, self.values.dtype)
        padded[: len(lengths)][np.arange(length) < lengths[:, None]] = self.values
        return padded

    def joined(self, counts, num_rows=-1, length=-1) -> np.ndarray:
        """An array, (num_rows, length), of rows that hold several of these one after another.

        Each of them is followed by the end id, and the last one by 0. -1 as in `padded`.

        Args:
            counts: how many of these each row of the array holds, integers (rows,).

        Examples:
            >>> IdRows([4, 5, 6, 7], [2, 1, 1]).joined([2, 1]).tolist()
            [[4, 5, 3, 6, 3], [7, 3, 0, 0, 0]]
        """
        starts = self.starts + np.arange(len(self.starts))  # with the ends before
        first_of_row = starts[np.cumsum([0, *counts])]
        num_rows = len(counts) if num_rows < 0 else num_rows
        length = int(np.diff(first_of_row).max(initial=1)) if length < 0 else length
        row_of = np.repeat(np.arange(len(counts)), counts)
        places = row_of * length + starts[:-1] - first_of_row[row_of]
        joined = np.full(num_rows * length, PAD_ID, np.int32)
        joined[ranges(places, self.lengths)] = self.values
        joined[places + self.lengths] = END_ID
        return joined.reshape(num_rows, length)


def parts(count, size=_ROWS_AT_A_TIME):
    """Slices of rows that are small enough to be in memory."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def ranges(starts, lengths):
    """The integers of all ranges from `starts` on, one after another."""
    before = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum()) + np.repeat(starts - before, lengths)


def tokenize(texts: Sequence[str], tokenizer) -> "tf.RaggedTensor":
    """Tokenises many texts, a few at a time and on all cores.

    Args:
        texts: strings.
        tokenizer: one of `keras_transformer.tokenizers`.

    Returns:
        The ids of each text, int32 (texts, None), without start and end.

    Examples:
        >>> from keras_transformer.tokenizers import SymbolTokenizer
        >>> tokenize(["ab", "b"], SymbolTokenizer("ab")).to_list()
        [[4, 5], [5]]
    """
    import tensorflow as tf

    from keras_transformer.tokenizers.sentencepiece import as_texts

    # AutoGraph would rewrite the tokenizer's source for nothing: it has no loops.
    tokenize_chunk = tf.autograph.experimental.do_not_convert(tokenizer.tokenize)
    chunks = (
        tf.data.Dataset.from_tensor_slices(as_texts(texts))
        .batch(_TEXTS_PER_TOKENIZER_CALL)
        .map(tokenize_chunk, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    )
    ids, lengths = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
    for chunk in chunks:
        ids.append(chunk.flat_values.numpy())
        lengths.append(chunk.row_lengths().numpy())
    return _ragged(np.concatenate(ids), np.concatenate(lengths))


def tokenize_documents(documents: Sequence[Sequence[str]], tokenizer) -> "tf.RaggedTensor":
    """Tokenises documents that are split into sentences.

    Args:
        documents: each a sequence of strings.
        tokenizer: one of `keras_transformer.tokenizers`.

    Returns:
        The ids of each sentence of each document, int32 (documents, None, None).
    """
    documents = [
        list(read_texts(document, f"documents[{row}]", (str, bytes)))
        for row, document in enumerate(documents)
    ]
    ids = tokenize([sentence for document in documents for sentence in document], tokenizer)
    return _ragged(ids, np.array([len(document) for document in documents], np.int64))


def _ragged(values, lengths):
    """Splits concatenated rows into rows of these lengths, in tokens or inner rows."""
    import tensorflow as tf

    with tf.device("CPU:0"):  # where the batches are made
        return tf.RaggedTensor.from_row_lengths(values, lengths)


def tokenizer_checksum(tokenizer) -> int:
    """A number that changes with a tokenizer."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "tokenizer")
        tokenizer.save(path)
        return file_checksum(path)


def checked_ids(ids, name: str, rank: int = 2) -> IdRows:
    """The ids of texts (rank 2), or of documents of sentences (rank 3), as int32 `IdRows`.

    Raises ValueError, with the argument's `name`, unless `ids` is `IdRows`, a ragged tensor or
    sequences of integers without padding, which 0 stands for. Rows of a prepared folder, and
    documents of such sentences, pass: they were checked when they were written.
    """
    if getattr(getattr(ids, "values", ids) if rank == 3 else ids, "is_checked", False):
        return ids
    try:
        values, *lengths = _flattened(ids, rank)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} must be {'sequences of ' * (rank - 1)}sequences of ids. Received: {error}"
        ) from None
    if values.dtype.kind not in "iu" or values.ndim != 1:
        raise ValueError(
            f"{name} must be integer ids of rank {rank}. "
            f"Received: {values.dtype.name} of rank {rank - 1 + values.ndim}."
        )
    smallest, largest = values.min(initial=1), values.max(initial=1)
    if smallest < 1 or largest > LARGEST_ID:
        raise ValueError(
            f"{name} must be at least 1, because 0 is padding, and at most {LARGEST_ID}. "
            f"Give rows without padding. Received: ids from {smallest} to {largest}."
        )
    rows = values.astype(np.int32, copy=False)
    for some in reversed(lengths):
        rows = IdRows(rows, some)
    return rows


def _flattened(ids, rank):
    """All ids in one array, and the lengths of the rows of each axis, the outermost first."""
    if isinstance(ids, IdRows):
        inner = [ids.values] if rank == 2 else _flattened(ids.values, rank - 1)
        return [np.asarray(inner[0]), ids.lengths, *inner[1:]]
    if hasattr(ids, "nested_row_lengths"):  # a ragged tensor
        if ids.ragged_rank == rank - 1:
            lengths = [some.numpy() for some in ids.nested_row_lengths()]
            return [np.asarray(ids.flat_values), *lengths]
        ids = ids.to_list()  # an inner axis is uniform
    rows = [row if hasattr(row, "__array__") else list(row) for row in ids]
    lengths = np.array([len(row) for row in rows], np.int64)
    if rank > 2:
        values, *inner = _flattened(itertools.chain.from_iterable(rows), rank - 1)
        return [values, lengths, *inner]
    full = [_integers(row) for row in rows if len(row)]
    return [np.concatenate(full) if full else np.zeros(0, np.int32), lengths]


def _integers(row):
    """A row as an array, int64 if its integers are unsigned or Python's own objects."""
    array = np.asarray(row.tolist() if getattr(row, "dtype", 0) == np.object_ else row)
    if array.dtype == bool or np.ma.isMaskedArray(row):
        kind = "a masked array" if np.ma.isMaskedArray(row) else "booleans"
        raise TypeError(f"{kind} among the ids")
    return array.astype(np.int64) if array.dtype == np.uint64 else array


def check_no_ends(ids: IdRows) -> None:
    """Raises ValueError if a text in memory holds the id of a start or an end."""
    for forbidden in (START_ID, END_ID):
        if isinstance(ids, IdRows) and (ids.values == forbidden).any():
            raise ValueError(
                f"Packed texts must not hold the ids {START_ID} and {END_ID}, which mark where a "
                f"text begins and ends. Received: ids that include {forbidden}."
            )


def segments_before(ids: np.ndarray) -> np.ndarray:
    """Numbers the texts of rows of ids, each of which has its end, from 0 in each row."""
    is_end = ids == END_ID
    return (np.cumsum(is_end, axis=1) - is_end).astype(np.int32)
