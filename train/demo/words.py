"""The words of the demonstration corpus: English, German, and what bends them."""

from typing import NamedTuple


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


def _table(kind, text: str) -> list:
    """A row a line, its cells in the order of the fields, "_" for a space inside a cell."""
    return [
        kind(*(cell.replace("_", " ") for cell in row.split())) for row in text.strip().splitlines()
    ]


NOUNS = _table(
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
PLACES = _table(
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
FAMILY = _table(
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
ADJECTIVES = _table(
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
I = Person("I", "ich", 0, "me", "mir", "my", "mein")  # noqa: E741
WE = Person("we", "wir", 2, "us", "uns", "our", "unser")
PRONOUNS = [
    I,
    WE,
    Person("he", "er", 1, "him", "ihm", "his", "sein"),
    Person("she", "sie", 1, "her", "ihr", "her", "ihr"),
    Person("they", "sie", 2, "them", "ihnen", "their", "ihr"),
]
NAMES = [Person(n, n, 1, n, n, "her", "ihr") for n in ("Anna", "Julia", "Lena", "Maria")] + [
    Person(n, n, 1, n, n, "his", "sein") for n in ("Jonas", "Max", "Paul", "Peter")
]
TRADE = _table(
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
SUPPLY = [verb for verb in TRADE if verb.base in ("bring along", "buy", "need", "order", "sell")]
GIVE = _table(
    Verb,
    """
    give gives gave geb gibt gegeben
    send sends sent schick schickt geschickt
    show shows showed zeig zeigt gezeigt
    """,
)
MOVE = _table(
    Verb,
    """
    arrive arrives arrived komm kommt angekommen an sein
    come_back comes_back came_back komm kommt zurückgekommen zurück sein
    fall_asleep falls_asleep fell_asleep schlaf schläft eingeschlafen ein sein
    get_up gets_up got_up steh steht aufgestanden auf sein
    go_out goes_out went_out geh geht ausgegangen aus sein
    """,
)
SAY = _table(
    Verb,
    """
    believe believes believed glaub glaubt geglaubt
    hope hopes hoped hoff hofft gehofft
    say says said sag sagt gesagt
    think thinks thought denk denkt gedacht
    """,
)
PAY = Verb("pay", "pays", "paid", "zahl", "zahlt", "gezahlt")
LAY = Verb("lay", "lays", "laid", "leg", "legt", "gelegt")
TRAVEL = Verb("travel", "travels", "traveled", "fahr", "fährt", "gefahren", "", "sein")
ARRIVE = MOVE[0]
LEAVE = Verb("leave", "leaves", "left", "fahr", "fährt", "abgefahren", "ab", "sein")
BEGIN = Verb("begin", "begins", "began", "fang", "fängt", "angefangen", "an")
END = Verb("end", "ends", "ended", "hör", "hört", "aufgehört", "auf")
OPEN = Verb("open", "opens", "opened", "mach", "macht", "aufgemacht", "auf")
CLOSE = Verb("close", "closes", "closed", "mach", "macht", "zugemacht", "zu")
RISE = Verb("rise", "rises", "rose", "steig", "steigt", "gestiegen", "", "sein")
FALL = Verb("fall", "falls", "fell", "fall", "fällt", "gefallen", "", "sein")
EVENTS = [
    (Person("the train", "der Zug", 1), (ARRIVE, LEAVE)),
    (Person("the bus", "der Bus", 1), (ARRIVE, LEAVE)),
    (Person("the film", "der Film", 1), (BEGIN, END)),
    (Person("the concert", "das Konzert", 1), (BEGIN, END)),
    (Person("the school", "die Schule", 1), (BEGIN, END)),
    (Person("the museum", "das Museum", 1), (OPEN, CLOSE)),
    (Person("the shop", "das Geschäft", 1), (OPEN, CLOSE)),
]
AUXILIARIES = {"haben": ("habe", "hat", "haben"), "sein": ("bin", "ist", "sind")}
MODALS = {
    "can": ("kann", "kann", "können"),
    "must": ("muss", "muss", "müssen"),
    "should": ("soll", "soll", "sollen"),
    "will": ("werde", "wird", "werden"),
}
BE = Phrase(("am", "is", "are"), ("bin", "ist", "sind"))
CITIES = _table(
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
VEHICLES = [Phrase("train", "Zug"), Phrase("bus", "Bus"), Phrase("car", "Auto")]
PREPOSITIONS = _table(
    Phrase,
    """
    behind hinter
    in_front_of vor
    next_to neben
    on auf
    under unter
    """,
)
FEELINGS = _table(
    Phrase,
    """
    angry wütend
    happy glücklich
    sad traurig
    tired müde
    """,
)
MEASURES = [
    (
        Phrase("kilograms", "Kilogramm"),
        [
            Phrase("flour", "Mehl"),
            Phrase("potatoes", "Kartoffeln"),
            Phrase("rice", "Reis"),
            Phrase("sugar", "Zucker"),
        ],
    ),
    (
        Phrase("liters", "Liter"),
        [Phrase("juice", "Saft"), Phrase("milk", "Milch"), Phrase("water", "Wasser")],
    ),
]
PRICES = [Person("the price", "der Preis", 1), Person("the rent", "die Miete", 1)]
PARTS_OF_DAY = [
    Phrase("morning", "morgen"),
    Phrase("afternoon", "nachmittag"),
    Phrase("evening", "abend"),
]
PAST_TIMES = [
    Phrase("yesterday", "gestern"),
    Phrase("yesterday evening", "gestern Abend"),
    Phrase("last week", "letzte Woche"),
    Phrase("last year", "letztes Jahr"),
]
OTHER_TIMES = [
    Phrase("today", "heute"),
    Phrase("tomorrow", "morgen"),
    Phrase("tomorrow evening", "morgen Abend"),
    Phrase("next week", "nächste Woche"),
    Phrase("every day", "jeden Tag"),
]
CLOCK = [  # every five minutes
    Phrase("{this} o'clock", "{this} Uhr"),
    Phrase("five past {this}", "fünf nach {this}"),
    Phrase("ten past {this}", "zehn nach {this}"),
    Phrase("quarter past {this}", "Viertel nach {this}"),
    Phrase("twenty past {this}", "zwanzig nach {this}"),
    Phrase("twenty-five past {this}", "fünf vor halb {next}"),
    Phrase("half past {this}", "halb {next}"),
    Phrase("twenty-five to {next}", "fünf nach halb {next}"),
    Phrase("twenty to {next}", "zwanzig vor {next}"),
    Phrase("quarter to {next}", "Viertel vor {next}"),
    Phrase("ten to {next}", "zehn vor {next}"),
    Phrase("five to {next}", "fünf vor {next}"),
]
DAYS = [
    Phrase("yesterday was", "gestern war"),
    Phrase("today is", "heute ist"),
    Phrase("tomorrow is", "morgen ist"),
]
