"""Attention in which only the blocks of positions that a pattern allows are computed.

A sequence of n positions is cut into blocks of l. A position compares itself with the
positions of a few blocks nearby and with a few that it can see everywhere: about l + n / l of
them, so with l near the square root of n, time and memory grow as n * sqrt(n).
"""

import dataclasses
import math
from typing import Any, NamedTuple

from keras import ops

from keras_transformer.arguments import check_integer
from keras_transformer.ops.masks import causal_mask, combine_masks, local_mask, mask_positions
from keras_transformer.ops.projection import highest_at_least, known_rows

PATTERNS = ("strided", "fixed", "local")
FORBIDDEN = -1e30  # finite, so that it minus itself is a number


@dataclasses.dataclass(frozen=True)
class SparsePattern:
    """Which positions of a sequence attend to which others.

    Source: Child et al. 2019, section 4.3 (https://arxiv.org/abs/1904.10509); both of its sets
    of positions in every head, which section 5.1 calls merged.

    Args:
        kind: "local" allows the positions at most `block_size` away; "strided" those and every
            `block_size`-th position beyond; "fixed" the own block and the ends of all blocks, the
            first of which begins at position 0.
        block_size: in tokens, at least 1; l in the paper.
        summary_size: of "fixed", how many positions at the end of a block all others may attend
            to, from 1 to `block_size`; c in the paper.
        causal: whether later positions are forbidden.

    Raises:
        ValueError: if the kind is none of these, or a size is out of its range.
    """

    kind: str
    block_size: int
    summary_size: int = 8
    causal: bool = False

    def __post_init__(self):
        if self.kind not in PATTERNS:
            raise ValueError(
                f"pattern must be 'strided', 'fixed' or 'local'. Received: pattern={self.kind!r}."
            )
        check_integer("block_size", self.block_size)
        check_integer("summary_size", self.summary_size)
        if self.kind == "fixed" and self.summary_size > self.block_size:
            raise ValueError(
                "summary_size must be at most block_size: the summary is the end of a block. "
                f"Received: block_size={self.block_size}, summary_size={self.summary_size}."
            )

    def mask(self, target_length, source_length=None, start=0):
        """Which positions may attend, boolean (1, target, source); arguments as of `local_mask`."""
        targets, sources = mask_positions(target_length, source_length, start)
        size, distance = self.block_size, ops.abs(sources - targets)
        if self.kind == "fixed":
            near = targets // size == sources // size
            far = sources % size >= size - self.summary_size
        else:
            near, far = distance <= size, distance % size == 0
        mask = near if self.kind == "local" else ops.logical_or(near, far)
        causal = causal_mask(target_length, source_length, start) if self.causal else None
        return combine_masks(mask, causal)

    def attend(self, queries, keys, values, padding_mask=None, dropout=None):
        """Equals dense attention under `mask`; zeros for a fully masked position.

        Args:
            queries: (batch, heads, length, key_dim).
            keys: (batch, heads, length, key_dim).
            values: (batch, heads, length, value_dim).
            padding_mask: boolean (batch, length), True for a real token; None if all are.
            dropout: a function that drops some of the attention weights, or None. It is called
                for several parts of them, and before they are normalised.
        """
        blocks = _cut(queries, keys, values, padding_mask, self.block_size)
        if self.kind == "fixed":
            parts = [
                _own_block(blocks, self.causal, dropout),
                _summaries(blocks, self.summary_size, self.causal, dropout),
            ]
        else:
            parts = [_window(blocks, self.causal, dropout)]
            if self.kind == "strided":
                parts.append(_columns(blocks, self.causal, dropout))
        return _joined(parts, ops.shape(queries)[2])


class _Blocks(NamedTuple):
    """A sequence cut into blocks, the last one filled up, with the queries already scaled."""

    queries: Any  # (batch, heads, blocks, block, key_dim)
    keys: Any  # (batch, heads, blocks, block, key_dim)
    values: Any  # (batch, heads, blocks, block, value_dim)
    real: Any  # boolean (batch or 1, 1, blocks, block, 1), False for what fills up


class _Sums(NamedTuple):
    """What some source positions add to the softmax of every target position.

    With s the logits and h the highest of them: sum(exp(s - h) v), sum(exp(s - h)), and h.
    """

    context: Any  # (batch, heads, blocks, block, value_dim)
    total: Any  # float32 (batch, heads, blocks, block, 1)
    highest: Any  # float32 (batch, heads, blocks, block, 1)


def _cut(queries, keys, values, padding_mask, size):
    length = ops.shape(queries)[2]
    if padding_mask is None:
        padding_mask = ops.ones((1, length), dtype="bool")
    real = ops.expand_dims(combine_masks(padding_mask), -1)  # (batch or 1, 1, length, 1)
    num_blocks = (length + size - 1) // size
    missing = num_blocks * size - length

    def cut(inputs):
        heads, dim = inputs.shape[1], inputs.shape[3]
        filled = ops.pad(inputs, [[0, 0], [0, 0], [0, missing], [0, 0]])
        return ops.reshape(filled, (known_rows(inputs), heads, num_blocks, size, dim))

    queries = queries * (1.0 / math.sqrt(queries.shape[-1]))
    return _Blocks(cut(queries), cut(keys), cut(values), cut(real))


