"""Which rows share a batch, and in which shapes batches come.

`LengthPlan` puts rows of similar lengths together, with the least padding or in a few shapes;
`PackedPlan` puts several texts into each row. Both regroup them every epoch.
"""

import dataclasses
import functools
import itertools
import json
import pathlib
import shutil
from typing import NamedTuple

import numpy as np

from keras_transformer.arguments import check_integer
from keras_transformer.data.draws import key_of, permuted
from keras_transformer.data.pipelines import as_data
from keras_transformer.data.token_ids import IdRows, ranges
from keras_transformer.files import atomic_path

LENGTH_MULTIPLE = 2  # bounds are multiples of it, in tokens
ROW_MULTIPLE = 8  # preferred by a GPU's matrix products
_ROWS_AT_A_TIME = 2**20  # whose lengths are in memory
_PLACES_AT_A_TIME = 2**18  # packed together
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


class RowLengths:
    """The lengths of rows, read a slice at a time: they may be files mapped into memory.

    Args:
        sides: the lengths of one side of all rows in tokens, integers (rows,); one array for each.
        longest: rows that are longer on any side are left out.
        added: tokens that each row has besides.
    """

    def __init__(self, sides, longest, added=0):
        self._sides, self.longest, self._added = list(sides), int(longest), added
        self.num_sides, self.num_rows = len(self._sides), len(self._sides[0])

    def slices(self):
        """Yields numbers of rows, (some,), and their lengths, (sides, some), int64."""
        for first in range(0, self.num_rows, _ROWS_AT_A_TIME):
            part = slice(first, first + _ROWS_AT_A_TIME)
            lengths = np.stack([side[part] for side in self._sides]).astype(np.int64) + self._added
            kept = np.flatnonzero(lengths.max(axis=0) <= self.longest)
            yield first + kept, lengths[:, kept]

    def histogram(self, key_of):
        """The different keys of rows, ascending, how many rows have each, and each side's tokens.

        Args:
            key_of: function from lengths, (sides, some), to integers, (some,).
        """
        keys, counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
        tokens = np.zeros(self.num_sides, np.int64)
        for _, lengths in self.slices():
            some, how_many = np.unique(key_of(lengths), return_counts=True)
            keys, places = np.unique(np.concatenate([keys, some]), return_inverse=True)
            counts = np.bincount(places, np.concatenate([counts, how_many])).astype(np.int64)
            tokens += lengths.sum(axis=1)
        return keys, counts, tokens

    def sort(self, key_of, keys, counts, order):
        """Writes the numbers of rows by their keys, equal ones as they come, into `order`."""
        filled = np.cumsum(counts) - counts
        for rows, lengths in self.slices():
            group = np.searchsorted(keys, key_of(lengths))
            by_group = np.argsort(group, kind="stable")
            group = group[by_group]
            runs = np.flatnonzero(np.diff(group, prepend=-1))
            sizes = np.diff(np.append(runs, len(group)))
            order[np.repeat(filled[group[runs]] - runs, sizes) + np.arange(len(group))] = rows[
                by_group
            ]
            filled[group[runs]] += sizes


