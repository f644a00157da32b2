"""Experiments by name: the short files of train/configs, and the flags that override them."""

import dataclasses
import importlib
import pathlib

from train.settings import given_flags

CONFIGS = pathlib.Path(__file__).parent / "configs"


def load_config(name):
    """The `CONFIG` of train/configs/<name>.py.

    Raises:
        ValueError: if there is no such file.
    """
    known = sorted(path.stem for path in CONFIGS.glob("[a-z]*.py"))
    if name not in known:
        raise ValueError(f"--config must be one of {', '.join(known)}. Received: {name!r}.")
    return importlib.import_module(f"train.configs.{name}").CONFIG


def config_of(config_class, name, flags):
    """The config with a given name, or the default one, with the settings given as flags.

    Raises:
        ValueError: if it is an experiment of another command, if no experiment has this name, or
            if a setting is outside its limits.
    """
    given = given_flags(flags, config_class)
    if not name:
        return config_class(**given)
    config = load_config(name)
    if type(config) is not config_class:
        raise ValueError(
            f"--config must be an experiment of this command, a {config_class.__name__}. "
            f"Received: {name!r}, a {type(config).__name__}."
        )
    return dataclasses.replace(config, **given)
