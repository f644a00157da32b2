"""The cache of a decoding step: keys, values and masks that grow with each step."""

from keras import ops


def append_to_cache(past, newest, start=None, axis=2):
    """Appends the newest keys, values or mask of a step to those in the cache.

    With a `start`, they are written to that position of `past`, which has its full size, so that
    XLA compiles the step once; only XLA writes in place. Without one, `past` grows along `axis`.

    Examples:
        >>> past, newest = keras.ops.zeros((1, 2)), keras.ops.ones((1, 1))
        >>> append_to_cache(past, newest, axis=1).numpy().tolist()
        [[0.0, 0.0, 1.0]]
        >>> append_to_cache(past, newest, start=1, axis=1).numpy().tolist()
        [[0.0, 1.0]]
    """
    if start is None:
        return ops.concatenate([past, newest], axis=axis)
    starts = [0] * len(past.shape)
    starts[axis] = start
    return ops.slice_update(past, ops.stack(starts), newest)
