"""The only file of `layers/` that uses what Keras does not promise.

Private names are imported where they are used: if a version of Keras has moved one, its canary
fails and says what to do, and the package can still be imported.
"""

import keras


def keras_mask_of(tensor):
    """The mask that Keras attaches to a tensor, or None.

    Relies on `keras.src.backend.get_keras_mask`: the attribute of the tensor is not enough,
    because the tensors of a jitted JAX function do not have it.
    """
    from keras.src.backend import get_keras_mask

    return get_keras_mask(tensor)


def parts_of(layer):
    """Pairs of path and layer for all layers within a layer, a part after what it is in.

    Paths join the names of layers. Dropout, which has nothing to train, is left out.

    Relies on `Layer._flatten_layers`.
    """
    for part in layer._flatten_layers(include_self=False, recursive=False):
        if not isinstance(part, keras.layers.Dropout):
            yield part.name, part
            yield from ((f"{part.name}/{path}", inner) for path, inner in parts_of(part))
