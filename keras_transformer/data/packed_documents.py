"""Batches of documents for training a language model, several in a row."""

import keras
import numpy as np

from keras_transformer.data.batch_plans import (
    PackedPlan,
    PackedRows,
    PlannedBatchesMixin,
    RowLengths,
    check_shapes,
)
from keras_transformer.data.token_ids import IdRows, check_no_ends, checked_ids, checksum_of
from keras_transformer.files import load_arrays, save_arrays
from keras_transformer.tokenizers.control_ids import END_ID, PAD_ID


class PackedDocuments(PlannedBatchesMixin):
    """Batches of rows that hold several documents one after another, with little padding.

    Use them with a model built with `packed=True`, which reads each document on its own. Batches
    are token ids and labels, int32, both (batch, length), padded with 0: the model reads a document
    and its end, id 3, and the labels are shifted by one token. A document longer than a row is
    split into rows. Every epoch holds each document once; which documents share rows and batches is
    a pure function of seed and epoch; see `PackedPlan`.

    Args:
        ids: tokens of the documents, without start and end: a ragged tensor, as `tokenize` returns
            it, `IdRows`, or sequences of integers. Ids 0 to 3 are padding, unknown, start and end.
        length: length of a row, in tokens.
        batch_size: maximum rows in a batch.
        seed: integer that fixes the order of every epoch.
        shapes: `PackedRows`, whose `row_multiple` is the number of replicas; None for its defaults.

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
        >>> inputs.numpy().tolist(), labels.numpy().tolist()
        ([[7, 8, 9, 3, 0], [6, 3, 4, 5, 3]], [[8, 9, 3, 0, 0], [3, 0, 5, 3, 0]])
    """

    def __init__(self, ids, length, batch_size, seed=0, shapes: PackedRows | None = None):
        check_shapes(shapes, PackedRows)
        ids = checked_ids(ids, "ids")
        check_no_ends(ids)
        self._ids = ids
        self.num_documents, self.num_tokens = len(ids), len(ids.values)
        if min(length, batch_size, self.num_tokens) < 1:
            raise ValueError(
                "Expected at least one token, and a length and batch_size of at least 1. Received: "
                f"{self.num_tokens} tokens, length={length}, batch_size={batch_size}."
            )
        inputs = np.insert(ids.values, ids.starts[1:], END_ID)
        labels = np.append(inputs[1:], np.int32(PAD_ID))
        labels[inputs == END_ID] = PAD_ID  # another document follows
        self.num_labels = int((labels != PAD_ID).sum())
        whole, rest = np.divmod(ids.lengths + 1, length)
        cuts = np.cumsum(whole + (rest > 0))
        lengths = np.full(cuts[-1], length)
        lengths[cuts[rest > 0] - 1] = rest[rest > 0]
        self._read, self._next = IdRows(inputs, lengths), IdRows(labels, lengths)
        is_end = (lengths == 1) & (inputs[np.cumsum(lengths) - 1] == END_ID)  # without a label
        kept = np.flatnonzero(~is_end)
        row_multiple = (shapes or PackedRows()).row_multiple
        self._kept = kept
        plan_lengths = RowLengths([lengths[kept]], length)
        self._follow(PackedPlan(plan_lengths, batch_size, seed, row_multiple))

    def save(self, path) -> None:
        """Writes the tokens to a NumPy .npz file, atomically."""
        save_arrays(path, [("ids", self._ids.values), ("lengths", self._ids.lengths)])

    @classmethod
    def load(
        cls, path, length, batch_size, seed=0, shapes: PackedRows | None = None
    ) -> "PackedDocuments":
        """The batches of documents that `save` wrote, without tokenising them again."""
        arrays = load_arrays(path)
        ids = IdRows(arrays["ids"], arrays["lengths"])
        return cls(ids, length, batch_size, seed, shapes)

    def checksum(self) -> int:
        """A number that changes with any token of a document."""
        return checksum_of(self._ids)

    def _specs(self):
        return (keras.InputSpec(dtype="int32", shape=self._common_sizes()),) * 2

    def _batch(self, documents, shape):
        parts = self._kept[documents.values]
        sides = (side.take(parts).joined(documents.lengths) for side in (self._read, self._next))
        return tuple(side.padded(*shape) for side in sides)
