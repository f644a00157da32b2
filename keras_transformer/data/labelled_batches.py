"""Batches of texts with labels."""

import functools

import keras
import numpy as np

from keras_transformer.arguments import check_integer
from keras_transformer.data.batch_plans import (
    FewShapes,
    LengthPlan,
    PlannedBatchesMixin,
    TextLengths,
    check_shapes,
)
from keras_transformer.data.token_ids import IdRows, checked_ids, parts
from keras_transformer.files import checksum_of

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
        ids: tokens of the texts: a ragged tensor, as `tokenize` returns it, `IdRows`,
            a column of a prepared folder, or sequences of integers, without padding.
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
        plan_folder: path of a folder for what the order of the batches is read from, about 8 bytes
            per text; processes that name the same one share it. None keeps it in memory.

    Attributes:
        names: names of the labels, in the order of their columns; empty for numbers.
        multi_label: whether any text has several labels, or none.
        mean_label: the mean of each column of `labels`, float32 (labels,).
        num_texts: texts in an epoch.
        num_tokens: tokens in an epoch, without padding.
        steps_per_epoch: batches in an epoch, the same for every epoch.
        shapes: rows and length of each batch, (steps, 2); -1 for sizes that depend on the texts of
            the batch.
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
        plan_folder=None,
    ):
        check_shapes(shapes, FewShapes)
        check_integer("tokens_per_batch", tokens_per_batch)
        ids = checked_ids(ids, "ids")
        if max_length is not None:
            check_integer("max_length", max_length)
        labels = np.asarray(labels, np.float32)
        columns = len(names) or (max(1, labels.shape[1]) if labels.ndim == 2 else 1)
        if labels.shape != (len(ids), columns) or not _are_allowed(labels, bool(len(names))):
            raise ValueError(
                "labels must be 0 or 1, with a row for each text and a column for each name; or, "
                "without names, columns of finite numbers. "
                f"Received: shape={labels.shape} for {len(ids)} texts, {len(names)} names."
            )
        if not len(labels):
            raise ValueError("ids must hold at least one text. Received: none.")
        self._ids, self._labels, self._prepare = ids, labels, prepare
        self._max_length, self.names = max_length, list(names)
        longest = int(ids.lengths.max())
        most = longest if max_length is None else min(longest, max_length)
        if most > tokens_per_batch:
            raise ValueError(
                "tokens_per_batch must be at least max_length, so that any text fits into a "
                f"batch. Received: tokens_per_batch={tokens_per_batch}, a text of {most} tokens."
            )
        self.num_texts = len(ids)
        self.num_tokens = sum(
            int(np.minimum(ids.lengths[some], most).sum(dtype=np.int64)) for some in parts(len(ids))
        )
        step = 1 if shapes else _LENGTH_STEP
        read = functools.partial(_lengths_of, ids, most, step, tokens_per_batch)
        texts = TextLengths(len(ids), read, tokens_per_batch)
        kept = plan_folder, lambda: {"ids": ids.checksum(), "max_length": most, "step": step}
        self._follow(LengthPlan(texts, tokens_per_batch, seed, shapes, *kept))
        self._has_weights = bool(shapes)

    @property
    def multi_label(self) -> bool:
        each = (self._labels[some].sum(axis=1) for some in parts(len(self._labels)))
        return bool(self.names) and any((count != 1).any() for count in each)

    @property
    def mean_label(self) -> np.ndarray:
        return self._labels.mean(axis=0, dtype=np.float64).astype(np.float32)

    def epoch(self, replicas: int = 1):
        """Each text once, those of similar lengths together: for validation."""
        return self._as_data(self._plan.batch, self.steps_per_epoch, replicas)

    def checksum(self) -> int:
        """A number that changes with any token, label or label name."""
        ids = self._ids if hasattr(self._ids, "is_checked") else self._cut(self._ids)
        return checksum_of(["\0".join(self.names).encode(), b"%d" % ids.checksum(), self._labels])

    def _specs(self, rows, length):
        ids = keras.InputSpec(dtype="int32", shape=(rows, length))
        labels = keras.InputSpec(dtype="float32", shape=(rows, self._labels.shape[1]))
        weights = keras.InputSpec(dtype="float32", shape=(rows,))
        return (ids, labels, weights) if self._has_weights else (ids, labels)

    def _batch(self, rows, shape):
        num_rows, length = shape
        ids = self._cut(self._ids.take(rows)).padded(num_rows, length)
        labels = np.asarray(self._labels[rows])
        if not self._has_weights:
            return ids, labels
        missing = (0, num_rows - len(rows))
        weights = np.pad(np.ones(len(rows), np.float32), missing)
        return ids, np.pad(labels, [missing, (0, 0)]), weights

    def _cut(self, ids):
        return ids if self._max_length is None else cut_middle(ids, self._max_length)


def _are_allowed(labels, have_names):
    """Whether labels are 0 or 1 or, without names, finite."""
    each = (labels[some] for some in parts(len(labels)))
    return all((np.isin(n, (0, 1)) if have_names else np.isfinite(n)).all() for n in each)


def _lengths_of(ids, most, step, tokens_per_batch, some):
    """Lengths that count as equal up to the next multiple of a step, (1, texts)."""
    # A text without tokens takes a column too.
    lengths = np.clip(ids.lengths[some].astype(np.int64), 1, most or 1)
    return np.minimum(-(-lengths // step) * step, tokens_per_batch)[None]
