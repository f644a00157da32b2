"""The library's `keras.Model`: `compile` and `fit` as in Keras, with an exact train step."""

import functools

import keras

if keras.backend.backend() == "tensorflow":
    from keras_transformer.training.train_step import TrainStep
else:

    class TrainStep:
        """On JAX and PyTorch Keras's own step is right."""


_SOME = keras.Input((1,), name="some")
FUNCTIONAL = type(keras.Model(_SOME, _SOME, name="some"))  # Keras's class of functional models


@keras.saving.register_keras_serializable(package="keras_transformer")
class Model(TrainStep, keras.Model):
    """A Keras model whose train step is the same on any number of replicas.

    On TensorFlow a step sums the losses of all tokens, reduces once over all replicas,
    divides by the tokens of the whole batch, clips, and applies; Keras's own step averages
    the averages of the replicas, which is not the same when they hold different numbers of
    real tokens. On the JAX and PyTorch backends it is `keras.Model` as it stands.

    With Keras's losses the numbers are those that `keras.Model` gives on one device: loss,
    logs and weights, whatever the shapes of labels, weights and masks. `TokenCrossentropy` is a
    weighted mean instead: it divides by the sum of the weights of the batch's tokens, and the
    loss of an epoch is the mean over its tokens. What cannot be honoured exactly on replicas is
    refused on one device too: a loss that returns a scalar, compares rows with each other or is
    not reduced, several outputs, `add_loss`, loss scaling.

    Make it from inputs and outputs, or subclass it with a `call`. Several replicas and
    `ema_momentum` need a model that is built before `compile`.

    `compile` takes three more arguments, which Keras has on the optimizer, where they are
    wrong on several replicas and therefore refused:

    Args:
        clip_norm: largest global norm of the gradient of the whole batch; None for no limit.
        accumulation_steps: number of parts into which each batch is cut, to need less memory;
            the update is that of the whole batch.
        ema_momentum: share of the old value in a moving average of the weights, in (0, 1);
            None for no average. `swap_averaged_weights` exchanges it with the weights.

    Example:
        >>> inputs = keras.Input((3,))
        >>> model = Model(inputs, keras.layers.Dense(2)(inputs))
        >>> model.compile("sgd", loss="mse", clip_norm=1.0)
        >>> history = model.fit(keras.ops.ones((5, 3)), keras.ops.ones((5, 2)), verbose=0)
        >>> list(history.history)
        ['loss']
    """

    def __init__(self, *args, **kwargs):
        if len(args) == 2 or "outputs" in kwargs:
            self.__class__ = _functional(type(self))
            FUNCTIONAL.__init__(self, *args, **kwargs)
        else:
            super().__init__(*args, **kwargs)


@functools.cache
def _functional(cls):
    """A subclass of a class of models, and of Keras's functional models.

    Keras would change the bases of the class itself, and with them all other subclasses of
    `Model`, of which those with a `call` could not be made any more.
    """
    if issubclass(cls, FUNCTIONAL):
        return cls
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    functional = type(cls.__name__, (cls, FUNCTIONAL), names)
    registered = keras.saving.get_registered_name(cls)
    if registered != cls.__name__:
        package, _, name = registered.rpartition(">")
        keras.saving.register_keras_serializable(package, name)(functional)
    return functional
