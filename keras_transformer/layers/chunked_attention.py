"""Dot-product attention of long sequences on TensorFlow, without holding all of its weights."""

import keras
from keras import ops

from keras_transformer.layers.compiled import compiled_attention_weights, unseen_zero
from keras_transformer.layers.dropout import dropped
from keras_transformer.layers.internals import draw_seed, is_compiled, keep_mask_of
from keras_transformer.ops.attention import attention_weights

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

LEAST_WEIGHTS = 1024 * 1024  # per head; fewer are faster all at once
CHUNK_ROWS = 256  # targets at a time


def may_suit_chunks(queries, keys):
    """Whether attention of (..., target, dim) to (..., source, dim) is worth chunking, or may be.

    It may where XLA compiles a program for each of several lengths. Without XLA lengths that vary
    count as short: a branch would slow down every step of short sequences. Never in float64, which
    the sums over chunks would round to float32.
    """
    if keras.backend.backend() != "tensorflow" or queries.dtype == "float64":
        return False
    lengths = queries.shape[-2], keys.shape[-2]
    if None in lengths:
        return is_compiled()
    return lengths[0] * lengths[1] >= LEAST_WEIGHTS


def attention_by_length(queries, keys, values, mask=None, rate=0.0, seed_generator=None):
    """`chunked_attention` of long sequences; short ones at once, with the same context.

    Lengths that vary decide when XLA compiles a program for them. The arguments are those of
    `chunked_attention`, but for a `keras.random.SeedGenerator` in place of a seed.
    """
    seed = draw_seed(seed_generator) if rate else None

    def whole():
        weights = compiled_attention_weights(queries, keys, mask)
        if rate:
            weights = dropped(weights, keep_mask_of(seed, ops.shape(weights), rate), rate)
        return ops.matmul(weights, values)

    def in_chunks():
        return chunked_attention(queries, keys, values, mask, rate, seed)

    is_long = ops.shape(queries)[2] * ops.shape(keys)[2] >= LEAST_WEIGHTS
    if isinstance(is_long, bool):
        return in_chunks() if is_long else whole()
    # XLA compiles both branches of a `tf.cond`, but of a case only that for the shape at hand.
    return tf.switch_case(tf.cast(is_long, tf.int32), [whole, in_chunks])


def chunked_attention(queries, keys, values, mask=None, rate=0.0, seed=None):
    """The context of `dot_product_attention`, computed for some of the targets at a time.

    The weights of a chunk are recomputed in the backward pass. Dropout draws for each chunk, so
    its noise differs from that of `dot_product_attention`.

    Source: Rabe and Staats 2021 (https://arxiv.org/abs/2112.05682), without their sum over
    chunks of sources: here each target has one softmax over all sources.

    Args:
        queries: (batch, heads, target, dim).
        keys: (batch, heads, source, dim).
        values: the same shape as `keys`.
        mask: boolean, broadcasts to (batch, heads, target, source), or None.
        rate: probability in [0, 1) with which a weight is dropped.
        seed: of `draw_seed`; needed if `rate` is not 0.

    Returns:
        (batch, heads, target, dim), in the dtype of `queries`.
    """
    weights_of = _weights_by_chunk(queries, keys, mask, rate, seed)

    @tf.custom_gradient
    def attend(queries, keys, values):
        target, *sizes = _sizes(queries)
        in_chunks = _in_chunks(queries, *sizes)
        context = _out_of_chunks(_contexts(weights_of, in_chunks, keys, values), target)

        def gradient(upstream):
            # Not the sizes of above: XLA would take everything they come with, token ids among it,
            # as constants of the program, and compile one for each batch.
            target, *sizes = _sizes(upstream)
            # For each target, the sum over sources of weight times gradient.
            both = tf.cast(upstream, tf.float32) * tf.cast(context, tf.float32)
            means = _in_chunks(tf.reduce_sum(both, axis=-1, keepdims=True), *sizes)
            upstream = _in_chunks(upstream, *sizes)
            of_queries, of_keys, of_values = _gradients(
                weights_of, in_chunks, keys, values, upstream, means
            )
            of_queries = _out_of_chunks(of_queries, target)
            return of_queries, tf.cast(of_keys, keys.dtype), tf.cast(of_values, values.dtype)

        return context, gradient

    return attend(*map(ops.convert_to_tensor, (queries, keys, values)))


