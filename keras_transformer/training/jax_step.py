"""The train step on JAX: Keras's own, with means over tokens, parts, clipping and averaging.

One program runs over all devices and sees the whole batch, so its sums are global. This module
adds only what Keras lacks: an epoch's loss is a mean over tokens, and `clip_norm`,
`accumulation_steps` and `ema_momentum` mean the same as on TensorFlow.
"""

import contextlib
import dataclasses
import functools

import jax
import keras
from keras import ops

from keras_transformer.training import compile_checks as checks
from keras_transformer.training.internals import all_layers
from keras_transformer.training.losses import PretrainingLoss, TokenCrossentropy
from keras_transformer.training.metrics import loss_tracker


@dataclasses.dataclass(frozen=True)
class JaxStepSettings:
    """The arguments of `compile` in one object, so that Keras does not track and save them."""

    clip_norm: float | None = None
    accumulation_steps: int = 1
    ema_momentum: float | None = None
    average: "JaxMovingAverage | None" = None
    dropout_seeds: "JaxDropoutSeeds | None" = None
    loss_scale: None = None  # Keras scales the loss in the optimizer


class JaxMovingAverage:
    """Follows weights: after each step, average = momentum * average + (1 - momentum) * value.

    Args:
        weights: list of Keras variables, which give the initial values.
        momentum: share of the old value, in (0, 1).

    Attributes:
        values: list of Keras variables.
    """

    def __init__(self, weights, momentum):
        self._weights, self._momentum = weights, momentum
        self.values = list(map(_copy_of, weights))

    def after(self, state, weights):
        """A step's state, whose last part are the averages, after weights have changed."""
        first = len(state) - len(self.values)
        pairs = zip(state[first:], weights, strict=True)
        return [*state[:first], *(a + (1 - self._momentum) * (w - a) for a, w in pairs)]

    def swap(self):
        """Exchanges the weights with their averages."""
        for weight, average in zip(self._weights, self.values, strict=True):
            kept = weight.value
            weight.assign(average.value)
            average.assign(kept)


class JaxDropoutSeeds:
    """The random state of a model's dropout, which all devices share.

    Args:
        model: the model.
    """

    def __init__(self, model):
        self._model = model

    @property
    def variables(self):
        """Keras variables of the states; looked up each time, as a model may be built late."""
        return [v for v in self._model.variables if "seed_generator" in v.path]

    def restored(self):
        """Called after restoring a checkpoint; there are no replicas to update."""


class JaxTrainStep:
    """A mixin of `keras_transformer.training.Model`."""

    distribute_strategy = None  # TensorFlow's; callbacks ask for it
    _step = JaxStepSettings()

    def train_step(self, state, data):
        weights, others, of_optimizer, of_metrics = state
        data = keras.utils.unpack_x_y_sample_weight(data)
        counts, parts = _parts(data, self._step.accumulation_steps, self.loss)
        total = ops.maximum(sum(counts), 1e-9)
        whole = len(parts) == 1
        loss_and_gradients = jax.value_and_grad(self.compute_loss_and_updates, has_aux=True)

        # Sum over the parts of the batch, each mean weighted by its number of tokens.
        loss, gradients = 0.0, None
        for part, count in zip(parts, counts, strict=True):
            state = weights, others, of_metrics
            settings = {"training": True, "optimizer_variables": of_optimizer}
            (_, aux), some = loss_and_gradients(*state, *part, **settings)
            mean, outputs, others, of_metrics = aux
            _, of_metrics = self._metrics_after(of_metrics, part, outputs)
            share = 1.0 if whole else count / total
            loss += mean * share
            some = some if whole else [g * ops.cast(share, g.dtype) for g in some]
            gradients = some if gradients is None else list(map(ops.add, gradients, some))

        # Clip, apply, average.
        if self._step.clip_norm is not None:
            gradients = _clipped(gradients, self._step.clip_norm)
        weights, of_optimizer = self.optimizer.stateless_apply(of_optimizer, gradients, weights)
        if self._step.average is not None:
            of_metrics = self._step.average.after(of_metrics, weights)
        logs, of_metrics = self._logs(of_metrics, loss, total)
        return logs, (weights, others, of_optimizer, of_metrics)

    def test_step(self, state, data):
        weights, others, of_metrics = state
        data = keras.utils.unpack_x_y_sample_weight(data)
        loss, aux = self.compute_loss_and_updates(weights, others, of_metrics, *data)
        _, outputs, others, of_metrics = aux
        _, of_metrics = self._metrics_after(of_metrics, data, outputs)
        logs, of_metrics = self._logs(of_metrics, loss, _count(data, self.loss))
        return logs, (weights, others, of_metrics)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        if not isinstance(getattr(self, "loss", None), PretrainingLoss):
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        # Keras would expect one loss for each of the two outputs.
        return self.loss(y, y_pred, sample_weight) + sum(ops.sum(loss) for loss in self.losses)

    def _metrics_after(self, of_metrics, data, outputs):
        """The state of the metrics after some rows."""
        x, y, sample_weight = data
        return self._with_metrics(
            of_metrics, lambda: self.compute_metrics(x, y, outputs, sample_weight)
        )

    def _logs(self, of_metrics, loss, count):
        """The logs of a step, and the state of the metrics after its loss is in the mean."""

        def update():
            loss_tracker(self).update_state(loss, sample_weight=count)
            return self.get_metrics_result()

        return self._with_metrics(of_metrics, update)

    def _with_metrics(self, of_metrics, function):
        variables = self.metrics_variables
        pairs = list(zip(variables, of_metrics, strict=True))
        with keras.StatelessScope(state_mapping=pairs) as scope:
            result = function()
        return result, [scope.get_current_value(variable) for variable in variables]

    @property
    def metrics_variables(self):
        """What `fit` passes from step to step besides the weights, with the moving average."""
        average = self._step.average
        return [*super().metrics_variables, *([] if average is None else average.values)]

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
        checks.check_optimizer(optimizer, scales_itself=False)
        checks.check_arguments(clip_norm, accumulation_steps, ema_momentum, loss_weights)
        checks.check_methods(self, JaxTrainStep)
        super().compile(
            optimizer,
            loss,
            metrics=metrics,
            weighted_metrics=weighted_metrics,
            run_eagerly=run_eagerly,
            steps_per_execution=steps_per_execution,
            jit_compile=jit_compile,
            auto_scale_loss=auto_scale_loss,
        )
        if accumulation_steps > 1:
            _check_adds_up(self)
        is_scaled = isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer)
        if clip_norm is not None and is_scaled:
            raise ValueError(
                "clip_norm would see scaled gradients under a LossScaleOptimizer. Set "
                "global_clipnorm on the optimizer inside it, or train with mixed_bfloat16. "
                f"Received: clip_norm={clip_norm}."
            )
        average = None
        if self.built and not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)
        if ema_momentum is not None:
            if not self.built:
                raise ValueError(
                    "Build the model before compile, for example by calling it on a batch: "
                    "ema_momentum needs its weights. "
                    f"Received: {type(self).__name__}, which is not built."
                )
            average = JaxMovingAverage(self.trainable_variables, ema_momentum)
        seeds = JaxDropoutSeeds(self)
        self._step = JaxStepSettings(clip_norm, accumulation_steps, ema_momentum, average, seeds)

    def get_compile_config(self):
        """What `.keras` keeps of `compile`, so that a reloaded model can continue training."""
        config = super().get_compile_config()
        if config:
            for name in ("clip_norm", "accumulation_steps", "ema_momentum"):
                config[name] = getattr(self._step, name)
            # TensorFlow may load the model, and decides for itself.
            config["jit_compile"] = "auto" if config["jit_compile"] else False
        return config

    def compile_from_config(self, config):
        self.compile(**keras.saving.deserialize_keras_object(config))


