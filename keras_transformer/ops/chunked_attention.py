"""Dot-product attention of long sequences, which never holds all of its weights.

It is computed in chunks of targets, each of which has one softmax over all sources.
"""

import keras
from keras import ops

from keras_transformer.ops.dropout import drop
from keras_transformer.ops.internals import after, keep_mask
from keras_transformer.ops.positions import spread_by_distance
from keras_transformer.ops.softmax import attention_weights

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf
elif keras.backend.backend() == "jax":
    import jax
    import jax.numpy as jnp

CHUNK_ROWS = 256  # targets at a time


def attend_in_chunks(
    queries, keys, values, mask=None, bias=None, soft_cap=None, rate=0.0, seed=None
):
    """The values mixed by their attention weights, for some of the targets at a time.

    The weights of a chunk are recomputed in the backward pass. Dropout draws for each chunk, so
    its noise differs from that of all weights at once.

    Source: Rabe and Staats 2021 (https://arxiv.org/abs/2112.05682), without their sum over
    chunks of sources: here each target has one softmax over all sources.

    Args:
        queries: (batch, heads, target, dim).
        keys: (batch, heads, source, dim).
        values: (batch, heads, source, value_dim).
        mask: boolean, broadcasts to (batch, heads, target, source), or None.
        bias: that of each distance, as of `ops.positions.spread_by_distance`, or None.
        soft_cap: as of `ops.softmax.attention_weights`.
        rate: probability in [0, 1) with which a weight is dropped.
        seed: of `ops.internals.draw_seed`; needed if `rate` is not 0.

    Returns:
        (batch, heads, target, value_dim).
    """
    if keras.backend.backend() == "jax":
        return _attend_on_jax(queries, keys, values, mask, bias, soft_cap, rate, seed)
    weights_of = _weights_by_chunk(queries, keys, mask, soft_cap, rate, seed)

    @tf.custom_gradient
    def forward(queries, keys, values, *biases):
        target, *sizes = _sizes(queries)
        in_chunks = _in_chunks(queries, *sizes)
        # Further than any target, those that fill up the last chunk.
        filled = [tf.pad(b, [[0, 0], [0, 0], [sizes[-1], 0]]) for b in biases]
        context = _out_of_chunks(_contexts(weights_of, in_chunks, keys, values, filled), target)

        def gradient(upstream):
            # Not the sizes of above: XLA would take everything they come with, token ids among it,
            # as constants of the program, and compile one for each batch.
            target, *sizes = _sizes(upstream)
            # For each target, the sum over sources of weight times gradient.
            products = tf.cast(upstream, tf.float32) * tf.cast(context, tf.float32)
            means = _in_chunks(tf.reduce_sum(products, axis=-1, keepdims=True), *sizes)
            upstream = _in_chunks(upstream, *sizes)
            query_gradients, key_gradients, value_gradients, *bias_gradients = _gradients(
                weights_of, in_chunks, keys, values, upstream, means, soft_cap, filled
            )
            return (
                _out_of_chunks(query_gradients, target),
                tf.cast(key_gradients, keys.dtype),
                tf.cast(value_gradients, values.dtype),
                *(each[:, :, sizes[-1] :] for each in bias_gradients),
            )

        return context, gradient

    biases = () if bias is None else (tf.cast(bias, tf.float32),)
    return forward(*map(ops.convert_to_tensor, (queries, keys, values)), *biases)


def _weights_by_chunk(queries, keys, mask, soft_cap, rate, seed):
    """A function of the index of a chunk, its queries, (batch, heads, rows, dim), and all keys.

    It may be given a bias of the chunk. It returns the weights, (batch, heads, rows, source), and
    the factors of dropout or None.
    """
    differs_by_target = mask is not None and mask.shape[2] != 1
    if differs_by_target:
        target, _, _, missing = _sizes(queries)
        source = ops.shape(keys)[2]
        mask = tf.broadcast_to(mask, [*ops.shape(mask)[:2], target, source])
        mask = tf.pad(mask, [[0, 0], [0, 0], [0, missing], [0, 0]])

    def weights_of(chunk, chunk_queries, keys, bias=None):
        # Sizes are those of tensors of the loop: XLA takes none that come from outside of it.
        rows, chunk_mask = ops.shape(chunk_queries)[2], mask
        if differs_by_target:
            *batch_and_heads, _, source = ops.shape(mask)
            chunk_mask = tf.slice(mask, [0, 0, chunk * rows, 0], [*batch_and_heads, rows, source])
            known = (*mask.shape[:2], chunk_queries.shape[2], mask.shape[3])
            chunk_mask = tf.ensure_shape(chunk_mask, known)
        weights = attention_weights(chunk_queries, keys, chunk_mask, bias, soft_cap)
        if not rate:
            return weights, None
        # The second number counts steps: counting chunks in it would repeat noise one step later.
        kept = keep_mask(ops.shape(weights), rate, seed + [chunk, 0])
        return weights, tf.where(kept, tf.cast(1 / (1 - rate), weights.dtype), 0)

    return weights_of


def _bias_of_chunk(bias, chunk, queries, keys):
    """What a bias of all distances is for the queries of a chunk, (1, heads, rows, source)."""
    rows, source = ops.shape(queries)[2], ops.shape(keys)[2]
    num_heads, columns = ops.shape(bias)[1:]
    start = columns - source - (chunk + 1) * rows
    part = tf.slice(bias, [0, 0, start], [1, num_heads, rows + source])
    return spread_by_distance(part, rows)


def _contexts(weights_of, queries, keys, values, biases):
    """The contexts of all chunks of queries, (chunks, batch, heads, rows, dim)."""

    def body(chunk, contexts):
        bias = [_bias_of_chunk(each, chunk, queries[chunk], keys) for each in biases]
        weights = _scaled(*weights_of(chunk, queries[chunk], keys, *bias))
        return chunk + 1, contexts.write(chunk, tf.matmul(weights, values))

    shape = [*queries.shape[1:-1], values.shape[-1]]
    contexts = tf.TensorArray(values.dtype, ops.shape(queries)[0], element_shape=shape)
    return _over_chunks(body, queries, contexts)[0].stack()


def _gradients(weights_of, queries, keys, values, upstream, means, soft_cap, biases):
    """The gradients for all chunks of queries, and for keys, values and biases, in float32."""

    def body(chunk, query_gradients, key_gradients, value_gradients, *bias_gradients):
        chunk_queries, chunk_upstream = queries[chunk], upstream[chunk]
        with tf.GradientTape() as tape:
            tape.watch(biases)
            bias = [_bias_of_chunk(each, chunk, chunk_queries, keys) for each in biases]
        weights, factors = weights_of(chunk, chunk_queries, keys, *bias)
        dropped_weights = _scaled(weights, factors)
        value_gradient = tf.matmul(dropped_weights, chunk_upstream, transpose_a=True)
        weight_gradient = _scaled(tf.matmul(chunk_upstream, values, transpose_b=True), factors)
        weight_gradient, weights = (tf.cast(t, tf.float32) for t in (weight_gradient, weights))
        logit_gradient = weights * (weight_gradient - means[chunk])
        if biases:
            of_rows = [tf.reduce_sum(logit_gradient, axis=0, keepdims=True)]
            [of_chunk] = tape.gradient(bias, biases, of_rows)
            bias_gradients = [bias_gradients[0] + tf.ensure_shape(of_chunk, biases[0].shape)]
        score_gradient = logit_gradient * chunk_queries.shape[-1] ** -0.5
        if soft_cap is not None:
            score_gradient *= _slope_of_soft_cap(chunk_queries, keys, soft_cap)
        score_gradient = tf.cast(score_gradient, chunk_queries.dtype)
        key_gradient = tf.matmul(score_gradient, chunk_queries, transpose_a=True)
        return (
            chunk + 1,
            query_gradients.write(chunk, tf.matmul(score_gradient, keys)),
            key_gradients + tf.cast(key_gradient, tf.float32),
            value_gradients + tf.cast(value_gradient, tf.float32),
            *bias_gradients,
        )

    chunks = ops.shape(upstream)[0]
    query_gradients = tf.TensorArray(queries.dtype, chunks, element_shape=queries.shape[1:])
    # Unless these wait for the gradient, XLA creates the zeros of all layers at once.
    zero = after(tf.zeros([]), upstream)
    zeros = [
        tf.ensure_shape(tf.fill(tf.shape(each), zero), each.shape)
        for each in (keys, values, *biases)
    ]
    query_gradients, *sums = _over_chunks(body, upstream, query_gradients, *zeros)
    return query_gradients.stack(), *sums


def _slope_of_soft_cap(queries, keys, soft_cap):
    """The derivative of `soft_capped` at the products of queries and keys, in float32."""
    logits = tf.matmul(queries * queries.shape[-1] ** -0.5, keys, transpose_b=True)
    return 1 - tf.square(tf.tanh(tf.cast(logits, tf.float32) / soft_cap))


def _scaled(weights, factors):
    """Weights times the factors of dropout, if there is any."""
    return weights if factors is None else weights * factors


def _over_chunks(body, tensor, *start):
    """Applies `body` to `start` as often as a tensor has chunks."""
    chunks = ops.shape(tensor)[0]
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


def _attend_on_jax(queries, keys, values, mask, bias, soft_cap, rate, seed_generator):
    """`attend_in_chunks` on JAX, whose transformations write the backward pass."""
    target, chunks, rows, missing = _sizes(queries)
    seed = seed_generator.next() if rate else None

    def cut(tensor):  # (batch, heads, target, dim) -> (chunks, batch, heads, rows, dim)
        padded = jnp.pad(tensor, [(0, 0), (0, 0), (0, missing), (0, 0)])
        return jnp.moveaxis(padded.reshape(*tensor.shape[:2], chunks, rows, -1), 2, 0)

    if bias is not None:
        bias = jnp.pad(bias, [(0, 0), (0, 0), (missing, 0)])

    @jax.checkpoint
    def context(inputs):
        chunk, chunk_queries, chunk_mask = inputs
        chunk_mask = mask if chunk_mask is None else chunk_mask
        chunk_bias = None
        if bias is not None:
            width = rows + keys.shape[2]
            start = bias.shape[2] - width - chunk * rows
            chunk_bias = jax.lax.dynamic_slice_in_dim(bias, start, width, axis=2)
            chunk_bias = spread_by_distance(chunk_bias, rows)
        weights = attention_weights(chunk_queries, keys, chunk_mask, chunk_bias, soft_cap)
        if rate:
            kept = jax.random.bernoulli(jax.random.fold_in(seed, chunk), 1 - rate, weights.shape)
            weights = drop(weights, kept, rate)
        return jnp.matmul(weights, values)

    masks = cut(mask) if mask is not None and mask.shape[2] != 1 else None
    contexts = jax.lax.map(context, (jnp.arange(chunks), cut(queries), masks))
    batch_size, num_heads = queries.shape[:2]
    dim = values.shape[-1]
    contexts = jnp.moveaxis(contexts, 0, 2).reshape(batch_size, num_heads, chunks * rows, dim)
    return contexts[:, :, :target]
