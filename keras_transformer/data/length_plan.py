"""Which rows of a text share a batch: rows of similar lengths, regrouped every epoch."""

import numpy as np
import tensorflow as tf

from keras_transformer.data.length_bounds import best_plan


class LengthPlan:
    """Groups rows that have two lengths, e.g. of source and target, into batches.

    Rows are sorted by length and divided so that their number times the longest stays within
    a budget of tokens on either side. Every epoch holds each row once, in batches of the same
    shapes; which rows of equal lengths meet in a batch, and the order of the batches, are a
    pure function of seed and epoch.

    With `shapes` all batches have few shapes, for a step that is compiled once for each: rows are
    padded to one of a few bounds, those that need the least padding, and batches of one bound
    have equal numbers of rows. Rows that are left over move to the next bound, and the last
    batch is filled up with empty rows.

    Args:
        rows: numbers of the rows, integers (rows,).
        source_lengths: source lengths of all rows, in tokens, by number.
        target_lengths: the same for the other side.
        tokens_per_batch: maximum tokens in a batch, padding included, on either side.
        seed: integer that fixes the order of every epoch.
        shapes: maximum number of batch shapes; 0 for the least padding, in any shape.
        row_multiple: with `shapes`, the rows of each batch are a multiple of it, and also of 8
            where the budget allows.

    Attributes:
        steps_per_epoch: batches in an epoch, the same for every epoch.
        shapes: rows, source length and target length of each batch, integers (steps, 3); without
            `shapes`, -1 for sizes that depend on the rows of the batch.
        padding: share of padding in all batches, of both sides together, in [0, 1).

    Raises:
        ValueError: if not even `row_multiple` of the longest rows fit into a batch.

    Examples:
        >>> plan = LengthPlan(np.arange(4), *[np.array([2, 5, 2, 5])] * 2, tokens_per_batch=10)
        >>> sorted(sorted(rows.numpy().tolist()) for rows, _ in plan.epochs().take(2))
        [[0, 2], [1, 3]]
    """

    def __init__(
        self,
        rows,
        source_lengths,
        target_lengths,
        tokens_per_batch,
        seed=0,
        shapes=0,
        row_multiple=1,
    ):
        self._lengths = np.stack([source_lengths, target_lengths])
        self._tokens_per_batch, self._seed = tokens_per_batch, seed
        self._rows, self._has_bounds = rows, bool(shapes)
        if shapes:
            longer = self._lengths[:, rows].max(axis=0)
            plan = best_plan(longer, shapes, tokens_per_batch, row_multiple)
            order = np.argsort(longer, kind="stable")
            self._group_of = np.searchsorted(plan.bounds, longer[order])
            self._sorted, self._cuts, self.shapes = rows[order], plan.cuts, plan.shapes
            held = plan.size
        else:
            self._sorted, self._group_of = self._sort_by_length()
            self._cuts = self._cut(self._sorted)
            self.shapes = np.full((len(self._cuts) - 1, 3), -1)
            longest = np.maximum.reduceat(self._lengths[:, self._sorted], self._cuts[:-1], axis=1)
            held = (longest * np.diff(self._cuts)).sum()
        self.padding = float(1 - self._lengths[:, rows].sum() / held)
        self.steps_per_epoch = len(self._cuts) - 1

    def epochs(self, start_step: int = 0) -> tf.data.Dataset:
        """The rows and the shape of each batch, endlessly, from step `start_step` on.

        Starting late costs nothing: skipped batches are never made.
        """

        def plan_of(epoch):
            batches = self.steps_per_epoch
            order, batch_order = shuffled(self._group_of, batches, self._seed, epoch)
            return tf.gather(self._sorted, order), batch_order

        def batch_of(plan, step):
            rows, batch_order = plan
            return _slice(rows, self._cuts, self.shapes, batch_order[step])

        return epochs_from(start_step, self.steps_per_epoch, plan_of, batch_of)

    def in_order(self) -> tf.data.Dataset:
        """The rows of each batch and its shape, each row once.

        In the order of the text; with `shapes`, by length.
        """
        rows, cuts, shapes = self._sorted, self._cuts, self.shapes
        if not self._has_bounds:
            rows, cuts = self._rows, self._cut(self._rows)
            shapes = np.full((len(cuts) - 1, 3), -1)
        steps = tf.data.Dataset.range(len(cuts) - 1)
        return steps.map(lambda step: _slice(rows, cuts, shapes, step))

    def _sort_by_length(self):
        """Rows by length, and for each position the number of its group of equal lengths."""
        source, target = self._lengths[:, self._rows]
        # Alternately up and down: a batch that spans two target lengths then holds sources of
        # similar lengths, not the longest of one and the shortest of the next.
        order = np.lexsort((np.where(target % 2 == 0, source, -source), target))
        source, target = source[order], target[order]
        is_new = (np.diff(source, prepend=source[0]) != 0) | (
            np.diff(target, prepend=target[0]) != 0
        )
        return self._rows[order], np.cumsum(is_new)

    def _cut(self, rows):
        """Positions where batches begin, and the end; each takes all rows the budget allows."""
        cuts, longest = [0], 0
        for place, length in enumerate(self._lengths[:, rows].max(axis=0).tolist()):
            longest = max(longest, length)
            if (place + 1 - cuts[-1]) * longest > self._tokens_per_batch:
                cuts.append(place)
                longest = length
        return np.array([*cuts, len(rows)])