def _parts(data, count, loss):
    """Parts of a batch, each with every `count`-th row, and the weight of each.

    This way the rows of a part are on all devices, among which a batch is divided in blocks.
    """
    rows = _num_rows(data)
    parts = [
        keras.tree.map_structure(functools.partial(_every, count, first), data)
        for first in range(min(count, rows))
    ]
    return [_count(part, loss) for part in parts], parts


def _every(count, first, tensor):
    return None if tensor is None else tensor[first::count]


def _count(data, loss):
    """The divisor of the mean loss of some rows, a scalar: tokens, weights or rows."""
    _, y, sample_weight = data
    if isinstance(loss, TokenCrossentropy):
        return ops.sum(loss.weights(y, sample_weight))
    if sample_weight is not None and getattr(loss, "reduction", "") == "mean_with_sample_weight":
        return ops.sum(ops.cast(sample_weight, "float32"))
    return float(_num_rows(data))


def _num_rows(data):
    return next(part for part in keras.tree.flatten(data) if part is not None).shape[0]


def _clipped(gradients, clip_norm):
    squares = [ops.sum(ops.square(ops.cast(g, "float32"))) for g in gradients]
    scale = clip_norm / ops.maximum(ops.sqrt(sum(squares)), clip_norm)
    return [g * ops.cast(scale, g.dtype) for g in gradients]


def _copy_of(variable):
    """A variable with the value of a weight and its path, by which layouts are chosen."""
    *scopes, name = variable.path.split("/")
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        value = ops.copy(variable.value)
        return keras.Variable(value, dtype=variable.dtype, trainable=False, name=name)


def _check_adds_up(model):
    """Raises ValueError where the parts of a batch do not add up to its loss."""
    loss = model.loss
    resolved = keras.losses.get(loss) if not isinstance(loss, (list, tuple, dict)) else None
    means = ("sum_over_batch_size", "mean", "mean_with_sample_weight")
    adds_up = isinstance(resolved, TokenCrossentropy) or (
        callable(resolved) and getattr(resolved, "reduction", means[0]) in means
    )
    if not adds_up:
        raise ValueError(
            "accumulation_steps needs one loss that is a mean over tokens or rows. "
            f"Received: loss={loss}, accumulation_steps above 1."
        )
    for layer in all_layers(model):
        if layer.activity_regularizer is not None or (
            layer.trainable and isinstance(layer, checks.OF_WHOLE_BATCHES)
        ):
            raise ValueError(
                "accumulation_steps must be 1 with activity regularisers and batch normalisation, "
                f"which would see only a part of each batch. Received: the layer {layer.name}."
            )
    if any(variable.synchronization == "on_read" for variable in model.variables):
        raise ValueError(
            "accumulation_steps must be 1 for a model that carries a memory, because the memory "
            "belongs to all rows of a batch."
        )
