"""Which rows share a batch, and in which shapes batches come.

`LengthPlan` puts rows of similar lengths together, with the least padding or in a few shapes;
`PackedPlan` puts several texts into each row. Both regroup them every epoch.
"""

import dataclasses
import functools
import itertools
from typing import NamedTuple

import numpy as np

from keras_transformer.arguments import check_integer
from keras_transformer.data.draws import split, uniform
from keras_transformer.data.pipelines import as_data
from keras_transformer.data.token_ids import IdRows

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
        >>> sorted(sorted(plan.batch(step)[0].tolist()) for step in range(2))
        [[0, 2], [1, 3]]
    """

    def __init__(self, rows, source_lengths, target_lengths, tokens_per_batch, seed=0, shapes=None):
        self._lengths = np.stack([source_lengths, target_lengths])
        self._tokens_per_batch = tokens_per_batch
        self._rows, self._has_bounds = rows, shapes is not None
        if shapes:
            longer = self._lengths[:, rows].max(axis=0)
            plan = best_plan(longer, shapes, tokens_per_batch)
            order = np.argsort(longer, kind="stable")
            self._sorted, self._cuts, self.shapes = rows[order], plan.cuts, plan.shapes
            group_of, size = np.searchsorted(plan.bounds, longer[order]), plan.size
        else:
            self._sorted, group_of = self._sort_by_length()
            self._cuts, self.shapes = self._cut(self._sorted)
            longest = np.maximum.reduceat(self._lengths[:, self._sorted], self._cuts[:-1], axis=1)
            size = (longest * np.diff(self._cuts)).sum()
        self.padding = float(1 - self._lengths[:, rows].sum() / size)
        self.steps_per_epoch = len(self._cuts) - 1
        self._order_of = _orders(self._sorted, group_of, self.steps_per_epoch, seed)

    def batch(self, step):
        """The rows and the shape of batch `step`, counted from the beginning of training."""
        epoch, place = divmod(step, self.steps_per_epoch)
        rows, batch_order = self._order_of(epoch)
        batch = batch_order[place]
        return rows[slice(*self._cuts[batch : batch + 2])], self.shapes[batch]

    def in_order(self):
        """A list of the rows of each batch and its shape, each row once.

        In the order of the text; with `FewShapes`, by length.
        """
        rows, cuts, shapes = self._sorted, self._cuts, self.shapes
        if not self._has_bounds:
            rows, (cuts, shapes) = self._rows, self._cut(self._rows)
        bounds = itertools.pairwise(cuts.tolist())
        return [(rows[slice(*some)], shape) for some, shape in zip(bounds, shapes, strict=True)]

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
        >>> [sorted(row) for row in plan.in_order()[0][0].to_list()]
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
        by_length = np.lexsort(lengths)
        # Before sorting: in a row of equal lengths one side would be full and the other not.
        row_of = _best_fit(lengths, row_length)[by_length]
        self._texts, lengths = texts[by_length], lengths[:, by_length]
        num_rows = row_of.max() + 1
        # Equal batches: the last one is hardly shorter than the others.
        self.steps_per_epoch = -(-num_rows // (max_rows - max_rows % row_multiple))
        batch = -(-num_rows // (self.steps_per_epoch * row_multiple)) * row_multiple
        self.shapes = np.full((self.steps_per_epoch, 1 + len(lengths)), row_length)
        self.shapes[:, 0] = batch
        texts_in_row = np.bincount(row_of, minlength=self.steps_per_epoch * batch)
        self._places = IdRows(np.argsort(row_of, kind="stable"), texts_in_row)
        groups = _groups_of_equals(lengths)
        self._order_of = _orders(self._texts, groups, len(self._places), seed)
        size = self.steps_per_epoch * batch * row_length * len(lengths)
        self.padding = float(1 - lengths.sum() / size)

    def batch(self, step):
        """The texts of each row of batch `step`, as `IdRows` of their numbers, and its shape."""
        epoch, place = divmod(step, self.steps_per_epoch)
        texts, row_order = self._order_of(epoch)
        return self._slice(place, texts, row_order)

    def in_order(self):
        """A list of batches like `batch`'s that hold each text once, not shuffled."""
        rows = np.arange(len(self._places))
        return [self._slice(place, self._texts, rows) for place in range(self.steps_per_epoch)]

    def _slice(self, place, texts, rows):
        shape = self.shapes[place]
        places = self._places.take(rows[place * shape[0] :][: shape[0]])
        return IdRows(texts[places.values], places.lengths), shape


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
    """Batches that follow a plan.

    A class calls `_follow`, and makes one batch of rows and their shape in `_batch`; the arrays of
    a batch have the shapes and dtypes of `_specs`.
    """

    _prepare = None  # see `as_data`

    def _follow(self, plan):
        self._plan, self.shapes, self.padding = plan, plan.shapes, plan.padding
        self.steps_per_epoch = plan.steps_per_epoch

    def dataset(self, start_step: int = 0):
        """Endless training batches, from step `start_step` on; the class says what they hold.

        Element k is a pure function of the text, the seed and `start_step + k`. Starting late costs
        nothing: skipped batches are never made. On TensorFlow it is a `tf.data.Dataset`, elsewhere
        a `keras.utils.PyDataset` of NumPy arrays.
        """
        return self._as_data(lambda number: self._plan.batch(start_step + number))

    def epoch(self):
        """Batches like those of `dataset` that hold each text once, for validation."""
        batches = self._plan.in_order()
        return self._as_data(batches.__getitem__, len(batches))

    def _as_data(self, rows_of, count=None):
        def make_batch(number):
            return self._batch(*rows_of(number))

        return as_data(make_batch, self._specs(), count, self._prepare)

    def _common_sizes(self):
        """The sizes that all batches have in common, None for others: static shapes."""
        first = self.shapes[0]
        is_one = (self.shapes == first).all(axis=0) & (first >= 0)
        return [size if same else None for same, size in zip(is_one, first.tolist(), strict=True)]


def _orders(rows, group_of, count, seed):
    """The function `shuffled` by epoch.

    A partial function, because a method would keep its plan alive until Python collects garbage.
    """
    return LastTwo(functools.partial(shuffled, rows, group_of, count, seed))


class LastTwo:
    """A function that remembers its last two results, for iterators on both sides of an edge.

    Unlike `functools.lru_cache` it can be pickled, without results.
    """

    def __init__(self, function):
        self._function, self._results = function, {}

    def __call__(self, argument):
        if argument in (results := self._results):
            return results[argument]
        result = self._function(argument)
        self._results = {**dict(list(results.items())[-1:]), argument: result}
        return result

    def __reduce__(self):
        return LastTwo, (self._function,)


def shuffled(rows, group_of, count, seed, epoch):
    """Rows permuted within each group, and an order of `count` things, for one epoch."""
    within, between = split((seed, epoch))
    order = np.argsort(group_of + uniform(within, len(group_of), np.float64), kind="stable")
    return rows[order], np.argsort(uniform(between, count), kind="stable")
