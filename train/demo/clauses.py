"""What happens in a demo sentence: persons, things and what they do, drawn at random."""

from . import grammar, numbers, words
from .grammar import NOTHING, Clause, join
from .words import Person, Phrase


def draw_adjective(draw) -> Phrase:
    return draw.choice(words.ADJECTIVES) if draw.random() < 0.4 else NOTHING


def _relative(draw, owner: Person) -> Person:
    if draw.random() < 0.15:
        return grammar.parents(owner)
    return grammar.relative(owner, draw.choice(words.FAMILY))


def draw_person(draw, other: Person | None = None) -> Person:
    """A pronoun, a name or one of my or our family, but not the other."""
    kind = draw.randrange(3)
    if kind == 0:
        person = draw.choice(words.PRONOUNS)
    elif kind == 1:
        person = draw.choice(words.NAMES)
    else:
        person = _relative(draw, draw.choice((words.I, words.WE)))
    return draw_person(draw, other) if person == other else person


def _object(draw) -> Phrase:
    noun, adjective = draw.choice(words.NOUNS), draw_adjective(draw)
    kind = draw.randrange(5)
    if kind == 0:
        return grammar.the(noun, "accusative", adjective)
    if kind == 1:
        return grammar.a(noun, "accusative", adjective)
    if kind == 2:
        return grammar.a(noun, "accusative", adjective, Phrase("no", "kein"))
    return grammar.several(numbers.count(draw.randrange(2, 100)), noun, adjective)


def _measure(draw) -> Phrase:
    """`2.5 kilograms of flour`."""
    (english, german), goods = draw.choice(words.MEASURES)
    amount, good = numbers.decimal(draw.randrange(11, 100) / 10), draw.choice(goods)
    return Phrase(
        f"{amount.english} {english} of {good.english}", f"{amount.german} {german} {good.german}"
    )


# What somebody does, or what happens


def _trade(draw, subject: Person, tense: str) -> Clause:
    when = numbers.when(draw, tense) if draw.random() < 0.7 else NOTHING
    if draw.random() < 0.15:
        return Clause(subject, draw.choice(words.SUPPLY), tense, when, NOTHING, _measure(draw))
    return Clause(subject, draw.choice(words.TRADE), tense, when, NOTHING, _object(draw))


def _give(draw, subject: Person, tense: str) -> Clause:
    receiver = _relative(draw, subject) if draw.random() < 0.5 else draw_person(draw, other=subject)
    near = Phrase(receiver.english_object, receiver.dative)
    when = numbers.when(draw, tense) if draw.random() < 0.3 else NOTHING
    return Clause(subject, draw.choice(words.GIVE), tense, when, near, _object(draw))


def _move(draw, subject: Person, tense: str) -> Clause:
    when = numbers.when(draw, tense)
    return Clause(subject, draw.choice(words.MOVE), tense, when, NOTHING, NOTHING)


def _pay(draw, subject: Person, tense: str) -> Clause:
    price = numbers.price(draw)
    good = grammar.a(draw.choice(words.NOUNS), "accusative", draw_adjective(draw))
    far = Phrase(f"{price.english} for {good.english}", f"{price.german} für {good.german}")
    return Clause(subject, words.PAY, tense, NOTHING, NOTHING, far)


def _lay(draw, subject: Person, tense: str) -> Clause:
    """Where to is accusative; `_place` says where, which is dative."""
    thing = grammar.the(draw.choice(words.NOUNS), "accusative", draw_adjective(draw))
    preposition = draw.choice(words.PREPOSITIONS)
    place = grammar.the(draw.choice(words.PLACES), "accusative", draw_adjective(draw))
    far = Phrase(
        join(thing.english, preposition.english, place.english),
        join(thing.german, preposition.german, place.german),
    )
    return Clause(subject, words.LAY, tense, NOTHING, NOTHING, far)


def _travel(draw, subject: Person, tense: str) -> Clause:
    city = draw.choice(words.CITIES)
    if draw.random() < 0.5:
        how = Phrase("by {0}", "mit dem {0}"), draw.choice(words.VEHICLES)
    else:
        companion = _relative(draw, subject)
        how = Phrase("with {0}", "mit {0}"), Phrase(companion.english_object, companion.dative)
    far = Phrase(
        join("to", city.english, how[0].english.format(how[1].english)),
        join(how[0].german.format(how[1].german), "nach", city.german),
    )
    return Clause(subject, words.TRAVEL, tense, numbers.when(draw, tense), NOTHING, far)


def _event(draw, tense: str) -> Clause:
    thing, verbs = draw.choice(words.EVENTS)
    verb, when, far = draw.choice(verbs), numbers.at(draw), NOTHING
    if verb == words.LEAVE and draw.random() < 0.5:
        platform = draw.randrange(1, 30)
        far = Phrase(f"from platform {platform}", f"von Gleis {platform}")
    return Clause(thing, verb, tense, when, NOTHING, far)


def _change(draw, tense: str) -> Clause:
    percent = numbers.percent(draw.randrange(1, 500) / 1000)
    far = Phrase(f"by {percent.english}", f"um {percent.german}")
    verb, when = draw.choice((words.RISE, words.FALL)), numbers.when(draw, tense)
    return Clause(draw.choice(words.PRICES), verb, tense, when, NOTHING, far)


def draw_clause(draw, tense: str | None = None, other: Person | None = None) -> Clause:
    """Something happens, or somebody, not the other, does something."""
    tense = tense or draw.choice(("present", "present", "past", "past", *words.MODALS))
    if draw.random() < 0.25:
        return draw.choice((_event, _event, _change))(draw, tense)
    act = draw.choice((_trade, _trade, _trade, _give, _give, _move, _pay, _lay, _travel))
    return act(draw, draw_person(draw, other), tense)
