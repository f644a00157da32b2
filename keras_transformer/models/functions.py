"""What converters still ask of a model."""


def layer_names(model):
    """The names of a model's layers; none for anything that is not a Keras model."""
    return [layer.name for layer in getattr(model, "layers", ())]