def _weights_by_chunk(queries, keys, mask, rate, seed):
    """A function from the index of a chunk, its queries, (batch, heads, rows, dim), and all keys.

    It returns the weights, (batch, heads, rows, source), and the factors of dropout or None.
    """
    differs_by_target = mask is not None and mask.shape[2] != 1
    if differs_by_target:
        target, _, _, missing = _sizes(queries)
        source = ops.shape(keys)[2]
        mask = tf.broadcast_to(mask, [*ops.shape(mask)[:2], target, source])
        mask = tf.pad(mask, [[0, 0], [0, 0], [0, missing], [0, 0]])

    def weights_of(chunk, chunk_queries, keys):
        # Sizes are those of tensors of the loop: XLA takes none that come from outside of it.
        rows, chunk_mask = ops.shape(chunk_queries)[2], mask
        if differs_by_target:
            *batch_and_heads, _, source = ops.shape(mask)
            chunk_mask = tf.slice(mask, [0, 0, chunk * rows, 0], [*batch_and_heads, rows, source])
            known = (*mask.shape[:2], chunk_queries.shape[2], mask.shape[3])
            chunk_mask = tf.ensure_shape(chunk_mask, known)
        weights = attention_weights(chunk_queries, keys, chunk_mask)
        if not rate:
            return weights, None
        kept = keep_mask_of(seed + [0, chunk], ops.shape(weights), rate)
        return weights, tf.where(kept, tf.cast(1 / (1 - rate), weights.dtype), 0)

    return weights_of


def _contexts(weights_of, queries, keys, values):
    """The contexts of all chunks of queries, (chunks, batch, heads, rows, dim)."""

    def body(chunk, contexts):
        weights = _scaled(*weights_of(chunk, queries[chunk], keys))
        return chunk + 1, contexts.write(chunk, tf.matmul(weights, values))

    contexts = tf.TensorArray(values.dtype, ops.shape(queries)[0], element_shape=queries.shape[1:])
    return _over_chunks(body, queries, contexts)[0].stack()


def _gradients(weights_of, queries, keys, values, upstream, means):
    """The gradients for all chunks of queries, and for keys and values, these in float32."""

    def body(chunk, of_queries, of_keys, of_values):
        some, up = queries[chunk], upstream[chunk]
        weights, factors = weights_of(chunk, some, keys)
        of_chunk = tf.matmul(_scaled(weights, factors), up, transpose_a=True)
        of_values += tf.cast(of_chunk, tf.float32)
        of_weights = _scaled(tf.matmul(up, values, transpose_b=True), factors)
        of_weights, weights = (tf.cast(t, tf.float32) for t in (of_weights, weights))
        of_scores = weights * (of_weights - means[chunk]) * some.shape[-1] ** -0.5
        of_scores = tf.cast(of_scores, some.dtype)
        of_queries = of_queries.write(chunk, tf.matmul(of_scores, keys))
        of_keys += tf.cast(tf.matmul(of_scores, some, transpose_a=True), tf.float32)
        return chunk + 1, of_queries, of_keys, of_values

    chunks = ops.shape(upstream)[0]
    of_queries = tf.TensorArray(queries.dtype, chunks, element_shape=queries.shape[1:])
    # Unless these wait for the gradient, XLA creates the zeros of all layers at once.
    zero = unseen_zero(upstream)
    zeros = [tf.fill(tf.shape(each), zero) for each in (keys, values)]
    zeros = [tf.ensure_shape(each, keys.shape) for each in zeros]
    of_queries, of_keys, of_values = _over_chunks(body, upstream, of_queries, *zeros)
    return of_queries.stack(), of_keys, of_values


def _scaled(weights, factors):
    """Weights times the factors of dropout, if there is any."""
    return weights if factors is None else weights * factors


def _over_chunks(body, of_chunks, *start):
    """What `body` makes of `start`, chunk by chunk."""
    chunks = ops.shape(of_chunks)[0]
    return tf.while_loop(
        lambda chunk, *_: chunk < chunks,
        body,
        (0, *start),
        parallel_iterations=1,
        maximum_iterations=chunks,
    )[1:]


def _sizes(queries):
    """Targets, chunks, rows per chunk, and rows the last one lacks; scalars if they vary."""
    target = ops.shape(queries)[2]
    chunks = -(-target // CHUNK_ROWS)
    rows = -(-target // chunks)
    return target, chunks, rows, chunks * rows - target


def _in_chunks(tensor, chunks, rows, missing):
    """(batch, heads, target, dim) -> (chunks, batch, heads, rows, dim), padded with zeros."""
    heads, dim = tensor.shape[1], tensor.shape[3]
    padded = tf.pad(tensor, [[0, 0], [0, 0], [0, missing], [0, 0]])
    cut = tf.reshape(padded, [-1, heads, chunks, rows, dim])
    return tf.transpose(cut, [2, 0, 1, 3, 4])


def _out_of_chunks(tensor, target):
    """The inverse, for the first `target` rows."""
    chunks, _, heads, rows, dim = ops.shape(tensor)
    return tf.reshape(tf.transpose(tensor, [1, 2, 0, 3, 4]), [-1, heads, chunks * rows, dim])[
        :, :, :target
    ]
