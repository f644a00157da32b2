"""Checks of the arguments of `compile` and `fit`; each error says what to do instead."""

import logging

import keras

from keras_transformer.arguments import check_integer, check_number
from keras_transformer.training.internals import all_layers
from keras_transformer.training.losses import TokenCrossentropy

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    from keras_transformer.training.distribution import check_devices, gpu_models

REFUSED_OPTIMIZER_SETTINGS = {
    "clipnorm": "clip_norm",
    "global_clipnorm": "clip_norm",
    "clipvalue": "clip_norm",
    "gradient_accumulation_steps": "accumulation_steps",
    "use_ema": "ema_momentum",
}

OF_WHOLE_BATCHES = (keras.layers.BatchNormalization, keras.layers.SpectralNormalization)


def check_optimizer(optimizer, scales_itself=True):
    """Raises for settings of an optimizer that `compile` has.

    Args:
        optimizer: of Keras.
        scales_itself: whether the step scales losses of models in float16, not the optimizer.
    """
    if not scales_itself:
        if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
            return  # it clips what `clip_norm` would see too large
    elif isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        raise ValueError(
            "The exact train step itself scales the loss of models in float16; an optimizer would "
            "look at one replica only. Pass the inner optimizer to compile. "
            "Received: a LossScaleOptimizer."
        )
    if scales_itself and getattr(optimizer, "loss_scale_factor", None) is not None:
        raise ValueError(
            "The exact train step itself scales the loss of models in float16. Leave "
            "loss_scale_factor out. "
            f"Received: loss_scale_factor={optimizer.loss_scale_factor}."
        )
    for name, ours in REFUSED_OPTIMIZER_SETTINGS.items():
        value = getattr(optimizer, name, None)
        if value:
            raise ValueError(
                f"Set {ours} in compile(), not {name} on the optimizer, where it gives different "
                f"numbers on several replicas. Received: {name}={value}."
            )


def check_arguments(clip_norm, accumulation_steps, ema_momentum, loss_weights):
    if loss_weights is not None:
        raise ValueError(
            "The exact train step needs one loss for one output, without loss_weights. "
            f"Received: loss_weights={loss_weights}."
        )
    if clip_norm is not None:
        check_number("clip_norm", clip_norm, above=0)
    check_integer("accumulation_steps", accumulation_steps)
    if ema_momentum is not None:
        check_number("ema_momentum", ema_momentum, above=0, below=1)


def check_strategy(model, steps_per_execution):
    if keras.distribution.distribution() is not None:
        raise ValueError(
            "keras.distribution does nothing on the TensorFlow backend: training would silently "
            "use one device. Use keras_transformer.training.choose_strategy, or the JAX "
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
    check_devices(model.distribute_strategy.extended.worker_devices, gpu_models())
    if steps_per_execution != 1:
        raise ValueError(
            "steps_per_execution must be 1 under a tf.distribute strategy: Keras cannot loop "
            f"over distributed batches. Received: steps_per_execution={steps_per_execution}."
        )


def check_methods(model, own_class, names=("compute_loss", "compute_metrics")):
    """Raises for methods of a user's subclass that the exact step does not call."""
    for name in names:
        if overrides(model, own_class, name):
            raise ValueError(
                f"The exact train step cannot include a custom {name}. Pass a loss and metrics to "
                "compile, or train with keras.Model. "
                f"Received: {type(model).__name__}, which overrides {name}."
            )


def check_model(model, own_class, accumulation_steps, ema_momentum):
    """Raises for models with methods or layers that the exact step cannot honour.

    Args:
        model: the model.
        own_class: the library's mixin; a method of a class before it is the user's.
        accumulation_steps: number of parts of a batch.
        ema_momentum: None for no moving average.
    """
    replicas = model.distribute_strategy.num_replicas_in_sync
    check_methods(model, own_class)
    if replicas > 1:
        check_methods(model, own_class, ["train_step"])
    split = replicas > 1 or accumulation_steps > 1
    if not model.built and (split or ema_momentum is not None):
        raise ValueError(
            "Build the model before compile, for example by calling it on a batch: several "
            "replicas, accumulation_steps and ema_momentum need its weights. "
            f"Received: {type(model).__name__}, which is not built."
        )
    for layer in all_layers(model):
        _check_layer(layer, split)


def _check_layer(layer, split):
    if getattr(layer, "variable_dtype", None) == "float16":
        raise ValueError(
            "Weights in float16 are too coarse to train. Use the mixed_float16 policy, which keeps "
            f"them in float32. Received: the layer {layer.name}, whose weights are in float16."
        )
    if any(getattr(weight, "overwrite_with_gradient", False) for weight in layer.trainable_weights):
        raise ValueError(
            "Weights that their gradient overwrites, as in float8, cannot be trained here. "
            f"Received: the layer {layer.name}."
        )
    if split and layer.trainable and isinstance(layer, OF_WHOLE_BATCHES):
        raise ValueError(
            f"On replicas or with accumulation_steps, {type(layer).__name__} would see a part of "
            "each batch, and its numbers would not be those of one device. Use "
            "LayerNormalization, or set trainable=False on it. "
            f"Received: the layer {layer.name}."
        )


def warn_of_float16_on_cpus():
    if not tf.config.list_logical_devices("GPU"):
        logging.getLogger(__name__).warning(
            "float16 is slow on CPUs. Train with mixed_bfloat16 or float32, or on a GPU. "
            "Received: a model in float16, and no GPU."
        )


def overrides(model, own_class, name):
    """Whether a user's subclass of the library's `Model` overrides a method."""
    for one_class in type(model).__mro__:
        if one_class is own_class:
            return False
        if name in vars(one_class):
            return True
    return False


def check_compiled(model, method):
    if not model.compiled:
        raise ValueError(
            f"Compile the model before {method}: model.compile(optimizer, loss). "
            "Received: a model that is not compiled."
        )


def check_class_weight(loss, class_weight):
    if class_weight is not None and isinstance(loss, TokenCrossentropy):
        raise ValueError(
            "class_weight has no meaning for labels that are sequences of tokens: Keras would "
            "use one weight for a whole row. Use sample_weight of shape (batch, target). "
            f"Received: class_weight={class_weight}."
        )


def check_one_replica(model, method):
    """Raises on several replicas, each of which would get the whole batch from Keras."""
    replicas = model.distribute_strategy.num_replicas_in_sync
    if replicas > 1:
        raise ValueError(
            f"{method} gives every replica the whole batch. Use fit, evaluate or predict with a "
            f"tf.data.Dataset, whose batches are divided. Received: {replicas} replicas."
        )


def check_labels(y, loss):
    if loss is None:
        raise ValueError("Training and evaluation need a loss. Compile with one.")
    if y is None:
        raise ValueError(
            "Training and evaluation need labels: data of (inputs, labels) or (inputs, labels, "
            "sample weights). Received: inputs without labels."
        )


def check_gradients(gradients):
    if not gradients:
        raise ValueError(
            "No weight has a gradient: the loss does not depend on the weights. Does the model, or "
            "the loss, use operations without gradients? Received: only gradients of None."
        )
