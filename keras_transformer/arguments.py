"""Checks of numbers that users pass: messages say what is allowed and what came.

Call them where the number is used, before any work. NaN, infinities, booleans and text pass none
of them; NumPy's scalars are numbers like Python's.
"""

import math
import numbers

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


def _is(kind, value):
    return isinstance(value, kind) and not isinstance(value, bool)


def _is_finite(value):
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond float64
        return False
