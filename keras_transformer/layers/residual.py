"""The residual connection around each sub-layer, and its normalisation."""

import keras

from keras_transformer.arguments import check_probability
from keras_transformer.layers.dropout import ReproducibleDropout
from keras_transformer.layers.freezing import FrozenPartsMixin
from keras_transformer.layers.normalization import NORM_EPSILON, create_norm


@keras.saving.register_keras_serializable(package="keras_transformer")
class Residual(FrozenPartsMixin, keras.layers.Layer):
    """Adds the outputs of a sub-layer to its inputs.

    Pre-norm: x + dropout(sublayer(norm(x))). Post-norm: norm(x + dropout(sublayer(x))).

    Source: Vaswani et al. 2017, sections 3.1 and 5.4 (https://arxiv.org/abs/1706.03762);
    pre-norm: Xiong et al. 2020 (https://arxiv.org/abs/2002.04745).

    Args:
        dropout: probability in [0, 1) of dropping an element of the sub-layer's output.
        normalize_first: whether to normalise the sub-layer's inputs instead of the sum.
        norm_epsilon: added to the variance, or the mean square, by the normalisation.
        normalization: "layer" or "rms".

    Call arguments:
        inputs: (batch, length, dim).
        outputs: of the sub-layer for `before(inputs)`, in the same shape.
        training: whether dropout is applied.

    Returns:
        Same shape as `inputs`.

    Examples:
        >>> residual, inputs = Residual(), keras.ops.zeros((2, 3, 5))
        >>> tuple(residual(inputs, keras.ops.relu(inputs)).shape)
        (2, 3, 5)
    """

    def __init__(
        self,
        dropout=0.0,
        normalize_first=True,
        norm_epsilon=NORM_EPSILON,
        normalization="layer",
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_probability("dropout", dropout)
        self.dropout = dropout
        self.normalize_first = normalize_first
        self.norm_epsilon = norm_epsilon
        self.normalization = normalization
        self.norm = create_norm(
            normalization,
            norm_epsilon,
            dtype=self.dtype_policy,
            trainable=self.trainable,
            name="norm",
        )
        self._dropout = ReproducibleDropout(dropout, dtype=self.dtype_policy)
        self.supports_masking = True

    def build(self, inputs_shape, outputs_shape=None):
        self.norm.build(inputs_shape)

    def before(self, inputs):
        """What the sub-layer is called with: `inputs`, normalised if `normalize_first`."""
        return self.norm(inputs) if self.normalize_first else inputs

    def call(self, inputs, outputs, training=None):
        total = inputs + self._dropout(outputs, training=training)
        return total if self.normalize_first else self.norm(total)

    def compute_mask(self, inputs, previous_mask=None):
        return previous_mask[0] if isinstance(previous_mask, (list, tuple)) else previous_mask

    def compute_output_shape(self, inputs_shape, outputs_shape=None):
        return inputs_shape

    def get_config(self):
        return {
            **super().get_config(),
            "dropout": self.dropout,
            "normalize_first": self.normalize_first,
            "norm_epsilon": self.norm_epsilon,
            "normalization": self.normalization,
        }
