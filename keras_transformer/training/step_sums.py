"""What a model adds up over its rows: losses, metrics, penalties, and their gradients."""

from typing import NamedTuple

import keras
import tensorflow as tf
from keras import ops

from keras_transformer.training import internals
from keras_transformer.training.loss_sums import (
    ADDED_LOSS,
    ADDITIVE,
    OWN_LOSSES,
    loss_sums,
    single_output,
)
from keras_transformer.training.losses import TokenCrossentropy, token_weights
from keras_transformer.training.metrics import Perplexity, TokenAccuracy, TokenMetric
from keras_transformer.training.output_projection import find_projection
from keras_transformer.training.projected_loss import (
    compiled_projected_loss,
    projected_loss,
)
from keras_transformer.training.projected_views import projected_views

# The field of `TokenSums` from which each metric is made where the loss is projected.
PROJECTED_METRICS = {TokenAccuracy: "hits", Perplexity: "nats"}
LABELS_TO_TOKENS = (
    "labels must be integers, (batch, target), with the length of the predictions. Received: "
)


class StepSums(NamedTuple):
    """Sums over a part of a batch, scalars; those of all parts and replicas add up."""

    loss: tf.Tensor  # the weighted losses
    values: tf.Tensor  # number of losses, masked ones included
    weights: tf.Tensor  # sample weights times mask; the number of losses without either
    unmasked: tf.Tensor  # number of True in the mask
    mask_size: tf.Tensor
    rows: tf.Tensor
    metrics: tuple = ()  # for each token metric the pair of its sum and the tokens
    activity: tuple = ()  # the penalties of layers' outputs, times rows

    def divisor(self, reduction):
        """The scalar by which Keras divides the summed loss of a batch."""
        if reduction == "sum":
            return tf.ones_like(self.loss)
        if reduction == "mean_with_sample_weight":
            return self.weights
        return self.values * tf.math.divide_no_nan(self.unmasked, self.mask_size)


class StepGradients(NamedTuple):
    """Dicts from the position of a weight to its gradient; Keras divides the two differently."""

    loss: dict
    activity: dict


