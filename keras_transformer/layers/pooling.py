"""From the vectors of a sequence to one vector."""

import keras
from keras import ops

from keras_transformer.layers.checks import check_vectors, implicit_mask
from keras_transformer.ops.projection import highest_at_least

POOLINGS = ("mean", "max", "first")


@keras.saving.register_keras_serializable(package="keras_transformer")
class SequencePooling(keras.layers.Layer):
    """Reduces a sequence to one vector: the mean, the maximum or the first of its vectors.

    Padding never counts. A row without any real token gives zeros.

    Args:
        pooling: "mean", "max" or "first". Use "first" if the first token stands for
            the whole sequence, like BERT's [CLS].

    Call arguments:
        inputs: (batch, length, dim).
        padding_mask: boolean (batch, length), True for a real token; the implicit Keras
            mask of `inputs` if None.

    Returns:
        (batch, dim).

    Raises:
        ValueError: if `pooling` is none of these, or inputs or mask have another rank.

    Examples:
        >>> vectors = keras.ops.array([[[1.0], [3.0], [7.0]]])
        >>> real = keras.ops.array([[True, True, False]])
        >>> SequencePooling("mean")(vectors, padding_mask=real).numpy().tolist()
        [[2.0]]
    """

    def __init__(self, pooling="mean", **kwargs):
        super().__init__(**kwargs)
        if pooling not in POOLINGS:
            raise ValueError(f"pooling must be one of {POOLINGS}. Received: pooling={pooling!r}.")
        self.pooling = pooling
        self.supports_masking = True

    def call(self, inputs, padding_mask=None):
        check_vectors(inputs=inputs)
        padding_mask = implicit_mask(inputs, padding_mask)
        if padding_mask is None:
            padding_mask = ops.ones(ops.shape(inputs)[:2], "bool")
        real = ops.expand_dims(padding_mask, -1)  # (batch, length, 1)
        if self.pooling == "first":
            return ops.where(real[:, 0], inputs[:, 0], 0)
        vectors = ops.cast(inputs, "float32")
        if self.pooling == "mean":
            # Counted in float32: bfloat16 has no odd integers above 256.
            count = ops.sum(ops.cast(real, "float32"), axis=1)
            pooled = ops.sum(ops.where(real, vectors, 0.0), axis=1) / ops.maximum(count, 1.0)
        else:
            pooled = highest_at_least(ops.where(real, vectors, -1e30), -1e30, axis=1)
            pooled = ops.where(ops.any(real, axis=1), pooled, 0.0)
        return ops.cast(pooled, inputs.dtype)

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def compute_output_shape(self, input_shape):
        return (input_shape[0], input_shape[-1])

    def get_config(self):
        return {**super().get_config(), "pooling": self.pooling}
