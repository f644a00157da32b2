"""Classes of settings: every field has a flag, a line in --help, and limits that are checked."""

import argparse
import functools
import inspect
import types
import typing

import pydantic
import pydantic.dataclasses

LIMITS = {
    "gt": "above",
    "ge": "at least",
    "lt": "below",
    "le": "at most",
    "multiple_of": "a multiple of",
}
KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
PLACEHOLDERS = {int: "N", float: "X"}


def settings(cls):
    """Makes a frozen dataclass that checks its values when it is created, also by `replace`.

    Fields are declared with `setting` or `required`; strings are converted to the type of the
    field. `__post_init__` may check several fields together.

    Raises:
        ValueError: from the constructor, with one line for each wrong value.

    Example:
        >>> @settings
        ... class Options:
        ...     steps: int = setting(8, "optimizer steps", ge=1)
        >>> Options(steps="5").steps
        5
        >>> Options(steps=0)
        Traceback (most recent call last):
        ValueError: --steps must be a whole number, at least 1. Received: 0.
    """
    checks = pydantic.ConfigDict(extra="forbid", allow_inf_nan=False)
    cls = pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=checks)(cls)
    init = cls.__init__

    @functools.wraps(init)
    def init_in_plain_words(self, *args, **values):
        for name, value in values.items():  # pydantic takes True for 1
            if isinstance(value, bool) and _kind(fields_of(cls).get(name)) in (int, float):
                values[name] = str(value)
        try:
            init(self, *args, **values)
        except pydantic.ValidationError as error:
            problems = error.errors(include_url=False)
            lines = [_in_plain_words(problem, fields_of(cls)) for problem in problems]
            raise ValueError("\n".join(lines)) from None

    cls.__init__ = init_in_plain_words
    return cls


def setting(default, help_text, **limits):
    """A field with a default, a line of help, and limits: gt, ge, lt, le or multiple_of."""
    return pydantic.Field(default, description=help_text, **limits)


def required(help_text, **limits):
    """A field that must be given."""
    return pydantic.Field(description=help_text, **limits)


def fields_of(cls):
    """The fields of a class of settings: a dictionary from name to pydantic's `FieldInfo`."""
    return cls.__pydantic_fields__


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


def add_flags(parser, cls):
    """Adds a flag for each field to a parser, first for those that the class itself declares.

    Without the flag, a field keeps its default.
    """
    declared = inspect.get_annotations(cls)
    fields = sorted(fields_of(cls).items(), key=lambda field: field[0] not in declared)
    for name, field in fields:
        kind, last_word = _kind(field), name.rpartition("_")[2]
        options = {"metavar": PLACEHOLDERS.get(kind, last_word.upper())}
        if kind is bool:
            options = {"action": argparse.BooleanOptionalAction}
        help_text = _help(field).replace("%", "%%")  # argparse fills in its own numbers
        options |= {"dest": name, "default": None, "required": field.is_required()}
        parser.add_argument(flag_of(name), help=help_text, **options)


def given_flags(options, cls):
    """The fields that were given as flags: a dictionary from name to the text of the value."""
    return {n: getattr(options, n) for n in fields_of(cls) if getattr(options, n) is not None}


def _kind(field):
    """The type of a field, without the None that many may be; None if there is no field."""
    if field is None:
        return None
    if typing.get_origin(field.annotation) in (typing.Union, types.UnionType):
        return next(t for t in typing.get_args(field.annotation) if t is not types.NoneType)
    return field.annotation


def _help(field):
    kind = _kind(field)
    details = [] if kind in (str, bool) else [allowed(field)]
    default = None if field.is_required() else field.default
    if isinstance(default, bool):
        details.append(f"default: {'on' if default else 'off'}")
    elif default is not None and str(default).strip():
        details.append(f"default: {default:g}" if kind is float else f"default: {default}")
    return field.description + (f" ({'; '.join(details)})" if details else "")


def _in_plain_words(problem, fields):
    """Turns one of pydantic's problems into a line with what is allowed and what was received."""
    name = problem["loc"][0] if problem["loc"] else ""
    if problem["type"] == "value_error":  # of `__post_init__`
        return str(problem["ctx"]["error"])
    if name not in fields:
        return f"There is no setting {name}. Received: {name}={str(problem['input'])[:80]}."
    if problem["type"] == "missing":
        return f"{flag_of(name)} is required."
    received = str(problem["input"])[:80]
    return f"{flag_of(name)} must be {allowed(fields[name])}. Received: {received}."
