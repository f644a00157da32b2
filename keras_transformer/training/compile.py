"""`compile` of the library's `Model` on TensorFlow and JAX: the settings of the train step.

They are checked here, and every error says what to do instead. What cannot be exact on several
replicas is refused on one device and on JAX too, so that a model trains the same everywhere.
"""

import dataclasses
import itertools
import logging

import keras

from keras_transformer.arguments import check_integer, check_number
from keras_transformer.training import internals
from keras_transformer.training.consistency import Consistency
from keras_transformer.training.distribution import (
    DropoutSeeds,
    carried_variables,
    check_devices,
    gpu_models,
)
from keras_transformer.training.internals import ON_TENSORFLOW
from keras_transformer.training.logits import check_take_logits
from keras_transformer.training.losses import TokenCrossentropy, resolve_loss, single_loss
from keras_transformer.training.metrics import is_token_sum
from keras_transformer.training.optimizers import LossScale, MovingAverage
from keras_transformer.training.projected_loss import ProjectedLoss, find_projection
from keras_transformer.training.whole_loss import WholeLoss

if ON_TENSORFLOW:
    import tensorflow as tf

REFUSED_OPTIMIZER_SETTINGS = {
    "clipnorm": "clip_norm",
    "global_clipnorm": "clip_norm",
    "clipvalue": "clip_norm",
    "gradient_accumulation_steps": "accumulation_steps",
    "use_ema": "ema_momentum",
}

_AVERAGE = "moving_average_"  # of its variables in a file, before their index
WHOLE_BATCH_LAYERS = (keras.layers.BatchNormalization, keras.layers.SpectralNormalization)


@dataclasses.dataclass(frozen=True)
class StepSettings:
    """What a train step needs, in one object, so that Keras does not track and save its parts."""

    loss: keras.losses.Loss | None = None  # from `resolve_loss`
    loss_weight: float = 1.0
    num_weights: int | None = None  # that are trained; None if the model was not built
    clip_norm: float | None = None
    accumulation_steps: int = 1
    ema_momentum: float | None = None
    average: MovingAverage | None = None
    dropout_seeds: DropoutSeeds | None = None
    r_drop: float | None = None
    consistency: Consistency | None = None  # of r_drop
    # On TensorFlow alone; on JAX the optimizer scales the loss, and Keras sums it.
    loss_scale: LossScale | None = None
    whole_loss: WholeLoss | None = None
    projected_loss: ProjectedLoss | None = None

    def loss_from(self, sample_weight):
        """The loss that computes a batch: projected if possible, otherwise whole."""
        is_whole = self.projected_loss is None or sample_weight is not None
        return self.whole_loss if is_whole else self.projected_loss


