"""The normalisations of blocks: Keras's, which keep less where XLA compiles TensorFlow."""

import keras
from keras import ops

from keras_transformer.arguments import check_number
from keras_transformer.ops.compiled import has_own_gradients, normalise

NORM_EPSILON = 1e-5


@keras.saving.register_keras_serializable(package="keras_transformer")
class LayerNormalization(keras.layers.LayerNormalization):
    """Keras's layer, with a gradient of its own where XLA compiles TensorFlow.

    There it keeps only its inputs for the backward pass. All blocks and stacks use it.

    Source: Ba et al. 2016 (https://arxiv.org/abs/1607.06450).

    Args:
        As for `keras.layers.LayerNormalization`.

    Call arguments:
        inputs: (..., dim).

    Returns:
        Same shape and dtype as `inputs`.

    Examples:
        >>> LayerNormalization(epsilon=0.0)(keras.ops.array([[1.0, 3.0]])).numpy().tolist()
        [[-1.0, 1.0]]
    """

    def call(self, inputs):
        is_last_axis = self.axis in ([-1], [len(inputs.shape) - 1])
        keeps_mean = getattr(self, "rms_scaling", False)
        is_plain = self.scale and self.center and is_last_axis and not keeps_mean
        if not (is_plain and has_own_gradients(inputs, self.gamma)):
            return super().call(inputs)
        gamma, beta = (ops.cast(each, "float32") for each in (self.gamma, self.beta))
        return normalise(inputs, gamma, self.epsilon, beta)


@keras.saving.register_keras_serializable(package="keras_transformer")
class RMSNormalization(keras.layers.RMSNormalization):
    """Keras's layer, with a gradient of its own where XLA compiles TensorFlow.

    It divides by the root of the mean square, and neither subtracts a mean nor adds a bias.

    Source: Zhang and Sennrich 2019 (https://arxiv.org/abs/1910.07467).

    Args:
        As for `keras.layers.RMSNormalization`.

    Call arguments:
        inputs: (..., dim).

    Returns:
        Same shape and dtype as `inputs`.

    Examples:
        >>> RMSNormalization(epsilon=0.0)(keras.ops.array([[1.0, 7.0]])).numpy().round(1)
        array([[0.2, 1.4]], dtype=float32)
    """

    def __init__(self, axis=-1, epsilon=1e-6, **kwargs):
        super().__init__(axis, epsilon, **kwargs)
        self.supports_masking = True

    def add_weight(self, *args, **kwargs):
        # As in Keras's LayerNormalization: a scale near 1 would be rounded to steps of 1 / 128.
        return super().add_weight(*args, autocast=False, **kwargs)

    def call(self, inputs):
        is_last_axis = self.axis in ([-1], [len(inputs.shape) - 1])
        if not (is_last_axis and has_own_gradients(inputs, self.scale)):
            return super().call(inputs)
        return normalise(inputs, ops.cast(self.scale, "float32"), self.epsilon)


NORMALIZATIONS = {"layer": LayerNormalization, "rms": RMSNormalization}


def create_norm(normalization, epsilon, **kwargs):
    """A layer of `NORMALIZATIONS`; raises ValueError for another name or a negative epsilon."""
    if not isinstance(normalization, str) or normalization not in NORMALIZATIONS:
        raise ValueError(
            f"normalization must be {' or '.join(map(repr, NORMALIZATIONS))}. "
            f"Received: normalization={normalization!r}."
        )
    check_number("norm_epsilon", epsilon, least=0)
    return NORMALIZATIONS[normalization](epsilon=epsilon, **kwargs)
