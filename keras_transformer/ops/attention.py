"""Dot-product attention, heads, logits by distance, and the cache of decoding."""

import math

import keras
from keras import ops

from keras_transformer.ops.projection import known_rows


def split_heads(inputs, num_heads):
    """(batch, length, heads * dim) -> (batch, heads, length, dim)."""
    dim = inputs.shape[-1] // num_heads
    # Batch is the unknown axis: with it, a batch of zero rows still has a shape.
    heads = ops.reshape(inputs, (known_rows(inputs), ops.shape(inputs)[1], num_heads, dim))
    return ops.transpose(heads, (0, 2, 1, 3))


def merge_heads(inputs):
    """(batch, heads, length, dim) -> (batch, length, heads * dim)."""
    num_heads, dim = inputs.shape[1], inputs.shape[3]
    length = ops.shape(inputs)[2]
    shape = (known_rows(inputs), length, num_heads * dim)
    return ops.reshape(ops.transpose(inputs, (0, 2, 1, 3)), shape)


def attention_weights(queries, keys, mask=None, bias=None, soft_cap=None):
    """How much each target position attends to each source position, (..., heads, target, source).

    softmax(Q K^T / sqrt(d) + bias), computed in float32 under every dtype policy. The weights of a
    fully masked target position are all zero.

    Source: Vaswani et al. 2017, equation 1 (https://arxiv.org/abs/1706.03762).

    Args:
        queries: (..., heads, target, dim).
        keys: (..., heads, source, dim).
        mask: boolean, broadcasts to the weights; True where attention is allowed; None allows all.
        bias: added to the logits, broadcasts to the weights, or None.
        soft_cap: the products are kept between minus this number and it, as of `soft_capped`; None
            for no limit.
    """
    # The same as scaling the logits, up to rounding: fewer numbers are touched, and logits
    # of float16 overflow later.
    queries = queries * (1.0 / math.sqrt(queries.shape[-1]))
    logits = ops.matmul(queries, ops.swapaxes(keys, -1, -2))
    if soft_cap is not None:
        logits = soft_capped(ops.cast(logits, wide_dtype(logits)), soft_cap)
    return ops.cast(masked_softmax(logits, mask, bias), queries.dtype)


def soft_capped(logits, soft_cap):
    """Logits that stay between `-soft_cap` and `soft_cap`: soft_cap * tanh(logits / soft_cap).

    Source: Gemma Team 2024, section 2 (https://arxiv.org/abs/2408.00118).

    Examples:
        >>> soft_capped(keras.ops.array([1.0, 1000.0]), 30.0).numpy().round(2).tolist()
        [1.0, 30.0]
    """
    return soft_cap * ops.tanh(logits / soft_cap)


def wide_dtype(tensor):
    """The dtype in which what must not be rounded is computed: float32, or float64."""
    return keras.backend.result_type(tensor.dtype, "float32")


def masked_softmax(logits, mask=None, bias=None):
    """A softmax over the last axis, at least in float32; zero in a fully masked row.

    The weights have the shape and dtype of the logits, (..., heads, target, source).
    """
    dtype, wide = logits.dtype, wide_dtype(logits)
    logits = ops.cast(logits, wide)
    if bias is not None:
        logits = logits + ops.cast(bias, wide)
    if mask is None:
        return ops.cast(_softmax(logits), dtype)
    # Finite, so that a fully masked row gives no NaN. Chosen rather than added: TensorFlow fuses an
    # addition into the product before it, for which oneDNN has only its reference code on most
    # processors, up to 200 times slower.
    logits = ops.where(mask, logits, -1e30)
    allowed = ops.cast(ops.any(mask, axis=-1, keepdims=True), wide)
    return ops.cast(_softmax(logits) * allowed, dtype)


def _softmax(logits):
    # Keras warns of a softmax over one number; at the first step of decoding there is just one.
    return ops.ones_like(logits) if logits.shape[-1] == 1 else ops.softmax(logits, axis=-1)


