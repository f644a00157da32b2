"""Few shapes for many lengths: chooses for a text the bounds to which rows are padded."""

from typing import NamedTuple

import numpy as np

LENGTH_MULTIPLE = 2  # bounds are multiples of it, in tokens
ROW_MULTIPLE = 8  # preferred by a GPU's matrix products


class BoundedPlan(NamedTuple):
    """Batches of rows sorted by length, in few shapes."""

    bounds: np.ndarray  # lengths to which rows are padded, ascending
    cuts: np.ndarray  # positions where batches begin, and the end, (steps + 1,)
    shapes: np.ndarray  # (steps, 3): rows, and the length twice
    size: int  # tokens of all batches, padding and both sides included


def best_plan(lengths, most_shapes, tokens_per_batch, row_multiple=1):
    """The plan with the least padding among those with the best 1, 2, ... `most_shapes` bounds.

    For each number of bounds, dynamic programming finds those that pad rows least. The padding
    that empty rows and rows moved to the next bound add is counted afterwards, so that fewer
    bounds may win.

    Args:
        lengths: length of the longer side of each row, in tokens, at least 1, integers (rows,).
        most_shapes: maximum number of shapes, at least 1.
        tokens_per_batch: maximum tokens in a batch on either side.
        row_multiple: the rows of a batch are a multiple of it.

    Returns:
        A `BoundedPlan`.

    Raises:
        ValueError: if `row_multiple` of the longest rows exceed `tokens_per_batch`.

    Examples:
        >>> plan = best_plan(np.array([3] * 20 + [9]), most_shapes=2, tokens_per_batch=30)
        >>> plan.bounds.tolist(), plan.shapes.tolist()
        ([4, 9], [[7, 4, 4], [7, 4, 4], [3, 9, 9], [3, 9, 9], [3, 9, 9]])
    """
    longest = int(lengths.max())
    if most_shapes < 1 or row_multiple < 1 or row_multiple * longest > tokens_per_batch:
        raise ValueError(
            "A batch must hold at least one of the longest rows per replica. Give "
            "more tokens_per_batch, or a lower max_length. Received: "
            f"tokens_per_batch={tokens_per_batch}, row_multiple={row_multiple}, a row of "
            f"{longest} tokens, shapes={most_shapes}."
        )
    plans = [
        _cut(lengths, np.minimum(bounds, longest), tokens_per_batch, row_multiple)
        for bounds in _best_bounds(lengths, most_shapes)
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
    choices, found = [], []
    for _ in range(most):
        # The previous bound that makes rows of up to j units cheapest: (before, j).
        each = costs[:, None] + (below[None] - below[:, None]) * np.arange(last + 1)
        each[np.tri(last + 1, dtype=bool)] = np.inf  # a bound is above the one before it
        choices.append(each.argmin(axis=0))
        costs = each.min(axis=0)
        bounds = [last]
        for choice in reversed(choices):
            bounds.append(int(choice[bounds[-1]]))
        found.append(LENGTH_MULTIPLE * np.array(bounds[-2::-1]))
    return found


def _cut(lengths, bounds, tokens_per_batch, row_multiple):
    """The plan of given bounds."""
    counts = np.bincount(np.searchsorted(bounds, lengths), minlength=len(bounds)).tolist()
    cuts, shapes, waiting = [0], [], 0
    for bound, count in zip(bounds.tolist(), counts, strict=True):
        waiting += count
        most = tokens_per_batch // bound
        multiple = int(np.lcm(row_multiple, ROW_MULTIPLE))
        multiple = multiple if most >= multiple else row_multiple
        rows = most // multiple * multiple
        steps = waiting // rows
        if bound == bounds[-1]:
            # No row may be left over: as many batches as needed, with equally many rows.
            steps = -(-waiting // rows)
            rows = -(-waiting // (steps * multiple)) * multiple
        shapes += [(rows, bound, bound)] * steps
        cuts += [cuts[-1] + rows * (step + 1) for step in range(steps)]
        waiting -= rows * steps
    shapes = np.array(shapes)
    cuts[-1] = len(lengths)
    return BoundedPlan(bounds, np.array(cuts), shapes, int(2 * shapes[:, :2].prod(axis=1).sum()))