def _window(blocks, causal, dropout):
    """The positions at most one block length away."""
    size = blocks.queries.shape[3]
    keys, values, real = (_with_neighbours(x, causal) for x in blocks[1:])
    width = keys.shape[3]
    mask = combine_masks(
        local_mask(size, width, radius=size, start=size),
        causal_mask(size, width, start=size) if causal else None,
    )
    return _sums(blocks.queries, keys, values, mask, real, dropout)


def _with_neighbours(inputs, causal):
    """Each block after the one before it and, unless causal, before the one after it."""
    outside = ops.zeros_like(inputs[:, :, :1])
    blocks = [ops.concatenate([outside, inputs[:, :, :-1]], axis=2), inputs]
    if not causal:
        blocks.append(ops.concatenate([inputs[:, :, 1:], outside], axis=2))
    return ops.concatenate(blocks, axis=3)  # (batch, heads, blocks, 2 or 3 * block, dim)


def _columns(blocks, causal, dropout):
    """The positions two or more blocks away; `_window` has the nearer ones."""
    # Same places of all blocks, side by side: (batch, heads, block, blocks, dim).
    queries, keys, values, real = (ops.swapaxes(x, 2, 3) for x in blocks)
    mask = _far_blocks(ops.shape(keys)[3], 1, causal)
    sums = _sums(queries, keys, values, mask, real, dropout)
    return _Sums(*(ops.swapaxes(x, 2, 3) for x in sums))


def _own_block(blocks, causal, dropout):
    size = blocks.queries.shape[3]
    mask = causal_mask(size) if causal else ops.ones((1, size, size), dtype="bool")
    return _sums(*blocks[:3], mask, blocks.real, dropout)


def _summaries(blocks, summary_size, causal, dropout):
    """The last positions of all blocks but the own."""
    num_blocks, size = ops.shape(blocks.queries)[2], blocks.queries.shape[3]

    def in_a_row(inputs):  # (batch, heads, 1, positions, dim): one product for all blocks
        _, heads, _, positions, dim = inputs.shape
        return ops.reshape(inputs, (known_rows(inputs), heads, 1, num_blocks * positions, dim))

    mask = _far_blocks(num_blocks, 0, causal)
    mask = ops.repeat(ops.repeat(mask, size, axis=1), summary_size, axis=2)
    keys, values, real = (in_a_row(x[:, :, :, -summary_size:]) for x in blocks[1:])
    sums = _sums(in_a_row(blocks.queries), keys, values, mask, real, dropout)
    shape = (known_rows(blocks.queries), blocks.queries.shape[1], num_blocks, size)
    return _Sums(*(ops.reshape(x, (*shape, x.shape[-1])) for x in sums))


def _far_blocks(num_blocks, distance, causal):
    """Allows each block those more than `distance` blocks away, (1, blocks, blocks)."""
    return combine_masks(
        ops.logical_not(local_mask(num_blocks, radius=distance)),
        causal_mask(num_blocks) if causal else None,
    )


def _sums(queries, keys, values, mask, real, dropout):
    """The sums over the `keys` that `mask`, (1, target, source), allows and that are `real`."""
    logits = ops.matmul(queries, ops.swapaxes(keys, -1, -2))
    allowed = ops.logical_and(mask, ops.swapaxes(real, -1, -2))
    logits = ops.where(allowed, ops.cast(logits, "float32"), FORBIDDEN)
    # Half of FORBIDDEN, so that all powers are 0, not 1, where nothing is allowed.
    highest = ops.expand_dims(highest_at_least(logits, FORBIDDEN / 2, axis=-1), -1)
    highest = ops.stop_gradient(highest)  # it cancels out
    powers = ops.exp(logits - highest)
    total = ops.sum(powers, axis=-1, keepdims=True)
    powers = ops.cast(powers, values.dtype)
    if dropout is not None:
        powers = dropout(powers)
    return _Sums(ops.matmul(powers, values), total, highest)


def _joined(parts, length):
    """One softmax over all parts: brings them to a common highest logit, adds, divides."""
    highest = parts[0].highest
    for part in parts[1:]:
        highest = ops.maximum(highest, part.highest)
    context = total = 0.0
    for part in parts:
        share = ops.exp(part.highest - highest)
        context += share * ops.cast(part.context, "float32")
        total += share * part.total
    context = context / ops.where(total == 0.0, 1.0, total)
    _, heads, _, size, dim = context.shape
    num_blocks = ops.shape(context)[2]
    shape = (known_rows(context), heads, num_blocks * size, dim)
    context = ops.reshape(context, shape)[:, :, :length]
    return ops.cast(context, parts[0].context.dtype)
