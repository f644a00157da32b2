"""The position-wise feed-forward network."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeedForward(keras.layers.Layer):
    """Widens every token vector, applies an activation, and narrows it again.

    Source: Vaswani et al. 2017, section 3.3 (https://arxiv.org/abs/1706.03762).

    Args:
        intermediate_dim: width between the two projections.
        activation: any Keras activation.
        dropout: probability in [0, 1) with which an activation is dropped.
        kernel_initializer: of both projections.

    Call arguments:
        inputs: (batch, length, dim).
        training: whether dropout is applied.

    Returns:
        Same shape as `inputs`.

    Raises:
        ValueError: if `intermediate_dim` is below 1.

    Example:
        >>> tuple(FeedForward(intermediate_dim=7)(keras.ops.zeros((2, 3, 5))).shape)
        (2, 3, 5)
    """

    def __init__(
        self,
        intermediate_dim,
        activation="relu",
        dropout=0.0,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        if intermediate_dim < 1:
            raise ValueError(f"intermediate_dim must be at least 1. Received: {intermediate_dim}.")
        self.intermediate_dim = intermediate_dim
        self.activation = keras.activations.get(activation)
        self.dropout = dropout
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self._dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy)
        self.supports_masking = True

    def build(self, input_shape):
        dim = input_shape[-1]
        self.widen = self._dense(self.intermediate_dim, self.activation, "widen")
        self.narrow = self._dense(dim, None, "narrow")
        self.widen.build(input_shape)
        self.narrow.build((*input_shape[:-1], self.intermediate_dim))

    def _dense(self, units, activation, name):
        return keras.layers.Dense(
            units,
            activation=activation,
            kernel_initializer=self.kernel_initializer.clone(),
            dtype=self.dtype_policy,
            name=name,
        )

    def call(self, inputs, training=None):
        # One product of two matrices: see `ops.project`.
        rows = ops.reshape(inputs, (-1, inputs.shape[-1]))
        rows = self.narrow(self._dropout(self.widen(rows), training=training))
        return ops.reshape(rows, (-1, *ops.shape(inputs)[1:]))

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {
            **super().get_config(),
            "intermediate_dim": self.intermediate_dim,
            "activation": keras.activations.serialize(self.activation),
            "dropout": self.dropout,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }
