"""Classes of settings: every field is a flag, a line of --help, a key in YAML, and is checked.

pydantic checks the values; the messages are written here.
"""

import argparse
import contextlib
import importlib.util
import itertools
import logging
import os
import pathlib
import re
import sys
import types
import typing
from typing import ClassVar

import pydantic
import yaml

CONFIGS = pathlib.Path(__file__).parent / "configs"
LIMITS = {
    "gt": "above",
    "ge": "at least",
    "lt": "below",
    "le": "at most",
    "multiple_of": "a multiple of",
}
KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
LOG = logging.getLogger(__name__)

LONGEST_VALUE = 80  # characters of a value that are told
EXIT_CODE_MISTAKE = 2

imported = []  # names of the modules of --import, which other processes need, too


class Settings(pydantic.BaseModel):
    """Settings that cannot change; strings are converted to the type of the field.

    `exclusive` says which settings exclude each other: a dictionary from a sentence, which begins
    the error, to ways, of which only one may be taken. A way is a string of conditions, of which
    any takes it, with spaces between them: `name` holds if the setting is neither its default nor
    off, `name=a|b` if it is one of these values, `name!=a|b` if it is another one.

    `requirements` says what else several settings must fulfil together: a dictionary from a
    sentence, which begins the error and names the settings, to a condition, a function of the
    object.

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
    exclusive: ClassVar[dict] = {}
    requirements: ClassVar[dict] = {}

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

    def model_post_init(self, context):
        values = dict(self)
        for sentence, ways in type(self).ways_taken(values).items():
            if sum(map(bool, ways)) > 1:
                received = [", ".join(_as_flag(n, values[n]) for n in way) for way in ways if way]
                raise ValueError(f"{sentence}. Received: {' and '.join(received)}.")
        self.require(self.requirements)

    def require(self, requirements):
        """Raises ValueError unless all conditions of a dictionary as `requirements` hold."""
        for sentence, holds in requirements.items():
            if not holds(self):
                names = [name for name in _named_in(sentence) if name in type(self).model_fields]
                received = ", ".join(_as_flag(name, getattr(self, name)) for name in names)
                raise ValueError(f"{sentence}. Received: {received}.")

    def check_given(self, entry):
        """Raises ValueError unless one of the ways of an entry of `exclusive` is taken."""
        [sentence] = entry
        if not any(self.ways_taken(dict(self))[sentence]):
            raise ValueError(f"{sentence}. Received: none.")

    @classmethod
    def ways_taken(cls, values):
        """The settings that take each way of `exclusive`.

        Args:
            values: of some settings or of all, a dictionary; the others take no way.

        Returns:
            A dictionary from each sentence to lists of names, one for each of its ways.
        """
        return {
            sentence: [
                [condition.name for condition in map(_Condition.read, way.split())
                 if condition.holds(values, cls.model_fields)]
                for way in ways
            ]
            for sentence, ways in cls.exclusive.items()
        }  # fmt: skip

    @classmethod
    def _converted(cls, values):
        """Values as the constructor converts them; those that it refuses stay as they are."""
        converted = dict(values)
        for name in values.keys() & cls.model_fields.keys():
            with contextlib.suppress(pydantic.ValidationError):
                kind = pydantic.TypeAdapter(cls.model_fields[name].annotation)
                converted[name] = kind.validate_python(values[name])
        return converted

    @classmethod
    def merged(cls, flags, content, source):
        """The settings of a file with the flags of a command line, which win.

        A flag also replaces the settings of the file that exclude it, with a warning.

        Args:
            flags: dictionary of the values given as flags.
            content: that of the file.
            source: name of the file.

        Raises:
            ValueError: if they are wrong; says which of them come from where.
        """
        mine, theirs = map(cls.ways_taken, map(cls._converted, (flags, content)))
        for sentence, ways in mine.items():
            if sum(map(bool, ways)) > 1:
                continue  # the constructor refuses flags that exclude each other
            for given, (i, excluded) in itertools.product(ways, enumerate(theirs[sentence])):
                if not given or given is ways[i]:
                    continue
                for name in [n for n in excluded if n in content and n not in flags]:
                    flag = _as_flag(given[0], flags[given[0]])
                    LOG.warning("%s replaces %s: %s of %s.", flag, name, content[name], source)
                    content = {n: value for n, value in content.items() if n != name}
        try:
            return cls(**{**content, **flags})
        except ValueError as error:
            origins = {"the command line": flags, source: content.keys() - flags.keys()}
            lines = [line + _origins_in_words(line, origins) for line in str(error).splitlines()]
            raise ValueError("\n".join(lines)) from None

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


def one_of(what, *ways):
    """An entry of `exclusive`: something of which only one may be given, in any of these ways."""
    *others, last = (" and ".join(map(flag_of, way.split())) for way in ways)
    return {f"Give one {what}: {', '.join(others)} or {last}": ways}


def both(first, second):
    """An entry of `requirements`: two settings of which neither may be given alone."""
    return {
        f"Give both {flag_of(first)} and {flag_of(second)}": lambda settings: (
            bool(getattr(settings, first)) == bool(getattr(settings, second))
        )
    }


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

    It reports an error in one line, without the usage.

    Args:
        prog: the command.
        description: shown by --help, as `epilog`.
    """

    def __init__(self, prog, description, epilog=None, **kwargs):
        super().__init__(
            prog, description=description, epilog=epilog, allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs,
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


class _Condition(typing.NamedTuple):
    """A condition of a way in `Settings.exclusive`."""

    name: str
    relation: str | None
    values: str | None

    @classmethod
    def read(cls, text):
        return cls(*re.fullmatch(r"(\w+)(?:(!?=)(.*))?", text).groups())

    def holds(self, values, fields):
        value = values.get(self.name)
        if value is None:
            return False
        if self.relation:
            return (value in self.values.split("|")) == (self.relation == "=")
        return value != fields[self.name].default and bool(value or value is False)


def _as_flag(name, value):
    """A setting as on a command line."""
    if isinstance(value, bool):
        return flag_of(name if value else f"no_{name}")
    return f"no {flag_of(name)}" if value in (None, "") else f"{flag_of(name)} {value}"


def _named_in(message):
    """The names of the settings whose flags are in a message."""
    flags = re.findall(r"(?<![\w-])--([a-z0-9-]*[a-z0-9])", message)
    return list(dict.fromkeys(flag.replace("-", "_") for flag in flags))


def _origins_in_words(message, origins):
    """Where the settings that a message names come from; nothing if all are flags."""
    named = set(_named_in(message))
    found = {
        origin: sorted(map(flag_of, named.intersection(names))) for origin, names in origins.items()
    }
    *_, of_file = found.values()
    parts = [f"{', '.join(flags)} from {origin}" for origin, flags in found.items() if flags]
    return f" ({'; '.join(parts)})" if of_file else ""


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
