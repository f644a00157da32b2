"""The only place of the layers that uses what Keras does not promise."""

from keras.src.backend import get_keras_mask, set_keras_mask


def mask_of(tensor):
    """The mask that Keras carries along with a tensor, or None.

    Relies on `keras.src.backend.get_keras_mask`: an attribute of the tensor would not do, since
    the tensors of a jitted JAX function have none.
    """
    return get_keras_mask(tensor)


def carry_mask(source, tensor):
    """Has a tensor carry the mask of another, as `Layer.__call__` does.

    Relies on `keras.src.backend.set_keras_mask`.
    """
    set_keras_mask(tensor, get_keras_mask(source))