class LengthPlan:
    """Groups rows that have one or two lengths, e.g. of source and target, into batches.

    Rows are sorted by length and divided so that their number times the longest stays within a
    budget of tokens on either side. Every epoch holds each row once, in batches of the same shapes;
    which rows of equal lengths meet in a batch, and the order of the batches, are a pure function
    of seed and epoch, which is computed for each batch: an epoch has no work at its beginning.

    Args:
        lengths: `RowLengths`.
        tokens_per_batch: maximum tokens in a batch, padding included, on either side.
        seed: integer that fixes the order of every epoch.
        shapes: `FewShapes`, or None for the least padding, in any shape.
        files: `PlanFiles`; None to keep the plan in memory, 8 bytes a row.

    Attributes:
        steps_per_epoch: batches in an epoch, the same for every epoch.
        num_rows: rows in an epoch.
        num_tokens: tokens in an epoch, of each side, without padding.
        shapes: rows, source length and target length of each batch, integers (steps, 3); -1 for
            sizes that depend on the rows of the batch, without `FewShapes`.
        padding: share of padding in all batches, of both sides together, in [0, 1).

    Examples:
        >>> lengths = RowLengths([np.array([2, 5, 2, 5])] * 2, longest=5)
        >>> plan = LengthPlan(lengths, tokens_per_batch=10)
        >>> sorted(sorted(plan.batch(step)[0].tolist()) for step in range(2))
        [[0, 2], [1, 3]]
    """

    def __init__(self, lengths, tokens_per_batch, seed=0, shapes=None, files=None):
        self._lengths, self._tokens_per_batch, self._seed = lengths, tokens_per_batch, seed
        self._has_bounds = shapes is not None
        settings = {"length_plan": [tokens_per_batch, lengths.longest, repr(shapes)]}
        make = functools.partial(
            _bounded if shapes else _by_length, lengths, tokens_per_batch, shapes
        )
        arrays = arrays_of_plan(make, settings, files)
        self._order, self._starts, self._cuts = (arrays[n] for n in ("order", "starts", "cuts"))
        size, *tokens = arrays["numbers"].tolist()
        self.num_rows, self.num_tokens = len(self._order), tokens
        self.padding = 1 - sum(tokens) * 2 / len(tokens) / size
        self.steps_per_epoch = len(self._cuts) - 1
        self.shapes = arrays.get("shapes")
        if self.shapes is None:
            self.shapes = np.broadcast_to(-1, (self.steps_per_epoch, 3))

    def batch(self, step):
        """The rows and the shape of batch `step`, counted from the beginning of training."""
        epoch, place = divmod(int(step), self.steps_per_epoch)
        batch = int(permuted(place, self.steps_per_epoch, key_of(self._seed, epoch))[0])
        places = np.arange(*self._cuts[batch : batch + 2])
        places = shuffled_in_groups(places, self._starts, self._seed, epoch)
        return self._order[places], self.shapes[batch]

    def in_order(self):
        """A list of the rows of each batch and its shape, each row once.

        In the order of the text; with `FewShapes`, by length.
        """
        rows, cuts, shapes = self._order, self._cuts, self.shapes
        if not self._has_bounds:
            parts = [(rows, lengths.max(axis=0)) for rows, lengths in self._lengths.slices()]
            rows, longer = (np.concatenate(part) for part in zip(*parts, strict=True))
            cuts = _greedy_cuts(longer.tolist(), [1] * len(rows), self._tokens_per_batch)
            shapes = np.broadcast_to(-1, (len(cuts) - 1, 3))
        bounds = itertools.pairwise(cuts.tolist())
        return [(rows[slice(*some)], shape) for some, shape in zip(bounds, shapes, strict=True)]


def shuffled_in_groups(places, starts, seed, epoch):
    """Each place moved within its group, by a permutation of this epoch; `starts` are of groups."""
    group = np.searchsorted(starts, places, side="right") - 1
    first = np.asarray(starts[group], np.int64)
    sizes, keys = starts[group + 1] - first, key_of(seed, epoch, group)
    return first + permuted(places - first, sizes, keys)


def _by_length(lengths, tokens_per_batch, _, new):
    """The arrays of a plan with the least padding."""
    width = lengths.longest + 1

    def key_of_lengths(lengths):
        # Alternately up and down: a batch that spans two target lengths then holds sources of
        # similar lengths, not the longest of one and the shortest of the next.
        source, target = lengths[0], lengths[-1]
        return target * width + np.where(target % 2 == 0, source, width - 1 - source)

    keys, counts, tokens = lengths.histogram(key_of_lengths)
    target, source = np.divmod(keys, width)
    source = np.where(target % 2 == 0, source, width - 1 - source)
    order = new("order", counts.sum())
    lengths.sort(key_of_lengths, keys, counts, order)
    starts = np.append(0, np.cumsum(counts))
    longer = np.maximum(source, target)
    cuts = _greedy_cuts(longer.tolist(), counts.tolist(), tokens_per_batch)
    first = np.searchsorted(starts, cuts[:-1], side="right") - 1
    last = np.searchsorted(starts, cuts[1:] - 1, side="right")
    between = np.stack([first, last], axis=1).ravel()
    longest = [np.maximum.reduceat(np.append(side, 0), between)[::2] for side in (source, target)]
    size = int((np.sum(longest, axis=0) * np.diff(cuts)).sum())
    return {"order": order, "starts": starts, "cuts": cuts, "numbers": np.array([size, *tokens])}


