"""Boolean attention masks: True where a target position may attend to a source position.

Every function returns a boolean tensor that broadcasts to (batch, target, source);
`combine_masks` takes any number of them, and None, and allows what all of them allow.
"""

import keras
from keras import ops

from keras_transformer.arguments import check_integer
from keras_transformer.ops.cache import append_to_cache


def padding_mask(token_ids, pad_id=0):
    """Marks the real tokens of padded rows.

    Args:
        token_ids: integers, (batch, source).
        pad_id: the id that fills up short rows.

    Returns:
        Boolean (batch, source), True for a real token.

    Examples:
        >>> padding_mask(keras.ops.array([[7, 5, 0]])).numpy().tolist()
        [[True, True, False]]
    """
    return ops.not_equal(token_ids, pad_id)


def valid_length_mask(valid_length, source_length):
    """Allows the first `valid_length` source positions.

    Args:
        valid_length: integers in [0, source_length], in tokens: (batch,) for one
            length a row, (batch, target) for one length a target position.
        source_length: number of source positions, an integer scalar.

    Returns:
        Boolean (batch, 1, source) or (batch, target, source).

    Raises:
        ValueError: if `valid_length` has neither one nor two axes.

    Examples:
        >>> valid_length_mask(keras.ops.array([1, 2]), 2).numpy().tolist()
        [[[True, False]], [[True, True]]]
    """
    rank = len(valid_length.shape)
    if rank not in (1, 2):
        raise ValueError(
            "valid_length must have the shape (batch,) or (batch, target). "
            f"Received: shape {tuple(valid_length.shape)}."
        )
    lengths = valid_length[:, None, None] if rank == 1 else valid_length[:, :, None]
    return ops.arange(source_length, dtype="int32") < ops.cast(lengths, "int32")


def causal_mask(target_length, source_length=None, start=0):
    """Allows each target position the source positions up to its own.

    Args:
        target_length: number of target positions, an integer scalar.
        source_length: number of source positions; `start + target_length` if None.
        start: position of the first target among the source positions, in tokens.
            Not 0 when earlier positions come from a cache.

    Returns:
        Boolean (1, target, source).

    Examples:
        >>> causal_mask(2, start=1).numpy().tolist()
        [[[True, True, False], [True, True, True]]]
    """
    targets, sources = mask_positions(target_length, source_length, start)
    return sources <= targets


def local_mask(target_length, source_length=None, radius=1, start=0):
    """Allows each target position the source positions at most `radius` away.

    Args:
        target_length: number of target positions, an integer scalar.
        source_length: number of source positions; `start + target_length` if None.
        radius: largest allowed distance, in tokens; 0 allows the own position only.
        start: position of the first target among the source positions, in tokens.

    Returns:
        Boolean (1, target, source).

    Raises:
        ValueError: if `radius` is negative.

    Examples:
        >>> local_mask(3, radius=1).numpy().tolist()
        [[[True, True, False], [True, True, True], [False, True, True]]]
    """
    check_integer("radius", radius, 0)
    targets, sources = mask_positions(target_length, source_length, start)
    return ops.abs(sources - targets) <= radius


def beam_mask(mask, parents, start=None):
    """Allows each beam the cached positions of its own past, and its newest one.

    The beams of a row share one cache, in the order in which it is written: every step adds one
    position per beam, and nothing in it moves.

    Args:
        mask: boolean (batch, beams, cached), that of the previous step; empty at first.
        parents: the previous beam that each beam extends, integers (batch, beams), beams static.
        start: of the newest positions in a cache of full size, an integer scalar, `beams` times
            the number of earlier steps; None for a cache that grows.

    Returns:
        Boolean (batch, beams, cached + beams); (batch, beams, cached) for a cache of full size.

    Examples:
        >>> first = beam_mask(keras.ops.zeros((1, 2, 0), "bool"), keras.ops.array([[0, 1]]))
        >>> beam_mask(first, keras.ops.array([[1, 1]])).numpy().tolist()
        [[[False, True, True, False], [False, True, False, True]]]
    """
    num_beams = parents.shape[1]
    beams = ops.arange(num_beams, dtype="int32")
    is_parent = ops.cast(parents, "int32")[:, :, None] == beams  # (batch, beams, beams)
    pairs = ops.logical_and(ops.expand_dims(is_parent, -1), ops.expand_dims(mask, 1))
    past = ops.any(pairs, axis=2)
    newest = beams == beams[:, None]
    newest = ops.broadcast_to(newest, (ops.shape(parents)[0], num_beams, num_beams))
    return append_to_cache(past, newest, start)


def combine_masks(*masks):
    """Allows what all masks allow.

    Args:
        *masks: None, or booleans or integers of shape (batch, source) as of `padding_mask`,
            or (batch, target, source) where any axis may be 1.

    Returns:
        Boolean (batch, target, source), axes of size 1 left as they are; None if
        every mask is None.

    Raises:
        ValueError: if a mask has other numbers, or neither two nor three axes.

    Examples:
        >>> real = padding_mask(keras.ops.array([[7, 0]]))
        >>> combine_masks(real, causal_mask(2), None).numpy().tolist()
        [[[True, False], [True, False]]]
    """
    combined = None
    for mask in masks:
        if mask is None:
            continue
        mask = _padding_or_attention_mask(mask)
        combined = mask if combined is None else ops.logical_and(combined, mask)
    return combined


def _padding_or_attention_mask(mask):
    mask = as_boolean(mask)
    rank = len(mask.shape)
    if rank == 2:
        return ops.expand_dims(mask, 1)  # (batch, 1, source)
    if rank == 3:
        return mask
    raise ValueError(
        "A mask must have the shape (batch, source) or (batch, target, source). "
        f"Received: shape {tuple(mask.shape)}."
    )


def as_boolean(mask):
    """A mask of booleans or integers, a tensor, an array or lists, as a boolean tensor or array.

    Integers are True unless they are 0, as in Keras. Raises ValueError for other numbers: they
    might be meant to be added to the logits.
    """
    if not hasattr(mask, "dtype"):
        mask = ops.convert_to_tensor(mask)
    dtype = keras.backend.standardize_dtype(mask.dtype)
    if dtype == "bool":
        return mask
    if "int" in dtype:
        return ops.not_equal(mask, 0)
    raise ValueError(
        "A mask must be boolean, True where attention is allowed, or zeros and ones in integers. "
        "Turn numbers that are added to logits into booleans by what they forbid, or give them as "
        f"an attention_bias. Received: dtype {dtype}."
    )


def as_attention_mask(mask):
    """An `attention_mask` with the axes (batch, target, source), boolean; None stays None.

    Raises ValueError for one that is neither that, nor (target, source), nor has one head only.
    """
    if mask is None:
        return None
    mask = as_boolean(mask)
    rank, shape = len(mask.shape), tuple(mask.shape)
    if rank == 2:
        return ops.expand_dims(mask, 0)
    if rank == 4 and shape[1] == 1:
        return ops.squeeze(mask, 1)
    if rank == 3:
        return mask
    raise ValueError(
        "attention_mask must have the shape (batch, target, source), where any axis may be 1, or "
        "(target, source); the heads share it. Give which tokens are real as padding_mask. "
        f"Received: shape {shape}."
    )


def mask_positions(target_length, source_length, start):
    """Target positions, (1, target, 1), and source positions, (1, 1, source)."""
    if source_length is None:
        source_length = start + target_length
    targets = start + ops.arange(target_length, dtype="int32")
    sources = ops.arange(source_length, dtype="int32")
    return targets[None, :, None], sources[None, None, :]
