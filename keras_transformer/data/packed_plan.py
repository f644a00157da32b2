"""Which texts share a row, one after another, so that hardly any of it is padding."""

import numpy as np
import tensorflow as tf

from keras_transformer.data.length_plan import epochs_from, shuffled

_AT_A_TIME, _KEPT_OPEN = 4096, 256  # texts; rows that are searched for room for the next ones


class PackedPlan:
    """Packs texts, or pairs of texts, into rows of one length, and rows into batches of one shape.

    The longest are placed first, each in the row that it fills best. Every epoch holds each text
    once, in the same number of rows; which texts of equal lengths share a row, and which rows share
    a batch, are a pure function of seed and epoch. Batches are filled up with empty rows.

    Args:
        texts: numbers of the texts, integers (texts,).
        lengths: lengths of all texts, in tokens, by number: one array for each side.
        row_length: length of each side of a row, in tokens; no text is longer.
        max_rows: maximum rows in a batch.
        seed: integer that fixes the order of every epoch.
        row_multiple: the rows of each batch are a multiple of it.

    Attributes:
        steps_per_epoch: batches in an epoch, the same for every epoch.
        shapes: rows and the length of each side of each batch, integers (steps, 1 + sides).
        padding: share of padding in all batches, of all sides together, in [0, 1).

    Raises:
        ValueError: if not even `row_multiple` rows fit into a batch.

    Examples:
        >>> plan = PackedPlan(np.arange(4), [np.array([2, 5, 3, 5])], row_length=5, max_rows=3)
        >>> [sorted(row) for row in next(iter(plan.in_order()))[0].to_list()]
        [[1], [3], [0, 2]]
    """

    def __init__(self, texts, lengths, row_length, max_rows, seed=0, row_multiple=1):
        if max_rows < row_multiple:
            raise ValueError(
                "A batch must hold at least row_multiple rows. Use larger batches or shorter rows."
                f" Received: room for {max_rows} rows of {row_length} tokens, "
                f"row_multiple={row_multiple}."
            )
        lengths = np.stack(lengths)[:, texts]
        order = np.lexsort(lengths)
        # Before sorting: in a row of equal lengths one side would be full and the other not.
        row_of = _best_fit(lengths, row_length)[order]
        self._texts, lengths = texts[order], lengths[:, order]
        self._group_of = np.cumsum(np.diff(lengths, prepend=lengths[:, :1]).any(axis=0))
        num_rows = row_of.max() + 1
        # Equal batches: the last one is hardly shorter than the others.
        self.steps_per_epoch = -(-num_rows // (max_rows - max_rows % row_multiple))
        batch = -(-num_rows // (self.steps_per_epoch * row_multiple)) * row_multiple
        self.shapes = np.full((self.steps_per_epoch, 1 + len(lengths)), row_length)
        self.shapes[:, 0] = batch
        self._places, self._seed = np.argsort(row_of, kind="stable"), seed
        rows = np.arange(self.steps_per_epoch * batch + 1)  # the last ones are empty
        self._cuts = np.searchsorted(row_of[self._places], rows)
        held = self.steps_per_epoch * batch * row_length * len(lengths)
        self.padding = float(1 - lengths.sum() / held)

    def epochs(self, start_step: int = 0) -> tf.data.Dataset:
        """The texts of each row of a batch, and its shape, endlessly, from `start_step` on.

        Starting late costs nothing: skipped batches are never made.

        Returns:
            Elements of the numbers of texts, ragged (rows, None), and integers (1 + sides,).
        """
        num_rows = len(self._cuts) - 1

        def plan_of(epoch):
            order, row_order = shuffled(self._group_of, num_rows, self._seed, epoch)
            return tf.gather(tf.gather(self._texts, order), self._places), row_order

        return epochs_from(start_step, self.steps_per_epoch, plan_of, self._slice)

    def in_order(self) -> tf.data.Dataset:
        """Each text once: the elements of `epochs`, not shuffled."""
        texts, rows = self._texts[self._places], np.arange(len(self._cuts) - 1)
        steps = tf.data.Dataset.range(self.steps_per_epoch)
        return steps.map(lambda step: self._slice((texts, rows), step))

    def _slice(self, plan, step):
        texts, row_order = plan
        batch = int(self.shapes[0, 0])
        rows = tf.gather(row_order, step * batch + tf.range(batch, dtype=tf.int64))
        places = tf.ragged.range(tf.gather(self._cuts, rows), tf.gather(self._cuts, rows + 1))
        return tf.gather(texts, places), tf.gather(self.shapes, step)


def _best_fit(lengths, row_length):
    """The row of each text, whose lengths are (sides, texts)."""
    longest_first = np.argsort(-lengths.max(axis=0), kind="stable")
    row_of, num_rows = np.empty(len(longest_first), np.int64), 0
    numbers, room = np.empty(0, np.int64), np.empty((0, len(lengths)), np.int64)  # of open rows
    parts = -(-len(longest_first) // _AT_A_TIME)
    for part in range(parts):  # each has texts of all lengths
        texts = longest_first[part::parts]
        used = len(room)
        room = np.concatenate([room, np.full((len(texts), len(lengths)), row_length)])
        numbers = np.concatenate([numbers, num_rows + np.arange(len(texts))])
        for text in texts:
            left = room[: used + 1] - lengths[:, text]
            row = np.where(left.min(axis=1) < 0, np.inf, left.sum(axis=1)).argmin()
            room[row] = left[row]
            row_of[text] = numbers[row]
            used = max(used, row + 1)
        num_rows = max(num_rows, numbers[used - 1] + 1)
        roomy = np.argsort(room[:used].min(axis=1), kind="stable")[-_KEPT_OPEN:]
        numbers, room = numbers[roomy], room[roomy]
    return row_of
