"""The position pattern of "Attention Is All You Need"."""

import math

from keras import ops


def sinusoidal_positions(length, dim, start=0, max_wavelength=10000, interleaved=True):
    """Sines and cosines of the positions `start` to `start + length - 1`.

    Column 2i holds sin(p / max_wavelength^(2i/dim)), column 2i+1 the cosine.
    Source: Vaswani et al. 2017, section 3.5 (https://arxiv.org/abs/1706.03762).

    Args:
        length: number of positions, an integer scalar; may be a tensor.
        dim: number of columns, even.
        start: first position, in tokens; may be a tensor.
        max_wavelength: longest wavelength, in tokens, divided by 2 pi.
        interleaved: whether each sine stands beside its cosine, or all sines before all cosines.

    Returns:
        float32 (length, dim), under every dtype policy: bfloat16 cannot tell
        position 257 from 258.

    Raises:
        ValueError: if `dim` is odd.

    Examples:
        >>> [round(float(value), 2) for value in sinusoidal_positions(2, 2)[1]]
        [0.84, 0.54]
    """
    check_even(dim)
    positions = ops.cast(start + ops.arange(length, dtype="int32"), "float32")
    columns = ops.arange(0, dim, 2, dtype="float32")
    rates = ops.exp(columns * (-math.log(max_wavelength) / dim))
    angles = positions[:, None] * rates  # (length, dim / 2)
    if not interleaved:
        return ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=-1)
    pairs = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)
    return ops.reshape(pairs, (-1, dim))


def check_even(dim):
    """Raises ValueError if `dim` is odd; a layer asks before it computes anything."""
    if dim % 2:
        raise ValueError(
            "dim must be even so that every sine has its cosine. "
            f"Choose e.g. {dim + 1}. Received: dim={dim}."
        )
