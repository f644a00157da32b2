"""Sinusoidal positions, and the segments of rows that hold several texts one after another."""

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
        interleaved: whether each sine is next to its cosine, or all sines come before all cosines.

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
    """Raises ValueError if `dim` is odd; layers call it before they compute anything."""
    if dim % 2:
        raise ValueError(
            "dim must be even so that every sine has its cosine. "
            f"Choose e.g. {dim + 1}. Received: dim={dim}."
        )


def segments_before(token_ids, end_id):
    """Numbers the texts of each row, each of which ends with `end_id`.

    Args:
        token_ids: integers, (batch, length).
        end_id: the last token of every text.

    Returns:
        int32 (batch, length), 0 in the first text of a row.

    Examples:
        >>> segments_before(keras.ops.array([[7, 3, 5, 5, 3]]), end_id=3).numpy().tolist()
        [[0, 0, 1, 1, 1]]
    """
    is_end = ops.cast(ops.equal(token_ids, end_id), "int32")
    return ops.cumsum(is_end, axis=1) - is_end


def segments_after(token_ids, start_id):
    """Numbers the texts of each row, each of which begins with `start_id`.

    Args:
        token_ids: integers, (batch, length).
        start_id: the first token of every text.

    Returns:
        int32 (batch, length), 0 in the first text of a row.

    Examples:
        >>> segments_after(keras.ops.array([[2, 7, 2, 5, 5]]), start_id=2).numpy().tolist()
        [[0, 0, 1, 1, 1]]
    """
    is_start = ops.cast(ops.equal(token_ids, start_id), "int32")
    return ops.cumsum(is_start, axis=1) - 1


def segment_mask(target_segments, source_segments):
    """Allows each target position the source positions of its own segment.

    Args:
        target_segments: integers, (batch, target).
        source_segments: integers, (batch, source).

    Returns:
        Boolean (batch, target, source).

    Examples:
        >>> segments = keras.ops.array([[0, 0, 1]])
        >>> segment_mask(segments, segments).numpy().tolist()
        [[[True, True, False], [True, True, False], [False, False, True]]]
    """
    targets = ops.expand_dims(target_segments, axis=2)
    return ops.equal(targets, ops.expand_dims(source_segments, axis=1))


def segment_positions(segments):
    """The position of each token in its own segment, in tokens from 0, int32 (batch, length).

    Segments, integers (batch, length), never decrease within a row.

    Examples:
        >>> segment_positions(keras.ops.array([[0, 0, 1]])).numpy().tolist()
        [[0, 1, 0]]
    """
    is_earlier = ops.expand_dims(segments, axis=1) < ops.expand_dims(segments, axis=2)
    starts = ops.sum(ops.cast(is_earlier, "int32"), axis=2)  # tokens of earlier segments
    return ops.arange(ops.shape(segments)[1], dtype="int32") - starts
