"""The library's `keras.Model`: `compile` and `fit` as in Keras, with an exact train step."""

import keras

from keras_transformer.training.optional_inputs import OptionalInputsMixin

if keras.backend.backend() == "tensorflow":
    from keras_transformer.training.train_step import TrainStep as OwnStep
elif keras.backend.backend() == "jax":
    from keras_transformer.training.jax_step import JaxTrainStep as OwnStep
else:
    from keras_transformer.training.logits import check_take_logits

    class OwnStep:
        """On PyTorch, Keras's own step is correct, and `compile` has none of our arguments."""

        def compile(
            self,
            optimizer="rmsprop",
            loss=None,
            loss_weights=None,
            metrics=None,
            weighted_metrics=None,
            *args,
            **kwargs,
        ):
            check_take_logits(self, loss, metrics, weighted_metrics)
            arguments = optimizer, loss, loss_weights, metrics, weighted_metrics, *args
            super().compile(*arguments, **kwargs)

        def compile_from_config(self, config):
            own = ("clip_norm", "accumulation_steps", "ema_momentum", "r_drop")
            given = {name: config[name] for name in own if config.get(name)}
            if given not in ({}, {"accumulation_steps": 1}):
                raise ValueError(
                    "A model that was compiled with these arguments is trained on TensorFlow or "
                    f"JAX. Load it there, or with compile=False. Received: {given}."
                )
            plain = {name: each for name, each in config.items() if name not in own}
            if type(self).compile is not OwnStep.compile:
                super().compile_from_config(plain)  # warns
                return
            self.compile(**keras.saving.deserialize_keras_object(plain))
            if self.built and self.optimizer is not None:
                self.optimizer.build(self.trainable_variables)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Model(OptionalInputsMixin, OwnStep, keras.Model):
    """A Keras model whose train step is the same on any number of replicas.

    On TensorFlow a step sums the losses of all tokens, reduces once over all replicas,
    divides by the tokens of the whole batch, clips, and applies; Keras's own step averages
    the averages of the replicas, which differs if they hold different numbers of real tokens.
    On JAX one program sees the whole batch, so the step is Keras's with a loss per token and
    the arguments below. On PyTorch it is an unchanged `keras.Model`.

    With Keras's losses, loss, logs and weights are those of `keras.Model` on one device, whatever
    the shapes of labels, weights and masks, with two intended differences:

    - `TokenCrossentropy` is a weighted mean: it divides by the sum of the weights of the batch's
      tokens, and the loss of an epoch is the mean over its tokens.
    - The gradient of an embedding is dense, as on JAX. On TensorFlow, Keras passes optimizers one
      slice per occurrence of a token, and adaptive ones square each slice instead of their sum.

    What cannot be exact on replicas is refused on one device too: losses that return a scalar,
    compare rows with each other or are not reduced, several outputs and `add_loss`, on
    TensorFlow and JAX alike. Custom metrics must be sums over rows: their variables are summed over
    replicas.

    On TensorFlow, a functional model checks the data on the host, before each step: it raises
    ValueError for an id or a label outside its table, and for a row longer than its positions. XLA
    and GPUs do not. There are no such checks in subclassed models, for data that is already
    distributed or on a GPU, for a `keras.utils.PyDataset`, and on JAX. There, with XLA or on a GPU,
    the vector of such an id is NaN, and so is the loss.

    `Model(inputs, outputs)` returns a `FunctionalModel`; subclass that one, or `Model` with a
    `call`. Several replicas, `accumulation_steps` and `ema_momentum` need a model that is built
    before `compile`.

    With `jit_compile`, XLA compiles the forward and the backward pass in each replica, under any
    strategy; sums over replicas and the optimizer stay outside. The default, "auto", compiles on
    GPUs but not on CPUs. Each new shape of batch is compiled once on each replica.

    Under the policy `mixed_float16` the step scales the loss itself, with a scale that adapts and
    that checkpoints keep; a step whose gradients overflow changes nothing else. Turn it off with
    `auto_scale_loss=False`.

    `compile` has five more arguments. Keras has the first three on the optimizer, where they give
    wrong numbers on several replicas and are therefore refused:

    Args:
        clip_norm: largest global norm of the whole batch's gradient; None for no limit.
        accumulation_steps: number of parts into which to split each batch, to save memory; the
            update is that of the whole batch.
        ema_momentum: share of the old value in a moving average of the weights, in (0, 1);
            None for no average. `swap_averaged_weights` exchanges it with the weights.
        r_drop: weight of R-Drop's divergence, above 0: each row passes twice with other dropout,
            and its loss is the mean of both cross-entropies plus half of the weight times the mean
            of both KL divergences, in nats. None for one pass. Source: Liang et al. 2021, section
            2.1 (https://arxiv.org/abs/2106.14448).

    Examples:
        >>> inputs = keras.Input((3,))
        >>> model = Model(inputs, keras.layers.Dense(2)(inputs))
        >>> model.compile("sgd", loss="mse", clip_norm=1.0)
        >>> history = model.fit(keras.ops.ones((5, 3)), keras.ops.ones((5, 2)), verbose=0)
        >>> list(history.history)
        ['loss']
    """

    def __new__(cls, *args, **kwargs):
        if cls is Model and is_functional(args, kwargs):
            cls = FunctionalModel
        return super().__new__(cls)

    def __init__(self, *args, **kwargs):
        # Keras would make `Model` itself functional, and no subclass with a `call` could follow.
        if is_functional(args, kwargs) and not isinstance(self, FunctionalModel):
            raise ValueError(
                "Only a functional model has inputs and outputs. Subclass kt.FunctionalModel "
                f"instead of kt.Model. Received: inputs and outputs of {type(self).__name__}."
            )
        super().__init__(*args, **kwargs)


# Keras exports no name for its functional class. `__new__` alone initialises nothing, so the dtype
# policy may still be set.
@keras.saving.register_keras_serializable(package="keras_transformer")
class FunctionalModel(Model, type(keras.Model.__new__(keras.Model, inputs=None, outputs=None))):
    """A `Model` of the graph between its inputs and outputs.

    `Model(inputs, outputs)` returns one. Subclass it to override a method of such a model.

    Args:
        inputs: symbolic tensors from `keras.Input`, in a nest of any structure.
        outputs: symbolic tensors computed from them, in a nest of any structure.
        name: name of the model, a string; None for a name that Keras chooses.

    Raises:
        ValueError: if the inputs or outputs are not symbolic tensors.

    Examples:
        >>> class Halved(FunctionalModel):
        ...     def call(self, inputs, training=None, mask=None):
        ...         return super().call(inputs, training, mask) / 2
        >>> inputs = keras.Input((3,))
        >>> float(Halved(inputs, 4 * inputs)(keras.ops.ones((1, 3)))[0, 0])
        2.0
    """


def is_functional(args, kwargs):
    """Whether a model's arguments are inputs and outputs, told apart as by `keras.Model`."""
    has_inputs = len(args) == 1 or "inputs" in kwargs
    return len(args) == 2 or (has_inputs and "outputs" in kwargs)