class Objective:
    """The loss that a compiled model minimises, times `loss_weight`, and its metrics.

    `token_metrics` are those of `compile` if all can be summed with the loss; if they are None,
    Keras computes the metrics, `keras_metrics`.

    With `needs_logits`, whole logits are computed: a `call` may differ from the model's graph, or
    the backward pass will be scaled, which begins from the logits. Keras's metrics and activity
    penalties need them too. Otherwise logits are computed a part at a time, with the loss.

    With a `Consistency`, training sees two views of each row; metrics are those of the first.
    """

    def __init__(
        self, model, loss, loss_weight, token_metrics, needs_logits=False, consistency=None
    ):
        self.token_metrics, self.keras_metrics = token_metrics or [], None
        if token_metrics is None:
            self.keras_metrics = internals.compiled_metrics(model)
        else:
            internals.build_compiled_metrics(model)  # Keras would wait for whole logits
        self._consistency = consistency
        self._model, self._loss, self._loss_weight = model, loss, loss_weight
        self._is_compiled = model.jit_compile
        self._divides_penalties = internals.divides_activity_penalties()
        layers = internals.all_layers(model)
        self._has_activity = any(layer.activity_regularizer is not None for layer in layers)
        needs_logits = needs_logits or self.keras_metrics is not None or self._has_activity
        may_project = type(loss) is TokenCrossentropy and not needs_logits
        self.projection = find_projection(model) if may_project else None
        self._projected_loss = compiled_projected_loss if self._is_compiled else projected_loss
        if self._is_compiled:
            # In each replica, without the sums over replicas, which XLA could not compile.
            settings = {"jit_compile": True, "autograph": False, "reduce_retracing": True}
            self.sums = tf.function(self.sums, **settings)
            self.sums_and_gradients = tf.function(self.sums_and_gradients, **settings)

    def sums(self, x, y, sample_weight):
        """The `StepSums` of some rows in evaluation. Updates the metrics that Keras computes."""
        if self._is_projected(sample_weight):
            features = self._features(x, training=False)
            return self._projected(features, x, y, gradients=False)[0]
        return self._sums_of_logits(x, y, sample_weight, training=False)

    def sums_and_gradients(self, x, y, sample_weight, factor=None):
        """The `StepSums` of some rows in training, and their `StepGradients`.

        The backward pass is scaled by `factor`, a power of two or None for 1; the gradients are
        divided by it again.
        """
        if self._is_projected(sample_weight):
            return self._projected_and_gradients(x, y)
        with tf.GradientTape(persistent=self._has_activity) as tape:
            sums = self._sums_of_logits(x, y, sample_weight, training=True)
        weights = self._model.trainable_weights  # the first call may have created them
        loss_gradients = _gradients(tape, sums.loss, weights, factor)
        if not self._has_activity:
            return sums, StepGradients(loss_gradients, {})
        return sums, StepGradients(loss_gradients, _gradients(tape, sums.activity, weights, factor))

    def scale(self, sums):
        """What turns the summed loss of a whole batch into Keras's number, a scalar."""
        divisor = sums.divisor(self._loss.reduction)
        return tf.math.divide_no_nan(self._loss_weight * tf.ones_like(divisor), divisor)

    def penalty_divisor(self, sums):
        """Keras's divisor of the activity penalties of a batch, a scalar."""
        return sums.rows if self._divides_penalties else tf.ones_like(sums.rows)

    def count(self, sums):
        """The weight of a batch in the loss of an epoch: its tokens, or its rows as in Keras."""
        return sums.weights if isinstance(self._loss, OWN_LOSSES) else sums.rows

    def _is_projected(self, sample_weight):
        return self.projection is not None and sample_weight is None

    def _features(self, x, training):
        features = self.projection.features_of(x, training=training)
        _activity_penalties(self._model, _num_rows(x))  # raises if there is one
        return features

    def _projected(self, features, x, y, gradients=True):
        """The `StepSums`, and the gradients for the features and for the table."""
        table = tf.convert_to_tensor(self.projection.layer.projection_table.value)
        smoothing, pad_id = self._loss.label_smoothing, self._loss.pad_id
        labels = self._labels(y, features)
        projected = self._projected_loss(features, table, labels, smoothing, pad_id, gradients)
        tokens, rows = projected.sums.tokens, tf.cast(_num_rows(x), tf.float32)
        fields = [PROJECTED_METRICS[type(metric)] for metric in self.token_metrics]
        metrics = tuple((getattr(projected.sums, field), tokens) for field in fields)
        sums = StepSums(projected.sums.loss, tokens, tokens, tokens, tokens, rows, metrics)
        return sums, *projected[1:]

    def _labels(self, y, features, views=1):
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

    def _projected_views(self, features, x, y):
        labels = self._labels(y, features, views=2)
        table = tf.convert_to_tensor(self.projection.layer.projection_table.value)
        loss, metrics, tokens, *gradients = projected_views(
            features, table, labels, self._loss, self.token_metrics, self._consistency
        )
        rows, metrics = tf.cast(_num_rows(x), tf.float32), tuple((m, tokens) for m in metrics)
        return StepSums(loss, tokens, tokens, tokens, tokens, rows, metrics), *gradients

    def _projected_and_gradients(self, x, y):
        seen, projected = x, self._projected
        if self._consistency is not None:
            seen, projected = self._consistency.views_of(x), self._projected_views
        with tf.GradientTape() as tape:
            features = self._features(seen, training=True)
        weights = self._model.trainable_weights
        sums, feature_gradient, table_gradient = projected(features, x, y)
        gradients = tape.gradient(features, weights, output_gradients=feature_gradient)
        gradients = [
            added(table_gradient, g) if v is self.projection.layer.projection_table else g
            for g, v in zip(gradients, weights, strict=True)
        ]
        return sums, StepGradients(dense(gradients), {})

    def _sums_of_logits(self, x, y, sample_weight, training):
        model = self._model
        views = self._consistency if training else None
        seen = x if views is None else views.views_of(x)
        y_pred = model(seen, training=training)  # Keras leaves it out of a call without it
        rows = _num_rows(x)  # now that the model has taken x, which may be no data at all
        labels, outputs, weights = single_output(self._loss, y, y_pred, sample_weight)
        if views is None:
            sums = loss_sums(self._loss, labels, outputs, weights)
        else:
            sums = views.loss_sums(labels, outputs, weights)
            y_pred = outputs = views.pair(outputs)[0]
        if self.keras_metrics is not None:
            self.keras_metrics.update_state(y, y_pred, sample_weight=sample_weight)
        return StepSums(
            *sums,
            tf.cast(rows, sums[0].dtype),
            tuple(_metric_sums(metric, labels, outputs) for metric in self.token_metrics),
            _activity_penalties(model, rows if self._divides_penalties else 1),
        )


