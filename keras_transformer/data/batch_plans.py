"""Which rows share a batch, and in which shapes batches come.

`LengthPlan` puts rows of similar lengths together, with the least padding or in a few shapes;
`PackedPlan` puts several texts into each row. Both regroup them every epoch.
"""

import dataclasses
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.arguments import check_integer

LENGTH_MULTIPLE = 2  # bounds are multiples of it, in tokens
ROW_MULTIPLE = 8  # preferred by a GPU's matrix products
_TEXTS_AT_A_TIME = 4096  # placed by `PackedPlan`
_ROWS_KEPT_OPEN = 256  # searched for room for the next texts


@dataclasses.dataclass(frozen=True)
class FewShapes:
    """Batches in a few shapes, for a step that is compiled once for each.

    Rows are padded to one of a few lengths, those that need the least padding, and batches of one
    length have equal numbers of rows. Rows that are left over move to the next length, and the last
    batch is filled up with empty rows.

    Args:
        count: maximum number of shapes, at least 1.
        row_multiple: the rows of each batch are a multiple of it, and also of 8 where the budget
            allows: the number of replicas.

    Raises:
        ValueError: if either is not an integer of at least 1.
    """

    count: int
    row_multiple: int = 1

    def __post_init__(self):
        hint = " It is the maximum number of shapes; shapes=None allows any shape."
        check_integer("count", self.count, reason=hint)
        check_integer("row_multiple", self.row_multiple)


@dataclasses.dataclass(frozen=True)
class PackedRows:
    """Batches of one shape, of rows that hold several texts one after another, with little padding.

    For a model built with `packed=True`, which reads each text on its own.

    Args:
        row_multiple: the rows of each batch are a multiple of it: the number of replicas.

    Raises:
        ValueError: if it is not an integer of at least 1.
    """

    row_multiple: int = 1

    def __post_init__(self):
        check_integer("row_multiple", self.row_multiple)


def check_shapes(shapes, *kinds):
    """Raises ValueError unless `shapes` is None or of one of these classes."""
    if shapes is not None and not isinstance(shapes, kinds):
        allowed = " or ".join([f"a {kind.__name__}" for kind in kinds] + ["None"])
        raise ValueError(f"shapes must be {allowed}. Received: shapes={shapes!r}.")


