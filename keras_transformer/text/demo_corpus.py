"""English sentences and their German translations, made by rule, as many as wanted.

They are about dates, times, numbers, prices and quantities, which Babel and
num2words write in either language, and about who does what, where the grammars
differ: German puts the verb last in a subordinate clause, splits separable
verbs, turns subject and verb around after a fronted time, and bends articles
and adjectives by gender, number and case. An English sentence has exactly one
German answer, so a model that has learned the rules scores 100 % exact match on
sentences that it never saw.
"""

import datetime
import random
from typing import NamedTuple

from keras_transformer.text.corpora import ParallelText

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


class Phrase(NamedTuple):
    """The same words in both languages."""

    english: str
    german: str


class Noun(NamedTuple):
    english: str
    english_plural: str
    german: str
    german_plural: str
    gender: str  # masculine "m", feminine "f", neuter "n"


class Person(NamedTuple):
    """Somebody, or a thing that acts: what a clause needs of its subject."""

    english: str
    german: str
    form: int  # of the verb: 0 ich, 1 er, 2 wir
    english_object: str = ""
    dative: str = ""
    english_possessive: str = ""
    possessive: str = ""  # German, without its ending


class Verb(NamedTuple):
    base: str
    third: str
    past: str
    stem: str
    german_third: str
    participle: str
    prefix: str = ""  # what a main clause splits off: "kommt ... an"
    auxiliary: str = "haben"


class Clause(NamedTuple):
    """Who does what: everything but the order of the words."""

    subject: Person
    verb: Verb
    tense: str  # "present", "past" or an English modal verb
    when: Phrase
    near: Phrase  # what German puts before the time
    far: Phrase  # what German puts after it


_NOTHING = Phrase("", "")


def _table(kind, text: str) -> list:
    """A row a line, its cells in the order of the fields, "_" for a space inside a cell."""
    return [
        kind(*(cell.replace("_", " ").strip("-") for cell in row.split()))
        for row in text.strip().splitlines()
    ]


