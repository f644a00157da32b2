"""Output projection, softmax and cross-entropy in one, a few hundred tokens at a time.

The logits of a whole batch are the largest tensor of a training step, and exist several times:
as logits, probabilities and gradients. Here only `CHUNK_NUMBERS` of them exist at a time,
padding is left out before the product, and labels and smoothing change the gradient on the
narrow side of the product instead of in vocabulary width.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

CHUNK_NUMBERS = 2**21  # logits at a time: 8 MiB in float32, which stays in the cache
# Where XLA compiles, a batch is cut into vocabulary / 5400 parts: six for a vocabulary of 32,000,
# with which a step compiled for an H100 takes the least memory (docs/h100.md).
COMPILED_CHUNK_NUMBERS = 5400
MOST_TOTAL = 1e30  # of exponentials: products with it stay finite in float32 and in bfloat16
SHIFT_STEP = 120.0  # by how much logits are lowered where their total is more
MOST_SHIFTS = 1000  # then the loss is infinite, as an infinite logit makes it


class TokenSums(NamedTuple):
    """Sums over the real tokens of a batch, float32 scalars."""

    loss: tf.Tensor  # smoothed
    nats: tf.Tensor  # negative log-likelihood
    hits: tf.Tensor  # tokens whose label has the highest logit
    tokens: tf.Tensor


class ProjectedLoss(NamedTuple):
    sums: TokenSums
    feature_gradient: tf.Tensor | None = None  # of `sums.loss`, in shape and dtype of the features
    table_gradient: tf.Tensor | None = None  # of `sums.loss`, float32
    label_gradient: tf.IndexedSlices | None = None  # to be added to `table_gradient`


def projected_loss(features, table, labels, label_smoothing=0.0, pad_id=0, gradients=True):
    """Sums over real tokens of the smoothed cross-entropy of softmax(features · tableᵀ).

    With p the probabilities, E the table, h the features, e the smoothing and V its rows: d/dh = p
    E - (1 - e) E[label] - (e / V) sum(E), and d/dE likewise with h. They are computed with the sums
    unless `gradients` is False.

    Args:
        features: (batch, target, dim), float32 or bfloat16.
        table: (vocabulary, dim), float32.
        labels: integers (batch, target).
        label_smoothing: e, in [0, 1).
        pad_id: label of padding.
        gradients: whether to compute those of the loss.
    """
    dim, vocabulary = table.shape[1], table.shape[0]
    flat_labels = tf.reshape(tf.cast(labels, tf.int32), [-1])
    real = tf.cast(tf.where(tf.not_equal(flat_labels, pad_id)), tf.int32)  # (tokens, 1)
    hidden = tf.gather_nd(tf.reshape(features, [-1, dim]), real)  # (tokens, dim)
    targets = tf.gather_nd(flat_labels, real)
    tokens = tf.shape(targets)[0]

    narrow = tf.cast(table, features.dtype)
    table_sum = tf.reduce_sum(table, axis=0)
    rows = max(1, CHUNK_NUMBERS // vocabulary)
    size = tf.maximum(tokens, 1)  # one empty chunk if there is no token

    def body(start, sums, hidden_gradients, table_gradient):
        h, y = hidden[start : start + rows], targets[start : start + rows]
        logits = tf.cast(tf.matmul(h, narrow, transpose_b=True), tf.float32)  # (rows, vocabulary)
        probabilities = tf.nn.softmax(logits)
        highest = tf.reduce_max(logits, axis=-1)
        # The highest probability is 1 / sum(exp(logits - highest)).
        normaliser = highest - tf.math.log(tf.reduce_max(probabilities, axis=-1))
        chosen = tf.gather(logits, y, batch_dims=1)
        mean = tf.reduce_sum(tf.cast(h, tf.float32) * table_sum, axis=-1) / vocabulary
        smoothed = (1 - label_smoothing) * chosen + label_smoothing * mean
        chunk = TokenSums(
            loss=tf.reduce_sum(normaliser - smoothed),
            nats=tf.reduce_sum(normaliser - chosen),
            hits=tf.reduce_sum(tf.cast(chosen >= highest, tf.float32)),
            tokens=tf.cast(tf.size(y), tf.float32),
        )
        sums = tf.nest.map_structure(tf.add, sums, chunk)
        if gradients:
            p = tf.cast(probabilities, features.dtype)
            hidden_gradients = hidden_gradients.write(start // rows, tf.matmul(p, narrow))
            table_gradient += tf.cast(tf.matmul(p, h, transpose_a=True), tf.float32)
        return start + rows, sums, hidden_gradients, table_gradient

    hidden_gradients = tf.TensorArray(
        features.dtype, size=-(-size // rows), infer_shape=False, element_shape=[None, dim]
    )
    shared = -label_smoothing / vocabulary
    hidden_sum = tf.reduce_sum(tf.cast(hidden, tf.float32), axis=0)
    table_gradient = tf.broadcast_to(shared * hidden_sum, table.shape if gradients else [0, dim])
    _, sums, hidden_gradients, table_gradient = tf.while_loop(
        lambda start, *_: start < size,
        body,
        (0, TokenSums(*[tf.zeros([])] * 4), hidden_gradients, table_gradient),
        parallel_iterations=1,
    )
    if not gradients:
        return ProjectedLoss(sums)

    through_labels = (1 - label_smoothing) * tf.gather(table, targets) - shared * table_sum
    hidden_gradient = hidden_gradients.concat() - tf.cast(through_labels, features.dtype)
    feature_gradient = tf.scatter_nd(real, hidden_gradient, [tf.size(flat_labels), dim])
    table_gradient = tf.tensor_scatter_nd_sub(
        table_gradient, targets[:, None], (1 - label_smoothing) * tf.cast(hidden, tf.float32)
    )
    return ProjectedLoss(sums, tf.reshape(feature_gradient, tf.shape(features)), table_gradient)


def compiled_projected_loss(features, table, labels, label_smoothing=0.0, pad_id=0, gradients=True):
    """Like `projected_loss`, for XLA, which needs sizes that do not depend on the labels.

    Padding weighs 0 instead of being left out. A batch is cut into so many chunks that each
    holds about `COMPILED_CHUNK_NUMBERS` numbers for each token of the batch. These are not logits
    but exp(logit - shift), which XLA computes in its product: they are written once, and read for
    their sum and for both gradients, which are divided by that sum on their narrow side.
    """
    dim, vocabulary = table.shape[1], table.shape[0]
    flat_labels = tf.reshape(tf.cast(labels, tf.int32), [-1])
    count, chunks = tf.size(flat_labels), -(-vocabulary // COMPILED_CHUNK_NUMBERS)
    rows = -(-count // chunks)
    added = [0, chunks * rows - count]
    hidden = tf.pad(tf.reshape(features, [-1, dim]), [added, [0, 0]])
    targets = tf.pad(flat_labels, [added], constant_values=pad_id)
    is_real, safe = targets != pad_id, tf.clip_by_value(targets, 0, vocabulary - 1)
    narrow, table_sum = tf.cast(table, features.dtype), tf.reduce_sum(table, axis=0)
    through_labels = (1 - label_smoothing) * tf.cast(tf.gather(narrow, safe), tf.float32)
    through_labels += label_smoothing / vocabulary * table_sum

    wide = tf.cast(hidden, tf.float32)
    chosen = tf.reduce_sum(wide * tf.cast(tf.gather(narrow, safe), tf.float32), axis=-1)
    chunk_results, table_gradient = [], tf.zeros_like(narrow) if gradients else None
    for chunk in range(chunks):
        part = slice(chunk * rows, (chunk + 1) * rows)
        *results, table_gradient = _exponentials(
            hidden[part], narrow, safe[part], is_real[part], chosen[part], table_gradient
        )
        chunk_results.append(results)
    nats, hits, hidden_gradients = zip(*chunk_results, strict=True)
    nats, hits = tf.concat(nats, 0), tf.cast(tf.concat(hits, 0), tf.float32)

    # Labels outside of the vocabulary show as NaN.
    nats = tf.where((targets >= 0) & (targets < vocabulary), nats, float("nan"))
    smoothed = nats + chosen - tf.reduce_sum(wide * through_labels, axis=-1)
    values = (smoothed, nats, hits, tf.ones_like(hits))
    sums = TokenSums(*(tf.reduce_sum(tf.where(is_real, value, 0.0)) for value in values))
    if not gradients:
        return ProjectedLoss(sums)

    real = tf.cast(is_real, tf.float32)[:, None]
    hidden_gradient = tf.cast(tf.concat(hidden_gradients, 0), tf.float32) - real * through_labels
    hidden_gradient = tf.cast(hidden_gradient[:count], features.dtype)
    table_gradient = tf.cast(table_gradient, tf.float32)
    table_gradient -= label_smoothing / vocabulary * tf.reduce_sum(real * wide, axis=0)
    label_gradient = tf.IndexedSlices((label_smoothing - 1) * real * wide, safe)
    feature_gradient = tf.reshape(hidden_gradient, tf.shape(features))
    return ProjectedLoss(sums, feature_gradient, table_gradient, label_gradient)


def _exponentials(hidden, table, labels, is_real, chosen, before):
    """A chunk of `compiled_projected_loss`, of `hidden` (rows, dim) and `table` (vocabulary, dim).

    `chosen` are the logits of the labels, float32 (rows,); `before` is the gradient for `table` of
    earlier chunks, or None to compute no gradients.

    Returns:
        Negative log-likelihoods, float32 (rows,), whether no other logit is higher than the
        label's, and the gradients of the sum of all normalisers: for `hidden`, and for
        `table`, of this chunk and those before; or None.
    """

    def body(shift, *_):
        logits = tf.matmul(hidden, table, transpose_b=True, output_type=tf.float32)
        numbers = tf.cast(tf.exp(logits - shift[:, None]), hidden.dtype)  # (rows, vocabulary)
        total = tf.reduce_sum(tf.cast(numbers, tf.float32), axis=-1)
        is_label = tf.range(tf.shape(table)[0]) == labels[:, None]
        others = tf.where(is_label, tf.zeros([], numbers.dtype), numbers)
        own = tf.cast(tf.exp(chosen - shift), hidden.dtype)
        results = [total, tf.reduce_max(others, axis=-1) <= own]
        if before is not None:
            share = tf.math.divide_no_nan(1.0, total)[:, None]
            hidden_gradient = tf.matmul(numbers, table, output_type=tf.float32) * share
            results.append(tf.cast(hidden_gradient, hidden.dtype))
            scaled = tf.cast(tf.cast(hidden, tf.float32) * share, hidden.dtype)
            table_gradient = tf.matmul(numbers, scaled, transpose_a=True, output_type=tf.float32)
            table_gradient += tf.cast(before, tf.float32)
            results.append(tf.cast(table_gradient, before.dtype))
        overflows = total > MOST_TOTAL
        return tf.where(overflows, shift + SHIFT_STEP, shift), tf.reduce_any(overflows), *results

    # A logit is seldom so far above its label's that the total overflows: nearly always there is
    # one pass. XLA fuses `shift` into the product only in the body of a loop. Padding rows hold
    # zeros. Of the loop's initial values, only `shift` is read.
    shift = tf.where(is_real, chosen, np.inf)
    start = shift, tf.constant(True), chosen, is_real
    if before is not None:
        # Not a constant, or XLA would make those of all chunks at once.
        unknown = tf.where(tf.reduce_any(is_real), before[0, 0], 0)
        start += tf.zeros_like(hidden), tf.fill(tf.shape(table), unknown)
    shift, _, total, hits, *gradients = tf.while_loop(
        lambda _, overflows, *__: overflows, body, start, maximum_iterations=MOST_SHIFTS
    )
    return shift + tf.math.log(total) - chosen, hits, *(gradients or [None, None])