def _greedy_cuts(lengths, counts, tokens_per_batch):
    """Where batches begin, and the end; each takes all rows that the budget allows.

    Args:
        lengths: the length of the longer side of each group of rows.
        counts: the rows of each group.
        tokens_per_batch: the budget.
    """
    cuts, place, rows, longest = [np.zeros(1, np.int64)], 0, 0, 0  # of the batch that is filled
    for length, count in zip(lengths, counts, strict=True):
        room = tokens_per_batch // max(longest, length) - rows
        if count <= room:
            rows, longest = rows + count, max(longest, length)
        else:
            room, full = max(0, room), tokens_per_batch // length
            cuts.append(np.arange(place + room, place + count, full))
            rows, longest = (count - room - 1) % full + 1, length
        place += count
    return np.concatenate([*cuts, [place]])


def _bounded(lengths, tokens_per_batch, shapes, new):
    """The arrays of a plan with few shapes."""

    def longer(lengths):
        return lengths.max(axis=0)

    keys, counts, tokens = lengths.histogram(longer)
    plan = best_plan(keys, shapes, tokens_per_batch, counts)
    order = new("order", counts.sum())
    lengths.sort(longer, keys, counts, order)
    starts = np.append(0, np.cumsum(counts))[np.searchsorted(keys, plan.bounds, side="right")]
    numbers = np.array([plan.size, *tokens])
    arrays = {"order": order, "starts": np.unique(np.append(0, starts)), "cuts": plan.cuts}
    return {**arrays, "shapes": plan.shapes, "numbers": numbers}


class PlanFiles(NamedTuple):
    """Where a plan is kept in files, to be made once and read by all workers."""

    folder: pathlib.Path  # it is replaced if it holds another plan
    text: int  # a checksum of the text that is planned


def arrays_of_plan(make, settings, files):
    """The arrays of a plan, {name: array}, in memory or mapped from files.

    Args:
        make: function that makes them; it is called with a function from a name and a count to an
            array of so many integers to fill.
        settings: what the plan depends on besides the text, as JSON.
        files: `PlanFiles`, or None.
    """
    if files is None:
        return make(lambda name, count: np.empty(count, np.int64))
    folder, content = pathlib.Path(files.folder), json.dumps([settings, files.text])
    marker = folder / "plan.json"
    if not marker.exists() or marker.read_text() != content:
        if folder.exists():
            shutil.rmtree(folder)
        with atomic_path(folder) as draft:
            draft.mkdir()

            def new(name, count):
                return np.lib.format.open_memmap(
                    draft / f"{name}.npy", "w+", np.int64, (int(count),)
                )

            for name, array in make(new).items():
                if isinstance(array, np.memmap):
                    array.flush()
                else:
                    np.save(draft / f"{name}.npy", array)
            (draft / marker.name).write_text(content)
    return {path.stem: np.load(path, mmap_mode="r") for path in folder.glob("*.npy")}


class BoundedPlan(NamedTuple):
    """Batches of rows sorted by length, in few shapes."""

    bounds: np.ndarray  # lengths to which rows are padded, ascending
    cuts: np.ndarray  # positions where batches begin, and the end, (steps + 1,)
    shapes: np.ndarray  # (steps, 3): rows, and the length twice
    size: int  # tokens of all batches, padding and both sides included


