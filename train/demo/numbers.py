"""Numbers, prices, dates and times of the demonstration corpus, in both languages.

Babel and num2words are imported where they are used: the rest of the library
does without them.
"""

import datetime
import functools

from . import words
from .grammar import NOTHING, join
from .words import Phrase

_LOCALES = ("en_US", "de_DE")


@functools.cache
def number(value: int, ordinal: bool = False) -> Phrase:
    from num2words import num2words

    kind = "ordinal" if ordinal else "cardinal"
    return Phrase(*(num2words(value, lang=language, to=kind) for language in ("en", "de")))


def count(value: int) -> Phrase:
    """English spells numbers to twelve, German all of them: `21` is `einundzwanzig`."""
    spelled = number(value)
    return spelled if value <= 12 else Phrase(str(value), spelled.german)


def decimal(value) -> Phrase:
    from babel.numbers import format_decimal

    return Phrase(*(format_decimal(value, locale=place) for place in _LOCALES))


def percent(value) -> Phrase:
    from babel.numbers import format_percent

    return Phrase(
        *(format_percent(value, locale=place, decimal_quantization=False) for place in _LOCALES)
    )


def price(draw) -> Phrase:
    from babel.numbers import format_currency

    amount = draw.randrange(50, 10_000 if draw.random() < 0.7 else 500_000) / 100
    currency = draw.choice(("EUR", "EUR", "USD", "GBP"))
    return Phrase(*(format_currency(amount, currency, locale=place) for place in _LOCALES))


def day(draw) -> datetime.date:
    first = datetime.date(1930, 1, 1).toordinal()
    return datetime.date.fromordinal(first + draw.randrange(33_000))  # to the year 2020


def date(moment: datetime.date, english_pattern: str, german_pattern: str) -> Phrase:
    from babel.dates import format_date

    return Phrase(
        format_date(moment, english_pattern, _LOCALES[0]),
        format_date(moment, german_pattern, _LOCALES[1]),
    )


def clock(draw) -> Phrase:
    """`half past three`, in German half of the fourth hour; or `3:45 PM`, there `15:45 Uhr`."""
    from babel.dates import format_time

    hour, minute = draw.randrange(24), draw.randrange(60)
    if draw.random() < 0.4:
        moment = datetime.time(hour, minute)
        english, german = (format_time(moment, "short", locale=place) for place in _LOCALES)
        return Phrase(english, f"{german} Uhr")
    this, following = number((hour - 1) % 12 + 1), number(hour % 12 + 1)
    english, german = words.CLOCK[minute // 5]
    german = german.format(this=this.german, next=following.german)
    return Phrase(
        english.format(this=this.english, next=following.english),
        german.replace("eins Uhr", "ein Uhr"),
    )


def at(draw) -> Phrase:
    moment = clock(draw)
    return Phrase(f"at {moment.english}", f"um {moment.german}")


def on(draw, tense: str) -> Phrase:
    """A day: `on Monday evening`, `on March 3`, `on the third of March`; with a year if past."""
    moment, kind = day(draw), draw.randrange(5)
    if kind < 2:
        english, german = date(moment, "EEEE", "EEEE")
        part = draw.choice(words.PARTS_OF_DAY) if kind else NOTHING
        return Phrase(join("on", english, part.english), f"am {german}{part.german}")
    if kind < 4:
        english, german = date(
            moment, *(("long", "long") if kind == 3 and tense == "past" else ("MMMM d", "d. MMMM"))
        )
        return Phrase(f"on {english}", f"am {german}")
    ordinal, month = number(moment.day, ordinal=True), date(moment, "MMMM", "MMMM")
    return Phrase(
        f"on the {ordinal.english} of {month.english}", f"am {ordinal.german}n {month.german}"
    )


def when(draw, tense: str) -> Phrase:
    kind = draw.randrange(4)
    if kind == 0:
        return at(draw)
    if kind == 1:
        return draw.choice(words.PAST_TIMES if tense == "past" else words.OTHER_TIMES)
    return on(draw, tense)
