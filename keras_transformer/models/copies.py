"""Copies of models whose layers have other settings: another dtype, other dropouts, LoRA."""

import keras

HEADS = ("head", "next_sentence")  # dense layers whose logits are float32 under every policy


def copy_with(model, **settings):
    """Copies a functional model; layers that have one of the settings get its new value.

    Args:
        model: a functional Keras model, such as a `TextModel`.
        **settings: by the names that they have in the configs of layers, e.g. `dtype`, `dropout`.
            Under every `dtype`, heads compute in float32.

    Returns:
        A model of the same class with the same layer names and weights, not compiled. State that
        is not trained, and for which the settings need another shape, is new.
    """

    def change(layer_class, config, visit_inner):
        config.update({name: settings[name] for name in settings.keys() & config.keys()})
        if layer_class is keras.layers.Dense and config["name"] in HEADS and "dtype" in settings:
            config["dtype"] = "float32"
        visit_inner()

    return rebuild(model, change)


def with_dtype(model, dtype):
    """Copies a functional model with its weights to another dtype.

    In "bfloat16" a model trained in float32 or mixed_bfloat16 is faster to serve and takes half
    the disk space and memory; its softmax, log-probabilities and logits stay float32, and so do the
    weights of a classifier's or BERT's head.

    Args:
        model: a functional Keras model whose layers accept `dtype`.
        dtype: dtype of weights and computation, "float32" or "bfloat16".

    Returns:
        A model of the same class with the same layer names, not compiled; the original is
        unchanged.

    Raises:
        ValueError: if `dtype` is neither of these.

    Examples:
        >>> inputs = keras.Input((3,))
        >>> model = keras.Model(inputs, keras.layers.Dense(2, name="last")(inputs))
        >>> with_dtype(model, "bfloat16").get_layer("last").kernel.dtype
        'bfloat16'
    """
    if dtype not in ("float32", "bfloat16"):
        raise ValueError(f'dtype must be "float32" or "bfloat16". Received: dtype={dtype!r}.')
    return copy_with(model, dtype=dtype)


def rebuild(model, change, with_lora=True):
    """Builds a functional model again from a changed config, with its weights.

    Args:
        model: a functional Keras model.
        change: called with the class of each layer, its config, a dictionary that it may change,
            and a function that calls `change` for the layers within. That function returns
            whether `change` did for any of them.
        with_lora: whether the weights of LoRA are copied, too. Otherwise only what `change`
            freezes is frozen.

    Returns:
        A model of the same class.
    """
    content = model.get_config()
    if not with_lora:
        content["trainable"] = True  # as a whole: its layers say what is frozen
    _visit(content["layers"], change)
    copy = type(model).from_config(content)
    old_weights, new_weights = (
        [weight for weight in each.weights if with_lora or "_lora_" not in weight.name]
        for each in (model, copy)
    )
    # Keras lists what is trained first, so that what LoRA freezes changes places with state.
    for weights in (old_weights, new_weights):
        weights.sort(key=lambda weight: getattr(weight, "is_state", False))
    for old, new in zip(old_weights, new_weights, strict=True):
        assert old.name == new.name, f"{old.path} is not {new.path}"
        # A memory of training may have another number of rows.
        if old.shape == new.shape or new.trainable:
            new.assign(keras.ops.convert_to_numpy(keras.ops.cast(old, new.dtype)))
    return copy


def _visit(content, change):
    """Calls `change` for all layers in a nest of configs; returns whether it did for any."""
    if isinstance(content, (list, tuple)):
        return max([_visit(part, change) for part in content], default=False)
    if not isinstance(content, dict):
        return False
    layer_class, config = _layer_class(content), content.get("config")
    if layer_class is None or not isinstance(config, dict):
        return max([_visit(part, change) for part in content.values()], default=False)
    return bool(change(layer_class, config, lambda: _visit(config, change)))


def _layer_class(content):
    """The class of a serialised layer; None for an input or anything else."""
    found = keras.saving.get_registered_object(content.get("registered_name"))
    if found is None and content.get("module") == "keras.layers":
        found = getattr(keras.layers, content["class_name"])
    is_layer = isinstance(found, type) and issubclass(found, keras.layers.Layer)
    return found if is_layer and not issubclass(found, keras.layers.InputLayer) else None
