"""English sentences and their German translations, made by rule, as many as wanted.

The grammars differ: German puts the verb last in a subordinate clause, splits separable verbs,
turns subject and verb around after a fronted time, bends articles and adjectives by gender and
case, and writes dates, times, numbers and prices its own way. An English sentence has exactly one
German answer, so that a model which has learned the rules makes no mistake on new sentences.
"""

import datetime
import functools
import random
import re
import string

from keras_transformer.data.streams import ParallelText

from . import words
from .words import NOTHING, Text, Verb

MAX_PAIRS = 1_000_000  # of more, too many would be drawn again


def demo_corpus(num_pairs: int, seed: int = 0) -> ParallelText:
    """Makes distinct pairs: no sentence of either language occurs twice.

    Args:
        num_pairs: how many, from 1 to 1,000,000. A smaller corpus of the same
            seed is the beginning of a larger one.
        seed: an integer that fixes the sentences.

    Returns:
        English sources and German targets.

    Raises:
        ValueError: if `num_pairs` is outside of its range.

    Example:
        >>> pairs = demo_corpus(3, seed=5)
        >>> len(set(pairs.sources)), len(set(pairs.targets))
        (3, 3)
    """
    if not 1 <= num_pairs <= MAX_PAIRS:
        raise ValueError(
            f"The demonstration corpus has 1 to {MAX_PAIRS} distinct pairs. "
            f"Received: num_pairs={num_pairs}."
        )
    draw = random.Random(seed)
    sources, targets = {}, {}  # dicts as ordered sets
    while len(sources) < num_pairs:
        sentence = fill(draw, *draw.choices(list(words.SENTENCES), words.SENTENCES.values()))
        source, target = (side[0].upper() + side[1:] for side in sentence)
        if source not in sources and target not in targets:
            sources[source] = targets[target] = None
    return ParallelText(list(sources), list(targets))


def fill(draw, template: Text, **parts: Text) -> Text:
    """Puts the parts into the blanks of their names, and draws what stands in the other blanks."""
    for _, blank, _, _ in string.Formatter().parse(template.english):
        if blank in WRITERS and blank not in parts:
            parts[blank] = WRITERS[blank](draw)
        elif blank and blank not in parts:
            parts[blank] = fill(draw, draw.choice(words.TEXTS[blank]))
    english, german = (
        # No part at all leaves no space.
        " ".join(side.format(**{blank: part[i] for blank, part in parts.items()}).split())
        for i, side in enumerate(template)
    )
    return Text(re.sub(r"\ba (?=[aeiou])", "an ", english), german)


def draw_moment(draw, english: str, german: str) -> Text:
    """A minute of the years 1930 to 2020."""
    moment = datetime.datetime(1930, 1, 1) + datetime.timedelta(days=33_000) * draw.random()
    parts = {
        "weekday": words.TEXTS["weekday"][moment.weekday()],
        "month": words.TEXTS["month"][moment.month - 1],
        "day": (moment.day, moment.day),
        "year": (moment.year, moment.year),
        "hour": (moment.hour % 12 or 12, f"{moment.hour:02}"),
        "minute": (f"{moment.minute:02}", f"{moment.minute:02}"),
        "half": ("AM" if moment.hour < 12 else "PM", ""),
    }
    return fill(draw, Text(english, german), **parts)


def in_german(value: int) -> str:
    """A number from 0 to 100 in words: 21 is `einundzwanzig`."""
    if value < len(words.NUMBERS):
        return words.NUMBERS[value].german
    tens, ones = divmod(value, 10)
    unit = "" if ones == 0 else "einund" if ones == 1 else f"{in_german(ones)}und"
    return unit + words.TENS[tens]


def draw_number(draw, value: int) -> Text:
    """`three` or `3`, above twelve always digits; German spells all of them."""
    spelled = value <= 12 and draw.random() < 0.5
    return Text(words.NUMBERS[value].english if spelled else str(value), in_german(value))


