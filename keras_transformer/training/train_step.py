"""The exact train step on TensorFlow: sum, reduce once, divide, clip, apply.

Why not Keras's: with several replicas it averages the means of the replicas, clips before
it sums, and accumulates in the optimizer, each of which gives other numbers than one device.
"""

import dataclasses

import keras
import tensorflow as tf

from keras_transformer.training.distribution import has_workers
from keras_transformer.training.losses import TokenCrossentropy
from keras_transformer.training.metrics import Perplexity, TokenAccuracy, TokenMetric
from keras_transformer.training.projected_loss import projected_loss
from keras_transformer.training.replicas import DropoutSeeds, check_carried, check_data

REFUSED_OPTIMIZER_SETTINGS = {
    "clipnorm": "clip_norm",
    "global_clipnorm": "clip_norm",
    "clipvalue": "clip_norm",
    "gradient_accumulation_steps": "accumulation_steps",
    "use_ema": "ema_momentum",
}


class TrainStep:
    """Mixed into `keras.Model` by `keras_transformer.training.Model`."""

    def compile(
        self,
        optimizer="rmsprop",
        loss=None,
        metrics=None,
        clip_norm=None,
        accumulation_steps=1,
        ema_momentum=None,
        jit_compile="auto",
        steps_per_execution=1,
        **kwargs,
    ):
        optimizer = keras.optimizers.get(optimizer)
        _check_optimizer(optimizer)
        _check_arguments(clip_norm, accumulation_steps, ema_momentum)
        check_carried(self, accumulation_steps)
        _check_loss(loss, kwargs.get("loss_weights"))
        _check_strategy(self, steps_per_execution, jit_compile)
        if jit_compile == "auto":
            # On CPU XLA's products are slower than oneDNN's, several times so in bfloat16.
            jit_compile = bool(tf.config.list_logical_devices("GPU"))
            jit_compile = jit_compile and not tf.distribute.has_strategy()
        metrics = list(metrics or [])
        # What is summed along with the loss; Keras computes the others from whole logits.
        token_metrics = [m for m in metrics if _counts_tokens_of(loss, m)]
        others = [m for m in metrics if not _counts_tokens_of(loss, m)]
        super().compile(
            optimizer,
            loss,
            metrics=others or None,
            jit_compile=jit_compile,
            steps_per_execution=steps_per_execution,
            **kwargs,
        )
        _check_optimizer(self.optimizer)  # which Keras may have wrapped
        # Gradients arrive summed over replicas: the optimizer must not sum them again.
        optimizer._all_reduce_sum_gradients = list
        if not optimizer.built and self.built:
            optimizer.build(self.trainable_variables)
        loss = keras.losses.get(loss) if isinstance(loss, str) else loss
        # Other metrics need the logits, and XLA cannot leave out padding, whose number varies.
        projected = isinstance(loss, TokenCrossentropy) and self._compile_metrics is None
        projected = projected and not self.jit_compile
        averages = None
        if ema_momentum is not None:
            averages = [tf.Variable(v.value, trainable=False) for v in self.trainable_variables]
        self._step = _StepSettings(
            loss=loss,
            token_metrics=token_metrics,
            clip_norm=clip_norm,
            accumulation_steps=accumulation_steps,
            ema_momentum=ema_momentum,
            averages=averages,
            projection=_find_projection(self) if projected else None,
            dropout_seeds=DropoutSeeds(self),
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

    def fit(self, x=None, *args, class_weight=None, **kwargs):
        if class_weight is not None and isinstance(self._step.loss, TokenCrossentropy):
            raise ValueError(
                "class_weight has no meaning for labels that are sequences of tokens: Keras would "
                "make one weight of a whole row. Use sample_weight of shape (batch, target). "
                f"Received: class_weight={class_weight}."
            )
        check_data(x, self.distribute_strategy)
        self._step.dropout_seeds.spread()
        return super().fit(x, *args, class_weight=class_weight, **kwargs)

    def evaluate(self, x=None, *args, **kwargs):
        check_data(x, self.distribute_strategy)
        return super().evaluate(x, *args, **kwargs)

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        """Builds Keras's metrics from the shapes of the data.

        Keras would read a first batch, which moves a reshuffled dataset to its second order,
        and average it over the replicas, which fails with several workers.
        """
        if self._distribute_strategy is None:
            return
        if self._compile_loss is not None:
            # Keras's wrapper of the loss, which is not used: `_sums` calls the loss itself. It
            # would refuse labels that are more than the outputs, as those of `PretrainingLoss`.
            self._compile_loss.built = True
        if iterator is not None:
            specs = iterator.data_adapter.get_tf_dataset().element_spec
            # The shape on one replica: of a dataset that was distributed already they are several.
            data_batch = keras.tree.map_structure(
                lambda spec: getattr(spec, "_value_specs", [spec])[0], specs
            )
        with self._distribute_strategy.scope():
            self._symbolic_build(data_batch=data_batch)

    def train_step(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        parts = self._step.accumulation_steps
        summed = None
        for part in range(parts):
            share = _share(part, parts, (x, y, sample_weight))
            sums, gradients = self._sums_and_gradients(*share)
            new = [sums, *gradients]
            summed = new if summed is None else [a + b for a, b in zip(summed, new, strict=True)]
        if self.losses:  # those of activities exist only now
            raise ValueError(
                "The exact train step sums token losses and cannot add regularisation losses. "
                "Use weight decay of the optimizer instead. "
                f"Received: {len(self.losses)} regularisation loss(es)."
            )
        sums, *gradients = _over_replicas(summed)

        scale = 1.0 / tf.maximum(sums[3], 1e-9)
        if self._step.clip_norm is not None:
            norm = tf.linalg.global_norm(gradients) * scale
            scale *= self._step.clip_norm / tf.maximum(norm, self._step.clip_norm)
        gradients = [gradient * tf.cast(scale, gradient.dtype) for gradient in gradients]
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self._update_averages()
        return self._logs(sums)

    def test_step(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        if self._step.projection is not None and sample_weight is None:
            features = self._step.projection.features_of(x, training=False)
            sums = self._projected_loss(features, y, gradients=False)
        else:
            sums, _ = self._sums(x, y, sample_weight, training=False)
        return self._logs(_over_replicas(sums))

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
        """Sums over this replica's tokens and the gradients of the first, all dense."""
        weights, projection = self.trainable_weights, self._step.projection
        if projection is None or sample_weight is not None:
            with tf.GradientTape() as tape:
                sums, loss = self._sums(x, y, sample_weight, training=True)
            gradients = tape.gradient(loss, weights)
            return sums, [_dense(g, v) for g, v in zip(gradients, weights, strict=True)]
        with tf.GradientTape() as tape:
            features = projection.features_of(x, training=True)
        sums, feature_gradient, table_gradient = self._projected_loss(features, y)
        gradients = tape.gradient(features, weights, output_gradients=feature_gradient)
        return sums, [
            _add(table_gradient, g) if v is projection.layer.projection_table else _dense(g, v)
            for g, v in zip(gradients, weights, strict=True)
        ]

    def _projected_loss(self, features, y, gradients=True):
        loss = self._step.loss
        table = tf.convert_to_tensor(self._step.projection.layer.projection_table.value)
        return projected_loss(features, table, y, loss.label_smoothing, loss.pad_id, gradients)

    def _sums(self, x, y, sample_weight, training):
        """Sums (4,) as of `projected_loss`, and the first by itself for the gradient."""
        y_pred = self(x, training=training)
        loss = self._step.loss
        if loss is None:
            raise ValueError("Training and evaluation need a loss. Compile with one.")
        values = loss.call(y, y_pred) if isinstance(loss, keras.losses.Loss) else loss(y, y_pred)
        if values.shape.rank == 0:
            raise ValueError(
                "The loss must return one value a token or an example, not a scalar: only sums can "
                "be divided by the tokens of the whole batch. Received: a scalar from "
                f"{getattr(loss, '__name__', type(loss).__name__)}."
            )
        if isinstance(loss, TokenCrossentropy):
            weights = loss.weights(y, sample_weight)
        else:
            weights = _keras_weights(loss, y, y_pred, values, sample_weight)
        total, count = tf.reduce_sum(values * weights), tf.reduce_sum(weights)
        likelihood, hits = tf.zeros([]), tf.zeros([])
        for metric in self._step.token_metrics:
            metric_sum = tf.reduce_sum(metric.values(y, y_pred) * weights)
            if isinstance(metric, Perplexity):
                likelihood = metric_sum
            elif isinstance(metric, TokenAccuracy):
                hits = metric_sum
        if self._compile_metrics is not None:
            self._compile_metrics.update_state(y, y_pred, sample_weight=sample_weight)
        return tf.stack([total, likelihood, hits, count]), total

    def _logs(self, sums):
        """Updates the metrics with sums over all replicas: every replica logs the same."""
        loss, likelihood, hits, tokens = tf.unstack(sums)
        # Keras sums the tracker over replicas; divided, it counts each token once.
        share = tokens / tf.distribute.get_strategy().num_replicas_in_sync
        self._loss_tracker.update_state(loss / tf.maximum(tokens, 1e-9), sample_weight=share)
        for metric in self._step.token_metrics:
            metric.add_sums(likelihood if isinstance(metric, Perplexity) else hits, tokens)
        logs = self.get_metrics_result()
        if self._compile_metrics is not None:  # each replica has updated its own
            counted = [tf.identity(v.value) for v in self._compile_metrics.variables]
            logs.update(self._compile_metrics.stateless_result(_over_replicas(counted)))
        if has_workers(self.distribute_strategy):
            # Keras averages what workers log along an axis, which scalars lack.
            logs = {name: tf.reshape(value, [1]) for name, value in logs.items()}
        return logs


@dataclasses.dataclass(frozen=True)
class _Projection:
    features_of: keras.Model  # the model up to its output projection
    layer: keras.layers.Layer  # the projection, e.g. a `TokenEmbedding`


@dataclasses.dataclass(frozen=True)
class _StepSettings:
    """What `compile` was given. One object, so that Keras does not track and save its parts."""

    loss: object
    token_metrics: list
    clip_norm: float | None
    accumulation_steps: int
    ema_momentum: float | None
    averages: list | None
    projection: _Projection | None
    dropout_seeds: DropoutSeeds


def _over_replicas(tensors):
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, tensors)


def _counts_tokens_of(loss, metric):
    if not isinstance(loss, TokenCrossentropy) or not isinstance(metric, TokenMetric):
        return False
    return type(metric) in (TokenAccuracy, Perplexity) and metric.pad_id == loss.pad_id


def _check_strategy(model, steps_per_execution, jit_compile):
    if keras.distribution.distribution() is not None:
        raise ValueError(
            "keras.distribution does nothing on the TensorFlow backend: training would use one "
            "device without a word. Use keras_transformer.training.choose_strategy, or the JAX "
            f"backend. Received: {type(keras.distribution.distribution()).__name__}."
        )
    if model.distribute_strategy is not tf.distribute.get_strategy():
        raise ValueError(
            "Make the model, its optimizer and compile it inside the same strategy.scope(). "
            f"Received: a model made under {type(model.distribute_strategy).__name__}, compiled "
            f"under {type(tf.distribute.get_strategy()).__name__}."
        )
    if not tf.distribute.has_strategy():
        return
    if steps_per_execution != 1:
        raise ValueError(
            "steps_per_execution must be 1 under a tf.distribute strategy: Keras cannot loop "
            f"over distributed batches. Received: steps_per_execution={steps_per_execution}."
        )
    if jit_compile is True:
        raise ValueError(
            "jit_compile must be False under a tf.distribute strategy: XLA cannot compile a step "
            "that reaches over several devices. Received: jit_compile=True."
        )


def _check_loss(loss, loss_weights):
    if isinstance(loss, (list, tuple, dict)) or loss_weights is not None:
        raise ValueError(
            "The exact train step takes one loss for one output, without loss_weights. "
            f"Received: loss={loss}, loss_weights={loss_weights}."
        )


def _check_arguments(clip_norm, accumulation_steps, ema_momentum):
    if clip_norm is not None and clip_norm <= 0:
        raise ValueError(f"clip_norm must be positive. Received: clip_norm={clip_norm}.")
    if accumulation_steps < 1:
        raise ValueError(
            "accumulation_steps must be at least 1. "
            f"Received: accumulation_steps={accumulation_steps}."
        )
    if ema_momentum is not None and not 0 < ema_momentum < 1:
        raise ValueError(f"ema_momentum must be in (0, 1). Received: ema_momentum={ema_momentum}.")


def _check_optimizer(optimizer):
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ValueError(
            "Loss scaling is not supported: it would look at one replica only. Train with the "
            "mixed_bfloat16 policy, which needs none. Received: a LossScaleOptimizer."
        )
    for name, ours in REFUSED_OPTIMIZER_SETTINGS.items():
        value = getattr(optimizer, name, None)
        if value:
            raise ValueError(
                f"Set {ours} in compile(), not {name} on the optimizer, where it gives other "
                f"numbers on several replicas. Received: {name}={value}."
            )


def _find_projection(model):
    """A model's last layer, if it multiplies by a `projection_table`; else None."""
    outputs = getattr(model, "outputs", None) or []
    if len(outputs) != 1:
        return None
    layer, node_index, _ = outputs[0]._keras_history
    node = layer._inbound_nodes[node_index]
    reverse = node.arguments.kwargs.get("reverse", False)
    if not hasattr(layer, "projection_table") or not reverse or layer.compute_dtype == "float16":
        return None
    return _Projection(keras.Model(model.input, node.input_tensors[0]), layer)


def _share(part, parts, data):
    """Rows of one of `parts` nearly equal parts of the batch."""
    if parts == 1:
        return data

    def rows(tensor):
        batch = tf.shape(tensor)[0]
        return tensor[batch * part // parts : batch * (part + 1) // parts]

    return keras.tree.map_structure(lambda t: None if t is None else rows(t), data)


def _dense(gradient, variable):
    if gradient is None:
        return tf.zeros_like(variable.value)
    return tf.convert_to_tensor(gradient)


def _add(dense, gradient):
    """Adds a gradient that may be None or rows of an embedding to a dense one."""
    if gradient is None:
        return dense
    if isinstance(gradient, tf.IndexedSlices):
        return tf.tensor_scatter_nd_add(dense, gradient.indices[:, None], gradient.values)
    return dense + gradient


def _keras_weights(loss, y, y_pred, values, sample_weight):
    """The weights that Keras's own losses would use: ignored classes, masks, sample weights."""
    weights = tf.ones_like(values)
    ignored = getattr(loss, "ignore_class", None)
    if ignored is not None:
        weights *= tf.cast(tf.not_equal(y, tf.cast(ignored, y.dtype)), values.dtype)
    mask = getattr(y_pred, "_keras_mask", None)
    if mask is not None:
        weights *= tf.cast(mask, values.dtype)
    if sample_weight is not None:
        sample_weight = tf.cast(sample_weight, values.dtype)
        while sample_weight.shape.rank < values.shape.rank:
            sample_weight = sample_weight[..., None]
        weights *= sample_weight
    return weights
