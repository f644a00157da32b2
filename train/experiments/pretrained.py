"""The model of --pretrained: of a finished run, or of a folder of another library."""

import dataclasses

import keras

from keras_transformer import convert
from keras_transformer.convert import opennmt
from keras_transformer.serving import RunFolder
from train.settings import flag_of
from train.training_config import DROPOUTS

# What has a "dtype" without being a layer of a model.
_NO_LAYERS = ("InputLayer", "__keras_tensor__")
_MISSING = (None, "")  # settings that are not given; 0 is given


def read_pretrained(path):
    """The model of a finished run or of a released folder, as `convert.Converted`.

    The `config` of a run is its settings.

    Raises:
        ValueError: if there is no finished run and no such folder.
    """
    settings = _settings_of_run(path)
    if settings is None:
        return convert.read(path)
    run = RunFolder(path)
    return convert.Converted(
        "", run.model(), run.tokenizer(), run.target_tokenizer(), config=settings
    )


def _settings_of_run(path):
    """The settings of a run of our own; None for a folder of another library."""
    if opennmt.is_run(path):
        return None
    settings = RunFolder(path).settings()
    return None if {"model_type", "class_name"} & settings.keys() else settings


def pretrained_of(config, model_class, what, run=None):
    """What the --pretrained of a config holds; None without it.

    Args:
        config: of a command.
        model_class: the class that the model must have, or a tuple of classes.
        what: where such models come from, for the message.
        run: the `Run` if it has begun.

    Raises:
        ValueError: as of `read_pretrained`, or if the model is of another kind.
    """
    if not config.pretrained:
        return None
    found = (run and run.pretrained()) or read_pretrained(config.pretrained)
    if not isinstance(found.model, model_class):
        raise ValueError(
            f"--pretrained must be {what}. Received: {config.pretrained}, whose model is a "
            f"{getattr(found.model, 'kind', 'model of another library')}."
        )
    return found


def completed(config, names, fixed=(), before=None, pretrained=None):
    """A config whose missing settings are those of its run or, when it begins, of --pretrained.

    Args:
        config: of a command.
        names: of the settings, missing where they are None or "".
        fixed: those of them that cannot be others than those of --pretrained.
        before: the config of the run; None if it has not begun.
        pretrained: of `read_pretrained`, if it has been read.

    Raises:
        ValueError: if a fixed one is given and is another.
    """
    if not config.pretrained:
        return config
    given = {name: getattr(config, name) for name in names}
    missing = [name for name, value in given.items() if value in _MISSING]
    if before is not None:
        theirs = dataclasses.asdict(before)
    elif pretrained is not None:
        theirs = pretrained.config
    else:
        theirs = _settings_of_run(config.pretrained) or read_pretrained(config.pretrained).config
    for name in fixed:
        if name not in missing and given[name] != theirs.get(name, given[name]):
            raise ValueError(
                f"{flag_of(name)} must be {theirs[name]}, as of --pretrained. "
                f"Received: {given[name]}."
            )
    known = {name for name in missing if theirs.get(name) not in _MISSING}
    return dataclasses.replace(config, **{name: theirs[name] for name in known})


def for_training(model, config, **changes):
    """A copy of a model with the dtype, `remat` and dropouts of a config, within a strategy.

    Args:
        model: of a function of `models`.
        config: of its training.
        **changes: of further settings of layers, by name.
    """
    changes |= {"dtype": config.dtype, "remat": config.remat, **config.given(DROPOUTS)}
    if config.dropout is not None:
        changes["rate"] = config.dropout
    content = model.get_config()
    _set(content["layers"], changes)
    copy = type(model).from_config(content)
    for old, new in zip(model.weights, copy.weights, strict=True):
        if old.shape == new.shape or new.trainable:  # a memory may have another number of rows
            new.assign(keras.ops.convert_to_numpy(old))
    return copy


def check_packed(config, pretrained):
    """Raises ValueError if rows are to hold several texts that this model would mix."""
    if config.packed and not _tells_texts_apart(pretrained.model):
        raise ValueError(
            "--packed needs a --pretrained that was trained with --packed. "
            f"Received: {config.pretrained}."
        )


def _tells_texts_apart(model):
    """Whether a mask keeps the texts of a row apart, which each block of the decoder reads."""
    [decoder] = (layer for layer in model.get_config()["layers"] if layer["name"] == "decoder")
    calls = decoder["inbound_nodes"]
    return any(call["kwargs"].get("attention_mask") is not None for call in calls)


def _set(config, changes):
    """Changes the settings of all layers in a nest of configs."""
    if isinstance(config, (list, tuple)):
        for part in config:
            _set(part, changes)
    if not isinstance(config, dict) or config.get("class_name") in _NO_LAYERS:
        return
    settings = config.get("config")
    if isinstance(settings, dict) and _is_layer(config):
        settings.update({name: changes[name] for name in changes.keys() & settings.keys()})
    for part in config.values():
        _set(part, changes)


def _is_layer(config):
    found = keras.saving.get_registered_object(config.get("registered_name"))
    ours = isinstance(found, type) and issubclass(found, keras.layers.Layer)
    return ours or config.get("module") == "keras.layers"
