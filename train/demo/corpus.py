"""English sentences and their German translations, made by rule, as many as wanted.

They are about dates, times, numbers, prices and quantities, which Babel and
num2words write in either language, and about who does what, where the grammars
differ: German puts the verb last in a subordinate clause, splits separable
verbs, turns subject and verb around after a fronted time, and bends articles
and adjectives by gender, number and case. An English sentence has exactly one
German answer, so a model that has learned the rules scores 100 % exact match on
sentences that it never saw.
"""

import importlib.util
import random

from keras_transformer.data.corpora import ParallelText

from . import clauses, grammar, numbers, words
from .grammar import NOTHING, Clause, join
from .words import Person, Phrase

# Many more can be made, but from here on repeated draws would make it slow.
MAX_PAIRS = 1_000_000


def demo_corpus(num_pairs: int, seed: int = 0) -> ParallelText:
    """Makes distinct pairs: no sentence of either language occurs twice.

    Needs the packages Babel and num2words.

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
    _require_packages()
    draw = random.Random(seed)
    sources, targets = {}, {}  # dicts as ordered sets
    while len(sources) < num_pairs:
        [template] = draw.choices(list(_TEMPLATES), _TEMPLATES.values())
        source, target = map(_written, template(draw))
        if source not in sources and target not in targets:
            sources[source] = targets[target] = None
    return ParallelText(list(sources), list(targets))


def demo_split(
    num_train: int, num_heldout: int, seed: int = 0
) -> tuple[ParallelText, ParallelText]:
    """Makes a training and a held-out corpus that share no sentence in either language.

    Args:
        num_train: pairs to train on, at least 1.
        num_heldout: pairs held out, at least 1.
        seed: an integer that fixes the sentences.

    Returns:
        The two corpora.

    Raises:
        ValueError: if either is smaller than 1 or both together are more than
            1,000,000.

    Example:
        >>> train, heldout = demo_split(num_train=5, num_heldout=3)
        >>> len(train.sources), len(heldout.sources)
        (5, 3)
    """
    if num_train < 1 or num_heldout < 1:
        raise ValueError(
            "Both corpora need at least one pair. "
            f"Received: num_train={num_train}, num_heldout={num_heldout}."
        )
    sources, targets = demo_corpus(num_train + num_heldout, seed)
    return (
        ParallelText(sources[:num_train], targets[:num_train]),
        ParallelText(sources[num_train:], targets[num_train:]),
    )


def _require_packages() -> None:
    missing = [name for name in ("babel", "num2words") if not importlib.util.find_spec(name)]
    if missing:
        raise ImportError(
            "The demonstration corpus needs Babel and num2words: pip install babel num2words. "
            f"Missing: {', '.join(missing)}."
        )


def _written(text: str) -> str:
    """As a sentence: capital first, and plain spaces where Babel writes unbreakable ones."""
    text = text.replace("\N{NO-BREAK SPACE}", " ").replace("\N{NARROW NO-BREAK SPACE}", " ")
    return text[0].upper() + text[1:]


def _statement(draw) -> Phrase:
    clause = clauses.draw_clause(draw)
    return Phrase(f"{grammar.english(clause)}.", f"{grammar.german(clause)}.")


def _fronted(draw) -> Phrase:
    clause = clauses.draw_clause(draw)
    if clause.when == NOTHING:
        return _fronted(draw)
    later = grammar.english(clause._replace(when=NOTHING))
    return Phrase(f"{clause.when.english}, {later}.", f"{grammar.german_fronted(clause)}.")


def _question(draw) -> Phrase:
    clause = clauses.draw_clause(draw)
    return Phrase(f"{grammar.english_question(clause)}?", f"{grammar.german_question(clause)}?")


def _reported(draw) -> Phrase:
    speaker = draw.choice((*words.PRONOUNS, *words.NAMES))
    says = Clause(speaker, draw.choice(words.SAY), "present", NOTHING, NOTHING, NOTHING)
    clause = clauses.draw_clause(draw, other=speaker)
    return Phrase(
        f"{grammar.english(says)} that {grammar.english(clause)}.",
        f"{grammar.german(says)}, dass {grammar.german_subordinate(clause)}.",
    )


def _reason(draw) -> Phrase:
    person, feeling = clauses.draw_person(draw), draw.choice(words.FEELINGS)
    clause = clauses.draw_clause(draw, other=person)
    return Phrase(
        join(_is(person).english, feeling.english, "because", f"{grammar.english(clause)}."),
        f"{_is(person).german} {feeling.german}, weil {grammar.german_subordinate(clause)}.",
    )


def _condition(draw) -> Phrase:
    """The verb of the main clause comes first after a subordinate clause: `..., ist Anna`."""
    person, feeling = clauses.draw_person(draw), draw.choice(words.FEELINGS)
    clause = clauses.draw_clause(draw, tense="present", other=person)
    verb = words.BE.german[person.form]
    return Phrase(
        f"if {grammar.english(clause)}, {_is(person).english} {feeling.english}.",
        f"wenn {grammar.german_subordinate(clause)}, {verb} {person.german} {feeling.german}.",
    )


def _is(person: Person) -> Phrase:
    return Phrase(
        f"{person.english} {words.BE.english[person.form]}",
        f"{person.german} {words.BE.german[person.form]}",
    )


def _cost(draw) -> Phrase:
    noun, adjective, price = (
        draw.choice(words.NOUNS),
        clauses.draw_adjective(draw),
        numbers.price(draw),
    )
    if draw.random() < 0.4:
        goods = grammar.several(numbers.count(draw.randrange(2, 100)), noun, adjective)
        return Phrase(
            f"{goods.english} cost {price.english}.", f"{goods.german} kosten {price.german}."
        )
    good = draw.choice((grammar.the, grammar.a))(noun, "nominative", adjective)
    return Phrase(f"{good.english} costs {price.english}.", f"{good.german} kostet {price.german}.")


def _place(draw) -> Phrase:
    thing = grammar.the(draw.choice(words.NOUNS), "nominative", clauses.draw_adjective(draw))
    preposition = draw.choice(words.PREPOSITIONS)
    place = grammar.the(draw.choice(words.PLACES), "dative", clauses.draw_adjective(draw))
    return Phrase(
        f"{thing.english} is {preposition.english} {place.english}.",
        f"{thing.german} ist {preposition.german} {place.german}.",
    )


def _time(draw) -> Phrase:
    clock = numbers.clock(draw)
    return Phrase(f"it is {clock.english}.", f"es ist {clock.german}.")


def _hours(draw) -> Phrase:
    first, last = numbers.clock(draw), numbers.clock(draw)
    return Phrase(
        f"the museum is open from {first.english} until {last.english}.",
        f"das Museum ist von {first.german} bis {last.german} geöffnet.",
    )


def _today(draw) -> Phrase:
    today = draw.choice(words.DAYS)
    date = numbers.date(numbers.day(draw), "full", "EEEE, 'der' d. MMMM y")
    return Phrase(f"{today.english} {date.english}.", f"{today.german} {date.german}.")


def _born(draw) -> Phrase:
    person, date = clauses.draw_person(draw), numbers.date(numbers.day(draw), "long", "long")
    was = "were" if person.form == 2 else "was"
    wurde = "wurden" if person.form == 2 else "wurde"
    return Phrase(
        f"{person.english} {was} born on {date.english}.",
        f"{person.german} {wurde} am {date.german} geboren.",
    )


def _age(draw) -> Phrase:
    person, years = _is(clauses.draw_person(draw)), numbers.count(draw.randrange(2, 100))
    return Phrase(
        f"{person.english} {years.english} years old.", f"{person.german} {years.german} Jahre alt."
    )


def _inhabitants(draw) -> Phrase:
    city, people = draw.choice(words.CITIES), numbers.decimal(draw.randrange(1_000, 4_000_000))
    return Phrase(
        f"{city.english} has {people.english} inhabitants.",
        f"{city.german} hat {people.german} Einwohner.",
    )


# How often each is drawn, in parts of the sum.
_TEMPLATES = {
    _statement: 20,
    _fronted: 10,
    _question: 8,
    _reported: 10,
    _reason: 8,
    _condition: 6,
    _cost: 8,
    _place: 5,
    _time: 2,
    _hours: 3,
    _today: 3,
    _born: 5,
    _age: 4,
    _inhabitants: 3,
}
