"""Dropout with the same noise on every device, compiled or not."""

import keras
from keras import ops

from keras_transformer.arguments import check_number
from keras_transformer.layers.checks import NotQuantizedMixin
from keras_transformer.ops.dropout import drop
from keras_transformer.ops.internals import keep_mask


@keras.saving.register_keras_serializable(package="keras_transformer")
class ReproducibleDropout(keras.layers.Dropout):
    """Keras's dropout with a fixed generator: a seed drops the same units everywhere.

    On TensorFlow, Keras's own layer draws different noise on a GPU than on a CPU, and with XLA
    than without, so that the same seed trains a different model. This layer draws from Philox,
    at half the cost. All layers and models of the library use it.

    Source: Srivastava et al. 2014 (https://jmlr.org/papers/v15/srivastava14a.html); Salmon et
    al. 2011 (https://doi.org/10.1145/2063384.2063405).

    Args:
        rate: probability in [0, 1] with which a unit is dropped, rounded to 1 / 65536.
        noise_shape: shape of the noise, broadcast to the inputs; None for the inputs' shape. An
            axis of None has the inputs' size.
        seed: an integer, or None to draw one from Keras's global generator.

    Call arguments:
        inputs: a tensor of any shape except a scalar.
        training: whether to drop units.

    Returns:
        Same shape and dtype as `inputs`; units that are kept are scaled by 1 / (1 - rate).

    Examples:
        >>> ReproducibleDropout(0.5)(keras.ops.ones((1, 3))).numpy().tolist()  # inference
        [[1.0, 1.0, 1.0]]
    """

    def __init__(self, rate, noise_shape=None, seed=None, **kwargs):
        check_number("rate", rate, least=0, most=1)
        super().__init__(rate, noise_shape, seed, **kwargs)

    def call(self, inputs, training=False):
        if not (training and self.rate):
            return inputs
        if self.rate == 1:
            return ops.zeros_like(inputs)
        sizes = ops.shape(inputs)
        noise_shape = self.noise_shape or sizes
        shape = tuple(b if a is None else a for a, b in zip(noise_shape, sizes, strict=True))
        kept = keep_mask(shape, self.rate, self.seed_generator)
        return drop(inputs, kept, self.rate)


class InnerDropout(NotQuantizedMixin, ReproducibleDropout):
    """Dropout inside a layer with projections; Keras asks it, not the layer, to be quantized."""
