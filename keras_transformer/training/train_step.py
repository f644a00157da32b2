"""The exact train step on TensorFlow: sum, reduce once, divide, clip, apply.

Why not Keras's: with several replicas it averages the means of the replicas, clips before
it sums, and accumulates in the optimizer, each of which gives other numbers than one device.
"""

import keras
import tensorflow as tf

from keras_transformer.training.losses import TokenCrossentropy
from keras_transformer.training.metrics import Perplexity, TokenAccuracy, TokenMetric
from keras_transformer.training.projected_loss import projected_loss

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
        *args,
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
        if clip_norm is not None and clip_norm <= 0:
            raise ValueError(f"clip_norm must be positive. Received: clip_norm={clip_norm}.")
        if accumulation_steps < 1:
            raise ValueError(
                f"accumulation_steps must be at least 1. Received: {accumulation_steps}."
            )
        if ema_momentum is not None and not 0 < ema_momentum < 1:
            raise ValueError(f"ema_momentum must be in (0, 1). Received: {ema_momentum}.")
        if steps_per_execution != 1 and tf.distribute.has_strategy():
            raise ValueError(
                "steps_per_execution must be 1 under a tf.distribute strategy: Keras cannot loop "
                f"over distributed batches. Received: steps_per_execution={steps_per_execution}."
            )
        if jit_compile == "auto":
            # On CPU XLA's products are slower than oneDNN's, several times so in bfloat16.
            jit_compile = bool(tf.config.list_logical_devices("GPU"))
            jit_compile = jit_compile and not tf.distribute.has_strategy()
        metrics = list(metrics or [])
        self._token_metrics = [m for m in metrics if isinstance(m, TokenMetric)]
        others = [m for m in metrics if not isinstance(m, TokenMetric)]
        super().compile(
            optimizer,
            loss,
            *args,
            metrics=others or None,
            jit_compile=jit_compile,
            steps_per_execution=steps_per_execution,
            **kwargs,
        )
        self._token_loss = keras.losses.get(loss) if loss is not None else None
        self._step_options = {
            "clip_norm": clip_norm,
            "accumulation_steps": accumulation_steps,
            "ema_momentum": ema_momentum,
        }
        # Gradients arrive summed over replicas: the optimizer must not sum them again.
        optimizer._all_reduce_sum_gradients = list
        if not optimizer.built and self.built:
            optimizer.build(self.trainable_variables)
        self._averages = None
        if ema_momentum is not None:
            self._averages = [tf.Variable(v.value, trainable=False) for v in self._weights_of_ema()]
        self._projection = None
        if isinstance(self._token_loss, TokenCrossentropy) and not others:
            self._projection = _find_projection(self)

    @property
    def metrics(self):
        return [*super().metrics, *getattr(self, "_token_metrics", [])]

    def get_compile_config(self):
        config = super().get_compile_config()
        if config and self.compiled:
            serialize = keras.saving.serialize_keras_object
            config["metrics"] = [serialize(m) for m in self._token_metrics] or config["metrics"]
            config.update(self._step_options)
        return config

    def train_step(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        if self.losses:
            raise ValueError(
                "The exact train step sums token losses and cannot add regularisation losses. "
                "Use weight decay of the optimizer instead. "
                f"Received: {len(self.losses)} regularisation loss(es)."
            )
        parts = self._step_options["accumulation_steps"]
        summed = None
        for part in range(parts):
            share = _share(part, parts, (x, y, sample_weight))
            sums, gradients = self._sums_and_gradients(*share)
            new = [sums, *gradients]
            summed = new if summed is None else [a + b for a, b in zip(summed, new, strict=True)]
        context = tf.distribute.get_replica_context()
        sums, *gradients = context.all_reduce(tf.distribute.ReduceOp.SUM, summed)

        scale = 1.0 / tf.maximum(sums[3], 1e-9)
        clip_norm = self._step_options["clip_norm"]
        if clip_norm is not None:
            norm = tf.linalg.global_norm(gradients) * scale
            scale *= clip_norm / tf.maximum(norm, clip_norm)
        gradients = [gradient * scale for gradient in gradients]
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self._update_averages()
        return self._logs(sums)

    def test_step(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        if self._projection is not None and sample_weight is None:
            features_model, projection = self._projection
            features = features_model(x, training=False)
            sums = self._projected_loss(features, projection, y, gradients=False)
        else:
            sums, _ = self._sums(x, y, sample_weight, training=False)
        context = tf.distribute.get_replica_context()
        return self._logs(context.all_reduce(tf.distribute.ReduceOp.SUM, sums))

    def swap_averaged_weights(self):
        """Exchanges the weights with their moving average; a second call changes them back."""
        if self._averages is None:
            raise ValueError(
                "There is no moving average of the weights. Compile with e.g. ema_momentum=0.999."
            )
        for variable, average in zip(self._weights_of_ema(), self._averages, strict=True):
            kept = tf.identity(variable.value)
            variable.assign(average)
            average.assign(kept)

    def _weights_of_ema(self):
        return self.trainable_variables

    def _update_averages(self):
        if self._averages is None:
            return
        momentum = self._step_options["ema_momentum"]
        for variable, average in zip(self._weights_of_ema(), self._averages, strict=True):
            average.assign_add((1 - momentum) * (tf.cast(variable.value, average.dtype) - average))

    def _sums_and_gradients(self, x, y, sample_weight):
        """Sums over this replica's tokens and the gradients of the first, all dense."""
        if self._projection is None or sample_weight is not None:
            with tf.GradientTape() as tape:
                sums, loss = self._sums(x, y, sample_weight, training=True)
            gradients = tape.gradient(loss, self.trainable_weights)
            return sums, [_dense(g, v) for g, v in zip(gradients, self.trainable_weights)]
        features_model, projection = self._projection
        with tf.GradientTape() as tape:
            features = features_model(x, training=True)
        sums, feature_gradient, table_gradient = self._projected_loss(features, projection, y)
        weights = self.trainable_weights
        gradients = tape.gradient(features, weights, output_gradients=feature_gradient)
        table = next(i for i, v in enumerate(weights) if v is projection.embeddings)
        gradients = [_dense(g, v) if i != table else g for i, (g, v) in
                     enumerate(zip(gradients, weights, strict=True))]
        gradients[table] = _add(table_gradient, gradients[table])
        return sums, gradients

    def _projected_loss(self, features, projection, y, gradients=True):
        loss = self._token_loss
        table = tf.convert_to_tensor(projection.embeddings.value)
        return projected_loss(features, table, y, loss.label_smoothing, loss.pad_id, gradients)

    def _sums(self, x, y, sample_weight, training):
        """Sums (4,) as of `projected_loss`, and the first by itself for the gradient."""
        y_pred = self(x, training=training)
        loss = self._token_loss
        values = loss.call(y, y_pred)
        if values.shape.rank == 0:
            raise ValueError(
                "The loss must return one value a token or an example, not a scalar: only sums can "
                "be divided by the tokens of the whole batch. Received: a scalar from "
                f"{type(loss).__name__}."
            )
        if hasattr(loss, "weights"):
            weights = loss.weights(y, sample_weight)
        else:
            weights = _keras_weights(loss, y, y_pred, values, sample_weight)
        total, count = tf.reduce_sum(values * weights), tf.reduce_sum(weights)
        likelihood, hits = tf.zeros([]), tf.zeros([])
        for metric in self._token_metrics:
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
        self._loss_tracker.update_state(loss / tf.maximum(tokens, 1e-9), sample_weight=tokens)
        for metric in self._token_metrics:
            metric.add_sums(likelihood if isinstance(metric, Perplexity) else hits, tokens)
        return self.get_metrics_result()


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
    """The model up to a final `TokenEmbedding(reverse=True)`, and that layer; None without one."""
    from keras_transformer.layers.embedding import TokenEmbedding

    output = model.outputs[0] if len(model.outputs) == 1 else None
    layer, node_index, _ = output._keras_history if output is not None else (None, None, None)
    if not isinstance(layer, TokenEmbedding) or model.dtype_policy.name == "mixed_float16":
        return None
    features = layer._inbound_nodes[node_index].input_tensors[0]
    return keras.Model(model.input, features), layer


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
