"""Classes of settings: every field is a flag, a line of --help, a key in YAML, and is checked.

pydantic checks the values; the messages are written here.
"""

import argparse
import importlib.util
import os
import pathlib
import re
import sys
import types
import typing

import pydantic
import yaml

from .cli import MODULES

CONFIGS = pathlib.Path(__file__).parent / "configs"
LIMITS = {
    "gt": "above",
    "ge": "at least",
    "lt": "below",
    "le": "at most",
    "multiple_of": "a multiple of",
}
KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
LONGEST_VALUE = 80  # characters of a value that are told
EXIT_CODE_MISTAKE = 2
ENTRY_POINT, PROJECT = "keras-transformer", "keras-transformer-toolkit"
IS_CLONE = (pathlib.Path(__file__).parents[1] / "setup.py").exists()

imported = []  # names of the modules of --import, which other processes need, too


class Settings(pydantic.BaseModel):
    """Settings that cannot change; strings are converted to the type of the field.

    `model_post_init` may check several fields together.

    Raises:
        ValueError: from the constructor, with one line for each wrong value.

    Example:
        >>> class Options(Settings):
        ...     steps: int = setting(8, "optimizer steps", ge=1)
        >>> Options(steps="5").steps
        5
        >>> Options(steps=0)
        Traceback (most recent call last):
        ValueError: --steps must be a whole number, at least 1. Received: 0.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def __init__(self, **values):
        fields = type(self).model_fields
        for name, value in values.items():  # pydantic takes True for 1
            if isinstance(value, bool) and _kind(fields.get(name)) in (int, float):
                values[name] = str(value)
        try:
            super().__init__(**values)
        except pydantic.ValidationError as error:
            problems = error.errors(include_url=False)
            raise ValueError("\n".join(_message(each, fields) for each in problems)) from None

    def given(self, names):
        """The settings among these names that are not None, by name."""
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def replace(self, **changes):
        """The same settings but for some changes, all checked again."""
        return type(self)(**{**self.model_dump(), **changes})


def setting(default, help_text, **limits):
    """A field with a default, a line of help, and limits: gt, ge, lt, le or multiple_of."""
    return pydantic.Field(default, description=help_text, **limits)


def required(help_text, **limits):
    """A field that must be given."""
    return pydantic.Field(description=help_text, **limits)


def flag_of(name):
    return "--" + name.replace("_", "-")


def allowed(field):
    """The allowed values of a field, in words: "a number, at least 0 and below 1"."""
    kind = _kind(field)
    if typing.get_origin(kind) is typing.Literal:
        return "one of " + ", ".join(typing.get_args(kind))
    limits = [
        f"{words} {getattr(limit, name)}"
        for limit in field.metadata
        for name, words in LIMITS.items()
        if hasattr(limit, name)
    ]
    return ", ".join([KINDS[kind], *filter(None, [" and ".join(limits)])])


class Parser(argparse.ArgumentParser):
    """A command line whose flags are those of classes of `Settings`.

    It reports an error in one line, without the usage. Where a text says `python -m train.name`, it
    shows how this program was called.

    Args:
        prog: the command, as called from a clone.
        description: shown by --help, as `epilog`.
    """

    def __init__(self, prog, description, epilog=None, **kwargs):
        super().__init__(
            as_called(prog), description=as_called(description), epilog=as_called(epilog or ""),
            allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs,
        )  # fmt: skip
        self.add_argument("--version", action="version", version=installed_version())

    def add_imports(self):
        """Adds --import; `import_modules` imports what is in the list `imports` of the flags."""
        self.add_argument(
            "--import", dest="imports", metavar="MODULE", action="append", default=[],
            help="Python module to import first, from the current folder or installed, such as one "
            "that registers an attention of your own; may be given several times",
        )  # fmt: skip

    def error(self, message):
        self.exit(EXIT_CODE_MISTAKE, f"{self.prog}: {message}. --help lists all flags.\n")

    def add_settings(self, cls, enforce_required=True):
        """Adds a flag for each field of a class; those that the class itself declares come first.

        Args:
            cls: a class of `Settings`.
            enforce_required: whether `parse_args` refuses a command line without a required flag.

        Returns:
            A function from what `parse_args` returns to the values that were given, by name.
        """
        own, inherited = self.add_argument_group(), self.add_argument_group()
        for name, field in cls.model_fields.items():
            kind, is_required = _kind(field), field.is_required()
            details = [allowed(field)] if kind in (int, float) else []
            if is_required:
                details.append("required")
            elif field.default not in (None, "", "\n"):  # whose meaning the description tells
                details.append(f"default: {field.default}")
            words = field.description + (f" ({'; '.join(details)})" if details else "")
            if kind is bool:
                options = {"action": argparse.BooleanOptionalAction}
            elif typing.get_origin(kind) is typing.Literal:  # pydantic checks it with the numbers
                options = {"metavar": f"{{{','.join(typing.get_args(kind))}}}"}
            else:
                options = {"metavar": kind.__name__}
            group = own if name in cls.__annotations__ else inherited
            group.add_argument(
                flag_of(name), dest=name, default=argparse.SUPPRESS, help=words.replace("%", "%%"),
                required=is_required and enforce_required, **options,
            )  # fmt: skip
        return lambda flags: {n: v for n, v in vars(flags).items() if n in cls.model_fields}


def as_called(text):
    """A help text or a message, with the commands as this installation has them.

    Texts say `python -m train.name`, `train.name` and `pip install -e '.[extra]'`, which is right
    in a clone. The program is `keras-transformer name`.
    """
    if not IS_CLONE:
        text = re.sub(r"pip install -e '\.\[(\w+)\]'", rf"pip install '{PROJECT}[\1]'", text)
    if IS_CLONE and pathlib.Path(sys.argv[0]).stem != ENTRY_POINT:
        return text
    names = "|".join(name.replace("-", "_") for name in MODULES)
    text = re.sub(
        rf"(?:python -m )?\btrain\.({names})\b(?!\.\w)",
        lambda match: f"{ENTRY_POINT} {match[1].replace('_', '-')}",
        text,
    )
    return re.sub(r"python -m train\b(?!\.)", f"{ENTRY_POINT} demo", text)


def import_modules(names):
    """Imports modules from the current folder, or installed ones.

    Raises:
        ValueError: if one cannot be imported.
    """
    if os.getcwd() not in sys.path:  # as in the program `keras-transformer`
        sys.path.append(os.getcwd())
    for name in names:
        try:
            importlib.import_module(name)
            imported.append(name)
        except Exception as error:  # whatever the module raises
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise ValueError(
                "--import must be a Python module in the current folder or an installed one. "
                f"Received: {name}, {reason}."
            ) from error


def installed_version():
    """The version of keras_transformer, without the seconds that importing it takes."""
    source = pathlib.Path(importlib.util.find_spec("keras_transformer").origin).read_text("utf-8")
    return re.search(r'__version__ = "(.+)"', source)[1]


def read_config(name, command):
    """The settings in a YAML file, or in that of train/configs with a given name.

    Args:
        name: path of a file that ends with .yaml, or the name of an experiment.
        command: name of the command that the file must be for.

    Returns:
        A dictionary without the name of the command.

    Raises:
        ValueError: if there is no such file, or if it is for another command.
    """
    known = {path.stem: path for path in sorted(CONFIGS.glob("*.yaml"))}
    path = pathlib.Path(name) if name.endswith((".yaml", ".yml")) else known.get(name)
    if path is None:
        raise ValueError(
            f"--config must be one of {', '.join(known)}, or a file that ends with .yaml. "
            f"Received: {name!r}."
        )
    try:
        content = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"--config must be a file of YAML. Received: {name!r}: {reason}") from None
    if not isinstance(content, dict) or content.get("command") != command:
        other = content.get("command") if isinstance(content, dict) else None
        raise ValueError(
            f"--config must be an experiment of this command, with the line `command: {command}`. "
            f"Received: {name!r}, of {other}."
        )
    return {str(key): value for key, value in content.items() if key != "command"}


def config_as_yaml(config):
    """The text of a file that `read_config` reads: all settings that are not left to the model."""
    content = {"command": config.command, **config.model_dump(exclude_none=True)}
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def _kind(field):
    """The type of a field, without the None that many may be; None if there is no field."""
    if field is None:
        return None
    if typing.get_origin(field.annotation) in (typing.Union, types.UnionType):
        return next(t for t in typing.get_args(field.annotation) if t is not types.NoneType)
    return field.annotation


def _message(problem, fields):
    """Turns one of pydantic's problems into a line with what is allowed and what was received."""
    if problem["type"] == "value_error":  # of `model_post_init`, which may tell any value
        said = str(problem["ctx"]["error"])
        for value in map(str, problem["input"].values()):
            said = said.replace(value, value[:LONGEST_VALUE]) if value else said
        return said
    name, received = problem["loc"][0], str(problem["input"])[:LONGEST_VALUE]
    if name not in fields:
        return f"There is no setting {name}. Received: {name}={received}."
    if problem["type"] == "missing":
        return f"{flag_of(name)} is required."
    return f"{flag_of(name)} must be {allowed(fields[name])}. Received: {received}."