class LengthPlan:
    """Groups rows that have two lengths, e.g. of source and target, into batches.

    Rows are sorted by length and divided so that their number times the longest stays within a
    budget of tokens on either side. Every epoch holds each row once, in batches of the same shapes;
    which rows of equal lengths meet in a batch, and the order of the batches, are a pure function
    of seed and epoch.

    Args:
        rows: numbers of the rows, integers (rows,).
        source_lengths: source lengths of all rows, in tokens, by number.
        target_lengths: the same for the other side.
        tokens_per_batch: maximum tokens in a batch, padding included, on either side.
        seed: integer that fixes the order of every epoch.
        shapes: `FewShapes`, or None for the least padding, in any shape.

    Attributes:
        steps_per_epoch: batches in an epoch, the same for every epoch.
        shapes: rows, source length and target length of each batch, integers (steps, 3); -1 for
            sizes that depend on the rows of the batch, without `FewShapes`.
        padding: share of padding in all batches, of both sides together, in [0, 1).

    Examples:
        >>> plan = LengthPlan(np.arange(4), *[np.array([2, 5, 2, 5])] * 2, tokens_per_batch=10)
        >>> sorted(sorted(rows.numpy().tolist()) for rows, _ in plan.epochs().take(2))
        [[0, 2], [1, 3]]
    """

    def __init__(self, rows, source_lengths, target_lengths, tokens_per_batch, seed=0, shapes=None):
        self._lengths = np.stack([source_lengths, target_lengths])
        self._tokens_per_batch, self._seed = tokens_per_batch, seed
        self._rows, self._has_bounds = rows, shapes is not None
        if shapes:
            longer = self._lengths[:, rows].max(axis=0)
            plan = best_plan(longer, shapes, tokens_per_batch)
            order = np.argsort(longer, kind="stable")
            self._group_of = np.searchsorted(plan.bounds, longer[order])
            self._sorted, self._cuts, self.shapes = rows[order], plan.cuts, plan.shapes
            size = plan.size
        else:
            self._sorted, self._group_of = self._sort_by_length()
            self._cuts, self.shapes = self._cut(self._sorted)
            longest = np.maximum.reduceat(self._lengths[:, self._sorted], self._cuts[:-1], axis=1)
            size = (longest * np.diff(self._cuts)).sum()
        self.padding = float(1 - self._lengths[:, rows].sum() / size)
        self.steps_per_epoch = len(self._cuts) - 1

    def epochs(self, start_step: int = 0) -> tf.data.Dataset:
        """The rows and the shape of each batch, endlessly; earlier steps are skipped at no cost."""

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

        In the order of the text; with `FewShapes`, by length.
        """
        rows, cuts, shapes = self._sorted, self._cuts, self.shapes
        if not self._has_bounds:
            rows, (cuts, shapes) = self._rows, self._cut(self._rows)
        steps = tf.data.Dataset.range(len(cuts) - 1)
        return steps.map(lambda step: _slice(rows, cuts, shapes, step))

    def _sort_by_length(self):
        """Rows by length, and for each position the number of its group of equal lengths."""
        source, target = self._lengths[:, self._rows]
        # Alternately up and down: a batch that spans two target lengths then holds sources of
        # similar lengths, not the longest of one and the shortest of the next.
        order = np.lexsort((np.where(target % 2 == 0, source, -source), target))
        return self._rows[order], _groups_of_equals(np.stack([source, target])[:, order])

    def _cut(self, rows):
        """Where batches begin, and the end, and their shapes; each takes all the budget allows."""
        cuts, longest = [0], 0
        for place, length in enumerate(self._lengths[:, rows].max(axis=0).tolist()):
            longest = max(longest, length)
            if (place + 1 - cuts[-1]) * longest > self._tokens_per_batch:
                cuts.append(place)
                longest = length
        return np.array([*cuts, len(rows)]), np.full((len(cuts), 3), -1)


class BoundedPlan(NamedTuple):
    """Batches of rows sorted by length, in few shapes."""

    bounds: np.ndarray  # lengths to which rows are padded, ascending
    cuts: np.ndarray  # positions where batches begin, and the end, (steps + 1,)
    shapes: np.ndarray  # (steps, 3): rows, and the length twice
    size: int  # tokens of all batches, padding and both sides included


def best_plan(lengths, shapes: FewShapes, tokens_per_batch) -> BoundedPlan:
    """The plan with the least padding among those with the best 1, 2, ... `shapes.count` bounds.

    For each number of bounds, dynamic programming finds those that pad rows least. The padding that
    empty rows and rows moved to the next bound add is counted afterwards, so that fewer bounds may
    win. `lengths` are those of the longer side of each row, in tokens, at least 1.

    Raises ValueError if `row_multiple` of the longest rows exceed `tokens_per_batch`.

    Examples:
        >>> plan = best_plan(np.array([3] * 20 + [9]), FewShapes(2), tokens_per_batch=30)
        >>> plan.bounds.tolist(), plan.shapes.tolist()
        ([4, 9], [[7, 4, 4], [7, 4, 4], [3, 9, 9], [3, 9, 9], [3, 9, 9]])
    """
    longest = int(lengths.max())
    if shapes.row_multiple * longest > tokens_per_batch:
        raise ValueError(
            "A batch must hold at least one of the longest rows per replica. Give "
            "more tokens_per_batch, or a lower max_length. Received: "
            f"tokens_per_batch={tokens_per_batch}, row_multiple={shapes.row_multiple}, a row of "
            f"{longest} tokens."
        )
    plans = [
        _plan_for_bounds(lengths, np.minimum(bounds, longest), tokens_per_batch, shapes)
        for bounds in _best_bounds(lengths, shapes.count)
    ]
    return min(plans, key=lambda plan: plan.size)


def _best_bounds(lengths, most):
    """The 1, 2, ... `most` bounds that pad rows least, each an ascending array."""
    units = -(-lengths // LENGTH_MULTIPLE)
    counts = np.bincount(units)
    most = min(most, np.count_nonzero(counts))
    below = np.cumsum(counts)  # number of rows with at most this many units
    last = len(counts) - 1
    costs = np.where(np.arange(last + 1) == 0, 0.0, np.inf)  # without bounds, by the last bound
    choices, best = [], []
    for _ in range(most):
        # The previous bound that makes rows of up to j units cheapest: (before, j).
        each = costs[:, None] + (below[None] - below[:, None]) * np.arange(last + 1)
        each[np.tri(last + 1, dtype=bool)] = np.inf  # a bound is above the one before it
        choices.append(each.argmin(axis=0))
        costs = each.min(axis=0)
        bounds = [last]
        for choice in reversed(choices):
            bounds.append(int(choice[bounds[-1]]))
        best.append(LENGTH_MULTIPLE * np.array(bounds[-2::-1]))
    return best


def _plan_for_bounds(lengths, bounds, tokens_per_batch, shapes):
    counts = np.bincount(np.searchsorted(bounds, lengths), minlength=len(bounds)).tolist()
    cuts, sizes, waiting = [0], [], 0
    for bound, count in zip(bounds.tolist(), counts, strict=True):
        waiting += count
        most = tokens_per_batch // bound
        multiple = int(np.lcm(shapes.row_multiple, ROW_MULTIPLE))
        multiple = multiple if most >= multiple else shapes.row_multiple
        rows = most // multiple * multiple
        steps = waiting // rows
        if bound == bounds[-1]:
            # No row may be left over: as many batches as needed, with equally many rows.
            steps = -(-waiting // rows)
            rows = -(-waiting // (steps * multiple)) * multiple
        sizes += [(rows, bound, bound)] * steps
        cuts += [cuts[-1] + rows * (step + 1) for step in range(steps)]
        waiting -= rows * steps
    sizes = np.array(sizes)
    cuts[-1] = len(lengths)
    return BoundedPlan(bounds, np.array(cuts), sizes, int(2 * sizes[:, :2].prod(axis=1).sum()))


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

    Attributes: those of `LengthPlan`, with integers (steps, 1 + sides) as shapes.

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
        self._group_of = _groups_of_equals(lengths)
        num_rows = row_of.max() + 1
        # Equal batches: the last one is hardly shorter than the others.
        self.steps_per_epoch = -(-num_rows // (max_rows - max_rows % row_multiple))
        batch = -(-num_rows // (self.steps_per_epoch * row_multiple)) * row_multiple
        self.shapes = np.full((self.steps_per_epoch, 1 + len(lengths)), row_length)
        self.shapes[:, 0] = batch
        self._places, self._seed = np.argsort(row_of, kind="stable"), seed
        rows = np.arange(self.steps_per_epoch * batch + 1)  # the last ones are empty
        self._cuts = np.searchsorted(row_of[self._places], rows)
        size = self.steps_per_epoch * batch * row_length * len(lengths)
        self.padding = float(1 - lengths.sum() / size)

    def epochs(self, start_step: int = 0) -> tf.data.Dataset:
        """The texts of each row, ragged (rows, None), and the shape of each batch, endlessly."""
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
    parts = -(-len(longest_first) // _TEXTS_AT_A_TIME)
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
        roomy = np.argsort(room[:used].min(axis=1), kind="stable")[-_ROWS_KEPT_OPEN:]
        numbers, room = numbers[roomy], room[roomy]
    return row_of


def _groups_of_equals(lengths):
    """Numbers the runs of equal columns of sorted lengths, (sides, rows)."""
    return np.cumsum(np.diff(lengths, prepend=lengths[:, :1]).any(axis=0))


class PlannedBatchesMixin:
    """Batches that follow a plan: a class calls `_follow`, and makes one batch in `_batch`."""

    def _follow(self, plan):
        self._plan, self.shapes, self.padding = plan, plan.shapes, plan.padding
        self.steps_per_epoch = plan.steps_per_epoch

    def dataset(self, start_step: int = 0) -> tf.data.Dataset:
        """Endless training batches, from step `start_step` on; the class says what they hold.

        Element k is a pure function of the text, the seed and `start_step + k`. Starting late costs
        nothing: skipped batches are never made.
        """
        return batched(self._plan.epochs(start_step), self._batch)

    def epoch(self) -> tf.data.Dataset:
        """Batches like those of `dataset` that hold each text once, for validation."""
        return batched(self._plan.in_order(), self._batch)


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

    `plan_of` maps the number of an epoch to the plan of its batches, `batch_of` a plan and the
    number of a batch in its epoch to the batch.
    """
    first_epoch, first_batch = divmod(start_step, steps_per_epoch)

    @tf.autograph.experimental.do_not_convert
    def batches_of(epoch):
        plan = plan_of(epoch)
        first = tf.where(epoch == first_epoch, tf.constant(first_batch, tf.int64), 0)
        steps = tf.data.Dataset.range(first, steps_per_epoch)
        return steps.map(lambda step: batch_of(plan, step))

    return tf.data.Dataset.counter(start=first_epoch).flat_map(batches_of)