def best_plan(lengths, shapes: FewShapes, tokens_per_batch, counts=None) -> BoundedPlan:
    """The plan with the least padding among those with the best 1, 2, ... `shapes.count` bounds.

    For each number of bounds, dynamic programming finds those that pad rows least. The padding that
    empty rows and rows moved to the next bound add is counted afterwards, so that fewer bounds may
    win. `lengths` are those of the longer side of each row, in tokens, at least 1; with `counts`,
    of as many rows each.

    Raises ValueError if `row_multiple` of the longest rows exceed `tokens_per_batch`.

    Examples:
        >>> plan = best_plan(np.array([3] * 20 + [9]), FewShapes(2), tokens_per_batch=30)
        >>> plan.bounds.tolist(), plan.shapes.tolist()
        ([4, 9], [[7, 4, 4], [7, 4, 4], [3, 9, 9], [3, 9, 9], [3, 9, 9]])
    """
    if counts is None:
        lengths, counts = np.unique(lengths, return_counts=True)
    longest = int(lengths.max())
    if shapes.row_multiple * longest > tokens_per_batch:
        raise ValueError(
            "A batch must hold at least one of the longest rows per replica. Give "
            "more tokens_per_batch, or a lower max_length. Received: "
            f"tokens_per_batch={tokens_per_batch}, row_multiple={shapes.row_multiple}, a row of "
            f"{longest} tokens."
        )
    plans = [
        _plan_for_bounds(lengths, counts, np.minimum(bounds, longest), tokens_per_batch, shapes)
        for bounds in _best_bounds(lengths, counts, shapes.count)
    ]
    return min(plans, key=lambda plan: plan.size)


