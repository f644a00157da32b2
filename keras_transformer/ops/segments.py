"""Segments: several texts one after another in each row."""

from keras import ops


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
    """The position of each token in its own segment, in tokens from 0.

    Args:
        segments: integers that do not fall, (batch, length).

    Returns:
        int32 (batch, length).

    Examples:
        >>> segment_positions(keras.ops.array([[0, 0, 1]])).numpy().tolist()
        [[0, 1, 0]]
    """
    is_earlier = ops.expand_dims(segments, axis=1) < ops.expand_dims(segments, axis=2)
    starts = ops.sum(ops.cast(is_earlier, "int32"), axis=2)  # tokens of earlier segments
    return ops.arange(ops.shape(segments)[1], dtype="int32") - starts
