"""The library's `keras.Model`: `compile` and `fit` as in Keras, with an exact train step."""

import keras

if keras.backend.backend() == "tensorflow":
    from keras_transformer.training.train_step import TrainStep
else:

    class TrainStep:
        """On JAX and PyTorch Keras's own step is right."""


@keras.saving.register_keras_serializable(package="keras_transformer")
class Model(TrainStep, keras.Model):
    """A functional Keras model whose train step is the same on any number of replicas.

    On TensorFlow a step sums the losses of all tokens, reduces once over all replicas,
    divides by the tokens of the whole batch, clips, and applies; Keras's own step averages
    the averages of the replicas, which is not the same when they hold different numbers of
    real tokens. On the JAX and PyTorch backends it is `keras.Model` as it stands.

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
