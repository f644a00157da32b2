"""Checks of numbers and texts that users pass: messages say what is allowed and what came.

Call them where the value is used, before any work. NaN, infinities, booleans and text pass none
of those of numbers; NumPy's scalars are numbers like Python's.
"""

import math
import numbers
import re

_SURROGATE = re.compile(r"[\ud800-\udfff]")
LARGEST_INTEGER = 2**31 - 1  # of int32, in which tensors have ids, lengths and counts


def check_integer(name, value, least=1, most=LARGEST_INTEGER, reason=""):
    """Raises ValueError unless a value is an integer from `least` to `most`, both included.

    `name` is the argument's, as the user knows it; `reason` a sentence after a space that says why,
    or what to do.
    """
    if _is(numbers.Integral, value) and least <= value <= most:
        return
    allowed = f"an integer of at least {least}"
    if most != LARGEST_INTEGER or (_is(numbers.Integral, value) and value > most):
        allowed = f"an integer from {least} to {most}"
    raise ValueError(f"{name} must be {allowed}.{reason} Received: {name}={value!r}.")


def check_number(name, value, least=None, above=None, most=None, below=None, reason=""):
    """Raises ValueError unless a value is a finite number within the limits that are not None.

    `least` and `most` are allowed, `above` and `below` are not; `name` and `reason` as for
    `check_integer`.
    """
    if (
        _is(numbers.Real, value)
        and _is_finite(value)
        and (least is None or value >= least)
        and (above is None or value > above)
        and (most is None or value <= most)
        and (below is None or value < below)
    ):
        return
    limits = {"of at least": least, "above": above, "of at most": most, "below": below}
    allowed = [f"{words} {limit}" for words, limit in limits.items() if limit is not None]
    raise ValueError(
        f"{name} must be a finite number{' ' * bool(allowed)}{' and '.join(allowed)}.{reason} "
        f"Received: {name}={value!r}."
    )


def check_probability(name, value):
    """Raises ValueError unless a value is a number in [0, 1), such as a rate of dropout."""
    if not _is(numbers.Real, value) or not 0 <= value < 1:
        raise ValueError(f"{name} must be a number in [0, 1). Received: {name}={value!r}.")


def read_texts(texts, name="texts", kinds=str):
    """Yields the texts of any iterable, as `read_text` returns them.

    Args:
        texts: the texts; ValueError, with the row, for one that is none.
        name: of the argument, as the user knows it.
        kinds: the types that a text may have, a tuple.
    """
    try:
        rows = None if isinstance(texts, (str, bytes)) else iter(texts)
    except TypeError:
        rows = None
    if rows is None:
        raise ValueError(
            f"{name} must be a list of strings; put a single text into a list. "
            f"Received: {name}={texts!r:.100}"
        )
    for row, text in enumerate(rows):
        if not isinstance(text, kinds):
            raise ValueError(
                f"{name} must be a list of strings. Received: {name}[{row}]={text!r:.80}"
            )
        yield read_text(text, name) if isinstance(text, str) else text


def read_text(text, name):
    """A string with U+FFFD instead of lone surrogates, which UTF-8 cannot write.

    Raises ValueError for anything but a string.
    """
    if not isinstance(text, str):
        raise ValueError(f"{name} must be a string. Received: {name}={text!r:.100}")
    return _SURROGATE.sub("\ufffd", text)


def _is(kind, value):
    return isinstance(value, kind) and not isinstance(value, bool)


def _is_finite(value):
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond float64
        return False
