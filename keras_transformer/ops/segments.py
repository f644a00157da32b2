"""The texts of packed rows, numbered from 0 on: their masks and positions."""

from keras import ops

from keras_transformer.ops.masks import as_attention_mask, combine_masks


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


def within_segments(attention_mask, segments, source_segments):
    """An `attention_mask`, or None, which also keeps each target position in its own segment.

    Args:
        attention_mask: as of `ops.masks.as_attention_mask`, or None.
        segments: integers, (batch, target); None if each row is one text.
        source_segments: integers, (batch, source); None if each row is one text.

    Raises:
        ValueError: if only one side has segments.
    """
    if segments is None and source_segments is None:
        return attention_mask
    if segments is None or source_segments is None:
        missing = "segments" if segments is None else "source_segments"
        raise ValueError(
            "For rows of several texts, both the targets and the source must have segments. "
            f"Received: {missing}=None."
        )
    mask = segment_mask(segments, source_segments)
    return combine_masks(as_attention_mask(attention_mask), mask)


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