def shuffled(group_of, count, seed, epoch):
    """Positions permuted within each group, and an order of `count` things, for one epoch."""
    seed = tf.stack([tf.constant(seed, tf.int64), epoch])
    # A named generator: the default one may differ between processors.
    within, between = tf.unstack(tf.random.split(seed, 2, alg="philox"))
    ties = tf.random.stateless_uniform([len(group_of)], within, dtype=tf.float64, alg="philox")
    order = tf.argsort(tf.cast(group_of, tf.float64) + ties)
    ranks = tf.random.stateless_uniform([count], between, alg="philox")
    return order, tf.argsort(ranks)


def epochs_from(start_step, steps_per_epoch, plan_of, batch_of) -> tf.data.Dataset:
    """Endless batches, of which those before `start_step` are never made.

    Args:
        start_step: number of the first batch.
        steps_per_epoch: batches in an epoch.
        plan_of: a function from the number of an epoch to the plan of its batches.
        batch_of: a function from the plan and the number of a batch in its epoch to the batch.
    """
    first_epoch, first_batch = divmod(start_step, steps_per_epoch)

    def batches_of(epoch):
        plan = plan_of(epoch)
        first = tf.where(epoch == first_epoch, tf.constant(first_batch, tf.int64), 0)
        steps = tf.data.Dataset.range(first, steps_per_epoch)
        return steps.map(lambda step: batch_of(plan, step))

    return tf.data.Dataset.counter(start=first_epoch).flat_map(batches_of)


def batched(rows: tf.data.Dataset, batch) -> tf.data.Dataset:
    """Maps the rows of batches to the batches, prefetched, and divided among replicas."""
    batches = rows.map(batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return ahead(batches)


def ahead(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Batches that are prefetched and divided among replicas."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    # An endless iterator that is dropped waits for the thread that tunes it, which sleeps twice as
    # long each time: the end of `fit` took up to as long as all its steps.
    options.autotune.enabled = False
    return batches.prefetch(tf.data.AUTOTUNE).with_options(options)


def sizes_of(shape, shapes):
    """The sizes of a batch: integers where those of all batches are equal, so that a step knows.

    Args:
        shape: of the batch, a tensor.
        shapes: of all batches, integers (steps, sizes); -1 for a size that is its rows' own.
    """
    is_one = (shapes == shapes[0]).all(axis=0) & (shapes[0] >= 0)
    sizes = zip(is_one, shapes[0].tolist(), tf.unstack(shape), strict=True)
    return [first if equal else size for equal, first, size in sizes]


def _slice(rows, cuts, shapes, batch):
    """The rows of one batch, those between two cuts, and its shape."""
    bounds = tf.gather(cuts, tf.stack([batch, batch + 1]))
    return tf.gather(rows, tf.range(bounds[0], bounds[1])), tf.gather(shapes, batch)
