"""The exact train step on TensorFlow: sum, reduce once, divide, clip, apply.

Why not Keras's: with several replicas it averages the means of the replicas, clips before
it sums, and accumulates in the optimizer, each of which gives other numbers than one device.
"""

import dataclasses
import inspect

import keras
import tensorflow as tf

from keras_transformer.training import compile_checks as checks
from keras_transformer.training import internals
from keras_transformer.training.distribution import has_workers
from keras_transformer.training.loss_sums import (
    LossSums,
    StepSums,
    loss_sums,
    reduction_of,
    resolve_loss,
    single_output,
)
from keras_transformer.training.losses import TokenCrossentropy, token_weights
from keras_transformer.training.metrics import Perplexity, TokenAccuracy, TokenMetric, loss_tracker
from keras_transformer.training.parts import (
    added,
    dense,
    num_rows,
    over_replicas,
    part_of,
    reduced,
    scaled,
    sum_of,
)
from keras_transformer.training.projected_loss import Projection, find_projection, projected_loss
from keras_transformer.training.regularisation import (
    activity_penalties,
    has_activity_regularizer,
    weight_penalty,
)
from keras_transformer.training.replicas import DropoutSeeds, check_carried, check_data


class TrainStep(internals.BuildsFromShapes):
    """Mixed into `keras.Model` by `keras_transformer.training.Model`."""

    def compile(
        self,
        optimizer="rmsprop",
        loss=None,
        loss_weights=None,
        metrics=None,
        weighted_metrics=None,
        run_eagerly=False,
        steps_per_execution=1,
        jit_compile="auto",
        auto_scale_loss=True,
        *,
        clip_norm=None,
        accumulation_steps=1,
        ema_momentum=None,
    ):
        optimizer = keras.optimizers.get(optimizer)
        checks.check_optimizer(optimizer)
        checks.check_arguments(clip_norm, accumulation_steps, ema_momentum, loss_weights)
        check_carried(self, accumulation_steps)
        resolved = resolve_loss(loss)
        checks.check_strategy(self, steps_per_execution, jit_compile)
        checks.check_model(self, TrainStep, accumulation_steps, ema_momentum)
        if jit_compile == "auto":
            # On CPU XLA's products are slower than oneDNN's, several times so in bfloat16.
            jit_compile = bool(tf.config.list_logical_devices("GPU"))
            jit_compile = jit_compile and not tf.distribute.has_strategy()
            jit_compile = jit_compile and not run_eagerly
        token_metrics = []  # summed along with the loss; Keras computes others from whole logits
        if isinstance(metrics, (list, tuple)):
            token_metrics = [m for m in metrics if _counts_tokens_of(resolved, m)]
            metrics = [m for m in metrics if not _counts_tokens_of(resolved, m)]
        internals.forget_compiled_metrics(self)
        super().compile(
            optimizer,
            loss,
            metrics=metrics or None,
            weighted_metrics=weighted_metrics,
            run_eagerly=run_eagerly,
            steps_per_execution=steps_per_execution,
            jit_compile=jit_compile,
            auto_scale_loss=auto_scale_loss,
        )
        checks.check_optimizer(self.optimizer)  # which Keras may have wrapped
        internals.take_summed_gradients(optimizer)
        if not optimizer.built and self.built:
            optimizer.build(self.trainable_variables)
        # Other metrics need the logits, and XLA cannot leave out padding, whose number varies.
        projected = type(resolved) is TokenCrossentropy and internals.compiled_metrics(self) is None
        projected = projected and not (self.jit_compile or has_activity_regularizer(self))
        projected = projected and not checks.overrides(self, TrainStep, "call")
        averages = None
        if ema_momentum is not None:
            averages = [tf.Variable(v.value, trainable=False) for v in self.trainable_variables]
        self._step = _StepSettings(
            loss=resolved,
            token_metrics=token_metrics,
            clip_norm=clip_norm,
            accumulation_steps=accumulation_steps,
            ema_momentum=ema_momentum,
            averages=averages,
            projection=find_projection(self) if projected else None,
            dropout_seeds=DropoutSeeds(self),
            takes_training="training" in inspect.signature(self.call).parameters,
        )

    @property
    def metrics(self):
        return [*super().metrics, *(self._step.token_metrics if self.compiled else [])]

    def get_compile_config(self):
        """What `.keras` keeps of `compile`, so that a reloaded model trains on."""
        config = super().get_compile_config()
        if config:
            serialize = keras.saving.serialize_keras_object
            if self._step.token_metrics:
                others = config["metrics"] or []
                config["metrics"] = [*map(serialize, self._step.token_metrics), *others]
            for name in ("clip_norm", "accumulation_steps", "ema_momentum"):
                config[name] = getattr(self._step, name)
        return config

    def compile_from_config(self, config):
        self.compile(**keras.saving.deserialize_keras_object(config))

    def fit(self, x=None, *args, **kwargs):
        checks.check_compiled(self, "fit")
        given = inspect.signature(super().fit).bind_partial(x, *args, **kwargs).arguments
        checks.check_class_weight(self._step.loss, given.get("class_weight"))
        check_data(x, self.distribute_strategy)
        if (valid := given.get("validation_data")) is not None:
            valid = valid[0] if isinstance(valid, (list, tuple)) else valid
            check_data(valid, self.distribute_strategy)
        self._step.dropout_seeds.spread()
        return super().fit(x, *args, **kwargs)

    def evaluate(self, x=None, *args, **kwargs):
        checks.check_compiled(self, "evaluate")
        check_data(x, self.distribute_strategy)
        return super().evaluate(x, *args, **kwargs)

    def train_on_batch(self, x, y=None, sample_weight=None, class_weight=None, return_dict=False):
        checks.check_compiled(self, "train_on_batch")
        checks.check_class_weight(self._step.loss, class_weight)
        checks.check_one_replica(self, "train_on_batch")
        return super().train_on_batch(x, y, sample_weight, class_weight, return_dict)

    def test_on_batch(self, *args, **kwargs):
        checks.check_compiled(self, "test_on_batch")
        checks.check_one_replica(self, "test_on_batch")
        return super().test_on_batch(*args, **kwargs)

    def predict_on_batch(self, x):
        checks.check_one_replica(self, "predict_on_batch")
        return super().predict_on_batch(x)

    def train_step(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        checks.check_labels(y, self._step.loss)
        parts = self._step.accumulation_steps
        summed = None
        for part in range(parts):
            share = part_of(part, parts, (x, y, sample_weight))
            new = self._sums_and_gradients(*share)
            summed = new if summed is None else tf.nest.map_structure(tf.add, summed, new)
        sums, gradients = summed
        sums, (gradients, of_activities) = over_replicas(sums, gradients)
        weights = self.trainable_weights
        penalty, of_weights = weight_penalty(weights)

        scale = self._scale(sums)
        if of_activities or of_weights:
            per_row = tf.math.divide_no_nan(1.0, sums.loss.rows)
            gradients = sum_of(scaled(gradients, scale), scaled(of_activities, per_row), of_weights)
            scale = tf.ones([])
        if self._step.clip_norm is not None:
            scale = tf.cast(scale, tf.float32)
            singles = [tf.cast(g, tf.float32) for g in gradients.values()]
            norm = tf.linalg.global_norm(singles) * scale
            scale *= self._step.clip_norm / tf.maximum(norm, self._step.clip_norm)
        gradients = scaled(gradients, scale)
        if weights:
            checks.check_gradients(gradients)
            self.optimizer.apply_gradients([(g, weights[i]) for i, g in gradients.items()])
        self._update_averages()
        return self._logs(sums, penalty)

    def test_step(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        checks.check_labels(y, self._step.loss)
        if self._step.projection is not None and sample_weight is None:
            features = self._step.projection.features_of(x, training=False)
            activity_penalties(self, num_rows(x))  # raises if there is one
            sums = self._projected_loss(features, y, num_rows(x), gradients=False)
        else:
            sums = self._sums(x, y, sample_weight, training=False)
        penalty, _ = weight_penalty(self.trainable_weights)
        return self._logs(over_replicas(sums)[0], penalty)

    def swap_averaged_weights(self):
        """Exchanges the weights with their moving average; a second call changes them back."""
        if self._step.averages is None:
            raise ValueError(
                "There is no moving average of the weights. Compile with e.g. ema_momentum=0.999."
            )
        for variable, average in zip(self.trainable_variables, self._step.averages, strict=True):
            kept = tf.identity(variable.value)
            variable.assign(average)
            average.assign(kept)

    def _update_averages(self):
        if self._step.averages is None:
            return
        rate = 1 - self._step.ema_momentum
        for variable, average in zip(self.trainable_variables, self._step.averages, strict=True):
            average.assign_add(rate * (variable.value - average))

    def _sums_and_gradients(self, x, y, sample_weight):
        """This replica's `StepSums`, and a pair of the gradients of its loss and its activities.

        Each is a dict by the places of the weights. Keras divides the penalties of activities by
        other numbers than the loss.
        """
        projection, penalised = self._step.projection, has_activity_regularizer(self)
        if projection is None or sample_weight is not None:
            with tf.GradientTape(persistent=penalised) as tape:
                sums = self._sums(x, y, sample_weight, training=True)
            weights = self.trainable_weights  # which the first call may have made
            gradients = dense(tape.gradient(sums.loss.loss, weights))
            of_activities = dense(tape.gradient(sums.activity, weights)) if penalised else {}
            return sums, (gradients, of_activities)
        with tf.GradientTape() as tape:
            features = projection.features_of(x, training=True)
        activity_penalties(self, num_rows(x))  # raises if there is one
        weights = self.trainable_weights
        sums, feature_gradient, table_gradient = self._projected_loss(features, y, num_rows(x))
        gradients = tape.gradient(features, weights, output_gradients=feature_gradient)
        gradients = [
            added(table_gradient, g) if v is projection.layer.projection_table else g
            for g, v in zip(gradients, weights, strict=True)
        ]
        return sums, (dense(gradients), {})

    def _projected_loss(self, features, y, rows, gradients=True):
        loss = self._step.loss
        table = tf.convert_to_tensor(self._step.projection.layer.projection_table.value)
        found = projected_loss(features, table, y, loss.label_smoothing, loss.pad_id, gradients)
        numbers, *rest = found if gradients else [found]
        total, likelihood, hits, tokens = tf.unstack(numbers)
        counted = {Perplexity: likelihood, TokenAccuracy: hits}
        sums = StepSums(
            LossSums(total, tokens, tokens, tokens, tokens, tf.cast(rows, tf.float32)),
            tuple((counted[type(metric)], tokens) for metric in self._step.token_metrics),
        )
        return (sums, *rest) if gradients else sums

    def _sums(self, x, y, sample_weight, training):
        """`StepSums` through whole logits; updates the metrics that Keras computes."""
        y_pred = self(x, training=training) if self._step.takes_training else self(x)
        rows = num_rows(x)
        loss = self._step.loss
        labels, outputs, weights = single_output(loss, y, y_pred, sample_weight)
        sums = loss_sums(loss, labels, outputs, weights)
        counted = []
        for metric in self._step.token_metrics:  # which Keras does not weigh by `sample_weight`
            real = token_weights(labels, metric.pad_id)
            total = tf.reduce_sum(metric.values(labels, outputs) * real)
            counted.append((total, tf.reduce_sum(real)))
        if (metrics := internals.compiled_metrics(self)) is not None:
            metrics.update_state(y, y_pred, sample_weight=sample_weight)
        sums = sums._replace(rows=tf.cast(rows, sums.loss.dtype))
        return StepSums(sums, tuple(counted), activity_penalties(self, rows))

    def _scale(self, sums):
        divisor = sums.loss.divisor(reduction_of(self._step.loss))
        return tf.math.divide_no_nan(tf.ones_like(divisor), divisor)

    def _logs(self, sums, penalty):
        """Updates the metrics with sums over all replicas: every replica logs the same."""
        loss = sums.loss.loss * self._scale(sums)
        for activity in sums.activity:
            loss += tf.math.divide_no_nan(activity, sums.loss.rows)
        if penalty is not None:
            loss += tf.cast(penalty, loss.dtype)
        # An epoch's loss is the mean over tokens, or over rows as in Keras.
        of_tokens = isinstance(self._step.loss, TokenCrossentropy)
        count = sums.loss.weights if of_tokens else sums.loss.rows
        # Keras sums the tracker over replicas; divided, it counts each token once.
        share = count / tf.distribute.get_strategy().num_replicas_in_sync
        loss_tracker(self).update_state(loss, sample_weight=share)
        for metric, numbers in zip(self._step.token_metrics, sums.metrics, strict=True):
            metric.add_sums(*numbers)
        logs = self.get_metrics_result()
        # Each replica has updated its own.
        if (metrics := internals.compiled_metrics(self)) is not None:
            counted = [tf.identity(v.value) for v in metrics.variables]
            logs.update(metrics.stateless_result(reduced(counted)))
        if has_workers(self.distribute_strategy):
            # Keras averages what workers log along an axis, which scalars lack.
            logs = {name: value[None] for name, value in logs.items()}
        return logs


@dataclasses.dataclass(frozen=True)
class _StepSettings:
    """What `compile` was given. One object, so that Keras does not track and save its parts."""

    loss: object
    token_metrics: list
    clip_norm: float | None
    accumulation_steps: int
    ema_momentum: float | None
    averages: list | None
    projection: Projection | None
    dropout_seeds: DropoutSeeds
    takes_training: bool  # whether the model's call does


def _counts_tokens_of(loss, metric):
    if not isinstance(loss, TokenCrossentropy) or not isinstance(metric, TokenMetric):
        return False
    return type(metric) in (TokenAccuracy, Perplexity) and metric.pad_id == loss.pad_id
