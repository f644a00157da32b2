"""Which rows share a batch, and in which shapes batches come.

`LengthPlan` puts rows of similar lengths together, with the least padding or in a few shapes;
`PackedPlan` puts several texts into each row. Both regroup them every epoch, by permutations that
are computed place by place: memory does not grow with the text where the arrays are files.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from keras_transformer.arguments import check_integer
from keras_transformer.data.draws import key_of, permuted
from keras_transformer.data.pipelines import as_data, rounded_up
from keras_transformer.data.plan_arrays import plan_arrays
from keras_transformer.data.token_ids import LARGEST_ID, IdRows, parts, ranges

LENGTH_MULTIPLE = 2  # bounds are multiples of it, in tokens
ROW_MULTIPLE = 8  # preferred by a GPU's matrix products
_TEXTS_AT_A_TIME = 4096  # placed by `PackedPlan`
_ROWS_KEPT_OPEN = 256  # searched for room for the next texts
_NO_ROOM = 2**29  # more than the room in any row
_OF_TEXTS, _OF_BATCHES, _OF_PACKING = range(3)  # what a permutation is for


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

    The batches bring the number of each token's text, with which a model reads each on its own.

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


class TextLengths(NamedTuple):
    """The lengths of many texts, read some at a time.

    Args:
        count: number of texts.
        read: function from a slice to the lengths of these texts, in tokens, integers of at least
            1, (sides, texts).
        longest: texts that are longer on any side are left out.
    """

    count: int
    read: Callable
    longest: int

    def parts(self):
        """Yields numbers and lengths of some of the texts that are not left out."""
        for some in parts(self.count):
            yield self.between(some.start, some.stop)

    def between(self, start, end):
        """Numbers and lengths of the texts from `start` to `end` that are not left out."""
        lengths = np.asarray(self.read(slice(start, end)), np.int64)
        kept = lengths.max(axis=0) <= self.longest
        return np.arange(start, end)[kept], lengths[:, kept]


def _sort(texts, new, keys_of):
    """Writes the numbers of texts, sorted by length, to a new array "order".

    A counting sort, in memory that does not depend on the number of texts.

    Args:
        texts: `TextLengths`.
        new: function that makes an array.
        keys_of: function from lengths, (sides, ...), to keys for `np.lexsort`.

    Returns:
        The different lengths in that order, (sides, lengths), and how many texts have each.

    Raises:
        ValueError: if all texts are left out.
    """
    codes, counts = np.zeros(0, np.int64), np.zeros(0)
    for _, lengths in texts.parts():
        some, number = np.unique(_as_codes(lengths), return_counts=True)
        codes, places = np.unique(np.append(codes, some), return_inverse=True)
        counts = np.bincount(places, np.append(counts, number))
    if not len(codes):
        raise ValueError(
            "No text is left to train on. Give more text or a larger max_length. Received: "
            f"{texts.count} texts, of which 0 have at most {texts.longest} tokens."
        )
    lengths = np.stack([codes >> 31 * side & LARGEST_ID for side in range(len(lengths))])
    by_length = np.lexsort(keys_of(lengths))
    lengths, counts = lengths[:, by_length], counts[by_length].astype(np.int64)
    rank = np.empty_like(by_length)
    rank[by_length] = np.arange(len(rank))
    dtype = np.uint32 if texts.count < 2**32 else np.int64
    order, ends = new("order", (counts.sum(),), dtype), np.cumsum(counts) - counts
    for numbers, some in texts.parts():
        group = rank[np.searchsorted(codes, _as_codes(some))]
        by_group = np.argsort(group, kind="stable")
        groups, first, count = np.unique(group[by_group], return_index=True, return_counts=True)
        order[np.arange(len(group)) + np.repeat(ends[groups] - first, count)] = numbers[by_group]
        ends[groups] += count
    return lengths, counts


def _as_codes(lengths):
    return sum(side << 31 * number for number, side in enumerate(lengths))


def _up_and_down(lengths):
    """Keys by which texts of two lengths lie next to texts of similar lengths."""
    *others, last = lengths
    # Alternately up and down: a batch that spans two target lengths then holds sources of
    # similar lengths, not the longest of one and the shortest of the next.
    return [*(np.where(last % 2 == 0, side, -side) for side in others), last]


class _RegroupedTexts:
    """Texts in the order of their lengths, permuted every epoch within groups of equal lengths."""

    def _follow(self, facts, arrays, seed):
        self.num_texts, self.num_tokens = facts["num_texts"], facts["num_tokens"]
        self.padding, self.steps_per_epoch = facts["padding"], facts["steps_per_epoch"]
        self._order, self._groups, self._seed = arrays["order"], arrays["groups"], seed

    def _texts_at(self, places, epoch):
        """The numbers of the texts at places of the order, in an epoch; None for no permutation."""
        if epoch is not None:
            group = np.searchsorted(self._groups, places, side="right") - 1
            first, end = self._groups[group], self._groups[group + 1]
            keys = key_of(self._seed, epoch, _OF_TEXTS, group)
            places = first + permuted(places - first, end - first, keys)
        return self._order[places].astype(np.int64)


def _write_groups(new, counts):
    """Writes where each group starts, and the end, to a new array "groups"."""
    new("groups", (len(counts) + 1,), np.int64)[:] = np.append(0, np.cumsum(counts))


def _facts(lengths, counts, size, steps):
    """What is known of a plan; `size` is that of all batches, in tokens."""
    tokens = (lengths * counts).sum(axis=1).tolist()
    return {
        "num_texts": int(counts.sum()),
        "num_tokens": tokens,
        "padding": 1 - sum(tokens) / int(size),
        "steps_per_epoch": int(steps),
    }


class LengthPlan(_RegroupedTexts):
    """Groups texts that have one length, or two, of source and target, into batches.

    Texts are sorted by length and divided so that their number times the longest stays within a
    budget of tokens on either side. Every epoch holds each text once, in batches of the same
    shapes; which texts of equal lengths meet in a batch, and the order of the batches, are a pure
    function of seed and epoch.

    Args:
        texts: `TextLengths`, of at least one text that is not left out.
        tokens_per_batch: maximum tokens in a batch, padding included, on either side.
        seed: integer that fixes the order of every epoch.
        shapes: `FewShapes`, or None for the least padding, in any shape.
        folder: where the arrays of the plan are kept; None for memory.
        known_by: function without arguments; returns what the lengths depend on, as JSON.

    Attributes:
        num_texts: texts in an epoch.
        num_tokens: their tokens, a list with a number for each side.
        steps_per_epoch: batches in an epoch, the same for every epoch.
        shapes: rows and length of each side of each batch, integers (steps, 1 + sides); -1 for
            sizes that depend on the texts of the batch, without `FewShapes`.
        padding: share of padding in all batches, of both sides together, in [0, 1).

    Examples:
        >>> lengths = np.array([[2, 5, 2, 5]])
        >>> texts = TextLengths(4, lambda some: lengths[:, some], longest=9)
        >>> plan = LengthPlan(texts, tokens_per_batch=10)
        >>> sorted(sorted(plan.batch(step)[0].tolist()) for step in range(2))
        [[0, 2], [1, 3]]
    """

    def __init__(self, texts, tokens_per_batch, seed=0, shapes=None, folder=None, known_by=dict):
        self._lengths, self._tokens_per_batch = texts, tokens_per_batch
        make = self._make_in_few_shapes if shapes else self._make
        settings = {
            "tokens_per_batch": tokens_per_batch, "shapes": shapes and dataclasses.asdict(shapes)
        }  # fmt: skip
        facts, arrays = plan_arrays(
            lambda new: make(new, shapes), folder, lambda: {**settings, **known_by()}
        )
        self._follow(facts, arrays, seed)
        self._cuts = arrays["cuts"]
        shape = (self.steps_per_epoch, 1 + len(self.num_tokens))
        self.shapes = arrays.get("shapes", np.broadcast_to(np.int64(-1), shape))

    def _make(self, new, _):
        lengths, counts = _sort(self._lengths, new, _up_and_down)
        _write_groups(new, counts)
        cuts = _cuts_of(lengths.max(axis=0).tolist(), counts.tolist(), self._tokens_per_batch)
        new("cuts", cuts.shape, np.int64)[:] = cuts
        # The groups that a batch begins and ends in, one after another, for `reduceat`.
        ends = np.cumsum(counts)
        first = np.searchsorted(ends, cuts[:-1], side="right")
        last = np.searchsorted(ends, cuts[1:] - 1, side="right")
        bounds = np.stack([first, last + 1], axis=1).ravel()
        padded = np.pad(lengths, [(0, 0), (0, 1)])
        longest = np.maximum.reduceat(padded, bounds, axis=1)[:, ::2]
        return _facts(lengths, counts, (longest * np.diff(cuts)).sum(), len(cuts) - 1)

    def _make_in_few_shapes(self, new, shapes):
        lengths, counts = _sort(self._lengths, new, lambda sides: [sides.max(axis=0)])
        longer = lengths.max(axis=0)
        plan = best_plan(longer, counts, shapes, self._tokens_per_batch)
        _write_groups(new, np.bincount(np.searchsorted(plan.bounds, longer), counts))
        new("cuts", plan.cuts.shape, np.int64)[:] = plan.cuts
        columns = [0, *[1] * len(lengths)]
        new("shapes", (len(plan.shapes), len(columns)), np.int64)[:] = plan.shapes[:, columns]
        return _facts(lengths, counts, plan.size * len(lengths), len(plan.shapes))

    def batch(self, step):
        """The texts and the shape of batch `step`, counted from the beginning of training."""
        epoch, place = divmod(step, self.steps_per_epoch)
        key = key_of(self._seed, epoch, _OF_BATCHES)
        [number] = permuted([place], self.steps_per_epoch, key)
        return self._slice(number, epoch)

    def in_order(self):
        """A function from the number of a batch to its texts and shape, each text once, and how
        many batches there are.

        In the order of the text; with `FewShapes`, by length.
        """
        if self.shapes.min() > 0:
            return self._slice, self.steps_per_epoch
        cuts = self._cuts_in_order()

        def batch(number):
            numbers, _ = self._lengths.between(cuts[number], cuts[number + 1])
            return numbers, self.shapes[0]

        return batch, len(cuts) - 1

    def _slice(self, number, epoch=None):
        places = np.arange(*self._cuts[number : number + 2])
        return self._texts_at(places, epoch), self.shapes[number]

    def _cuts_in_order(self):
        """Where batches of texts in their order begin, and the end."""
        cuts, size, longest = [0], 0, 0
        for numbers, lengths in self._lengths.parts():
            longer = lengths.max(axis=0).tolist()
            for number, length in zip(numbers.tolist(), longer, strict=True):
                size, longest = size + 1, max(longest, length)
                if size * longest > self._tokens_per_batch:
                    cuts.append(number)
                    size, longest = 1, length
        return [*cuts, self._lengths.count]


def _cuts_of(lengths, counts, tokens_per_batch):
    """Where batches of sorted texts begin, and the end; each takes all that the budget allows.

    `counts` texts of each of these lengths follow one another.
    """
    cuts, start, longest, place = [np.zeros(1, np.int64)], 0, 0, 0
    for length, count in zip(lengths, counts, strict=True):
        longest = max(longest, length)
        full = max(place, start + tokens_per_batch // longest)
        if full < place + count:
            cuts.append(np.arange(full, place + count, tokens_per_batch // length))
            start, longest = int(cuts[-1][-1]), length
        place += count
    return np.concatenate([*cuts, [place]])


class BoundedPlan(NamedTuple):
    """Batches of rows sorted by length, in few shapes."""

    bounds: np.ndarray  # lengths to which rows are padded, ascending
    cuts: np.ndarray  # positions where batches begin, and the end, (steps + 1,)
    shapes: np.ndarray  # rows and length, (steps, 2)
    size: int  # tokens of all batches on one side, padding included


def best_plan(lengths, counts, shapes: FewShapes, tokens_per_batch) -> BoundedPlan:
    """The plan with the least padding among those with the best 1, 2, ... `shapes.count` bounds.

    For each number of bounds, dynamic programming finds those that pad rows least. The padding that
    empty rows and rows moved to the next bound add is counted afterwards, so that fewer bounds may
    win. `lengths` are those of the longer side, in tokens, at least 1, and `counts` how many rows
    have each.

    Raises ValueError if `row_multiple` of the longest rows exceed `tokens_per_batch`.

    Examples:
        >>> plan = best_plan(np.array([3, 9]), np.array([20, 1]), FewShapes(2), 30)
        >>> plan.bounds.tolist(), plan.shapes.tolist()
        ([4, 9], [[7, 4], [7, 4], [3, 9], [3, 9], [3, 9]])
    """
    longest = int(lengths.max())
    if shapes.row_multiple * longest > tokens_per_batch:
        raise ValueError(
            "A batch must hold at least one of the longest rows per replica. Give "
            "more tokens_per_batch, or a lower max_length. Received: "
            f"tokens_per_batch={tokens_per_batch}, row_multiple={shapes.row_multiple}, a row of "
            f"{longest} tokens."
        )
    plans = []
    for bounds in _best_bounds(lengths, counts, shapes.count):
        bounds = np.minimum(bounds, longest)
        of_bound = np.bincount(np.searchsorted(bounds, lengths), counts, len(bounds))
        plans.append((bounds, *_rows_and_steps(bounds, of_bound, tokens_per_batch, shapes)))
    bounds, rows, steps = min(plans, key=lambda plan: (np.prod(plan, axis=0)).sum())
    shapes = np.repeat(np.stack([rows, bounds], axis=1), steps, axis=0)
    cuts = np.append(0, np.cumsum(shapes[:, 0]))
    cuts[-1] = counts.sum()
    return BoundedPlan(bounds, cuts, shapes, int(shapes.prod(axis=1).sum()))


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


def _rows_and_steps(bounds, counts, tokens_per_batch, shapes):
    """For each bound the rows of a batch, and how many batches there are."""
    rows_of, steps_of, waiting = [], [], 0
    for bound, count in zip(bounds.tolist(), counts.astype(np.int64).tolist(), strict=True):
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
        rows_of.append(rows)
        steps_of.append(steps)
        waiting -= rows * steps
    return np.array(rows_of), np.array(steps_of)


class PackedPlan(_RegroupedTexts):
    """Packs texts, or pairs of texts, into rows of one length, and rows into batches of one shape.

    Of each few thousand texts the longest are placed first, each in the row that it fills best.
    Every epoch holds each text once, in the same number of rows; which texts of equal lengths share
    a row, and which rows share a batch, are a pure function of seed and epoch. Batches are filled
    up with empty rows.

    Args:
        texts: `TextLengths`, of at least one text that is not left out; none is longer than a row.
        row_length: length of each side of a row, in tokens.
        max_rows: maximum rows in a batch.
        seed: integer that fixes the order of every epoch.
        row_multiple: the rows of each batch are a multiple of it.
        folder: where the arrays of the plan are kept; None for memory.
        known_by: function without arguments; returns what the lengths depend on, as JSON.

    Attributes: those of `LengthPlan`.

    Examples:
        >>> lengths = np.array([[2, 5, 3, 5]])
        >>> texts = TextLengths(4, lambda some: lengths[:, some], longest=5)
        >>> batch, _ = PackedPlan(texts, row_length=5, max_rows=3).in_order()
        >>> sorted(sorted(row) for row in batch(0)[0].to_list())
        [[0, 2], [1], [3]]
    """

    def __init__(
        self, texts, row_length, max_rows, seed=0, row_multiple=1, folder=None, known_by=dict
    ):
        if max_rows < row_multiple:
            raise ValueError(
                "A batch must hold at least row_multiple rows. Use larger batches or shorter rows."
                f" Received: room for {max_rows} rows of {row_length} tokens, "
                f"row_multiple={row_multiple}."
            )
        settings = {"row_length": row_length, "max_rows": max_rows, "row_multiple": row_multiple}

        def make(new):
            lengths, counts = _sort(texts, new, _up_and_down)
            _write_groups(new, counts)
            num_rows = _pack(lengths, counts, row_length, new)
            # Equal batches: the last one is hardly shorter than the others.
            steps = -(-num_rows // (max_rows - max_rows % row_multiple))
            rows = -(-num_rows // (steps * row_multiple)) * row_multiple
            facts = _facts(lengths, counts, steps * rows * row_length * len(lengths), steps)
            return {**facts, "num_rows": num_rows, "batch": rows}

        facts, arrays = plan_arrays(make, folder, lambda: {**settings, **known_by()})
        self._follow(facts, arrays, seed)
        self._places, self._row_starts = arrays["places"], arrays["row_starts"]
        self._num_rows, self._batch = facts["num_rows"], facts["batch"]
        shape = np.array([self._batch, *[row_length] * len(self.num_tokens)])
        self.shapes = np.broadcast_to(shape, (self.steps_per_epoch, len(shape)))

    def batch(self, step):
        """The texts of each row of batch `step`, as `IdRows` of their numbers, and its shape."""
        return self._rows(*reversed(divmod(step, self.steps_per_epoch)))

    def in_order(self):
        """A function from the number of a batch to one like `batch`'s, not shuffled, so that each
        text is there once, and how many batches there are."""
        return self._rows, self.steps_per_epoch

    def _rows(self, number, epoch=None):
        rows = number * self._batch + np.arange(self._batch)
        if epoch is not None:
            key = key_of(self._seed, epoch, _OF_BATCHES)
            rows = permuted(rows, self.steps_per_epoch * self._batch, key)
        starts, ends = (self._row_starts[np.minimum(n, self._num_rows)] for n in (rows, rows + 1))
        texts = self._texts_at(self._places[ranges(starts, ends - starts)], epoch)
        return IdRows(texts, ends - starts), self.shapes[0]


def _pack(lengths, counts, row_length, new):
    """Packs sorted texts, `counts` of each of these lengths, (sides, lengths), into rows.

    Writes the places of the texts in that order, row by row, to a new array "places", and to
    "row_starts" where each row starts there, and the end.

    Returns:
        The number of rows.
    """
    ends, total = np.cumsum(counts), int(counts.sum())
    places = new("places", (total,), np.uint32 if total < 2**32 else np.int64)
    row_starts = new("row_starts", (total + 1,), np.int64)  # of which the rows fill the beginning
    row_starts[0], written, num_rows = 0, 0, 0
    texts, row_of = np.zeros(0, np.int64), np.zeros(0, np.int64)  # of rows that are open
    room = np.zeros((len(lengths), 0), np.int64)
    num_parts = -(-total // _TEXTS_AT_A_TIME)
    for part in range(num_parts):
        # Drawn from all: there are texts of all lengths to fill up rows, and those of equal
        # lengths are in any order, because in a row of them one side would be full.
        some = np.arange(part * total // num_parts, (part + 1) * total // num_parts)
        some = permuted(some, total, key_of(_OF_PACKING))
        of_text = lengths[:, np.searchsorted(ends, some, side="right")]
        longest_first = np.argsort(-of_text.max(axis=0), kind="stable")
        rows, room = _best_fit(of_text[:, longest_first], room, row_length)
        texts, row_of = np.append(texts, some[longest_first]), np.append(row_of, rows)
        by_room = np.argsort(room.min(axis=0), kind="stable")
        closed = len(by_room) if part == num_parts - 1 else max(0, len(by_room) - _ROWS_KEPT_OPEN)
        number = np.argsort(by_room)[row_of]  # of the row that each text is in, the fullest first
        by_row = np.argsort(number, kind="stable")
        texts, row_of = texts[by_row], number[by_row]
        end_of_row = np.searchsorted(row_of, np.arange(closed), side="right")
        row_starts[num_rows + 1 : num_rows + closed + 1] = written + end_of_row
        size = int(end_of_row[-1]) if closed else 0
        places[written : written + size] = texts[:size]
        texts, row_of, room = texts[size:], row_of[size:] - closed, room[:, by_room[closed:]]
        written, num_rows = written + size, num_rows + closed
    return num_rows


def _best_fit(lengths, room, row_length):
    """The row of each text, whose lengths are (sides, texts), and the room left in all rows.

    The rows that are there have `room`, (sides, rows); others are begun when no text fits in.
    """
    used, texts = room.shape[1], lengths.shape[1]
    room = np.pad(room, [(0, 0), (0, texts + 1)], constant_values=row_length).astype(np.int32)
    row_of = np.empty(texts, np.int64)
    for text, sizes in enumerate(lengths.T.tolist()):
        waste = 0
        for side, size in zip(room, sizes, strict=True):
            left = side[: used + 1] - size
            waste = waste + np.where(left < 0, _NO_ROOM, left)
        row_of[text] = row = waste.argmin()
        for side, size in zip(room, sizes, strict=True):
            side[row] -= size
        used = max(used, row + 1)
    return row_of, room[:, :used].astype(np.int64)


class PlannedBatchesMixin:
    """Batches that follow a plan.

    A class calls `_follow`, and makes one batch of rows and their shape in `_batch`; the arrays of
    a batch have the shapes and dtypes of `_specs`, which is given rows and lengths, None for sizes
    that differ.
    """

    _prepare = None  # see `as_data`

    def _follow(self, plan):
        self._plan, self.shapes, self.padding = plan, plan.shapes, plan.padding
        self.steps_per_epoch = plan.steps_per_epoch

    def dataset(self, start_step: int = 0, replicas: int = 1):
        """Endless training batches, from step `start_step` on; the class says what they hold.

        Element k is a pure function of the text, the seed and `start_step + k`. Starting late costs
        nothing: skipped batches are never made. On TensorFlow it is a `tf.data.Dataset`, elsewhere
        a `keras.utils.PyDataset` of NumPy arrays.

        Args:
            start_step: number of the first batch.
            replicas: batches in few shapes, or of packed rows, end with as many empty rows as they
                lack to a multiple of this, so that any number of replicas can share them.
        """
        return self._as_data(
            lambda number: self._plan.batch(start_step + number), replicas=replicas
        )

    def epoch(self, replicas: int = 1):
        """Batches like those of `dataset` that hold each text once, for validation."""
        return self._as_data(*self._plan.in_order(), replicas)

    def _as_data(self, rows_of, count=None, replicas=1):
        def make_batch(number):
            texts, (rows, *lengths) = rows_of(number)
            return self._batch(texts, (rounded_up(rows, replicas), *lengths))

        first = self.shapes[0]
        is_one = (self.shapes == first).all(axis=0) & (first >= 0)
        sizes = [rounded_up(first[0], replicas), *first[1:]]
        # Sizes that all batches have in common are static.
        sizes = [int(n) if same else None for same, n in zip(is_one, sizes, strict=True)]
        return as_data(make_batch, self._specs(*sizes), count, self._prepare)
