"""Numbers, dates and times in both languages, each against what a German would say."""

import datetime
import random

import pytest

from train.demo import numbers

pytest.importorskip("babel", reason="extra `train`")
pytest.importorskip("num2words", reason="extra `train`")


class Drawn(random.Random):
    """Gives the numbers that a test wants, in turn."""

    def __init__(self, integers, real=0.5):
        super().__init__()
        self._integers, self._real = iter(integers), real

    def randrange(self, *_):
        return next(self._integers)

    def random(self):
        return self._real

    def choice(self, options):
        return options[0]


def plain(phrase):
    """With plain spaces, as the corpus writes it."""
    return tuple(" ".join(text.split()) for text in phrase)


@pytest.mark.parametrize(
    ("value", "english", "german"),
    [
        (2, "two", "zwei"),
        (12, "twelve", "zwölf"),
        (13, "13", "dreizehn"),
        (16, "16", "sechzehn"),
        (21, "21", "einundzwanzig"),
        (30, "30", "dreißig"),
        (77, "77", "siebenundsiebzig"),
    ],
)
def test_german_counts_in_words(value, english, german):
    assert numbers.count(value) == (english, german)


@pytest.mark.parametrize(
    ("hour", "minute", "english", "german"),
    [
        (3, 0, "three o'clock", "drei Uhr"),
        (1, 2, "one o'clock", "ein Uhr"),
        (3, 34, "half past three", "halb vier"),
        (12, 30, "half past twelve", "halb eins"),
        (0, 15, "quarter past twelve", "Viertel nach zwölf"),
        (1, 15, "quarter past one", "Viertel nach eins"),
        (15, 45, "quarter to four", "Viertel vor vier"),
        (3, 10, "ten past three", "zehn nach drei"),
        (23, 55, "five to twelve", "fünf vor zwölf"),
        (12, 55, "five to one", "fünf vor eins"),
        (3, 25, "twenty-five past three", "fünf vor halb vier"),
        (3, 35, "twenty-five to four", "fünf nach halb vier"),
    ],
)
def test_german_clock_looks_ahead_to_the_next_hour(hour, minute, english, german):
    assert numbers.clock(Drawn([hour, minute])) == (english, german)


@pytest.mark.parametrize(
    ("hour", "minute", "english", "german"),
    [
        (15, 45, "3:45 PM", "15:45 Uhr"),
        (0, 7, "12:07 AM", "00:07 Uhr"),
        (12, 0, "12:00 PM", "12:00 Uhr"),
        (4, 5, "4:05 AM", "04:05 Uhr"),
    ],
)
def test_german_digits_of_a_time_run_to_24(hour, minute, english, german):
    assert plain(numbers.clock(Drawn([hour, minute], real=0.1))) == (english, german)


def test_days_take_the_german_order_and_the_dative():
    third = (datetime.date(1987, 3, 3) - datetime.date(1930, 1, 1)).days
    expected = [
        (0, "present", "on Tuesday", "am Dienstag"),
        (1, "present", "on Tuesday morning", "am Dienstagmorgen"),
        (2, "past", "on March 3", "am 3. März"),
        (3, "present", "on March 3", "am 3. März"),
        (3, "past", "on March 3, 1987", "am 3. März 1987"),
        (4, "present", "on the third of March", "am dritten März"),
    ]
    for kind, tense, english, german in expected:
        assert numbers.on(Drawn([third, kind]), tense) == (english, german)


def test_prices_swap_point_and_comma_and_put_the_sign_last():
    assert plain(numbers.price(Drawn([1250]))) == ("€12.50", "12,50 €")
    assert plain(numbers.price(Drawn([325000]))) == ("€3,250.00", "3.250,00 €")


def test_decimals_and_shares_swap_point_and_comma():
    assert numbers.decimal(2.5) == ("2.5", "2,5")
    assert numbers.decimal(1512491) == ("1,512,491", "1.512.491")
    assert plain(numbers.percent(0.035)) == ("3.5%", "3,5 %")
