"""The exact train step on TensorFlow: sum, reduce once, divide, clip, apply.

Keras's step will not do: with several replicas it averages the means of the replicas, clips
before it sums, and accumulates in the optimizer. Each of these changes the numbers of one device.
"""

import contextlib
import dataclasses
import functools

import keras
import tensorflow as tf

from keras_transformer.training import compile_checks as checks
from keras_transformer.training import id_checks, internals
from keras_transformer.training.callbacks import LateLogs, can_be_late
from keras_transformer.training.distribution import has_workers
from keras_transformer.training.loss_scale import LossScale, computes_in_float16
from keras_transformer.training.loss_sums import resolve_loss
from keras_transformer.training.metrics import loss_tracker
from keras_transformer.training.moving_average import MovingAverage
from keras_transformer.training.parts import (
    num_labels,
    over_replicas,
    part_of,
    reduced,
    scaled,
    sum_of,
)
from keras_transformer.training.regularisation import weight_penalty
from keras_transformer.training.replicas import DropoutSeeds, check_carried, check_data
from keras_transformer.training.step_sums import Objective, is_counted


@dataclasses.dataclass(frozen=True)
class StepSettings:
    """The arguments of `compile` in one object, so that Keras does not track and save them."""

    objective: Objective
    clip_norm: float | None
    accumulation_steps: int
    ema_momentum: float | None
    average: MovingAverage | None
    loss_scale: LossScale | None
    dropout_seeds: DropoutSeeds


