"""The position-wise feed-forward network."""

import keras
from keras import ops

from keras_transformer.arguments import check_integer, check_probability
from keras_transformer.layers.dropout import InnerDropout
from keras_transformer.layers.projection import LoRAMixin, add_projection
from keras_transformer.ops.compiled import feed_forward, has_own_gradients


@keras.saving.register_keras_serializable(package="keras_transformer")
def gelu_tanh(inputs):
    """The tanh approximation of GELU, as in GPT-2.

    Source: Hendrycks and Gimpel 2016, section 2 (https://arxiv.org/abs/1606.08415).
    """
    return keras.activations.gelu(inputs, approximate=True)


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeedForward(LoRAMixin, keras.layers.Layer):
    """Widens every token vector, applies an activation, and narrows it again.

    Source: Vaswani et al. 2017, section 3.3 (https://arxiv.org/abs/1706.03762); gated: Shazeer
    2020 (https://arxiv.org/abs/2002.05202).

    Args:
        intermediate_dim: width between the two projections.
        activation: any Keras activation.
        dropout: probability in [0, 1) with which an activation is dropped.
        use_bias: whether all projections add a bias.
        kernel_initializer: initializer of each projection.
        gated: whether the activations of one projection multiply, element by element, another
            of the same inputs: with "silu" that is SwiGLU, with "gelu" GeGLU. The weights are half
            as many again; two thirds of the `intermediate_dim` keep their number.

    Call arguments:
        inputs: (batch, length, dim).
        training: whether dropout is applied.

    Returns:
        Same shape as `inputs`.

    Raises:
        ValueError: if `intermediate_dim` is below 1.

    Examples:
        >>> tuple(FeedForward(intermediate_dim=7)(keras.ops.zeros((2, 3, 5))).shape)
        (2, 3, 5)
    """

    def __init__(
        self,
        intermediate_dim,
        activation="relu",
        dropout=0.0,
        use_bias=True,
        kernel_initializer="glorot_uniform",
        gated=False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_integer("intermediate_dim", intermediate_dim)
        check_probability("dropout", dropout)
        self.intermediate_dim = intermediate_dim
        self.activation = keras.activations.get(activation)
        self.dropout = dropout
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.gated = gated
        if isinstance(self.activation, keras.layers.Layer) and not self.trainable:
            self.activation.trainable = False
        self._dropout = InnerDropout(dropout, dtype=self.dtype_policy)
        self.input_spec = keras.layers.InputSpec(min_ndim=2)
        self.supports_masking = True

    def build(self, input_shape):
        dim, inside = input_shape[-1], self.intermediate_dim
        self.input_spec = keras.layers.InputSpec(min_ndim=2, axes={-1: dim})
        weights = {"initializer": self.kernel_initializer, "use_bias": self.use_bias}
        if self.gated:
            self.gate_widen = add_projection(self, "gate_widen", dim, (inside, inside), **weights)
        else:
            self.widen = add_projection(self, "widen", dim, inside, **weights)
        self.narrow = add_projection(self, "narrow", inside, dim, **weights)

    def call(self, inputs, training=None):
        widen = self.gate_widen if self.gated else self.widen
        if training and self._is_recomputed(inputs, widen):
            projections = ((each.kernel, each.bias) for each in (widen, self.narrow))
            return feed_forward(inputs, self._activations, *projections)
        activations = self._activations(widen(inputs))
        return self.narrow(self._dropout(activations, training=training))

    def _is_recomputed(self, inputs, widen):
        if self.dropout or self.lora is not None:
            return False
        if isinstance(self.activation, keras.layers.Layer):  # it may have weights
            return False
        return has_own_gradients(inputs, widen.kernel)

    def _activations(self, widened):
        if not self.gated:
            return self._activate(widened)
        gates, widened = ops.split(widened, 2, axis=-1)
        return self._activate(gates) * widened

    def _activate(self, inputs):
        if self.activation is keras.activations.relu:  # exact in every dtype
            return self.activation(inputs)
        # At least in float32: on a CPU, TensorFlow's GELU in bfloat16 takes half as long again.
        wide = keras.backend.result_type(inputs.dtype, "float32")
        return ops.cast(self.activation(ops.cast(inputs, wide)), inputs.dtype)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {
            **super().get_config(),
            "intermediate_dim": self.intermediate_dim,
            "activation": keras.activations.serialize(self.activation),
            "dropout": self.dropout,
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "gated": self.gated,
        }
