"""The projected loss of two views of each row, on TensorFlow; projected_loss.py has that of one.

The divergence of two predictions needs whole rows of logits of both. Here they are computed, and
differentiated, some tokens at a time, so that the logits of the whole batch never exist.
"""

import tensorflow as tf

from keras_transformer.training.internals import is_compiled_on_tensorflow
from keras_transformer.training.projected_loss import CHUNK_NUMBERS, COMPILED_CHUNK_NUMBERS


def projected_views(features, table, labels, loss, metrics, consistency):
    """Sums over the real tokens of a batch, and their gradients.

    Without XLA, padding is left out before the product. With it, sizes must not depend on the
    labels: padding weighs 0, and the number of chunks depends on the vocabulary alone.

    Args:
        features: (2 * batch, target, dim), float32 or bfloat16; the views of a row are neighbours.
        table: (vocabulary, dim), float32.
        labels: integers (batch, target).
        loss: a `TokenCrossentropy`.
        metrics: list of `TokenMetric`, computed from the first views.
        consistency: a `Consistency`.

    Returns:
        The sum of the losses, those of the metrics' values, a tuple, and the number of tokens, all
        float32 scalars; the gradients of the loss for the features, in their shape and dtype, and
        for the table, float32.
    """
    vocabulary, dim = table.shape
    length = tf.shape(features)[1]
    hidden = tf.transpose(tf.reshape(features, [-1, 2, length, dim]), [0, 2, 1, 3])
    hidden = tf.reshape(hidden, [-1, 2, dim])  # (batch * target, views, dim)
    flat_labels = tf.reshape(tf.cast(labels, tf.int32), [-1])
    is_real = flat_labels != loss.pad_id
    narrow = tf.cast(table, features.dtype)

    if is_compiled_on_tensorflow():
        places = tf.range(tf.size(flat_labels))
        chunks = -(-vocabulary // COMPILED_CHUNK_NUMBERS)
        rows = -(-tf.size(places) // chunks)
        # That of padding may be infinite or NaN.
        hidden = tf.where(is_real[:, None, None], hidden, tf.zeros_like(hidden))
    else:
        places = tf.cast(tf.where(is_real)[:, 0], tf.int32)
        rows = max(1, CHUNK_NUMBERS // (2 * vocabulary))
        chunks = tf.maximum(-(-tf.size(places) // rows), 1)  # one of padding if there is no token
        rows = -(-tf.size(places) // chunks)  # which leaves the last chunk no shorter
        hidden = tf.gather(hidden, places)
    count = tf.size(places)
    added = [0, chunks * rows - count]
    hidden = tf.pad(hidden, [added, [0, 0], [0, 0]])
    targets = tf.pad(tf.gather(flat_labels, places), [added], constant_values=loss.pad_id)

    def body(chunk, sums, hidden_gradients, table_gradient):
        start = chunk * rows
        h, y = hidden[start : start + rows], targets[start : start + rows]
        weights = loss.weights(y)
        with tf.GradientTape() as tape:
            tape.watch([h, narrow])
            logits = tf.matmul(tf.reshape(h, [-1, dim]), narrow, transpose_b=True)
            logits = tf.reshape(tf.cast(logits, tf.float32), [-1, 2, vocabulary])
            first, second = tf.unstack(logits, axis=1)  # (rows, vocabulary) each
            total = tf.reduce_sum(weights * consistency.values(y, first, second))
        gradients = tape.gradient(total, [h, narrow])
        values = [tf.reduce_sum(weights * metric.values(y, first)) for metric in metrics]
        sums = [tf.add(*pair) for pair in zip(sums, [total, *values], strict=True)]
        hidden_gradients = hidden_gradients.write(chunk, gradients[0])
        return chunk + 1, sums, hidden_gradients, table_gradient + tf.cast(gradients[1], tf.float32)

    hidden_gradients = tf.TensorArray(
        features.dtype, size=chunks, infer_shape=False, element_shape=[None, 2, dim]
    )
    _, (total, *values), hidden_gradients, table_gradient = tf.while_loop(
        lambda chunk, *_: chunk < chunks,
        body,
        (0, [tf.zeros([])] * (1 + len(metrics)), hidden_gradients, tf.zeros_like(table)),
        parallel_iterations=1,
    )
    gradient = tf.reshape(hidden_gradients.stack(), [-1, 2, dim])[:count]
    gradient = tf.scatter_nd(places[:, None], gradient, [tf.size(flat_labels), 2, dim])
    gradient = tf.transpose(tf.reshape(gradient, [-1, length, 2, dim]), [0, 2, 1, 3])
    feature_gradient = tf.reshape(gradient, tf.shape(features))
    tokens = tf.reduce_sum(tf.cast(is_real, tf.float32))
    return total, tuple(values), tokens, feature_gradient, table_gradient