def _best_bounds(lengths, counts, most):
    """The 1, 2, ... `most` bounds that pad rows least, each an ascending array."""
    counts = np.bincount(-(-lengths // LENGTH_MULTIPLE), counts)
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


def _plan_for_bounds(lengths, counts, bounds, tokens_per_batch, shapes):
    in_bounds = np.bincount(np.searchsorted(bounds, lengths), counts, len(bounds))
    cuts, sizes, waiting = [np.zeros(1, np.int64)], [], 0
    for bound, count in zip(bounds.tolist(), in_bounds.astype(np.int64).tolist(), strict=True):
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
        sizes.append(np.tile([rows, bound, bound], (steps, 1)))
        cuts.append(cuts[-1][-1] + rows * np.arange(1, steps + 1))
        cuts = [cuts[0], *filter(len, cuts[1:])]
        waiting -= rows * steps
    sizes, cuts = np.concatenate(sizes), np.concatenate(cuts)
    cuts[-1] = counts.sum()
    return BoundedPlan(bounds, cuts, sizes, int(2 * sizes[:, :2].prod(axis=1).sum()))


class PackedPlan:
    """Packs texts, or pairs of texts, into rows of one length, and rows into batches of one shape.

    The longest are placed first, each in the row that it fills best. Every epoch holds each text
    once, in the same number of rows; which texts of equal lengths share a row, and which rows share
    a batch, are a pure function of seed and epoch. Batches are filled up with empty rows.

    Args:
        lengths: `RowLengths` of the texts, whose `longest` is the length of each side of a row.
        max_rows: maximum rows in a batch.
        seed: integer that fixes the order of every epoch.
        row_multiple: the rows of each batch are a multiple of it.
        files: `PlanFiles`; None to keep the plan in memory, 16 bytes a text.

    Attributes: those of `LengthPlan`, with integers (steps, 1 + sides) as shapes.

    Examples:
        >>> plan = PackedPlan(RowLengths([np.array([2, 5, 3, 5])], longest=5), max_rows=3)
        >>> [sorted(row) for row in plan.in_order()[0][0].to_list()]
        [[1], [3], [0, 2]]
    """

    def __init__(self, lengths, max_rows, seed=0, row_multiple=1, files=None):
        row_length = lengths.longest
        if max_rows < row_multiple:
            raise ValueError(
                "A batch must hold at least row_multiple rows. Use larger batches or shorter rows."
                f" Received: room for {max_rows} rows of {row_length} tokens, "
                f"row_multiple={row_multiple}."
            )
        make = functools.partial(_packed, lengths)
        arrays = arrays_of_plan(make, {"packed_plan": row_length}, files)
        self._seed, self._order, self._starts = seed, arrays["order"], arrays["starts"]
        self._places, self._row_starts = arrays["places"], arrays["row_starts"]
        self.num_rows, self.num_tokens = len(self._order), arrays["numbers"].tolist()
        num_rows = len(self._row_starts) - 1
        # Equal batches: the last one is hardly shorter than the others.
        self.steps_per_epoch = -(-num_rows // (max_rows - max_rows % row_multiple))
        batch = -(-num_rows // (self.steps_per_epoch * row_multiple)) * row_multiple
        shape = [batch, *[row_length] * lengths.num_sides]
        self.shapes = np.broadcast_to(shape, (self.steps_per_epoch, len(shape)))
        size = self.steps_per_epoch * batch * row_length * lengths.num_sides
        self.padding = 1 - sum(self.num_tokens) / size

    def batch(self, step):
        """The texts of each row of batch `step`, as `IdRows` of their numbers, and its shape."""
        epoch, place = divmod(int(step), self.steps_per_epoch)
        rows = self._rows_of(place)
        rows = permuted(rows, self.steps_per_epoch * len(rows), key_of(self._seed, epoch))
        texts = self._texts(rows)
        places = shuffled_in_groups(texts.values, self._starts, self._seed, epoch)
        return IdRows(self._order[places], texts.lengths), self.shapes[place]

    def in_order(self):
        """A list of batches like `batch`'s that hold each text once, not shuffled."""
        batches = (self._texts(self._rows_of(place)) for place in range(self.steps_per_epoch))
        shape = self.shapes[0]
        return [(IdRows(self._order[texts.values], texts.lengths), shape) for texts in batches]

    def _rows_of(self, place):
        count = int(self.shapes[0, 0])
        return np.arange(place * count, (place + 1) * count)

    def _texts(self, rows):
        """The places by length of the texts of rows; rows after the last one are empty."""
        is_full = rows < len(self._row_starts) - 1
        rows = np.where(is_full, rows, 0)
        starts = self._row_starts[rows]
        counts = np.where(is_full, self._row_starts[rows + 1] - starts, 0)
        return IdRows(self._places[ranges(starts, counts)], counts)


def _packed(lengths, new):
    """The arrays of a plan of packed rows."""
    width = lengths.longest + 1

    def key_of_lengths(lengths):
        return lengths[-1] * width + lengths[0]

    keys, counts, tokens = lengths.histogram(key_of_lengths)
    order, places = new("order", counts.sum()), new("places", counts.sum())
    lengths.sort(key_of_lengths, keys, counts, order)
    starts = np.append(0, np.cumsum(counts))
    sides = np.stack([keys % width, keys // width])[-lengths.num_sides :]
    parts, row_counts, done = -(-len(order) // _PLACES_AT_A_TIME), [], 0
    for part in range(parts):  # each has texts of all lengths
        some = np.arange(part, len(order), parts)
        row_of = _best_fit(sides[:, np.searchsorted(starts, some, side="right") - 1], width - 1)
        places[done : done + len(some)] = some[np.argsort(row_of, kind="stable")]
        row_counts.append(np.bincount(row_of))
        done += len(some)
    row_starts = np.append(0, np.cumsum(np.concatenate(row_counts)))
    return {
        "order": order, "places": places, "starts": starts, "row_starts": row_starts,
        "numbers": tokens,
    }  # fmt: skip


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


class PlannedBatchesMixin:
    """Batches that follow a plan.

    A class calls `_follow`, and makes one batch of rows and their shape in `_batch`; the arrays of
    a batch have the shapes and dtypes of `_specs`.
    """

    _prepare = None  # see `as_data`
    order_version = 2  # 1 in version 0.2: other rows shared a batch

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
