"""LoRA: tunes a model with a narrow product added to chosen projections; the rest is frozen."""

from keras_transformer.arguments import check_integer
from keras_transformer.layers.internals import parts_of
from keras_transformer.layers.projection import LoRA, LoRAMixin, Projection
from keras_transformer.models.copies import rebuild
from keras_transformer.training.internals import all_layers


def add_lora(model, rank=8, alpha=None, targets=("query", "value"), train=()):
    """Returns a copy of a model that trains only two narrow matrices per projection.

    A projection W x becomes W x + (alpha / rank) B A x. A has `rank` rows and random initial
    values, and B starts at zero: until it is trained, the copy gives the outputs of the model.
    Everything except A and B is frozen, so the optimizer keeps state only for them. Compile and fit
    the copy as usual; saved as `.keras`, it keeps A, B and their rank. `merge_lora` adds them to
    the kernels.

    Under a strategy, call it in the strategy's scope, like a function that builds a model.

    Source: Hu et al. 2021, section 4.1 (https://arxiv.org/abs/2106.09685).

    Args:
        model: a functional Keras model that contains layers of this library, from any function
            here or your own.
        rank: width between A and B, at least 1.
        alpha: the product of B and A is scaled by `alpha / rank`; None for `2 * rank`.
        targets: names of projections, in all blocks: "query", "key", "value" and "output" of the
            attention, "widen" and "narrow" of the feed-forward network, "gate" of a gated one; or
            "query_key_value", "key_value" and "gate_widen", which tune these together with one A,
            as in GPT-2's single projection.
        train: names of further layers to train, such as a new head, and paths of parts of layers
            with LoRA, such as "decoder/norm"; not of what LoRA tunes itself.

    Returns:
        A new model of the same class, not compiled.

    Raises:
        ValueError: if the model already has LoRA, a target or a layer of `train` is unknown or
            not in the model, a layer or part of `train` takes LoRA, or the rank is below 1.

    Examples:
        >>> from keras_transformer.models.encoder_only import classifier
        >>> model = classifier(11, num_labels=3, num_layers=1, hidden_dim=4, num_heads=2)
        >>> tuned = add_lora(model, rank=1, train=["head"])
        >>> len(model.trainable_weights), len(tuned.trainable_weights)
        (17, 6)
    """
    check_integer("rank", rank)
    lora = LoRA(rank, 2.0 * rank if alpha is None else alpha, targets)
    if lora_of(model) is not None:
        raise ValueError("The model already has LoRA. Call merge_lora first.")
    names = parts_without_lora(model)
    unknown = [name for name in train if name not in names]
    if unknown:
        few = [name for name in names if name.count("/") < 2]  # without those of each block
        raise ValueError(
            f"train must name layers or parts of the model that take no LoRA: {', '.join(few)}. "
            f"Received: {', '.join(unknown)}."
        )
    tuned = _copy_with_lora(model, lora.config(), train)
    for layer in all_layers(tuned):
        if isinstance(layer, LoRAMixin):
            for _, part in parts_of(layer):
                if getattr(part, "lora", None) is None:  # such as a Dense of an own attention
                    part.trainable = False
    if inner := [name for name in train if "/" in name]:
        _train_parts(tuned, inner)
    added = {adapter.target for projection in projections(tuned) for adapter in projection.adapters}
    missing = [name for name in lora.targets if name not in added]
    if missing:
        raise ValueError(f"No projection of the model is called {' or '.join(missing)}.")
    return tuned


def merge_lora(model):
    """Returns a copy of a model in which LoRA's products are added to the kernels.

    The copy is like a model without LoRA: equally fast, exported and converted like any other,
    and fully trainable.

    Args:
        model: a model from `add_lora`, as trained or reloaded.

    Returns:
        A new model of the same class, not compiled.

    Raises:
        ValueError: if the model has no LoRA.

    Examples:
        >>> from keras_transformer.models.decoder_only import language_model
        >>> tuned = add_lora(language_model(11, num_layers=1, hidden_dim=4, num_heads=2))
        >>> len(tuned.trainable_weights), len(merge_lora(tuned).trainable_weights)
        (4, 15)
    """
    if lora_of(model) is None:
        raise ValueError("The model must have LoRA, from add_lora. Received: one without.")
    merged = _copy_with_lora(model, None)
    for old, new in zip(projections(model), projections(merged), strict=True):
        new.kernel.assign(old.merged_kernel())
    return merged


def lora_of(model):
    """The `LoRA` of a model, or None."""
    layers = (layer for layer in all_layers(model) if isinstance(layer, LoRAMixin))
    return next((layer.lora for layer in layers if layer.lora is not None), None)


def projections(model):
    """All projections of a model that may have LoRA, in the order of its layers."""
    for layer in all_layers(model):
        if isinstance(layer, LoRAMixin):
            yield from (part for part in vars(layer).values() if isinstance(part, Projection))


def parts_without_lora(model):
    """Paths of the layers and parts of a model in which LoRA tunes nothing: what `train` takes."""
    return [path for path, layer in _parts(model) if not _takes_lora(layer)]


def _takes_lora(layer):
    """Whether LoRA tunes a layer or parts of it, whose own weights are then frozen."""
    return any(isinstance(part, LoRAMixin) for part in [layer, *(p for _, p in parts_of(layer))])


def _parts(model):
    """Pairs of path and layer for the layers of a model and all that is in them."""
    for layer in model.layers:
        yield layer.name, layer
        yield from ((f"{layer.name}/{path}", part) for path, part in parts_of(layer))


def _train_parts(model, paths):
    """Trains parts, with all that is in them; what is beside them stays as it is."""
    flags = {path: part.trainable for path, part in _parts(model)}
    for path, part in _parts(model):  # a part after what it is in, which sets it too
        within = any(f"{path}/".startswith(f"{name}/") for name in paths)
        around = any(name.startswith(f"{path}/") for name in paths)
        part.trainable = flags[path] or within or around


def _copy_with_lora(model, lora, train=None):
    """A copy with this `lora`; unless `train` is None, all but LoRA and `train` is frozen."""

    def change(layer_class, config, visit_inner):
        config.pop("frozen", None)
        if issubclass(layer_class, LoRAMixin):
            config.update(lora=lora, trainable=True)
            return True
        if train is not None and config.get("name") in train:
            config["trainable"] = True
            return False
        has_lora = visit_inner()
        config["trainable"] = has_lora or train is None
        return has_lora

    return rebuild(model, change, with_lora=False)
