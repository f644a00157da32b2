"""One checker for each kind of number: what it lets through, and what it says of the rest."""

import fractions
import math

import numpy as np
import pytest

from keras_transformer.arguments import check_integer, check_number, check_probability

NO_NUMBERS = [
    math.nan,
    math.inf,
    -math.inf,
    True,
    np.True_,
    "3",
    None,
    [3],
    3j,
    np.ones(1),
    10**400,
]


@pytest.mark.parametrize("value", [1, 7, np.int64(5), 2**31 - 1])
def test_integers_pass(value):
    check_integer("size", value)


@pytest.mark.parametrize("value", [*NO_NUMBERS, 1.0, 1.5, 0, -1, 2**31, 2**40])
def test_all_else_is_no_integer_of_at_least_one(value):
    with pytest.raises(ValueError, match=r"size must be an integer .* Received: size="):
        check_integer("size", value)


@pytest.mark.parametrize("value", [1, 0.5, np.float32(0.5), np.int8(3), fractions.Fraction(1, 3)])
def test_numbers_pass(value):
    check_number("alpha", value, above=0)


@pytest.mark.parametrize("value", [*NO_NUMBERS, 0, -1.0])
def test_all_else_is_no_positive_number(value):
    message = r"alpha must be a finite number above 0\. Received: alpha="
    with pytest.raises(ValueError, match=message):
        check_number("alpha", value, above=0)


@pytest.mark.parametrize("value", [*NO_NUMBERS, 1, -0.1, 1.5])
def test_all_else_is_no_probability(value):
    with pytest.raises(ValueError, match=r"rate must be a number in \[0, 1\)\. Received: rate="):
        check_probability("rate", value)


def test_the_message_names_the_limits_the_reason_and_the_value():
    cases = [
        (lambda: check_integer("size", 2**31), "size must be an integer from 1 to 2147483647. "),
        (lambda: check_integer("size", 0), "size must be an integer of at least 1. "),
        (lambda: check_integer("size", 9, 2, 7, " Why."), "an integer from 2 to 7. Why. Received"),
        (lambda: check_number("size", "x"), "size must be a finite number. Received: size='x'."),
        (
            lambda: check_number("size", 2, least=-1, below=2),
            "size must be a finite number of at least -1 and below 2. Received: size=2.",
        ),
    ]
    for check, message in cases:
        with pytest.raises(ValueError) as caught:
            check()
        assert message in str(caught.value)