def draw_count(draw) -> Text:
    """Half of them are small; 1 takes a singular, and is one of the determiners."""
    small = draw.random() < 0.5
    return draw_number(draw, draw.choice([0, *range(2, 13)] if small else range(13, 101)))


def draw_spoken_time(draw) -> Text:
    """`half past three`, in German half of the fourth hour."""
    hour, template = draw.randrange(12), draw.choice(words.CLOCK)
    this, next_hour = draw_number(draw, hour or 12), draw_number(draw, hour + 1)
    time = fill(draw, template, this=this, next=next_hour)
    return time._replace(german=time.german.replace("eins Uhr", "ein Uhr"))


def draw_ordinal(draw) -> Text:
    value = draw.randrange(1, 29)
    if value <= 20:
        return words.ORDINALS[value - 1]
    return Text(f"twenty-{words.ORDINALS[value - 21].english}", f"{in_german(value)}ste")


def with_separators(value: float, decimals: int = 0) -> Text:
    """`1,234.5`, in German `1.234,5`."""
    english = f"{value:,.{decimals}f}"
    return Text(english, english.translate(str.maketrans(",.", ".,")))


def draw_price(draw) -> Text:
    """`€12.50`, in German `12,50 €`; one in four has no cents."""
    cents = draw.randrange(50, 10_000 if draw.random() < 0.7 else 500_000)
    english, german = with_separators(cents / 100, 2)
    if cents >= 100 and draw.random() < 0.25:
        english, german = with_separators(cents // 100)
    sign = draw.choice("€€$£")
    return Text(f"{sign}{english}", f"{german} {sign}")


def draw_decimal(draw) -> Text:
    return with_separators(draw.randrange(1, 10) + draw.randrange(1, 10) / 10, 1)


DECLENSION = {  # the definite article, the ending of ein, kein and mein, that of an adjective there
    "nominative": {"der": ("der", "", "er"), "die": ("die", "e", "e"), "das": ("das", "", "es")},
    "accusative": {"der": ("den", "en", "en"), "die": ("die", "e", "e"), "das": ("das", "", "es")},
    "dative": {"der": ("dem", "em", "en"), "die": ("der", "er", "en"), "das": ("dem", "em", "en")},
}


def draw_adjective(draw, ending: str) -> Text:
    """Most often none; German bends it."""
    english, german = draw.choice(words.ADJECTIVES)
    return Text(english, german + ending) if draw.random() < 0.4 else NOTHING


def draw_noun(draw, case: str, nouns=words.THINGS, determiners=(words.THE,)) -> Text:
    """`the red coat`: `der rote Mantel`, `den roten Mantel`; `my red coat`: `mein roter Mantel`."""
    noun, determiner = draw.choice(nouns), draw.choice(determiners)
    article, ending, shown = DECLENSION[case][noun.gender]
    if determiner == words.THE:
        shown = "en" if shown == "en" else "e"
    else:
        article = determiner.german + ending
    adjective = NOTHING if nouns == words.FAMILY else draw_adjective(draw, shown)
    return Text(
        f"{determiner.english} {adjective.english} {noun.english}",
        f"{article} {adjective.german} {noun.german}",
    )


def draw_things(draw) -> Text:
    """`three old clocks`; the same in nominative and accusative."""
    number, adjective, noun = draw_count(draw), draw_adjective(draw, "e"), draw.choice(words.THINGS)
    return Text(
        f"{number.english} {adjective.english} {noun.english}s",
        f"{number.german} {adjective.german} {noun.german_plural}",
    )


ORDERS = {  # of the words in a clause
    "bare": Text("{subject} {verb}", "{subject} {verb} {end}"),
    "statement": Text("{subject} {verb} {rest} {when}", "{subject} {verb} {when} {rest} {end}"),
    "question": Text("{do} {subject} {base} {rest} {when}", "{verb} {subject} {when} {rest} {end}"),
    "fronted": Text("{when}, {subject} {verb} {rest}", "{when} {verb} {subject} {rest} {end}"),
    "then": Text("{subject} {verb}", "{verb} {subject} {end}"),
    "subordinate": Text("{subject} {verb} {rest} {when}", "{subject} {when} {rest} {last}"),
}


def draw_clause(draw, order: str, tense: str | None = None, acts=words.ACTS) -> Text:
    """Somebody does something, or something happens, by default in any tense."""
    [(_, who, verbs, rest)] = draw.choices(acts, [act[0] for act in acts])
    tense = tense or draw.choice(words.TENSES)
    subject, when = fill(draw, draw.choice(words.TEXTS[who])), NOTHING
    if order == "fronted" or draw.random() < 0.6:
        when = fill(draw, draw.choice(words.TEXTS["past" if tense == "past" else "not_past"]))
    verb = conjugated(draw.choice(verbs), tense, words.FORMS.get(subject.english, 1))
    return fill(draw, ORDERS[order], subject=subject, rest=fill(draw, rest), when=when, **verb)


def conjugated(verb: Verb, tense: str, form: int) -> dict[str, tuple]:
    """The parts of a verb, by their blanks in ORDERS."""
    if tense == "present":
        first, _, particle = verb.english.partition(" ")
        third = words.THIRD.get(first, f"{first}s")
        english, do = (f"{third} {particle}", "does") if form == 1 else (verb.english, "do")
        german, end = (f"{verb.stem}e", verb.third, f"{verb.stem}en")[form], verb.prefix
    elif tense == "past":
        english, do = verb.past, "did"
        german, end = words.FINITE[verb.auxiliary][form], verb.prefix + verb.participle
    else:
        english, do = f"{tense} {verb.english}", tense
        german, end = words.FINITE[tense][form], f"{verb.prefix}{verb.stem}en"
    last = f"{end}{german}" if tense == "present" else f"{end} {german}"
    one_sided = {"do": (do, ""), "base": (verb.english, ""), "end": ("", end), "last": ("", last)}
    return {"verb": (english, german), **one_sided}


WRITERS = {  # of the blanks that take more than a choice
    **{order: functools.partial(draw_clause, order=order) for order in ORDERS},
    "present": lambda draw: draw_clause(draw, "subordinate", "present"),
    "says": lambda draw: draw_clause(draw, "bare", "present", words.SPEECH),
    "moves": lambda draw: draw_clause(draw, "bare", acts=words.MAIN),
    "then": lambda draw: draw_clause(draw, "then", draw.choice(["present", "will"]), words.MAIN),
    "nominative": lambda draw: draw_noun(draw, "nominative"),
    "accusative": lambda draw: draw_noun(draw, "accusative", determiners=words.DETERMINERS),
    "relative": lambda draw: draw_noun(draw, "nominative", words.FAMILY, words.POSSESSIVES),
    "receiver": lambda draw: draw_noun(draw, "dative", words.FAMILY, words.POSSESSIVES),
    "place_dative": lambda draw: draw_noun(draw, "dative", words.PLACES),
    "place_accusative": lambda draw: draw_noun(draw, "accusative", words.PLACES),
    "things": draw_things,
    "count": draw_count,
    "price": draw_price,
    "decimal": draw_decimal,
    "inhabitants": lambda draw: with_separators(draw.randrange(1_000, 4_000_000)),
    "spoken_time": draw_spoken_time,
    "digits": lambda draw: draw_moment(draw, "{hour}:{minute} {half}", "{hour}:{minute} {half}"),
    "ordinal": draw_ordinal,
    "month_day": lambda draw: draw_moment(draw, "{month} {day}", "{day}. {month}"),
    "date": lambda draw: draw_moment(draw, "{month} {day}, {year}", "{day}. {month} {year}"),
    "full_date": lambda draw: draw_moment(
        draw, "{weekday}, {month} {day}, {year}", "{weekday}, der {day}. {month} {year}"
    ),
}
