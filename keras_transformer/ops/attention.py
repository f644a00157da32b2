"""Multi-head attention as a function of tensors: the choice of a kernel, heads, and the cache."""

import keras
from keras import ops

from keras_transformer.ops.chunked_attention import attend_in_chunks
from keras_transformer.ops.compiled import call_either
from keras_transformer.ops.dropout import drop
from keras_transformer.ops.fused_attention import attend_fused, suits_cudnn
from keras_transformer.ops.internals import draw_seed, is_compiled, keep_mask
from keras_transformer.ops.positions import spread_by_distance
from keras_transformer.ops.projection import known_rows
from keras_transformer.ops.softmax import attention_weights

MIN_WEIGHTS = 1024 * 1024  # per head; fewer are faster all at once


def attend(
    queries,
    keys,
    values,
    mask=None,
    bias=None,
    soft_cap=None,
    rate=0.0,
    seed_generator=None,
    keeps_weights=False,
):
    """The values mixed by their attention weights.

    cuDNN computes them in one kernel where it can. Otherwise long sequences are computed in chunks
    of targets, and short ones with all weights at once, as they are wherever the weights are asked
    for.

    Args:
        queries: (batch, heads, target, dim).
        keys: (batch, key_heads, source, dim); each of their heads is shared by as many neighbouring
            heads of queries.
        values: (batch, key_heads, source, value_dim).
        mask: boolean, broadcasts to (batch, 1, target, source), or None.
        bias: added to the logits, broadcasts to (batch, heads, target, source); or that of each
            distance, as of `ops.positions.spread_by_distance`; or None.
        soft_cap: as of `ops.softmax.attention_weights`.
        rate: probability in [0, 1) with which a weight is dropped.
        seed_generator: a `keras.random.SeedGenerator`; needed if `rate` is not 0.
        keeps_weights: whether the weights are returned, too.

    Returns:
        The pair of the context, (batch, heads, target, value_dim), and the weights before dropout,
        (batch, heads, target, source), which are None unless `keeps_weights`.
    """
    if bias is not None:
        keys, values = (repeat_heads(each, queries.shape[1]) for each in (keys, values))
    sharing = queries.shape[1] // keys.shape[1]
    if sharing > 1:
        mask, queries = _joined_mask(mask, queries, sharing), join_heads(queries, sharing)
    seed, weights = draw_seed(seed_generator) if rate else None, None
    arguments = queries, keys, values, mask, bias, soft_cap, rate, seed
    is_plain = bias is None and soft_cap is None and not rate
    if keeps_weights:
        context, weights = attend_at_once(*arguments)
    elif is_plain and suits_cudnn(queries, keys, values):
        context = attend_fused(queries, keys, values, mask)
    else:
        context = call_either(
            is_long(queries, keys, bias, sharing),
            lambda: attend_in_chunks(*arguments),
            lambda: attend_at_once(*arguments)[0],
        )
    if sharing > 1:
        context = separate_heads(context, sharing)
        weights = None if weights is None else separate_heads(weights, sharing)
    return context, weights


def is_long(queries, keys, bias=None, sharing=1):
    """Whether attention of (..., target, dim) to (..., source, dim) is computed in chunks.

    A head that several have been joined to may have as many weights as all of these.

    On TensorFlow, lengths that are unknown are compared when XLA compiles a program for them: the
    answer is then a tensor. Without XLA they count as short, because a branch would slow down every
    step of short sequences. So does float64, which the sums over chunks would round to float32, and
    a bias of each pair of positions, which is as large as the weights.
    """
    backend = keras.backend.backend()
    if (bias is not None and len(bias.shape) != 3) or backend not in ("tensorflow", "jax"):
        return False
    if backend == "tensorflow" and queries.dtype == "float64":
        return False
    lengths = queries.shape[-2], keys.shape[-2]
    if None in lengths:
        if not is_compiled():
            return False
        lengths = ops.shape(queries)[-2], ops.shape(keys)[-2]
    return lengths[0] * lengths[1] >= sharing * MIN_WEIGHTS


def attend_at_once(queries, keys, values, mask=None, bias=None, soft_cap=None, rate=0.0, seed=None):
    """The pair of the context and of all weights before dropout.

    The arguments are those of `attend`, but for as many heads of keys as of queries, and for a seed
    of `ops.internals.draw_seed` in place of a generator.
    """
    if bias is not None and len(bias.shape) == 3:
        bias = spread_by_distance(bias, ops.shape(queries)[2])
    weights = attention_weights(queries, keys, mask, bias, soft_cap)
    return mix(weights, values, rate, seed), weights


def mix(weights, values, rate=0.0, seed=None):
    """The values mixed by their weights, some of which are dropped at a `rate` above 0.

    The `seed` is that of `ops.internals.keep_mask`.
    """
    if rate:
        weights = drop(weights, keep_mask(ops.shape(weights), rate, seed), rate)
    return ops.matmul(weights, values)


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


def repeat_heads(inputs, num_heads):
    """Repeats shared heads of keys or values, so that each head of queries has its own.

    (batch, key_heads, length, dim) -> (batch, num_heads, length, dim).
    """
    sharing = num_heads // inputs.shape[1]
    return inputs if sharing == 1 else ops.repeat(inputs, sharing, axis=1)


def _joined_mask(mask, queries, count):
    """The mask for joined queries, as of `join_heads`."""
    if mask is not None and mask.shape[2] is None:  # it may be 1 and be broadcast
        mask = ops.logical_and(mask, ops.ones((1, 1, ops.shape(queries)[2], 1), "bool"))
    if mask is None or mask.shape[2] == 1:
        return mask
    return ops.tile(mask, (1, 1, count, 1))
