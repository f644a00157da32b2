"""The loss of a step from output projection, softmax and cross-entropy in one, some rows at a time.

The logits of a whole batch are the largest tensor of a training step, and exist several times:
as logits, probabilities and gradients. Here only `CHUNK_NUMBERS` of them exist at a time,
padding is left out before the product, and labels and smoothing change the gradient on the
narrow side of the product instead of in vocabulary width.

It needs a model that ends in a projection to tokens, such as one that translates, and a
`TokenCrossentropy`. projected_loss_on_jax.py has it for JAX.
"""

from typing import NamedTuple

import keras
import numpy as np

from keras_transformer.training.internals import (
    ON_TENSORFLOW,
    is_compiled_on_tensorflow,
    last_call,
)
from keras_transformer.training.losses import TokenCrossentropy
from keras_transformer.training.metrics import PROJECTED_METRICS
from keras_transformer.training.optional_inputs import optional_inputs_of
from keras_transformer.training.whole_loss import (
    LossSums,
    StepGradients,
    StepSums,
    activity_penalties,
    compile_sums,
    dense,
    has_activity,
    num_rows,
    single_output,
)

if ON_TENSORFLOW:
    import tensorflow as tf

CHUNK_NUMBERS = 2**21  # logits at a time: 8 MiB in float32, which stays in the cache
# Where XLA compiles, a batch is cut into vocabulary / 8000 parts: four for a vocabulary of 32,000.
# More parts would save a little memory and move more (docs/h100.md).
COMPILED_CHUNK_NUMBERS = 8000
MOST_TOTAL = 1e30  # of exponentials: products with it stay finite in float32 and in bfloat16
SHIFT_STEP = 120.0  # by how much logits are lowered where their total is more
MOST_SHIFTS = 1000  # then the loss is infinite, as an infinite logit makes it
LABELS_TO_TOKENS = (
    "labels must be integers, (batch, target), with the length of the predictions. Received: "
)


class OutputProjection(NamedTuple):
    model: keras.Model  # up to its output projection
    layer: keras.layers.Layer  # the projection, e.g. a `TokenEmbedding`

    def features_of(self, x, training):
        """The inputs of the layer for the inputs of a batch."""
        with optional_inputs_of(self.model, (x,)) as (inputs,):
            return self.model(inputs, training=training)


def find_projection(model, loss):
    """An `OutputProjection` if the last layer multiplies by a `projection_table`, else None.

    Also None for other losses than `TokenCrossentropy`, with penalties of outputs, which may be
    those of the logits, and if a subclass has a `call` of its own. The layer must have the dtype of
    what it multiplies: not float64, which would be rounded to float32, nor float16, in which
    exponentials would overflow. Its table must be kept in float32.
    """
    outputs = getattr(model, "outputs", None) or []
    if len(outputs) != 1 or type(loss) is not TokenCrossentropy or has_activity(model):
        return None
    layer, arguments, inputs = last_call(outputs[0])
    if not hasattr(layer, "projection_table") or not arguments.get("reverse", False):
        return None
    features = inputs[0]
    if _class_with(layer, "call") is not _class_with(layer, "projection_table"):
        return None
    if layer.compute_dtype != features.dtype:
        return None
    is_float32 = keras.backend.standardize_dtype(layer.projection_table.dtype) == "float32"
    if features.dtype not in ("float32", "bfloat16") or not is_float32:
        return None
    return OutputProjection(keras.Model(model.input, features), layer)


def _class_with(layer, name):
    """The class from which a layer has an attribute."""
    return next((cls for cls in type(layer).__mro__ if name in vars(cls)), None)


