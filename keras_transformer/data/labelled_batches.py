"""Batches of texts with labels."""

import keras
import numpy as np

from keras_transformer.data.batch_plans import (
    FewShapes,
    LengthPlan,
    PlannedBatchesMixin,
    RowLengths,
    check_shapes,
)
from keras_transformer.data.token_ids import IdRows, checked_ids, checksum_of
from keras_transformer.files import load_arrays, save_arrays

# Lengths count as equal up to the next multiple, so that different texts meet in every epoch.
_LENGTH_STEP = 16


def cut_middle(ids: IdRows, max_length: int) -> IdRows:
    """Drops the middle of rows longer than `max_length`, so that a quarter of the rest precedes it.

    A text states its topic at the beginning, and its author's verdict at the end.

    Source: Sun et al. 2019, section 5.3.1 (https://arxiv.org/abs/1905.05583).

    Examples:
        >>> cut_middle(IdRows(np.array([1, 2, 3, 4, 5, 6, 7, 8]), [6, 2]), max_length=4).to_list()
        [[1, 4, 5, 6], [7, 8]]
    """
    before, lengths = max_length // 4, ids.lengths
    places = np.arange(len(ids.values)) - np.repeat(ids.starts[:-1], lengths)
    after = np.repeat(lengths, lengths) - (max_length - before)
    kept = (places < before) | (places >= after)
    return IdRows(ids.values[kept], np.minimum(lengths, max_length))


def check_max_length(max_length: int) -> None:
    if max_length < 1:
        raise ValueError(
            f"max_length must be at least 1 token of a text. Received: max_length={max_length}."
        )


