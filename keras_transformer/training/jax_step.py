"""The train step on JAX: Keras's own, with means over tokens, parts, clipping and averaging.

One program runs over all devices and sees the whole batch, so its sums are global. This module
adds only what Keras lacks: an epoch's loss is a mean over tokens, and `clip_norm`,
`accumulation_steps` and `ema_momentum` mean the same as on TensorFlow. `compile` (compile.py)
checks and keeps the settings in `self._step`.
"""

import jax
import keras
from keras import ops

from keras_transformer.training.compile import (
    CompileMixin,
    check_class_weight,
    check_labels,
    overrides,
)
from keras_transformer.training.internals import (
    all_layers,
    compiled_metrics,
    keras_mask_of,
    loss_tracker,
)
from keras_transformer.training.losses import OWN_LOSSES, PretrainingLoss, TokenCrossentropy
from keras_transformer.training.projected_loss import find_projection
from keras_transformer.training.projected_loss_on_jax import projected_loss_on_jax
from keras_transformer.training.whole_loss import (
    ADDED_LOSS,
    ADDITIVE,
    checked_losses,
    single_output,
)


class JaxTrainStep(CompileMixin):
    """The mixin of `keras_transformer.training.Model` on JAX."""

    distribute_strategy = None  # TensorFlow's; callbacks ask for it

    def train_step(self, state, data):
        weights, others, optimizer_state, metrics_state = state
        data = keras.utils.unpack_x_y_sample_weight(data)
        step = self._step
        check_labels(data[1], step.loss)
        parts = _parts_of(data, step.accumulation_steps)
        counts = [_divisor(part, step.loss) for part in parts]
        total = ops.maximum(sum(counts), 1e-9)
        loss_and_gradients = jax.value_and_grad(self.compute_loss_and_updates, has_aux=True)

        # Sum over the parts of the batch, each mean weighted by its number of tokens.
        loss, gradients = 0.0, None
        for part, count in zip(parts, counts, strict=True):
            (_, aux), part_gradients = loss_and_gradients(
                weights, others, metrics_state, *part,
                training=True, optimizer_variables=optimizer_state,
            )  # fmt: skip
            part_loss, outputs, others, metrics_state = aux
            metrics_state = self._metrics_after(metrics_state, part, outputs)
            if len(parts) == 1 or step.loss.reduction == "sum":
                share = 1.0
            else:
                share = count / total
                part_gradients = [g * ops.cast(share, g.dtype) for g in part_gradients]
            loss += part_loss * share
            if gradients is None:
                gradients = part_gradients
            else:
                gradients = list(map(ops.add, gradients, part_gradients))

        # Clip.
        if step.clip_norm is not None:
            squares = [ops.sum(ops.square(ops.cast(g, "float32"))) for g in gradients]
            scale = step.clip_norm / ops.maximum(ops.sqrt(sum(squares)), step.clip_norm)
            gradients = [g * ops.cast(scale, g.dtype) for g in gradients]

        # Apply.
        weights, optimizer_state = self.optimizer.stateless_apply(
            optimizer_state, gradients, weights
        )
        if step.average is not None:
            pairs = zip(self.trainable_variables, weights, strict=True)
            _, metrics_state = self._stateless(metrics_state, step.average.update, pairs)
        logs, metrics_state = self._logs(metrics_state, loss, data)
        return logs, (weights, others, optimizer_state, metrics_state)

    def test_step(self, state, data):
        weights, others, metrics_state = state
        data = keras.utils.unpack_x_y_sample_weight(data)
        check_labels(data[1], self._step.loss)
        loss, aux = self.compute_loss_and_updates(weights, others, metrics_state, *data)
        _, outputs, others, metrics_state = aux
        metrics_state = self._metrics_after(metrics_state, data, outputs)
        logs, metrics_state = self._logs(metrics_state, loss, data)
        return logs, (weights, others, metrics_state)

    def fit(self, *args, **settings):
        check_class_weight(self._step.loss, settings.get("class_weight", *args[9:10]))
        return super().fit(*args, **settings)

    def train_on_batch(self, *args, **settings):
        check_class_weight(self._step.loss, settings.get("class_weight", *args[3:4]))
        return super().train_on_batch(*args, **settings)

    def make_train_function(self, force=False):
        # Before Keras moves the weights to the step: after an error there they would be lost.
        compiled, now = self._step.num_weights, len(self.trainable_variables)
        if compiled not in (None, now):
            raise ValueError(
                "Compile the model again after you freeze or unfreeze layers. "
                f"Received: {now} weights to train, {compiled} when it was compiled."
            )
        super().make_train_function(force)

    def compute_loss_and_updates(
        self, weights, others, metrics_state, x, y, sample_weight=None, training=False,
        optimizer_variables=None,
    ):  # fmt: skip
        views = self._step.consistency if training else None
        if views is not None:
            x = views.views_of(x)
            scaled, (loss, outputs, *states) = super().compute_loss_and_updates(
                weights, others, metrics_state, x, y, sample_weight, training, optimizer_variables
            )
            first, _ = views.pair(keras.tree.flatten(outputs)[0])
            return scaled, (loss, first, *states)
        projection = self._projection() if training else None
        if projection is None:
            return super().compute_loss_and_updates(
                weights, others, metrics_state, x, y, sample_weight, training, optimizer_variables
            )
        loss = self._step.loss
        pairs = [
            *zip(self.trainable_variables, weights, strict=True),
            *zip(self.non_trainable_variables, others, strict=True),
            *zip(self.optimizer.variables, optimizer_variables, strict=True),
        ]
        with keras.StatelessScope(state_mapping=pairs, collect_losses=True) as scope:
            features = projection.features_of(x, training=True)
            table = ops.convert_to_tensor(projection.layer.projection_table)
            logits = jax.ShapeDtypeStruct((*features.shape[:-1], table.shape[0]), "float32")
            self._check_sums_over_rows(y, logits, sample_weight, training)
            labels, _, sample_weight = single_output(loss, y, logits, sample_weight)
            labels = ops.cast(labels, "int32")
            token_weights = loss.weights(labels, sample_weight)
            total = projected_loss_on_jax(
                features, table, labels, token_weights, loss.label_smoothing
            )
            total = self._step.loss_weight * total / ops.maximum(ops.sum(token_weights), 1e-9)
            total += sum(ops.sum(penalty) for penalty in self.losses)
            scaled = self.optimizer.scale_loss(total)
            others = [scope.get_current_value(v) for v in self.non_trainable_variables]
        return scaled, (total, None, others, metrics_state)

    def _projection(self):
        """An `OutputProjection` where the loss computes it on a GPU, or None for whole logits.

        Metrics need whole logits. On several devices and on CPUs, where nothing is known to be
        gained, the loss is computed from them too.
        """
        needs_logits = compiled_metrics(self) is not None or overrides(self, "call")
        is_alone = has_gpu() and keras.distribution.distribution() is None
        return find_projection(self, self._step.loss) if is_alone and not needs_logits else None

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        views = self._step.consistency if training else None
        if views is not None:
            labels, outputs, weights = single_output(self._step.loss, y, y_pred, sample_weight)
            first, second = views.pair(outputs)
            self._check_sums_over_rows(y, first, sample_weight, training)
            compute_loss = super().compute_loss
            losses = [compute_loss(x, y, view, sample_weight) for view in (first, second)]
            apart = views.mean_divergence(labels, first, second, weights)
            return (losses[0] + losses[1] + self._step.loss_weight * views.weight * apart) / 2
        self._check_sums_over_rows(y, y_pred, sample_weight, training)
        loss = self._step.loss
        if not isinstance(loss, PretrainingLoss):
            return super().compute_loss(x, y, y_pred, sample_weight, training)
        # Keras would expect one loss for each of the two outputs.
        loss = self._step.loss_weight * loss(y, y_pred, sample_weight)
        return loss + sum(ops.sum(penalty) for penalty in self.losses)

    def _check_sums_over_rows(self, y, y_pred, sample_weight, training):
        """Raises for losses that the step refuses on TensorFlow too, and for masked parts."""
        loss, parts = self._step.loss, self._step.accumulation_steps
        labels, outputs, _ = single_output(loss, y, y_pred, sample_weight)
        if not isinstance(loss, PretrainingLoss):
            masks = [keras_mask_of(outputs)]

            def losses(labels, outputs):
                values, mask = checked_losses(loss, labels, outputs)
                masks.append(mask)
                return values

            jax.eval_shape(losses, labels, outputs)
            is_masked = any(mask is not None for mask in masks)
            is_mean = not isinstance(loss, OWN_LOSSES) and loss.reduction != "sum"
            if is_masked and is_mean and training and parts > 1:
                raise ValueError(
                    "On JAX, accumulation_steps must be 1 with a Keras mask or an ignore_class, "
                    "because parts are weighed by rows. Leave it out, or use TokenCrossentropy, "
                    f"which counts real tokens. Received: accumulation_steps={parts}, {loss.name}."
                )
        regularizers = [layer.activity_regularizer for layer in all_layers(self)]
        regularizers = [each for each in regularizers if each is not None]
        penalties = sum(weight.regularizer is not None for weight in self.trainable_weights)
        added = len(self.losses) - penalties
        if added > len(regularizers) or any(type(r) not in ADDITIVE for r in regularizers):
            raise ValueError(ADDED_LOSS.format(f"{added} loss(es) of layers of {self.name}"))

    def _metrics_after(self, metrics_state, data, outputs):
        """The state of the metrics after some rows."""
        x, y, sample_weight = data
        return self._stateless(
            metrics_state, lambda: self.compute_metrics(x, y, outputs, sample_weight)
        )[1]

    def _logs(self, metrics_state, loss, data):
        """The logs of a step, and the state of the metrics after its loss is in the mean.

        Like Keras, the mean of an epoch weighs batches by rows, unless the loss is one of ours.
        """
        is_own = isinstance(self._step.loss, OWN_LOSSES)
        count = _divisor(data, self._step.loss) if is_own else float(_num_rows(data))

        def update():
            loss_tracker(self).update_state(loss, sample_weight=count)
            return self.get_metrics_result()

        return self._stateless(metrics_state, update)

    def _stateless(self, metrics_state, function, others=()):
        """What a function returns, and the state of the metrics after it.

        `others` are pairs of another variable that it reads and its value.
        """
        variables = self.metrics_variables
        pairs = [*zip(variables, metrics_state, strict=True), *others]
        with keras.StatelessScope(state_mapping=pairs) as scope:
            result = function()
        return result, [scope.get_current_value(variable) for variable in variables]

    @property
    def metrics_variables(self):
        """The state that `fit` passes on: of metrics, and the moving average."""
        average = self._step.average
        return [*super().metrics_variables, *([] if average is None else average.values)]


def has_gpu():
    """Whether JAX computes on a GPU."""
    return jax.default_backend() == "gpu"


def _parts_of(data, count):
    """Parts of a batch, each with every `count`-th row.

    This way the rows of a part are on all devices, among which a batch is divided in blocks.
    """

    def part(first):
        return keras.tree.map_structure(lambda t: None if t is None else t[first::count], data)

    return [part(first) for first in range(min(count, _num_rows(data)))]


def _divisor(data, loss):
    """What the mean loss of some rows is divided by, a scalar: tokens, weights or rows."""
    _, y, sample_weight = data
    if isinstance(loss, TokenCrossentropy):
        y, _, sample_weight = single_output(loss, y, y, sample_weight)
        return ops.sum(loss.weights(y, sample_weight))
    if sample_weight is not None and loss.reduction == "mean_with_sample_weight":
        return ops.sum(ops.cast(sample_weight, "float32"))
    return float(_num_rows(data))


def _num_rows(data):
    return next(part for part in keras.tree.flatten(data) if part is not None).shape[0]