class ProjectedLoss:
    """The loss of a compiled model, computed with its `projection`, and its metrics.

    It stands in for a `WholeLoss`, with the same arguments, where there are no sample weights.
    """

    def __init__(self, model, loss, token_metrics, projection, consistency=None):
        self._model, self._loss, self._token_metrics = model, loss, token_metrics
        self._projection, self._consistency = projection, consistency
        compile_sums(self, model)

    def sums(self, x, y, sample_weight=None):
        """The `StepSums` of some rows in evaluation."""
        assert sample_weight is None  # see `StepSettings.loss_from`
        return self._sums(self._features(x, training=False), x, y)[0]

    def sums_and_gradients(self, x, y, sample_weight=None, factor=None):
        """The `StepSums` of some rows in training, and their `StepGradients`."""
        assert sample_weight is None and factor is None  # see `StepSettings.loss_from`
        seen = x if self._consistency is None else self._consistency.views_of(x)
        with tf.GradientTape() as tape:
            features = self._features(seen, training=True)
        weights = self._model.trainable_weights  # the first call may have created them
        sums, feature_gradient, table_gradient = self._sums(features, x, y, training=True)
        gradients = tape.gradient(features, weights, output_gradients=feature_gradient)
        table = self._projection.layer.projection_table
        gradients = [
            _added(table_gradient, gradient) if weight is table else gradient
            for gradient, weight in zip(gradients, weights, strict=True)
        ]
        return sums, StepGradients((dense(gradients),), {})

    def _features(self, x, training):
        features = self._projection.features_of(x, training=training)
        activity_penalties(self._model, num_rows(x))  # raises if there is one
        return features

    def _sums(self, features, x, y, training=False):
        """The `StepSums`, and in training the gradients for the features and for the table."""
        table = tf.convert_to_tensor(self._projection.layer.projection_table.value)
        loss, views = self._loss, self._consistency if training else None
        labels = self._labels(y, features, views=1 if views is None else 2)
        if views is None:
            kernel = compiled_projected_loss if is_compiled_on_tensorflow() else projected_loss
            sums, *gradients = kernel(
                features, table, labels, loss.label_smoothing, loss.pad_id, gradients=training
            )
            total, tokens = sums.loss, sums.tokens
            metrics = [getattr(sums, PROJECTED_METRICS[type(each)]) for each in self._token_metrics]
        else:
            total, metrics, tokens, *gradients = projected_loss_of_views(
                features, table, labels, loss, self._token_metrics, views
            )
        losses = (LossSums(total, tokens, tokens, tokens, tokens),)
        metrics = tuple((metric, tokens) for metric in metrics)
        return StepSums(losses, tf.cast(num_rows(x), tf.float32), metrics), *gradients

    def _labels(self, y, features, views):
        """The labels, one for each token of the features, (batch, target), or fails.

        Elsewhere the logits are compared with the labels; here other labels would be paired with
        other tokens.
        """
        labels, _, _ = single_output(self._loss, y, features, None)
        labels = tf.convert_to_tensor(labels)  # it may be a number or a text
        rows, *others = features.shape[:-1]
        expected = (rows if rows is None else rows // views, *others)
        if not tf.TensorShape(expected).is_compatible_with(labels.shape):
            raise ValueError(
                f"{LABELS_TO_TOKENS}labels of shape {tuple(labels.shape)}, predictions of shape "
                f"{expected} without the vocabulary."
            )
        lengths = tf.shape(features)[1:-1]
        fits = tf.reduce_all(tf.equal(tf.shape(labels)[1:], lengths))
        tf.debugging.Assert(fits, [f"{LABELS_TO_TOKENS}a length of ", tf.shape(labels)[1:]])
        return labels


def _added(gradient, other):
    """The sum of a dense gradient and another, which may be None or `tf.IndexedSlices`."""
    if isinstance(other, tf.IndexedSlices):
        return tf.tensor_scatter_nd_add(gradient, other.indices[:, None], other.values)
    return gradient if other is None else gradient + other


class TokenSums(NamedTuple):
    """Sums over the real tokens of a batch, float32 scalars."""

    loss: "tf.Tensor"  # smoothed
    nats: "tf.Tensor"  # negative log-likelihood
    hits: "tf.Tensor"  # tokens whose label has the highest logit
    tokens: "tf.Tensor"


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

    Returns:
        `TokenSums`, and the gradients of their `loss`, or None for both: for the features, in their
        shape and dtype, and for the table, float32.
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
        # Labels outside of the vocabulary show as NaN; on GPUs `gather` gives 0 for them.
        is_inside = (y >= 0) & (y < vocabulary)
        chosen = tf.where(is_inside, tf.gather(logits, y, batch_dims=1), float("nan"))
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
        return sums, None, None

    through_labels = (1 - label_smoothing) * tf.gather(table, targets) - shared * table_sum
    hidden_gradient = hidden_gradients.concat() - tf.cast(through_labels, features.dtype)
    feature_gradient = tf.scatter_nd(real, hidden_gradient, [tf.size(flat_labels), dim])
    table_gradient = tf.tensor_scatter_nd_sub(
        table_gradient, targets[:, None], (1 - label_smoothing) * tf.cast(hidden, tf.float32)
    )
    return sums, tf.reshape(feature_gradient, tf.shape(features)), table_gradient


def compiled_projected_loss(features, table, labels, label_smoothing=0.0, pad_id=0, gradients=True):
    """Like `projected_loss`, for XLA, which needs sizes that do not depend on the labels.

    Padding weighs 0 instead of being left out, and the number of chunks depends on the vocabulary
    alone: each holds about `COMPILED_CHUNK_NUMBERS` numbers for each token of the batch.
    """
    dim, vocabulary = table.shape[1], table.shape[0]
    flat_labels = tf.reshape(tf.cast(labels, tf.int32), [-1])
    count, chunks = tf.size(flat_labels), -(-vocabulary // COMPILED_CHUNK_NUMBERS)
    added = [0, -count % chunks]
    hidden = tf.pad(tf.reshape(features, [-1, dim]), [added, [0, 0]])
    targets = tf.pad(flat_labels, [added], constant_values=pad_id)
    is_real, safe = targets != pad_id, tf.clip_by_value(targets, 0, vocabulary - 1)
    hidden = tf.where(is_real[:, None], hidden, tf.zeros_like(hidden))  # may be infinite or NaN
    narrow, table_sum = tf.cast(table, features.dtype), tf.reduce_sum(table, axis=0)
    label_rows = tf.cast(tf.gather(narrow, safe), tf.float32)
    through_labels = (1 - label_smoothing) * label_rows + label_smoothing / vocabulary * table_sum

    wide = tf.cast(hidden, tf.float32)
    chosen = tf.reduce_sum(wide * label_rows, axis=-1)
    shifts = tf.where(is_real, chosen, np.inf)  # so that the exponentials of padding are 0
    nats, hits, *normaliser_gradients = _in_chunks(
        chunks, hidden, safe, chosen, shifts, narrow, gradients
    )
    # Labels outside of the vocabulary show as NaN.
    nats = tf.where((targets >= 0) & (targets < vocabulary), nats, float("nan"))
    smoothed = nats + chosen - tf.reduce_sum(wide * through_labels, axis=-1)
    values = (smoothed, nats, hits, tf.ones_like(nats))
    sums = TokenSums(*(tf.reduce_sum(tf.where(is_real, value, 0.0)) for value in values))
    if not gradients:
        return sums, None, None

    real = tf.cast(is_real, tf.float32)[:, None]
    hidden_gradient, table_gradient = (tf.cast(each, tf.float32) for each in normaliser_gradients)
    hidden_gradient = tf.cast((hidden_gradient - real * through_labels)[:count], features.dtype)
    table_gradient -= label_smoothing / vocabulary * tf.reduce_sum(real * wide, axis=0)
    table_gradient = tf.tensor_scatter_nd_sub(
        table_gradient, safe[:, None], (1 - label_smoothing) * real * wide
    )
    return sums, tf.reshape(hidden_gradient, tf.shape(features)), table_gradient


def _in_chunks(chunks, hidden, labels, chosen, shifts, table, gradients):
    """What `compiled_projected_loss` computes from whole rows of logits, a chunk at a time.

    A logit seldom exceeds that of the label so far that the total of a row's exponentials passes
    `MOST_TOTAL`, e to the power of 69. Where it does, the chunk is computed again with the logits
    of that row lowered by `SHIFT_STEP` more.

    Args:
        chunks: into how many equal parts the rows are cut.
        hidden: (rows, dim).
        labels: (rows,), from 0 to below vocabulary.
        chosen: the logits of the labels, float32 (rows,).
        shifts: by how much the logits of each row are lowered at first, float32 (rows,).
        table: (vocabulary, dim), in the dtype of `hidden`.
        gradients: whether to compute them.

    Returns:
        Negative log-likelihoods, (rows,), 1 where no logit is higher than the label's and 0
        elsewhere, (rows,), both in float32, and with `gradients` those of the sum of the rows'
        normalisers, for `hidden` and for `table`, in their dtype.
    """
    cut = [chunks, tf.size(labels) // chunks]
    shifts = tf.reshape(shifts, cut)
    parts = [tf.reshape(each, [*cut, *each.shape[1:]]) for each in (hidden, labels, chosen)]

    def body(chunk, tries, shift, arrays, table_gradient):
        total, results, added = _chunk(*(part[chunk] for part in parts), shift, table, gradients)
        arrays = [array.write(chunk, each) for array, each in zip(arrays, results, strict=True)]
        overflows = (total > MOST_TOTAL) & (tries < MOST_SHIFTS)
        again = tf.reduce_any(overflows)
        if gradients:
            added = tf.cast(added + tf.cast(table_gradient, tf.float32), table.dtype)
            table_gradient = tf.where(again, table_gradient, added)
        # For the next pass: XLA subtracts within the product only what is a variable of the loop.
        shift = tf.where(again, tf.where(overflows, shift + SHIFT_STEP, shift), next_shifts[chunk])
        chunk, tries = tf.where(again, chunk, chunk + 1), tf.where(again, tries + 1, 0)
        return chunk, tries, shift, arrays, table_gradient

    next_shifts = tf.roll(shifts, -1, axis=0)
    kinds = [(tf.float32, []), (tf.float32, []), (table.dtype, [table.shape[1]])]
    arrays = [
        tf.TensorArray(dtype, chunks, element_shape=[parts[1].shape[1], *shape])
        for dtype, shape in (kinds if gradients else kinds[:2])
    ]
    _, _, _, arrays, table_gradient = tf.while_loop(
        lambda chunk, *_: chunk < chunks,
        body,
        (0, 0, shifts[0], arrays, tf.zeros_like(table) if gradients else 0.0),
        parallel_iterations=1,
    )
    rows = [tf.reshape(array.stack(), [-1, *array.element_shape[1:]]) for array in arrays]
    return *rows, table_gradient


def _chunk(hidden, labels, chosen, shift, table, gradients):
    """What is computed from the logits of some rows, lowered by `shift`, float32 (rows,).

    What costs is to move `rows` x `vocabulary` numbers. XLA lowers the logits and computes their
    exponentials within the product, so that only these are written, once, in the dtype of `hidden`.
    They are read for their sum, their maximum and the products of both gradients, which are divided
    by the sum on their narrow side: a softmax would write all numbers a second time.

    Returns:
        Totals of the exponentials, float32 (rows,); a list of the results of `_in_chunks` for each
        of these rows; and, with `gradients`, that for `table`, in float32.
    """
    dtype = hidden.dtype
    logits = tf.matmul(hidden, table, transpose_b=True, output_type=tf.float32)
    exponentials = tf.cast(tf.exp(logits - shift[:, None]), dtype)  # (rows, vocabulary)
    total = tf.reduce_sum(tf.cast(exponentials, tf.float32), axis=-1)
    is_label = tf.range(tf.shape(table)[0]) == labels[:, None]
    others = tf.where(is_label, tf.zeros([], dtype), exponentials)
    is_hit = tf.reduce_max(others, axis=-1) <= tf.cast(tf.exp(chosen - shift), dtype)
    results = [shift + tf.math.log(total) - chosen, tf.cast(is_hit, tf.float32)]
    if not gradients:
        return total, results, None
    share = tf.math.divide_no_nan(1.0, total)[:, None]
    hidden_gradient = tf.matmul(exponentials, table, output_type=tf.float32) * share
    scaled = tf.cast(tf.cast(hidden, tf.float32) * share, dtype)
    table_gradient = tf.matmul(exponentials, scaled, transpose_a=True, output_type=tf.float32)
    return total, [*results, tf.cast(hidden_gradient, dtype)], table_gradient


def projected_loss_of_views(features, table, labels, loss, metrics, consistency):
    """Like `projected_loss`, for two views of each row.

    The divergence of two predictions needs whole rows of logits of both. They are computed, and
    differentiated, some tokens at a time, so that the logits of the whole batch never exist.
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
