"""Batches of documents for training a language model, several in a row."""

import functools
import pathlib

import keras
import numpy as np

from keras_transformer.arguments import check_integer
from keras_transformer.data.batch_plans import (
    PackedPlan,
    PackedRows,
    PlannedBatchesMixin,
    TextLengths,
    check_shapes,
)
from keras_transformer.data.plan_arrays import plan_arrays
from keras_transformer.data.token_ids import (
    check_no_ends,
    checked_ids,
    parts,
    ranges,
    segments_before,
)
from keras_transformer.tokenizers.control_ids import END_ID, PAD_ID


class PackedDocuments(PlannedBatchesMixin):
    """Batches of rows that hold several documents one after another, with little padding.

    Batches are `({"token_ids": ..., "segment_ids": ...}, labels)`, int32, each (batch, length),
    padded with 0: the model reads a document and its end, id 3, and the labels are shifted by one
    token. Segments number the documents of a row, so that models such as `language_model` read each
    on its own; the padding after the last is a segment, too. A document longer than a row is
    split into rows. Every epoch holds each document once; which documents share rows and batches is
    a pure function of seed and epoch; see `PackedPlan`.

    Args:
        ids: tokens of the documents, without start and end: a ragged tensor, as `tokenize` returns
            it, `IdRows`, a column of a prepared folder, or sequences of integers. Ids 0 to 3 are
            padding, unknown, start and end.
        length: length of a row, in tokens.
        batch_size: maximum rows in a batch.
        seed: integer that fixes the order of every epoch.
        shapes: `PackedRows`, whose `row_multiple` is the number of replicas; None for its defaults.
        plan_folder: path of a folder for what the order of the batches is read from, about 32 bytes
            per document; processes that name the same one share it. None keeps it in memory.

    Attributes:
        num_documents: number of documents.
        num_tokens: tokens in the documents, without ends.
        num_labels: labels in an epoch, ends included: all tokens except each document's first.
        steps_per_epoch: batches in an epoch, the same for every epoch.
        shapes: rows and length of each batch, (steps, 2).
        padding: share of padding in the batches of an epoch.

    Raises:
        ValueError: if an id is below 1 or means start or end, if there is no token, a size is
            below 1, `shapes` is anything else, or `batch_size` is below its `row_multiple`.

    Examples:
        >>> documents = PackedDocuments([[4, 5], [6], [7, 8, 9]], length=5, batch_size=2)
        >>> inputs, labels = next(iter(documents.epoch()))
        >>> inputs["token_ids"].numpy().tolist(), labels.numpy().tolist()
        ([[4, 5, 3, 6, 3], [7, 8, 9, 3, 0]], [[5, 3, 0, 3, 0], [8, 9, 3, 0, 0]])
        >>> inputs["segment_ids"].numpy().tolist()
        [[0, 0, 0, 1, 1], [0, 0, 0, 0, 1]]
    """

    def __init__(
        self, ids, length, batch_size, seed=0, shapes: PackedRows | None = None, plan_folder=None
    ):
        check_shapes(shapes, PackedRows)
        check_integer("length", length)
        check_integer("batch_size", batch_size)
        ids = checked_ids(ids, "ids")
        check_no_ends(ids)
        self._ids = ids
        self.num_documents, self.num_tokens = len(ids), ids.num_ids
        if not self.num_tokens:
            raise ValueError("Expected documents of at least one token together. Received: none.")
        self.num_labels = self.num_tokens  # each is one, but the first; so is the end

        def known_by():
            return {"ids": ids.checksum(), "length": length}

        folders = [plan_folder and pathlib.Path(plan_folder, name) for name in ("pieces", "rows")]
        _, pieces = plan_arrays(lambda new: _split(ids, length, new), folders[0], known_by)
        self._starts, self._sizes = pieces["starts"], pieces["sizes"]
        read = functools.partial(_lengths_of, self._sizes, length)
        texts = TextLengths(len(self._sizes), read, length)
        row_multiple = (shapes or PackedRows()).row_multiple
        plan = PackedPlan(texts, length, batch_size, seed, row_multiple, folders[1], known_by)
        self._follow(plan)

    def checksum(self) -> int:
        """A number that changes with any token of a document."""
        return self._ids.checksum()

    def _specs(self, rows, length):
        spec = keras.InputSpec(dtype="int32", shape=(rows, length))
        return {"token_ids": spec, "segment_ids": spec}, spec

    def _batch(self, pieces, shape):
        rows, length = shape
        ids = self._ids.read(self._starts[pieces.values], self._sizes[pieces.values])
        # A piece that fills a row is there with the token after it, and an end that is not read.
        ids = ids.joined(pieces.lengths, rows, length + 2)
        token_ids, labels = ids[:, :length], ids[:, 1 : length + 1]
        labels = np.where(token_ids == END_ID, PAD_ID, labels)  # another document follows
        return {"token_ids": token_ids, "segment_ids": segments_before(token_ids)}, labels


def _split(ids, length, new):
    """Writes where pieces of documents that fit into rows start, and what they read, in tokens.

    A piece reads one token more than a row holds: the label of its last one.
    """
    count = sum(
        int((-(-ids.lengths[some].astype(np.int64) // length)).sum()) for some in parts(len(ids))
    )
    starts, sizes = new("starts", (count,), np.int64), new("sizes", (count,), np.int32)
    piece = start = 0
    for some in parts(len(ids)):
        each = ids.lengths[some].astype(np.int64)
        number = -(-each // length)  # of pieces
        before = length * ranges(np.zeros_like(number), number)
        first = np.cumsum(each) - each + start
        end = piece + len(before)
        starts[piece:end] = np.repeat(first, number) + before
        sizes[piece:end] = np.minimum(np.repeat(each, number) - before, length + 1)
        piece, start = end, start + int(each.sum())
    return {}


def _lengths_of(sizes, length, some):
    """Lengths of pieces in a row, with their ends, (1, pieces)."""
    return np.minimum(sizes[some].astype(np.int64) + 1, length)[None]
