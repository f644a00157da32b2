"""The rules of the demonstration corpus: order of words, and what bends with what."""

from typing import NamedTuple

from . import words
from .words import Noun, Person, Phrase, Verb


class Clause(NamedTuple):
    """Who does what: everything but the order of the words."""

    subject: Person
    verb: Verb
    tense: str  # "present", "past" or an English modal verb
    when: Phrase
    near: Phrase  # what German puts before the time
    far: Phrase  # what German puts after it


NOTHING = Phrase("", "")
A = Phrase("a", "ein")


def english(clause: Clause) -> str:
    subject, verb, tense, when, near, far = clause
    statement = {
        "present": verb.third if subject.form == 1 else verb.base,
        "past": verb.past,
    }.get(tense, f"{tense} {verb.base}")
    return join(subject.english, statement, near.english, far.english, when.english)


def english_question(clause: Clause) -> str:
    subject, verb, tense, when, near, far = clause
    auxiliary = {"present": "does" if subject.form == 1 else "do", "past": "did"}.get(tense, tense)
    return join(auxiliary, subject.english, verb.base, near.english, far.english, when.english)


def _german_verb(clause: Clause) -> tuple[str, str]:
    """The part that bends, and the part that stays at the end of the clause."""
    verb, form = clause.verb, clause.subject.form
    if clause.tense == "present":
        return (f"{verb.stem}e", verb.german_third, f"{verb.stem}en")[form], verb.prefix
    if clause.tense == "past":
        return words.AUXILIARIES[verb.auxiliary][form], verb.participle
    return words.MODALS[clause.tense][form], f"{verb.prefix}{verb.stem}en"


def german(clause: Clause) -> str:
    """Verb second: `Anna holt am Montag drei Bilder ab`."""
    bent, end = _german_verb(clause)
    rest = clause.near.german, clause.when.german, clause.far.german, end
    return join(clause.subject.german, bent, *rest)


def german_fronted(clause: Clause) -> str:
    """Still verb second, after the time: `Am Montag holt Anna drei Bilder ab`."""
    bent, end = _german_verb(clause)
    rest = clause.near.german, clause.far.german, end
    return join(clause.when.german, bent, clause.subject.german, *rest)


def german_question(clause: Clause) -> str:
    """Verb first: `holt Anna am Montag drei Bilder ab`."""
    bent, end = _german_verb(clause)
    rest = clause.near.german, clause.when.german, clause.far.german, end
    return join(bent, clause.subject.german, *rest)


def german_subordinate(clause: Clause) -> str:
    """Verb last: `Anna am Montag drei Bilder abholt`, `... abgeholt hat`."""
    bent, end = _german_verb(clause)
    last = end + bent if clause.tense == "present" else f"{end} {bent}"
    rest = clause.near.german, clause.when.german, clause.far.german, last
    return join(clause.subject.german, *rest)


_THE = {
    "nominative": {"m": "der", "f": "die", "n": "das"},
    "accusative": {"m": "den", "f": "die", "n": "das"},
    "dative": {"m": "dem", "f": "der", "n": "dem"},
}
_ENDINGS = {  # of ein, kein, mein, sein, ihr, unser
    "nominative": {"m": "", "f": "e", "n": ""},
    "accusative": {"m": "en", "f": "e", "n": ""},
    "dative": {"m": "em", "f": "er", "n": "em"},
}


def _bent(adjective: Phrase, ending: str) -> str:
    return adjective.german + ending if adjective.german else ""


def the(noun: Noun, case: str, adjective: Phrase) -> Phrase:
    """`the red coat`: `der rote Mantel`, `den roten Mantel`, `dem roten Mantel`."""
    article = _THE[case][noun.gender]
    bent = _bent(adjective, "en" if article in ("den", "dem") or case == "dative" else "e")
    return Phrase(join("the", adjective.english, noun.english), join(article, bent, noun.german))


def a(noun: Noun, case: str, adjective: Phrase, determiner: Phrase = A) -> Phrase:
    """`a red coat`; or with a determiner that bends like `ein`: no, my, her."""
    ending = _ENDINGS[case][noun.gender]
    # Where the article shows no gender, the adjective must.
    shown = {"": {"m": "er", "n": "es"}.get(noun.gender), "e": "e"}.get(ending, "en")
    english = join(adjective.english, noun.english)
    article = "an" if determiner.english == "a" and english[0] in "aeiou" else determiner.english
    return Phrase(
        join(article, english),
        join(determiner.german + ending, _bent(adjective, shown), noun.german),
    )


def several(count: Phrase, noun: Noun, adjective: Phrase) -> Phrase:
    """`three old clocks`; the same in nominative and accusative."""
    return Phrase(
        join(count.english, adjective.english, noun.english_plural),
        join(count.german, _bent(adjective, "e"), noun.german_plural),
    )


def relative(owner: Person, noun: Noun) -> Person:
    """`her sister`, who may act and receive."""
    owned = Phrase(owner.english_possessive, owner.possessive)
    english, nominative = a(noun, "nominative", NOTHING, owned)
    dative = a(noun, "dative", NOTHING, owned).german
    theirs = ("her", "ihr") if noun.gender == "f" else ("his", "sein")
    return Person(english, nominative, 1, english, dative, *theirs)


def parents(owner: Person) -> Person:
    """`her parents`, who have no singular."""
    english = f"{owner.english_possessive} parents"
    nominative, dative = f"{owner.possessive}e Eltern", f"{owner.possessive}en Eltern"
    return Person(english, nominative, 2, english, dative, "their", "ihr")


def join(*parts: str) -> str:
    """The parts that are not empty, with a space between them."""
    return " ".join(filter(None, parts))