def join_heads(inputs, count):
    """Makes one head of each `count` neighbouring ones, whose positions follow each other.

    (batch, heads, length, dim) -> (batch, heads / count, count * length, dim). Heads that share
    their keys and values are then one product, for which these need not be repeated.

    Examples:
        >>> heads = keras.ops.array([[[[1], [2]], [[3], [4]]]])
        >>> join_heads(heads, 2)[0, 0, :, 0].numpy().tolist()
        [1, 2, 3, 4]
    """
    _, num_heads, length, dim = ops.shape(inputs)
    return ops.reshape(inputs, (known_rows(inputs), num_heads // count, count * length, dim))


def separate_heads(inputs, count):
    """The inverse of `join_heads`."""
    _, num_heads, length, dim = ops.shape(inputs)
    return ops.reshape(inputs, (known_rows(inputs), num_heads * count, length // count, dim))


def relative_shift(logits):
    """Moves logits from the column of their distance to the column of their source position.

    In (batch, heads, target, source) logits, column c holds those of the distance source - 1 - c.
    The last target stands at the last source, so each target finds its sources one column further
    left than the target before it. Reading the same numbers as rows of another length moves them. A
    source after its target has no distance; its logit is meaningless and must be masked.

    Source: Dai et al. 2019, appendix B (https://arxiv.org/abs/1901.02860).

    Examples:
        >>> logits = keras.ops.array([[[[2, 1, 0], [5, 4, 3]]]])
        >>> relative_shift(logits)[0, 0].numpy().tolist()
        [[1, 0, 0], [5, 4, 3]]
    """
    _, num_heads, target, source = ops.shape(logits)
    padded = ops.pad(logits, ((0, 0), (0, 0), (0, 0), (1, 0)))
    batch = known_rows(logits)
    rows = ops.reshape(padded, (batch, num_heads, source + 1, target))
    return ops.reshape(rows[:, :, 1:], (batch, num_heads, target, source))


def spread_by_distance(bias, target):
    """The bias of each pair of positions, from that of each distance.

    Args:
        bias: (batch, heads, target + source): at column c that of the distance c - target, which is
            the position of the source less that of the target.
        target: number of targets, an integer scalar.

    Returns:
        (batch, heads, target, source).

    Examples:
        >>> spread_by_distance(keras.ops.array([[[-2, -1, 0, 1, 2]]]), 2)[0, 0].numpy().tolist()
        [[0, 1, 2], [-1, 0, 1]]
    """
    batch_size, num_heads, columns = ops.shape(bias)
    # Reading equal rows as shorter ones moves each by one column further than the row before it.
    row = ops.concatenate([bias[:, :, target:], bias[:, :, :target]], axis=2)
    rows = ops.broadcast_to(row[:, :, None], (batch_size, num_heads, target, columns))
    rows = ops.reshape(rows, (known_rows(bias), num_heads, target * columns))
    # On a CPU the gradient of `slice` takes a tenth of the time of that of an index.
    rows = ops.slice(rows, (0, 0, 0), (batch_size, num_heads, target * (columns - 1)))
    rows = ops.reshape(rows, (known_rows(bias), num_heads, target, columns - 1))
    return ops.slice(rows, (0, 0, 0, 0), (batch_size, num_heads, target, columns - target))


def append_to_cache(past, newest, start=None, axis=2):
    """Appends the newest keys, values or mask of a step to those in the cache.

    With a `start`, they are written to that position of `past`, which has its full size, so that
    XLA compiles the step once; only XLA writes in place. Without one, `past` grows along `axis`.

    Examples:
        >>> past, newest = keras.ops.zeros((1, 2)), keras.ops.ones((1, 1))
        >>> append_to_cache(past, newest, axis=1).numpy().tolist()
        [[0.0, 0.0, 1.0]]
        >>> append_to_cache(past, newest, start=1, axis=1).numpy().tolist()
        [[0.0, 1.0]]
    """
    if start is None:
        return ops.concatenate([past, newest], axis=axis)
    starts = [0] * len(past.shape)
    starts[axis] = start
    return ops.slice_update(past, ops.stack(starts), newest)
