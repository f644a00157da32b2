"""Rotary positions: queries and keys turn with their position, so that products see distances."""

import keras
from keras import ops

from keras_transformer.arguments import check_integer, check_number
from keras_transformer.ops.positions import check_even, check_scaling, rotary_rates, rotate


@keras.saving.register_keras_serializable(package="keras_transformer")
class RotaryEmbedding(keras.layers.Layer):
    """Rotates pairs of columns by angles that grow with the position.

    The product of a rotated query and a rotated key depends on their distance, not on where they
    stand. As the `rotary` of `MultiHeadAttention` it takes the place of encodings that are added
    to the vectors of tokens.

    Source: Su et al. 2021, section 3.2 (https://arxiv.org/abs/2104.09864); scaling: "linear",
    Chen et al. 2023 (https://arxiv.org/abs/2306.15595); "ntk", which stretches long wavelengths
    only, Peng et al. 2023, section 3.1 (https://arxiv.org/abs/2309.00071); "llama3", Llama Team
    2024 (https://arxiv.org/abs/2407.21783), by its released code.

    Args:
        max_wavelength: longest wavelength, in tokens, divided by 2 pi; also called base or theta.
        rotary_dim: how many columns, from the first, are rotated, even; None for all.
        interleaved: whether a pair is two neighbouring columns, as in the paper; otherwise column
            i and column i + rotary_dim / 2, as in Llama.
        scaling: how rates are lowered for sequences longer than in training: None, or
            {"type": "linear", "factor": 4.0}, {"type": "ntk", "factor": 4.0}, or {"type": "llama3",
            "factor": 8.0, "low_frequency": 1.0, "high_frequency": 4.0, "original_length": 8192}.
            The last one divides rates of at most `low_frequency` turns in `original_length` tokens
            by `factor`, keeps those of at least `high_frequency`, and mixes both in between.

    Call arguments:
        inputs: (..., length, dim), such as queries or keys (batch, heads, length, dim).
        start: position of the first vector, an integer scalar in tokens.

    Returns:
        Same shape and dtype as `inputs`.

    Raises:
        ValueError: for a number out of its range or another scaling; if dim, or `rotary_dim`, is
            odd, or `rotary_dim` is larger than dim.

    Examples:
        >>> tuple(RotaryEmbedding()(keras.ops.zeros((2, 3, 5, 4))).shape)
        (2, 3, 5, 4)
    """

    def __init__(
        self, max_wavelength=10000, rotary_dim=None, interleaved=False, scaling=None, **kwargs
    ):
        super().__init__(**kwargs)
        check_number("max_wavelength", max_wavelength, above=0)
        if rotary_dim is not None:
            check_integer("rotary_dim", rotary_dim, 2)
            check_even(rotary_dim)
        if scaling is not None:
            check_scaling(scaling)
        self.max_wavelength = max_wavelength
        self.rotary_dim = rotary_dim
        self.interleaved = interleaved
        self.scaling = scaling
        self.supports_masking = True

    def build(self, input_shape):
        dim = input_shape[-1]
        if self.rotary_dim is not None and self.rotary_dim > dim:
            raise ValueError(
                "rotary_dim must be at most the width of the vectors, or of a head. "
                f"Received: rotary_dim={self.rotary_dim}, width {dim}."
            )
        rates = rotary_rates(self.rotary_dim or dim, self.max_wavelength, self.scaling)
        self._rotation = {"rates": rates, "interleaved": self.interleaved}

    def call(self, inputs, start=0):
        positions = start + ops.arange(ops.shape(inputs)[-2], dtype="int32")
        return rotate(inputs, positions, **self._rotation)

    def step(self, inputs, position):
        """Rotates all of (..., beams, dim) as at one `position`, an integer scalar."""
        positions = ops.reshape(ops.cast(position, "int32"), (1,))
        return rotate(inputs, positions, **self._rotation)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {
            **super().get_config(),
            "max_wavelength": self.max_wavelength,
            "rotary_dim": self.rotary_dim,
            "interleaved": self.interleaved,
            "scaling": self.scaling,
        }