def batched(rows: tf.data.Dataset, batch_of) -> tf.data.Dataset:
    """Maps the rows of batches to the batches, prefetched."""
    # AutoGraph would spend seconds rewriting the source of all that makes a batch.
    batch_of = tf.autograph.experimental.do_not_convert(batch_of)
    return prefetched(rows.map(batch_of, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True))


def prefetched(batches: tf.data.Dataset) -> tf.data.Dataset:
    """Batches prepared in advance, which TensorFlow divides among replicas."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    options.autotune.enabled = False  # the end of `fit` would wait for its thread
    return batches.prefetch(tf.data.AUTOTUNE).with_options(options)


def sizes_of(shape, shapes):
    """The sizes of a batch, a tensor: plain integers where all batches agree, to be static shapes.

    `shapes` are those of all batches, (steps, sizes), -1 for a size that depends on the rows.
    """
    is_one = (shapes == shapes[0]).all(axis=0) & (shapes[0] >= 0)
    sizes = zip(is_one, shapes[0].tolist(), tf.unstack(shape), strict=True)
    return [first if equal else size for equal, first, size in sizes]


def _slice(rows, cuts, shapes, batch):
    """The rows of one batch, those between two cuts, and its shape."""
    bounds = tf.gather(cuts, tf.stack([batch, batch + 1]))
    return tf.gather(rows, tf.range(bounds[0], bounds[1])), tf.gather(shapes, batch)