_NOUNS = _table(
    Noun,
    """
    apple apples Apfel Äpfel m
    bag bags Tasche Taschen f
    ball balls Ball Bälle m
    bicycle bicycles Fahrrad Fahrräder n
    book books Buch Bücher n
    bottle bottles Flasche Flaschen f
    cake cakes Kuchen Kuchen m
    car cars Auto Autos n
    chair chairs Stuhl Stühle m
    clock clocks Uhr Uhren f
    coat coats Mantel Mäntel m
    cup cups Tasse Tassen f
    egg eggs Ei Eier n
    flower flowers Blume Blumen f
    glass glasses Glas Gläser n
    hat hats Hut Hüte m
    key keys Schlüssel Schlüssel m
    knife knives Messer Messer n
    lamp lamps Lampe Lampen f
    letter letters Brief Briefe m
    newspaper newspapers Zeitung Zeitungen f
    picture pictures Bild Bilder n
    shirt shirts Hemd Hemden n
    table tables Tisch Tische m
    """,
)
_PLACES = _table(
    Noun,
    """
    table tables Tisch Tische m
    chair chairs Stuhl Stühle m
    cupboard cupboards Schrank Schränke m
    bed beds Bett Betten n
    sofa sofas Sofa Sofas n
    shelf shelves Regal Regale n
    box boxes Kiste Kisten f
    bench benches Bank Bänke f
    """,
)
_FAMILY = _table(
    Noun,
    """
    aunt aunts Tante Tanten f
    brother brothers Bruder Brüder m
    daughter daughters Tochter Töchter f
    father fathers Vater Väter m
    mother mothers Mutter Mütter f
    sister sisters Schwester Schwestern f
    son sons Sohn Söhne m
    uncle uncles Onkel Onkel m
    """,
)
_ADJECTIVES = _table(
    Phrase,
    """
    beautiful schön
    big groß
    blue blau
    cheap billig
    green grün
    heavy schwer
    new neu
    old alt
    red rot
    small klein
    """,
)
_PRONOUNS = [
    Person("I", "ich", 0, "me", "mir", "my", "mein"),
    Person("he", "er", 1, "him", "ihm", "his", "sein"),
    Person("she", "sie", 1, "her", "ihr", "her", "ihr"),
    Person("we", "wir", 2, "us", "uns", "our", "unser"),
    Person("they", "sie", 2, "them", "ihnen", "their", "ihr"),
]
_NAMES = [Person(n, n, 1, n, n, "her", "ihr") for n in ("Anna", "Julia", "Lena", "Maria")] + [
    Person(n, n, 1, n, n, "his", "sein") for n in ("Jonas", "Max", "Paul", "Peter")
]
_TRADE = _table(
    Verb,
    """
    bring_along brings_along brought_along bring bringt mitgebracht mit
    buy buys bought kauf kauft gekauft
    find finds found find findet gefunden
    give_back gives_back gave_back geb gibt zurückgegeben zurück
    lose loses lost verlier verliert verloren
    need needs needed brauch braucht gebraucht
    order orders ordered bestell bestellt bestellt
    pick_out picks_out picked_out such sucht ausgesucht aus
    pick_up picks_up picked_up hol holt abgeholt ab
    see sees saw seh sieht gesehen
    sell sells sold verkauf verkauft verkauft
    unpack unpacks unpacked pack packt ausgepackt aus
    """,
)
_GIVE = _table(
    Verb,
    """
    give gives gave geb gibt gegeben
    send sends sent schick schickt geschickt
    show shows showed zeig zeigt gezeigt
    """,
)
_MOVE = _table(
    Verb,
    """
    arrive arrives arrived komm kommt angekommen an sein
    come_back comes_back came_back komm kommt zurückgekommen zurück sein
    fall_asleep falls_asleep fell_asleep schlaf schläft eingeschlafen ein sein
    get_up gets_up got_up steh steht aufgestanden auf sein
    go_out goes_out went_out geh geht ausgegangen aus sein
    """,
)
_SAY = _table(
    Verb,
    """
    believe believes believed glaub glaubt geglaubt
    hope hopes hoped hoff hofft gehofft
    say says said sag sagt gesagt
    think thinks thought denk denkt gedacht
    """,
)
_PAY = Verb("pay", "pays", "paid", "zahl", "zahlt", "gezahlt")
_LAY = Verb("lay", "lays", "laid", "leg", "legt", "gelegt")
_TRAVEL = Verb("travel", "travels", "traveled", "fahr", "fährt", "gefahren", "", "sein")
_ARRIVE = _MOVE[0]
_LEAVE = Verb("leave", "leaves", "left", "fahr", "fährt", "abgefahren", "ab", "sein")
_BEGIN = Verb("begin", "begins", "began", "fang", "fängt", "angefangen", "an")
_END = Verb("end", "ends", "ended", "hör", "hört", "aufgehört", "auf")
_OPEN = Verb("open", "opens", "opened", "mach", "macht", "aufgemacht", "auf")
_CLOSE = Verb("close", "closes", "closed", "mach", "macht", "zugemacht", "zu")
_RISE = Verb("rise", "rises", "rose", "steig", "steigt", "gestiegen", "", "sein")
_FALL = Verb("fall", "falls", "fell", "fall", "fällt", "gefallen", "", "sein")
_EVENTS = [
    (Person("the train", "der Zug", 1), (_ARRIVE, _LEAVE)),
    (Person("the bus", "der Bus", 1), (_ARRIVE, _LEAVE)),
    (Person("the film", "der Film", 1), (_BEGIN, _END)),
    (Person("the concert", "das Konzert", 1), (_BEGIN, _END)),
    (Person("the school", "die Schule", 1), (_BEGIN, _END)),
    (Person("the museum", "das Museum", 1), (_OPEN, _CLOSE)),
    (Person("the shop", "das Geschäft", 1), (_OPEN, _CLOSE)),
]
_AUXILIARIES = {"haben": ("habe", "hat", "haben"), "sein": ("bin", "ist", "sind")}
_MODALS = {
    "can": ("kann", "kann", "können"),
    "must": ("muss", "muss", "müssen"),
    "should": ("soll", "soll", "sollen"),
    "will": ("werde", "wird", "werden"),
}
_BE = ("am", "is", "are")
_CITIES = _table(
    Phrase,
    """
    Berlin Berlin
    Cologne Köln
    Geneva Genf
    Hamburg Hamburg
    Munich München
    Prague Prag
    Rome Rom
    Vienna Wien
    """,
)
_VEHICLES = [Phrase("train", "Zug"), Phrase("bus", "Bus"), Phrase("car", "Auto")]
_PREPOSITIONS = _table(
    Phrase,
    """
    behind hinter
    in_front_of vor
    next_to neben
    on auf
    under unter
    """,
)
_FEELINGS = _table(
    Phrase,
    """
    angry wütend
    happy glücklich
    sad traurig
    tired müde
    """,
)
