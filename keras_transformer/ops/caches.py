"""What decoding keeps of earlier steps: in a tensor that grows, or in one of full size."""

from keras import ops


def append(past, newest, start=None, axis=2):
    """Puts what a step computed behind what the steps before it have left.

    A tensor of full size has the same shape at every step, so that XLA compiles the step once;
    only XLA writes into it in place.

    Args:
        past: of any shape.
        newest: as `past`, but for the length of `axis`.
        start: where `newest` goes in a `past` of full size, an integer scalar; None for a
            `past` that grows.
        axis: a positive integer.

    Returns:
        A tensor like `past`, longer by `newest` if that grows.

    Examples:
        >>> append(keras.ops.zeros((1, 2)), keras.ops.ones((1, 1)), axis=1).numpy().tolist()
        [[0.0, 0.0, 1.0]]
        >>> append(keras.ops.zeros((1, 2)), keras.ops.ones((1, 1)), 1, axis=1).numpy().tolist()
        [[0.0, 1.0]]
    """
    if start is None:
        return ops.concatenate([past, newest], axis=axis)
    starts = [0] * len(past.shape)
    starts[axis] = start
    return ops.slice_update(past, ops.stack(starts), newest)