class LabelledBatches(PlannedBatchesMixin):
    """Batches of token ids and labels, for training a classifier or a regression.

    Batches are token ids, int32 (batch, length), padded with 0, and labels, float32 (batch,
    labels), 1 for each label that a text has, or its numbers, (batch, numbers). With `shapes` also
    sample weights, float32 (batch,), 0 for the empty rows that fill up a batch: compile with a
    loss whose reduction is "mean_with_sample_weight", and with `weighted_metrics`.

    Texts longer than `max_length` tokens lose their middle, see `cut_middle`. As in
    `TokenBatches` texts of similar lengths share a batch, and data order is a pure function
    of seed and step.

    Args:
        ids: tokens of the texts: a ragged tensor, as `tokenize` returns it, `IdRows`, or
            sequences of integers, without padding.
        labels: (texts, labels), 1 for each label that a text has and 0 elsewhere, or (texts,
            numbers), finite, as `LabelledText.matrix` returns it.
        names: names of the labels, in the order of their columns; empty for numbers.
        tokens_per_batch: maximum tokens in a batch, including padding but not what `prepare`
            adds.
        max_length: maximum tokens to read of a text, at most `tokens_per_batch`; None for all.
        seed: integer that fixes the order of every epoch.
        prepare: function from token ids, (batch, length), to the inputs of the model; None if
            the ids are the inputs.
        shapes: None for the least padding, in any shape; `FewShapes` for a step that is compiled
            once for each.

    Attributes:
        names: names of the labels, in the order of their columns; empty for numbers.
        multi_label: whether any text has several labels, or none.
        mean_label: the mean of each column of `labels`, float32 (labels,).
        num_texts: texts in an epoch.
        num_tokens: tokens in an epoch, without padding.
        steps_per_epoch: batches in an epoch, the same for every epoch.
        shapes: rows and length of each batch, the length twice, (steps, 3); -1 for sizes that
            depend on the texts of the batch.
        padding: share of padding in the batches of an epoch.

    Raises:
        ValueError: if the labels do not fit the texts or the names, an id is below 1,
            `max_length` is below 1, a text, or `row_multiple` times the longest text, exceeds
            `tokens_per_batch`, or `shapes` is anything else.

    Examples:
        >>> batches = LabelledBatches([[4, 5], [6]], [[0, 1], [1, 0]], ["bad", "good"])
        >>> ids, labels = next(iter(batches.epoch()))
        >>> tuple(ids.shape), sorted(labels.numpy().tolist())
        ((2, 2), [[0.0, 1.0], [1.0, 0.0]])
    """

    def __init__(
        self,
        ids,
        labels,
        names,
        tokens_per_batch=8192,
        max_length=None,
        seed=0,
        prepare=None,
        shapes=None,
    ):
        check_shapes(shapes, FewShapes)
        ids = checked_ids(ids, "ids")
        if max_length is not None:
            check_max_length(max_length)
            ids = cut_middle(ids, max_length)
        labels = np.asarray(labels, np.float32)
        columns = len(names) or (max(1, labels.shape[1]) if labels.ndim == 2 else 1)
        fits = labels.shape == (len(ids), columns)
        if not fits or not (np.isin(labels, (0, 1)) if len(names) else np.isfinite(labels)).all():
            raise ValueError(
                "labels must be 0 or 1, with a row for each text and a column for each name; or, "
                "without names, columns of finite numbers. "
                f"Received: shape={labels.shape} for {len(ids)} texts, {len(names)} names."
            )
        if not len(labels):
            raise ValueError("ids must hold at least one text. Received: none.")
        self._ids, self._labels, self._prepare = ids, labels, prepare
        self.names = list(names)
        lengths = ids.lengths
        self.num_texts, self.num_tokens = len(lengths), int(lengths.sum())
        longest = int(lengths.max(initial=0))
        if longest > tokens_per_batch:
            raise ValueError(
                "tokens_per_batch must be at least max_length, so that any text fits into a "
                f"batch. Received: tokens_per_batch={tokens_per_batch}, a text of {longest} tokens."
            )
        lengths = np.maximum(1, lengths)  # a text without tokens takes a column too
        if not shapes:
            lengths = np.minimum(-(-lengths // _LENGTH_STEP) * _LENGTH_STEP, tokens_per_batch)
        lengths = RowLengths([lengths], tokens_per_batch)
        self._follow(LengthPlan(lengths, tokens_per_batch, seed, shapes))
        self._has_weights = bool(shapes)

    @property
    def multi_label(self) -> bool:
        return bool(self.names) and bool((self._labels.sum(axis=1) != 1).any())

    @property
    def mean_label(self) -> np.ndarray:
        return self._labels.mean(axis=0, dtype=np.float64).astype(np.float32)

    def epoch(self):
        """Each text once, those of similar lengths together: for validation."""
        return self._as_data(self._plan.batch, self.steps_per_epoch)

    def save(self, path) -> None:
        """Writes the tokenised texts to a NumPy .npz file, atomically."""
        ids, names = self._ids, np.array(self.names)
        arrays = {"ids": ids.values, "lengths": ids.lengths, "labels": self._labels, "names": names}
        save_arrays(path, arrays.items())

    @classmethod
    def load(
        cls, path, tokens_per_batch=8192, seed=0, prepare=None, shapes=None
    ) -> "LabelledBatches":
        """The batches of texts that `save` wrote, without tokenising them again."""
        kept = load_arrays(path)
        ids, names = IdRows(kept["ids"], kept["lengths"]), kept["names"].tolist()
        return cls(ids, kept["labels"], names, tokens_per_batch, None, seed, prepare, shapes)

    def checksum(self) -> int:
        """A number that changes with any token, label or label name."""
        return checksum_of("\0".join(self.names).encode(), self._ids, self._labels)

    def _specs(self):
        rows, length, _ = self._common_sizes()
        ids = keras.InputSpec(dtype="int32", shape=(rows, length))
        labels = keras.InputSpec(dtype="float32", shape=(rows, self._labels.shape[1]))
        weights = keras.InputSpec(dtype="float32", shape=(rows,))
        return (ids, labels, weights) if self._has_weights else (ids, labels)

    def _batch(self, rows, shape):
        num_rows, length, _ = shape
        ids, labels = self._ids.take(rows).padded(num_rows, length), self._labels[rows]
        if not self._has_weights:
            return ids, labels
        missing = (0, num_rows - len(rows))
        weights = np.pad(np.ones(len(rows), np.float32), missing)
        return ids, np.pad(labels, [missing, (0, 0)]), weights
