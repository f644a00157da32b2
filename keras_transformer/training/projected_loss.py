"""Output projection, softmax and cross-entropy in one, a few hundred tokens at a time.

The logits of a whole batch are the largest tensor of a training step, and exist several times:
as logits, probabilities and gradients. Here only `CHUNK_NUMBERS` of them exist at a time,
padding is left out before the product, and labels and smoothing change the gradient on the
narrow side of the product instead of in vocabulary width.
"""

import dataclasses
from typing import NamedTuple

import keras
import tensorflow as tf

from keras_transformer.training.internals import last_call

CHUNK_NUMBERS = 2**21  # logits at a time: 8 MiB in float32, which stays in the cache
COMPILED_CHUNK_NUMBERS = 8000  # logits per token at a time where XLA compiles


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


def projected_loss(features, table, labels, label_smoothing=0.0, pad_id=0, gradients=True):
    """Sums over real tokens of the smoothed cross-entropy of softmax(features · tableᵀ).

    With p the probabilities, E the table, h the features, e the smoothing and V its rows:
    d/dh = p E - (1 - e) E[label] - (e / V) sum(E), and d/dE likewise with h.

    Args:
        features: (batch, target, dim), float32 or bfloat16.
        table: (vocabulary, dim), float32.
        labels: integers (batch, target).
        label_smoothing: e, in [0, 1).
        pad_id: label of padding.
        gradients: whether to compute those of the loss.

    Returns:
        A `ProjectedLoss`.
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
    some = tf.maximum(tokens, 1)  # one empty chunk if there is no token

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
        features.dtype, size=-(-some // rows), infer_shape=False, element_shape=[None, dim]
    )
    shared = -label_smoothing / vocabulary
    hidden_sum = tf.reduce_sum(tf.cast(hidden, tf.float32), axis=0)
    table_gradient = tf.broadcast_to(shared * hidden_sum, table.shape if gradients else [0, dim])
    _, sums, hidden_gradients, table_gradient = tf.while_loop(
        lambda start, *_: start < some,
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

    Padding has weight 0 instead of being left out, and the gradient of the labels is chosen by
    comparison, in the pass over the probabilities, instead of by gather and scatter. A batch is
    split into as many chunks as needed for about `COMPILED_CHUNK_NUMBERS` logits per token in each.
    """
    dim, vocabulary = table.shape[1], table.shape[0]
    flat_labels = tf.reshape(tf.cast(labels, tf.int32), [-1])
    count, chunks = tf.size(flat_labels), -(-vocabulary // COMPILED_CHUNK_NUMBERS)
    rows = -(-count // chunks)
    added = [0, chunks * rows - count]
    hidden = tf.pad(tf.reshape(features, [-1, dim]), [added, [0, 0]])
    targets = tf.pad(flat_labels, [added], constant_values=pad_id)
    narrow = tf.cast(table, features.dtype)
    table_sum = tf.reduce_sum(table, axis=0)

    sums, table_gradient, hidden_gradients = TokenSums(*[tf.zeros([])] * 4), 0.0, []
    before = tf.zeros([])
    for chunk in range(chunks):
        h = hidden[chunk * rows : (chunk + 1) * rows]
        # This adds zero, but XLA does not know that; otherwise it would hold all logits at once.
        h += tf.cast(tf.where(tf.math.is_finite(before), 0.0, before), h.dtype)
        y = targets[chunk * rows : (chunk + 1) * rows]
        is_real = y != pad_id
        logits = tf.cast(tf.matmul(h, narrow, transpose_b=True), tf.float32)  # (rows, vocabulary)
        highest = tf.reduce_max(logits, axis=-1)
        normaliser = highest + tf.math.log(tf.reduce_sum(tf.exp(logits - highest[:, None]), -1))
        chosen = tf.gather(logits, tf.clip_by_value(y, 0, vocabulary - 1), batch_dims=1)
        # Labels outside the vocabulary give NaN.
        chosen = tf.where((y >= 0) & (y < vocabulary), chosen, float("nan"))
        mean = tf.reduce_sum(tf.cast(h, tf.float32) * table_sum, axis=-1) / vocabulary
        smoothed = (1 - label_smoothing) * chosen + label_smoothing * mean
        hits = tf.cast(chosen >= highest, tf.float32)
        values = TokenSums(normaliser - smoothed, normaliser - chosen, hits, tf.ones_like(hits))
        values = (tf.reduce_sum(tf.where(is_real, value, 0.0)) for value in values)
        sums = TokenSums(*map(tf.add, sums, values))
        before = sums.loss
        if gradients:
            p = tf.exp(logits - normaliser[:, None]) - label_smoothing / vocabulary
            p -= tf.where(tf.range(vocabulary) == y[:, None], 1 - label_smoothing, 0.0)
            p = tf.cast(tf.where(is_real[:, None], p, 0.0), features.dtype)
            hidden_gradients.append(tf.matmul(p, narrow))
            of_table = tf.matmul(p, h, transpose_a=True)
            table_gradient += tf.cast(of_table, tf.float32)
            firsts = hidden_gradients[-1][:1, :1] + of_table[:1, :1]
            before += tf.cast(tf.reduce_sum(firsts), tf.float32)
    if not gradients:
        return ProjectedLoss(sums)
    hidden_gradient = tf.concat(hidden_gradients, axis=0)[:count]
    return ProjectedLoss(sums, tf.reshape(hidden_gradient, tf.shape(features)), table_gradient)


@dataclasses.dataclass(frozen=True)
class OutputProjection:
    features_of: keras.Model  # the model up to its output projection
    layer: keras.layers.Layer  # the projection, e.g. a `TokenEmbedding`


def find_projection(model):
    """An `OutputProjection` if the last layer multiplies by a `projection_table`, else None."""
    outputs = getattr(model, "outputs", None) or []
    if len(outputs) != 1:
        return None
    layer, arguments, features = last_call(outputs[0])
    if not hasattr(layer, "projection_table") or not arguments.get("reverse", False):
        return None
    return OutputProjection(keras.Model(model.input, features), layer)
