"""Encodings of positions, which are added to the vectors of tokens."""

import math

import keras
from keras import ops

from keras_transformer.arguments import check_integer, check_number
from keras_transformer.layers.checks import NotQuantizedMixin, check_per_token, check_vectors
from keras_transformer.ops.internals import look_up_rows
from keras_transformer.ops.positions import check_even, sinusoidal_positions
from keras_transformer.ops.segments import segment_positions

# For learned positions, and for all tables of BERT, as in its released code.
SMALL_STDDEV = 0.02


@keras.saving.register_keras_serializable(package="keras_transformer")
class SinusoidalEncoding(keras.layers.Layer):
    """Adds to each token vector a fixed pattern that encodes its position.

    Column 2i holds sin(p / 10000^(2i/d)), column 2i+1 the cosine, where p is
    the position counted in tokens from zero and d is the last dimension. Use
    it when sequences at serving time may be longer than those in training.

    Source: Vaswani et al. 2017, section 3.5 (https://arxiv.org/abs/1706.03762).

    Args:
        max_wavelength: longest wavelength, in tokens, divided by 2 pi.
            Positive; 10000 as in the paper.
        interleaved: whether each sine is next to its cosine, as in the paper; otherwise all
            sines come before all cosines, as in Marian.
        first_position: position of the first token, in tokens.

    Call arguments:
        inputs: token vectors, (batch, length, dim), dim even.
        start: position of the first token, an integer scalar in tokens.
        segments: for rows that hold several texts, the number of each token's text, (batch,
            length): positions are then counted from 0 in each text. None for one text.

    Returns:
        Same shape and dtype as `inputs`.

    Raises:
        ValueError: if dim is odd, since a sine would lack its cosine; if
            `max_wavelength` is not positive.

    Examples:
        >>> tuple(SinusoidalEncoding()(keras.ops.zeros((2, 3, 4))).shape)
        (2, 3, 4)
    """

    def __init__(self, max_wavelength=10000, interleaved=True, first_position=0, **kwargs):
        super().__init__(**kwargs)
        check_number("max_wavelength", max_wavelength, above=0)
        check_integer("first_position", first_position, 0)
        self.max_wavelength = max_wavelength
        self.interleaved = interleaved
        self.first_position = first_position
        self.supports_masking = True

    def build(self, input_shape):
        check_even(input_shape[-1])

    def call(self, inputs, start=0, segments=None):
        check_vectors(inputs=inputs)
        length, dim = ops.shape(inputs)[1], inputs.shape[-1]
        pattern = self._pattern(length, dim, start, inputs.dtype)
        if segments is not None:
            check_per_token("segments", segments, inputs)
            pattern = ops.take(pattern, segment_positions(segments), axis=0)
        return inputs + pattern

    def step(self, inputs, position):
        """Encodes one `position`, an integer or one for each row, into (batch, beams, dim)."""
        return inputs + self._pattern(1, inputs.shape[-1], position, inputs.dtype)[:, None]

    def _pattern(self, length, dim, start, dtype):
        start += self.first_position
        pattern = sinusoidal_positions(length, dim, start, self.max_wavelength, self.interleaved)
        return ops.cast(pattern, dtype)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {
            **super().get_config(),
            "max_wavelength": self.max_wavelength,
            "interleaved": self.interleaved,
            "first_position": self.first_position,
        }


@keras.saving.register_keras_serializable(package="keras_transformer")
class PositionEmbedding(NotQuantizedMixin, keras.layers.Layer):
    """Adds to each token vector a learned vector for its position.

    Use it if the longest sequence is known beforehand, as in BERT and GPT-2. The vectors start
    as sines and cosines with BERT's standard deviation of 0.02: from these, attention learns
    sooner than from random vectors which tokens are neighbours.

    Source: Gehring et al. 2017, section 3.1 (https://arxiv.org/abs/1705.03122); initial values,
    Vaswani et al. 2017, section 3.5 (https://arxiv.org/abs/1706.03762).

    Args:
        max_sequence_length: number of positions that have a vector, in tokens.

    Call arguments:
        inputs: token vectors, (batch, length, dim).
        start: position of the first token, an integer scalar in tokens;
            start + length is at most `max_sequence_length`.
        segments: as for `SinusoidalEncoding`.

    Returns:
        Same shape and dtype as `inputs`.

    Raises:
        ValueError: if `max_sequence_length` is below 1, or the inputs are known to be longer.

    Examples:
        >>> tuple(PositionEmbedding(max_sequence_length=3)(keras.ops.zeros((2, 3, 5))).shape)
        (2, 3, 5)
    """

    def __init__(self, max_sequence_length, **kwargs):
        super().__init__(**kwargs)
        check_integer("max_sequence_length", max_sequence_length)
        self.max_sequence_length = max_sequence_length
        self.supports_masking = True

    def build(self, input_shape):
        self.embeddings = self.add_weight(
            name="embeddings",
            shape=(self.max_sequence_length, input_shape[-1]),
            initializer=_small_sinusoids,
        )

    def call(self, inputs, start=0, segments=None):
        check_vectors(inputs=inputs)
        known = inputs.shape[1]
        end = None if known is None or not isinstance(start, int) else start + known
        if end is not None and end > self.max_sequence_length:
            raise ValueError(
                "The inputs end after the last position that has a vector. Cut them or raise "
                f"max_sequence_length. Received: last position {end}, "
                f"max_sequence_length={self.max_sequence_length}."
            )
        if segments is not None:
            check_per_token("segments", segments, inputs)
            return inputs + self._rows(start + segment_positions(segments))
        return inputs + self._rows(start + ops.arange(ops.shape(inputs)[1]))

    def step(self, inputs, position):
        """Encodes one `position`, an integer or one for each row, into (batch, beams, dim)."""
        return inputs + ops.reshape(self._rows(position), (-1, 1, inputs.shape[-1]))

    def _rows(self, positions):
        return ops.cast(look_up_rows(self.embeddings, positions), self.compute_dtype)

    @property
    def num_positions(self):
        """No row may be longer; the library's `Model` checks that those in the data are not."""
        return self.max_sequence_length

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "max_sequence_length": self.max_sequence_length}


def _small_sinusoids(shape, dtype=None):
    """Sinusoidal positions with a mean square of `SMALL_STDDEV` squared."""
    length, dim = shape
    even = dim + dim % 2  # an odd width lacks the last cosine
    pattern = sinusoidal_positions(length, even)[:, :dim]
    return ops.cast(pattern * (SMALL_STDDEV * math.sqrt(2)), dtype)