class CompileMixin:
    """`compile` and what belongs to it, for the mixins that define the train step."""

    _step = StepSettings()

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
        r_drop=None,
    ):
        check_take_logits(self, loss, metrics, weighted_metrics)
        optimizer = keras.optimizers.get(optimizer)
        check_optimizer(optimizer)
        check_arguments(clip_norm, accumulation_steps, ema_momentum)
        names = getattr(self, "output_names", None)
        single, loss_weight = single_loss(loss, loss_weights, names)
        summed_loss = resolve_loss(single)
        if ON_TENSORFLOW:
            check_strategy(self, steps_per_execution)
        check_model(self, accumulation_steps, ema_momentum)
        consistency = None
        if r_drop is not None:
            consistency = Consistency(self, summed_loss, r_drop)
        is_sum = getattr(summed_loss, "reduction", None) == "sum"
        is_penalised = any(weight.regularizer is not None for weight in self.trainable_weights)
        if is_sum and is_penalised and accumulation_steps > 1 and not ON_TENSORFLOW:
            raise ValueError(
                "On JAX, accumulation_steps must be 1 with regularisers and a loss that is a sum: "
                "each part would add the penalties of all weights. Received: "
                f"accumulation_steps={accumulation_steps}."
            )

        token_metrics, scales_loss = None, False
        if ON_TENSORFLOW:
            if jit_compile == "auto":
                # On CPUs, XLA's matrix products are slower than oneDNN's, much so in bfloat16.
                has_gpu = bool(tf.config.list_logical_devices("GPU"))
                supports_jit = all(layer.supports_jit for layer in internals.all_layers(self))
                jit_compile = has_gpu and supports_jit and not run_eagerly
            given = keras.tree.flatten(metrics or [])
            if not weighted_metrics and all(is_token_sum(m, summed_loss) for m in given):
                token_metrics = given
            scales_loss = auto_scale_loss and computes_in_float16(self)
            auto_scale_loss = False  # Keras's scale would look at one replica only
        elif auto_scale_loss and computes_in_float16(self) and not is_wrapped(optimizer):
            # Keras asks for the policy of the model, which may be another than that of its layers.
            optimizer = optimizer and keras.optimizers.LossScaleOptimizer(optimizer)
        internals.forget_compiled_metrics(self)
        super().compile(
            optimizer,
            loss,
            loss_weights=loss_weights,
            metrics=metrics,
            weighted_metrics=weighted_metrics,
            run_eagerly=run_eagerly,
            steps_per_execution=steps_per_execution,
            jit_compile=jit_compile,
            auto_scale_loss=auto_scale_loss,
        )
        check_clipping(self.optimizer, clip_norm)
        if optimizer is not None:  # which evaluation does not need
            if ON_TENSORFLOW:
                internals.disable_gradient_reduction(optimizer)
            if self.built and not self.optimizer.built:
                self.optimizer.build(self.trainable_variables)

        average = loss_scale = whole_loss = projected_loss = None
        if ema_momentum is not None:
            check_widths(self.trainable_variables)
            average = MovingAverage(self.trainable_variables, ema_momentum)
        if scales_loss:
            warn_of_float16_on_cpus()
            loss_scale = LossScale()
        if ON_TENSORFLOW:
            whole_loss = WholeLoss(self, [(summed_loss, loss_weight)], token_metrics, consistency)
            # A `call` may differ from the model's graph; a backward pass is scaled from the logits.
            needs_logits = token_metrics is None or scales_loss or overrides(self, "call")
            if not needs_logits and (projection := find_projection(self, summed_loss)):
                settings = token_metrics, projection, consistency
                projected_loss = ProjectedLoss(self, summed_loss, *settings)
        self._step = StepSettings(
            loss=summed_loss,
            loss_weight=loss_weight,
            num_weights=len(self.trainable_variables) if self.built else None,
            clip_norm=clip_norm,
            accumulation_steps=accumulation_steps,
            ema_momentum=ema_momentum,
            average=average,
            dropout_seeds=DropoutSeeds(self),
            r_drop=r_drop,
            consistency=consistency,
            loss_scale=loss_scale,
            whole_loss=whole_loss,
            projected_loss=projected_loss,
        )

    def get_compile_config(self):
        """What `.keras` keeps of `compile`, so that a reloaded model can continue training."""
        config = super().get_compile_config()
        if not config:
            return config
        # No defaults: Keras compiles a clone of some subclasses with its own `compile`.
        for name in ("clip_norm", "accumulation_steps", "ema_momentum", "r_drop"):
            if (value := getattr(self._step, name)) != getattr(StepSettings, name):
                config[name] = value
        if ON_TENSORFLOW:
            has_scale = self._step.loss_scale is not None
            config["auto_scale_loss"] = has_scale or not computes_in_float16(self)
        else:
            # TensorFlow may load the model, and decides for itself.
            config["jit_compile"] = "auto" if config["jit_compile"] else False
        return config

    def compile_from_config(self, config):
        if overrides(self, "compile"):
            super().compile_from_config(config)  # warns
            return
        self.compile(**keras.saving.deserialize_keras_object(config))

    def save_own_variables(self, store):
        super().save_own_variables(store)
        average = self._step.average
        if average is not None and average.has_begun:
            for name, value in zip(self._names_of_averages(), average.values, strict=True):
                store[name] = value

    def load_own_variables(self, store):
        names = [*store.keys()]
        others = {name: store[name] for name in names if not name.startswith(_AVERAGE)}
        super().load_own_variables(others)
        average = self._step.average
        if average is not None and len(others) < len(names):
            wanted = self._names_of_averages()
            if missing := sorted(set(wanted) - set(names)):
                raise ValueError(
                    "The saved model has no moving average of weights that were not trained, and "
                    "now are. Freeze them, or save with them unfrozen. Received: "
                    f"averages of {len(names) - len(others)} weights, without {len(missing)} of "
                    f"the {len(wanted)} to train."
                )
            average.assign([store[name] for name in wanted])

    def _names_of_averages(self):
        """By the weights' places in the model: layers may be frozen before it is saved."""
        places = {id(weight): place for place, weight in enumerate(self.weights)}
        return [f"{_AVERAGE}{places[id(weight)]}" for weight in self._step.average.weights]

    def make_train_function(self, force=False):
        if getattr(self, "optimizer", None) is None:
            raise ValueError(
                "Training needs an optimizer. Compile with one, such as kt.Adam(0.001). "
                "Received: optimizer=None."
            )
        if self._step.average is not None:
            self._step.average.begin()
        return super().make_train_function(force)

    def swap_averaged_weights(self):
        """Exchanges the weights with their moving average; a second call changes them back."""
        if self._step.average is None or not self._step.average.values:
            raise ValueError(
                "There is no moving average of the weights. Compile with e.g. ema_momentum=0.999."
            )
        self._step.average.swap()


def check_widths(weights):
    """Raises for weights so narrow that a moving average of them would lose all small changes."""
    if narrow := sorted({v.dtype for v in weights} & {"bfloat16", "float16"}):
        raise ValueError(
            "ema_momentum needs weights in float32, such as mixed_bfloat16 has. "
            f"Received: weights in {', '.join(narrow)}."
        )