class TrainStep(internals.BuildsFromShapes):
    """A mixin of `keras_transformer.training.Model`."""

    def train_step(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        objective, parts = self._step.objective, self._step.accumulation_steps
        checks.check_labels(y, objective.loss)

        # Sum over the parts of the batch, one after the other, then once over all replicas.
        shares = (part_of(part, parts, (x, y, sample_weight)) for part in range(parts))
        compute, loss_scale = objective.sums_and_gradients, self._step.loss_scale
        if loss_scale is not None:
            factor = loss_scale.factor(reduced([num_labels(y)])[0])
            compute = functools.partial(objective.scaled_sums_and_gradients, factor=factor)
        summed = (compute(*share) for share in shares)
        summed = functools.reduce(functools.partial(tf.nest.map_structure, tf.add), summed)
        sums, gradients = over_replicas(*summed)

        # Divide by the sums of the whole batch, and add the penalties.
        penalty, of_weights = weight_penalty(self.trainable_weights)
        scale = objective.scale(sums)
        if gradients.activity or of_weights:
            per_row = tf.math.divide_no_nan(1.0, objective.penalty_divisor(sums))
            of_activity = scaled(gradients.activity, per_row)
            gradient = sum_of(scaled(gradients.loss, scale), of_activity, of_weights)
            scale = tf.ones([])
        else:
            gradient = gradients.loss  # to be scaled once, together with clipping

        # Clip.
        if self._step.clip_norm is not None:
            scale = tf.cast(scale, tf.float32)
            singles = [tf.cast(g, tf.float32) for g in gradient.values()]
            norm = tf.linalg.global_norm(singles) * scale
            scale *= self._step.clip_norm / tf.maximum(norm, self._step.clip_norm)
        gradient = scaled(gradient, scale)

        # Apply.
        weights, average = self.trainable_weights, self._step.average
        skips = contextlib.nullcontext()
        if loss_scale is not None:
            changed = [v.value for v in (*weights, *self.optimizer.variables)]
            changed += [] if average is None else average.values
            skips = loss_scale.skips(gradients, factor, changed)
        with skips:
            if weights:
                checks.check_gradients(gradient)
                self.optimizer.apply_gradients([(g, weights[i]) for i, g in gradient.items()])
            if average is not None:
                average.update()
        return self._logs(sums, penalty)

    def test_step(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        objective = self._step.objective
        checks.check_labels(y, objective.loss)
        sums = over_replicas(objective.sums(x, y, sample_weight))[0]
        penalty, _ = weight_penalty(self.trainable_weights)
        return self._logs(sums, penalty)

    def _logs(self, sums, penalty):
        """Updates the metrics with sums over all replicas: every replica logs the same."""
        objective = self._step.objective
        loss = sums.loss.loss * objective.scale(sums)
        for activity in sums.activity:
            loss += tf.math.divide_no_nan(activity, objective.penalty_divisor(sums))
        if penalty is not None:
            loss += tf.cast(penalty, loss.dtype)
        # Keras sums the tracker over replicas; divided, it counts each token once.
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        share = objective.count(sums) / replicas
        loss_tracker(self).update_state(loss, sample_weight=share)
        for metric, numbers in zip(objective.token_metrics, sums.metrics, strict=True):
            metric.add_sums(numbers.total, numbers.tokens)
        logs = self.get_metrics_result()
        if (metrics := internals.compiled_metrics(self)) is not None:
            counted = reduced([tf.identity(v.value) for v in metrics.variables])  # by each replica
            logs.update(metrics.stateless_result(counted))
        if has_workers(self.distribute_strategy):
            # Keras averages the workers' logs along an axis, which scalars lack.
            logs = {name: value[None] for name, value in logs.items()}
        return logs

    def make_train_function(self, force=False):
        with self._whole_step_not_compiled():
            return super().make_train_function(force)

    def make_test_function(self, force=False):
        with self._whole_step_not_compiled():
            return super().make_test_function(force)

    @contextlib.contextmanager
    def _whole_step_not_compiled(self):
        """`Objective` compiles its part; XLA cannot compile operations across devices."""
        jit_compile, self.jit_compile = self.jit_compile, False
        try:
            yield
        finally:
            self.jit_compile = jit_compile

    def swap_averaged_weights(self):
        """Exchanges the weights with their moving average; a second call changes them back."""
        if self._step.average is None:
            raise ValueError(
                "There is no moving average of the weights. Compile with e.g. ema_momentum=0.999."
            )
        self._step.average.swap()

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
        checks.check_strategy(self, steps_per_execution)
        checks.check_model(self, TrainStep, accumulation_steps, ema_momentum)
        if jit_compile == "auto":
            # On CPUs, XLA's matrix products are slower than oneDNN's, several times in bfloat16.
            has_gpu = bool(tf.config.list_logical_devices("GPU"))
            supports_jit = all(layer.supports_jit for layer in internals.all_layers(self))
            jit_compile = has_gpu and supports_jit and not run_eagerly
        token_metrics = []
        if isinstance(metrics, (list, tuple)):
            token_metrics = [metric for metric in metrics if is_counted(metric, resolved)]
            metrics = [metric for metric in metrics if not is_counted(metric, resolved)]
        internals.forget_compiled_metrics(self)
        super().compile(
            optimizer,
            loss,
            metrics=metrics or None,
            weighted_metrics=weighted_metrics,
            run_eagerly=run_eagerly,
            steps_per_execution=steps_per_execution,
            jit_compile=jit_compile,
            auto_scale_loss=False,  # Keras's scale would look at one replica only
        )
        internals.take_summed_gradients(optimizer)
        if not optimizer.built and self.built:
            optimizer.build(self.trainable_variables)
        average = None
        if ema_momentum is not None:
            average = MovingAverage(self.trainable_variables, ema_momentum)
        loss_scale = None
        if auto_scale_loss and computes_in_float16(self):
            checks.warn_of_float16_on_cpus()
            loss_scale = LossScale()
        has_own_call = checks.overrides(self, TrainStep, "call")
        self._step = StepSettings(
            Objective(self, resolved, token_metrics, has_own_call, loss_scale is not None),
            clip_norm=clip_norm,
            accumulation_steps=accumulation_steps,
            ema_momentum=ema_momentum,
            average=average,
            loss_scale=loss_scale,
            dropout_seeds=DropoutSeeds(self),
        )

    @property
    def metrics(self):
        return [*super().metrics, *(self._step.objective.token_metrics if self.compiled else [])]

    def get_compile_config(self):
        """What `.keras` keeps of `compile`, so that a reloaded model can continue training."""
        config = super().get_compile_config()
        if config:
            if token_metrics := self._step.objective.token_metrics:
                serialized = map(keras.saving.serialize_keras_object, token_metrics)
                config["metrics"] = [*serialized, *(config["metrics"] or [])]
            for name in ("clip_norm", "accumulation_steps", "ema_momentum"):
                config[name] = getattr(self._step, name)
            has_scale = self._step.loss_scale is not None
            config["auto_scale_loss"] = has_scale or not computes_in_float16(self)
        return config

    def compile_from_config(self, config):
        self.compile(**keras.saving.deserialize_keras_object(config))

    def fit(
        self,
        x=None,
        y=None,
        batch_size=None,
        epochs=1,
        verbose="auto",
        callbacks=None,
        validation_split=0.0,
        validation_data=None,
        shuffle=True,
        class_weight=None,
        sample_weight=None,
        initial_epoch=0,
        steps_per_epoch=None,
        validation_steps=None,
        validation_batch_size=None,
        validation_freq=1,
    ):
        checks.check_compiled(self, "fit")
        checks.check_class_weight(self._step.objective.loss, class_weight)
        check_data(x, self.distribute_strategy)
        if validation_data is not None:
            is_tuple = isinstance(validation_data, (list, tuple))
            first = validation_data[0] if is_tuple else validation_data
            check_data(first, self.distribute_strategy)
            rest = validation_data[1:2] if is_tuple else ()
            first = id_checks.check_data(self, self._step.objective.loss, first, *rest)
            validation_data = validation_data if is_tuple else first
        self._step.dropout_seeds.spread()
        given = keras.tree.flatten(callbacks or [])
        if steps_per_epoch and all(map(can_be_late, given)):
            callbacks = LateLogs(given, verbose, epochs, steps_per_epoch, self)
        with self._ids_checked(x, y, self._step.objective.loss) as x:
            return super().fit(
                x,
                y,
                batch_size=batch_size,
                epochs=epochs,
                verbose=verbose,
                callbacks=callbacks,
                validation_split=validation_split,
                validation_data=validation_data,
                shuffle=shuffle,
                class_weight=class_weight,
                sample_weight=sample_weight,
                initial_epoch=initial_epoch,
                steps_per_epoch=steps_per_epoch,
                validation_steps=validation_steps,
                validation_batch_size=validation_batch_size,
                validation_freq=validation_freq,
            )

    def evaluate(
        self,
        x=None,
        y=None,
        batch_size=None,
        verbose="auto",
        sample_weight=None,
        steps=None,
        callbacks=None,
        return_dict=False,
        **settings,  # with which Keras validates
    ):
        checks.check_compiled(self, "evaluate")
        check_data(x, self.distribute_strategy)
        # Within `fit`, Keras takes its own iterator of the data that `fit` has checked.
        is_checked = settings.get("_use_cached_eval_dataset", False)
        loss = self._step.objective.loss
        ids_checked = contextlib.nullcontext(x) if is_checked else self._ids_checked(x, y, loss)
        with ids_checked as x:
            data = (x, y, batch_size, verbose, sample_weight, steps)
            return super().evaluate(*data, callbacks=callbacks, return_dict=return_dict, **settings)

    def predict(self, x, batch_size=None, verbose="auto", steps=None, callbacks=None):
        with self._ids_checked(x) as x:
            return super().predict(x, batch_size, verbose, steps, callbacks)

    @contextlib.contextmanager
    def _ids_checked(self, x, y=None, loss=None):
        """Yields data for Keras; it raises ValueError for ids that the model has no vector for.

        Labels are checked if there is a loss; `predict` reads none.
        """
        try:
            yield id_checks.check_data(self, loss, x, y)
        except tf.errors.InvalidArgumentError as error:
            if (found := id_checks.as_value_error(error)) is None:
                raise
            raise found from error

    def train_on_batch(self, x, y=None, sample_weight=None, class_weight=None, return_dict=False):
        checks.check_compiled(self, "train_on_batch")
        checks.check_class_weight(self._step.objective.loss, class_weight)
        checks.check_one_replica(self, "train_on_batch")
        id_checks.check_data(self, self._step.objective.loss, x, y)
        return super().train_on_batch(x, y, sample_weight, class_weight, return_dict)

    def test_on_batch(self, x, y=None, sample_weight=None, return_dict=False):
        checks.check_compiled(self, "test_on_batch")
        checks.check_one_replica(self, "test_on_batch")
        id_checks.check_data(self, self._step.objective.loss, x, y)
        return super().test_on_batch(x, y, sample_weight, return_dict)

    def predict_on_batch(self, x):
        checks.check_one_replica(self, "predict_on_batch")
        id_checks.check_data(self, None, x)
        return super().predict_on_batch(x)
