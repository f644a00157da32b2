"""What a model adds up over its rows: losses, metrics, penalties, and their gradients."""

from typing import NamedTuple

import tensorflow as tf

from keras_transformer.training import internals
from keras_transformer.training.loss_sums import (
    OWN_LOSSES,
    LossSums,
    loss_sums,
    reduction_of,
    single_output,
)
from keras_transformer.training.losses import TokenCrossentropy, token_weights, without_scatter
from keras_transformer.training.metrics import Perplexity, TokenAccuracy, TokenMetric
from keras_transformer.training.parts import added, dense, num_rows, scaled
from keras_transformer.training.projected_loss import (
    compiled_projected_loss,
    find_projection,
    projected_loss,
)
from keras_transformer.training.regularisation import activity_penalties, has_activity_regularizer

# The field of `TokenSums` from which each metric is made where the loss is projected.
COUNTED = {TokenAccuracy: "hits", Perplexity: "nats"}


class MetricSums(NamedTuple):
    """The sums from which a token metric is made, scalars."""

    total: tf.Tensor
    tokens: tf.Tensor


class StepSums(NamedTuple):
    """The sums of a step over the parts of a batch and over replicas, scalars."""

    loss: LossSums
    metrics: tuple  # a `MetricSums` for each token metric
    activity: tuple = ()  # the penalties of layers' outputs, times rows


class StepGradients(NamedTuple):
    """Dicts from the position of a weight to its gradient; Keras divides the two differently."""

    loss: dict
    activity: dict


