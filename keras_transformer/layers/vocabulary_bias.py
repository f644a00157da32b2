"""The bias of logits."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_transformer")
class VocabularyBias(keras.layers.Layer):
    """Adds a learned bias to the logit of each token, in float32.

    Call arguments:
        logits: (..., vocabulary).

    Returns:
        Same shape, float32.

    Examples:
        >>> tuple(VocabularyBias()(keras.ops.zeros((2, 3, 5))).shape)
        (2, 3, 5)
    """

    def __init__(self, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.supports_masking = True

    def build(self, input_shape):
        self.bias = self.add_weight(name="bias", shape=input_shape[-1:], initializer="zeros")

    def call(self, logits):
        return ops.cast(logits, "float32") + ops.cast(self.bias, "float32")

    def compute_output_spec(self, logits):
        return keras.KerasTensor(logits.shape, dtype="float32")

    def get_config(self):
        return super().get_config()  # otherwise Keras refuses to serialise a dtype policy