def is_token_sum(metric, loss):
    """Whether a metric is summed along with the loss; Keras computes others from whole logits."""
    if not isinstance(loss, TokenCrossentropy) or not isinstance(metric, TokenMetric):
        return False
    return type(metric) in PROJECTED_METRICS and metric.pad_id == loss.pad_id


def _metric_sums(metric, labels, outputs):
    real = token_weights(labels, metric.pad_id)  # Keras does not weigh it by `sample_weight`
    total = tf.reduce_sum(metric.values(metric.with_choices(labels), outputs) * real)
    return total, tf.reduce_sum(real)


def _num_rows(x):
    """The number of rows of a batch, an integer scalar."""
    return tf.shape(next(part for part in keras.tree.flatten(x) if part is not None))[0]


def weight_penalty(weights):
    """What weight regularisers add to the loss, whatever the batch: a scalar and its gradients.

    The gradients are a dict by the weights' positions; None and an empty dict without regularisers.
    """
    if all(weight.regularizer is None for weight in weights):
        return None, {}
    with tf.GradientTape() as tape:
        penalties = [ops.sum(w.regularizer(w)) for w in weights if w.regularizer is not None]
        penalty = tf.add_n([tf.cast(p, tf.float32) for p in penalties])
    return penalty, dense(tape.gradient(penalty, weights))


def _activity_penalties(model, divisor):
    """The penalties that the latest call of a model added, as float32 sums over its rows.

    Keras has divided them by `divisor`, the number of rows or 1. The penalties of all parts of a
    batch add up to that of the whole. Raises ValueError for those that may not be sums over rows.
    """
    penalties = []
    for layer in internals.all_layers(model):
        own = internals.added_losses(layer)
        if own and (type(layer.activity_regularizer) not in ADDITIVE or len(own) > 1):
            raise ValueError(ADDED_LOSS.format(f"{len(own)} loss(es) of the layer {layer.name}"))
        penalties += [tf.cast(loss, tf.float32) * tf.cast(divisor, tf.float32) for loss in own]
    return tuple(penalties)


def _gradients(tape, sums, weights, factor):
    """Dense gradients of scalars; where there is a factor, scaled in the backward pass only."""
    if factor is None:
        return dense(tape.gradient(sums, weights))
    seeds = [tf.cast(factor, s.dtype) for s in tf.nest.flatten(sums)]
    return scaled(dense(tape.gradient(sums, weights, output_gradients=seeds)), 1 / factor)


def dense(gradients):
    """Gradients as a dict of dense tensors by position; leaves out those that are None."""
    return {i: tf.convert_to_tensor(g) for i, g in enumerate(gradients) if g is not None}


def scaled(gradients, scale):
    """A dict of gradients times a scalar."""
    return {place: g * tf.cast(scale, g.dtype) for place, g in gradients.items()}


def added(gradient, other):
    """The sum of a dense gradient and another, which may be None or `tf.IndexedSlices`."""
    if isinstance(other, tf.IndexedSlices):
        return tf.tensor_scatter_nd_add(gradient, other.indices[:, None], other.values)
    return gradient if other is None else gradient + other