class Objective:
    """The loss that a compiled model minimises, and the token metrics that are summed with it.

    Args:
        model: a compiled model.
        loss: from `resolve_loss`.
        token_metrics: list of metrics, for each of which `is_counted` is true.
        has_own_call: whether the model's `call` may differ from its graph.
        is_scaled: whether the backward pass will be scaled.
    """

    def __init__(self, model, loss, token_metrics, has_own_call=False, is_scaled=False):
        self.loss, self.token_metrics = loss, token_metrics
        self.has_activity = has_activity_regularizer(model)
        needs_logits = has_own_call or self.has_activity  # as other metrics do
        needs_logits = needs_logits or is_scaled  # from which the backward pass begins
        needs_logits = needs_logits or internals.compiled_metrics(model) is not None
        may_project = type(loss) is TokenCrossentropy and not needs_logits
        self.projection = find_projection(model) if may_project else None
        self._projected_loss = compiled_projected_loss if model.jit_compile else projected_loss
        self._divides_penalties = internals.divides_activity_penalties()
        self._model = model
        self._is_compiled = model.jit_compile
        if model.jit_compile:
            # In each replica, without the sums over replicas, which XLA could not compile.
            settings = {"jit_compile": True, "autograph": False, "reduce_retracing": True}
            self.sums = tf.function(self.sums, **settings)
            self.sums_and_gradients = tf.function(self.sums_and_gradients, **settings)
            scaled_one = self.scaled_sums_and_gradients
            self.scaled_sums_and_gradients = tf.function(scaled_one, **settings)

    def sums(self, x, y, sample_weight):
        """The `StepSums` of some rows in evaluation. Updates the metrics that Keras computes."""
        if self._is_projected(sample_weight):
            features = self._features(x, training=False)
            return self._projected(features, x, y, gradients=False)[0]
        return self._of_logits(x, y, sample_weight, training=False)

    def sums_and_gradients(self, x, y, sample_weight):
        """The `StepSums` of some rows in training, and their `StepGradients`."""
        return self._sums_and_gradients(x, y, sample_weight, None)

    def scaled_sums_and_gradients(self, x, y, sample_weight, factor):
        """The same with a backward pass that is scaled by a power of two."""
        return self._sums_and_gradients(x, y, sample_weight, factor)

    def _sums_and_gradients(self, x, y, sample_weight, factor):
        if self._is_projected(sample_weight):
            return self._projected_and_gradients(x, y)
        with tf.GradientTape(persistent=self.has_activity) as tape:
            sums = self._of_logits(x, y, sample_weight, training=True)
        weights = self._model.trainable_weights  # the first call may have created them
        of_loss = _gradients(tape, sums.loss.loss, weights, factor)
        of_activity = _gradients(tape, sums.activity, weights, factor) if self.has_activity else {}
        return sums, StepGradients(of_loss, of_activity)

    def scale(self, sums):
        """The inverse of Keras's divisor of the loss of a whole batch, a scalar."""
        divisor = sums.loss.divisor(reduction_of(self.loss))
        return tf.math.divide_no_nan(tf.ones_like(divisor), divisor)

    def penalty_divisor(self, sums):
        """Keras's divisor of the activity penalties of a batch, a scalar."""
        return sums.loss.rows if self._divides_penalties else tf.ones_like(sums.loss.rows)

    def count(self, sums):
        """The weight of a batch in the loss of an epoch: its tokens, or its rows as in Keras."""
        return sums.loss.weights if isinstance(self.loss, OWN_LOSSES) else sums.loss.rows

    def _is_projected(self, sample_weight):
        return self.projection is not None and sample_weight is None

    def _features(self, x, training):
        features = self.projection.features_of(x, training=training)
        activity_penalties(self._model, num_rows(x))  # raises if there is one
        return features

    def _projected(self, features, x, y, gradients=True):
        """The `StepSums`, and the gradients for the features and for the table, in two parts."""
        table = tf.convert_to_tensor(self.projection.layer.projection_table.value)
        smoothing, pad_id = self.loss.label_smoothing, self.loss.pad_id
        found = self._projected_loss(features, table, y, smoothing, pad_id, gradients)
        tokens, rows = found.sums.tokens, tf.cast(num_rows(x), tf.float32)
        counts = [getattr(found.sums, COUNTED[type(metric)]) for metric in self.token_metrics]
        sums = StepSums(
            LossSums(found.sums.loss, tokens, tokens, tokens, tokens, rows),
            tuple(MetricSums(count, tokens) for count in counts),
        )
        return sums, *found[1:]

    def _projected_and_gradients(self, x, y):
        with tf.GradientTape() as tape:
            features = self._features(x, training=True)
        weights = self._model.trainable_weights
        sums, feature_gradient, table_gradient, of_labels = self._projected(features, x, y)
        gradients = tape.gradient(features, weights, output_gradients=feature_gradient)
        gradients = [
            added(table_gradient, g, of_labels)
            if v is self.projection.layer.projection_table
            else g
            for g, v in zip(gradients, weights, strict=True)
        ]
        return sums, StepGradients(dense(gradients), {})

    def _of_logits(self, x, y, sample_weight, training):
        model, rows = self._model, num_rows(x)
        y_pred = model(x, training=training)  # Keras leaves it out of a call without it
        labels, outputs, weights = single_output(self.loss, y, y_pred, sample_weight)
        with without_scatter(self._is_compiled):
            sums = loss_sums(self.loss, labels, outputs, weights)
        if (metrics := internals.compiled_metrics(model)) is not None:
            metrics.update_state(y, y_pred, sample_weight=sample_weight)
        return StepSums(
            sums._replace(rows=tf.cast(rows, sums.loss.dtype)),
            tuple(_metric_sums(metric, labels, outputs) for metric in self.token_metrics),
            activity_penalties(model, rows if self._divides_penalties else 1),
        )


def _gradients(tape, sums, weights, factor):
    """Dense gradients of scalars; where there is a factor, scaled in the backward pass only."""
    if factor is None:
        return dense(tape.gradient(sums, weights))
    seeds = [tf.cast(factor, s.dtype) for s in tf.nest.flatten(sums)]
    return scaled(dense(tape.gradient(sums, weights, output_gradients=seeds)), 1 / factor)


def is_counted(metric, loss):
    """Whether a metric is summed along with the loss; Keras computes others from whole logits."""
    if not isinstance(loss, TokenCrossentropy) or not isinstance(metric, TokenMetric):
        return False
    return type(metric) in COUNTED and metric.pad_id == loss.pad_id


def _metric_sums(metric, labels, outputs):
    real = token_weights(labels, metric.pad_id)  # Keras does not weigh it by `sample_weight`
    total = tf.reduce_sum(metric.values(labels, outputs) * real)
    return MetricSums(total, tf.reduce_sum(real))