def is_wrapped(optimizer):
    """Whether Keras, or the caller, has put a `LossScaleOptimizer` around an optimizer."""
    return isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


def check_optimizer(optimizer):
    """Raises for settings of an optimizer that `compile` has."""
    if is_wrapped(optimizer) and not ON_TENSORFLOW:
        return  # on JAX it scales the loss, and clips what `clip_norm` would see too large
    factor = getattr(optimizer, "loss_scale_factor", None)
    if ON_TENSORFLOW and (is_wrapped(optimizer) or factor is not None):
        raise ValueError(
            "The exact train step itself scales the loss of models in float16; an optimizer would "
            "look at one replica only. Give compile the optimizer that a LossScaleOptimizer holds, "
            "and none that has a loss_scale_factor. "
            f"Received: {type(optimizer).__name__}, loss_scale_factor={factor}."
        )
    for name, ours in REFUSED_OPTIMIZER_SETTINGS.items():
        value = getattr(optimizer, name, None)
        if value:
            raise ValueError(
                f"Set {ours} in compile(), not {name} on the optimizer, where it gives different "
                f"numbers on several replicas. Received: {name}={value}."
            )


def check_clipping(optimizer, clip_norm):
    """Raises if an optimizer, which Keras has wrapped for float16 on JAX, scales gradients."""
    has_factor = getattr(optimizer, "loss_scale_factor", None) is not None
    if clip_norm is not None and (has_factor or is_wrapped(optimizer)):
        raise ValueError(
            "clip_norm would see scaled gradients under a LossScaleOptimizer or a "
            "loss_scale_factor. Set global_clipnorm on the optimizer inside it, leave "
            "loss_scale_factor out, or train with mixed_bfloat16. "
            f"Received: clip_norm={clip_norm}."
        )


def check_arguments(clip_norm, accumulation_steps, ema_momentum):
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


def check_model(model, accumulation_steps, ema_momentum):
    """Raises for models with methods or layers that the exact step cannot honour."""
    if accumulation_steps > 1 and carried_variables(model):
        raise ValueError(
            "accumulation_steps must be 1 for a model that carries a memory, because the memory "
            "belongs to all rows of a batch. "
            f"Received: accumulation_steps={accumulation_steps}."
        )
    replicas = model.distribute_strategy.num_replicas_in_sync if ON_TENSORFLOW else 1
    for name in ("compute_loss", "compute_metrics", *(["train_step"] if replicas > 1 else [])):
        if overrides(model, name):
            raise ValueError(
                f"The exact train step cannot include a custom {name}. Pass a loss and metrics to "
                "compile, or train with keras.Model. "
                f"Received: {type(model).__name__}, which overrides {name}."
            )
    split = replicas > 1 or accumulation_steps > 1
    if not model.built and (split or ema_momentum is not None):
        raise ValueError(
            "Build the model before compile, for example by calling it on a batch: several "
            "replicas, accumulation_steps and ema_momentum need its weights. "
            f"Received: {type(model).__name__}, which is not built."
        )
    for layer in internals.all_layers(model):
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
    if split and layer.trainable and isinstance(layer, WHOLE_BATCH_LAYERS):
        raise ValueError(
            f"On replicas or with accumulation_steps, {type(layer).__name__} would see a part of "
            "each batch, and its numbers would not be those of one device. Use "
            "LayerNormalization, or set trainable=False on it. "
            f"Received: the layer {layer.name}."
        )
    if split and not ON_TENSORFLOW and layer.activity_regularizer is not None:
        raise ValueError(
            "On JAX, accumulation_steps must be 1 with activity regularisers, which would see only "
            f"a part of each batch. Received: the layer {layer.name}."
        )


def check_labels(y, loss):
    if loss is None:
        raise ValueError("Training and evaluation need a loss. Compile with one.")
    if any(part is None for part in keras.tree.flatten(y)):
        raise ValueError(
            "Training and evaluation need labels: data of (inputs, labels) or (inputs, labels, "
            "sample weights). Received: inputs without labels."
        )


def check_class_weight(loss, class_weight):
    if class_weight is not None and isinstance(loss, TokenCrossentropy):
        raise ValueError(
            "class_weight has no meaning for labels that are sequences of tokens: Keras would "
            "use one weight for a whole row. Use sample_weight of shape (batch, target). "
            f"Received: class_weight={class_weight}."
        )


def overrides(model, name):
    """Whether a user's subclass of the library's `Model` overrides a method."""
    classes = itertools.takewhile(lambda c: CompileMixin not in c.__bases__, type(model).__mro__)
    return any(name in vars(one_class) for one_class in classes)


def computes_in_float16(model):
    return any(layer.compute_dtype == "float16" for layer in internals.all_layers(model))


def warn_of_float16_on_cpus():
    if not tf.config.list_logical_devices("GPU"):
        logging.getLogger(__name__).warning(
            "float16 is slow on CPUs. Train with mixed_bfloat16 or float32, or on a GPU. "
            "Received: a model in float16, and no GPU."
        )
