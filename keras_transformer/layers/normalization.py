"""Layer normalisation that XLA computes in fewer passes."""

import keras
from keras import ops

from keras_transformer.layers.compiled import has_own_gradients, normalise


@keras.saving.register_keras_serializable(package="keras_transformer")
class LayerNormalization(keras.layers.LayerNormalization):
    """Keras's layer, with a gradient of its own where XLA compiles TensorFlow.

    There it reads its inputs once for mean and variance, and keeps them alone for the backward
    pass. All blocks and stacks use it.

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
        return normalise(inputs, gamma, beta, self.epsilon)
