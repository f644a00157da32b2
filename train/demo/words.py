"""What the sentences of the demo corpus are made of, in both languages.

A name in braces is a blank, which `corpus.py` fills: with one of `TEXTS`, or by its `WRITERS`.
"""

import functools
import re
from typing import NamedTuple


class Text(NamedTuple):
    """The same in both languages."""

    english: str
    german: str


class Noun(NamedTuple):
    english: str  # whose plural is regular
    gender: str  # der, die or das
    german: str
    german_plural: str = ""  # "" where the corpus needs none


class Verb(NamedTuple):
    english: str
    past: str
    stem: str  # German from here on
    third: str  # person: "er bringt"
    participle: str  # without the prefix
    prefix: str = ""  # what a main clause splits off: "kommt ... an"
    auxiliary: str = "haben"


def _rows(kind, table: str, separator: str = ",") -> list:
    """The rows of a table, each on a line of its own or between semicolons."""
    rows = [row for row in re.split("[;\n]", table) if row.strip()]
    return [kind(*map(str.strip, row.split(separator))) for row in rows]


def _texts(table: str) -> list[Text]:
    """Rows of `English = German`, or of what is the same in both."""
    return _rows(lambda *sides: Text(sides[0], sides[-1]), table, "=")


_nouns, _verbs = functools.partial(_rows, Noun), functools.partial(_rows, Verb)


THINGS = _nouns("""
    apple, der, Apfel, Äpfel; bag, die, Tasche, Taschen; ball, der, Ball, Bälle
    bicycle, das, Fahrrad, Fahrräder; book, das, Buch, Bücher; bottle, die, Flasche, Flaschen
    cake, der, Kuchen, Kuchen; car, das, Auto, Autos; clock, die, Uhr, Uhren
    coat, der, Mantel, Mäntel; cup, die, Tasse, Tassen; egg, das, Ei, Eier
    flower, die, Blume, Blumen; hat, der, Hut, Hüte; key, der, Schlüssel, Schlüssel
    lamp, die, Lampe, Lampen; letter, der, Brief, Briefe; newspaper, die, Zeitung, Zeitungen
    pear, die, Birne, Birnen; picture, das, Bild, Bilder; ring, der, Ring, Ringe
    shirt, das, Hemd, Hemden; towel, das, Handtuch, Handtücher; wheel, das, Rad, Räder
""")
PLACES = _nouns("""
    bed, das, Bett; bench, die, Bank; box, die, Kiste; chair, der, Stuhl
    cupboard, der, Schrank; shelf, das, Regal; sofa, das, Sofa; table, der, Tisch
""")
FAMILY = _nouns("""
    aunt, die, Tante; brother, der, Bruder; daughter, die, Tochter; father, der, Vater
    mother, die, Mutter; sister, die, Schwester; son, der, Sohn; uncle, der, Onkel
""")
THE = Text("the", "der")
POSSESSIVES = _texts("my = mein; our = unser; his = sein; her = ihr; their = ihr")
DETERMINERS = [THE, *_texts("a = ein; no = kein; one = ein; 1 = ein"), *POSSESSIVES]
NOTHING = Text("", "")
ADJECTIVES = _texts("""
    beautiful = schön; big = groß; blue = blau; cheap = billig; green = grün
    heavy = schwer; new = neu; old = alt; red = rot; small = klein
""")
TRADE = _verbs("""
    bring along, brought along, bring, bringt, gebracht, mit
    buy, bought, kauf, kauft, gekauft
    find, found, find, findet, gefunden
    give back, gave back, geb, gibt, gegeben, zurück
    have, had, hab, hat, gehabt
    need, needed, brauch, braucht, gebraucht
    pick out, picked out, such, sucht, gesucht, aus
    pick up, picked up, hol, holt, geholt, ab
    sell, sold, verkauf, verkauft, verkauft
""")
GIVE = _verbs("give, gave, geb, gibt, gegeben; show, showed, zeig, zeigt, gezeigt")
MOVE = _verbs("""
    come back, came back, komm, kommt, gekommen, zurück, sein
    fall asleep, fell asleep, schlaf, schläft, geschlafen, ein, sein
    get up, got up, steh, steht, gestanden, auf, sein
    wake up, woke up, wach, wacht, gewacht, auf, sein
""")
SAY = _verbs("hope, hoped, hoff, hofft, gehofft; think, thought, denk, denkt, gedacht")
PAY, LAY, TRAVEL, ARRIVE, LEAVE, BEGIN, END, OPEN, CLOSE = _verbs("""
    pay, paid, zahl, zahlt, gezahlt; lay, laid, leg, legt, gelegt
    travel, traveled, fahr, fährt, gefahren, , sein
    arrive, arrived, komm, kommt, gekommen, an, sein; leave, left, fahr, fährt, gefahren, ab, sein
    begin, began, fang, fängt, gefangen, an; end, ended, hör, hört, gehört, auf
    open, opened, mach, macht, gemacht, auf; close, closed, mach, macht, gemacht, zu
""")
THIRD = {"have": "has"}  # person of English verbs that do not just add an s
FORMS = {"I": 0, "we": 2, "they": 2}  # of the verb: 0 ich, 1 er, 2 wir; all others are 1
FINITE = {  # verbs that send another verb to the end of the clause
    "haben": ("habe", "hat", "haben"),
    "sein": ("bin", "ist", "sind"),
    "can": ("kann", "kann", "können"),
    "must": ("muss", "muss", "müssen"),
    "should": ("sollte", "sollte", "sollten"),
    "will": ("werde", "wird", "werden"),
}
TENSES = ["present", "present", "past", "past", "can", "must", "should", "will"]

ACTS = [  # how often, who, does what, and what belongs to it
    (9, "person", TRADE, Text("{object}", "{object}")),
    (6, "person", GIVE, Text("{receiver} {object}", "{receiver} {object}")),
    (3, "person", MOVE, NOTHING),
    (3, "person", [PAY], Text("{price} for {accusative}", "{price} für {accusative}")),
    (3, "person", [LAY], Text("{accusative} {to_place}", "{accusative} {to_place}")),
    (3, "person", [TRAVEL], Text("to {city} {company}", "{company} nach {city}")),
    (2, "transport", [ARRIVE, LEAVE], NOTHING),
    (2, "show", [BEGIN, END], NOTHING),
    (2, "house", [OPEN, CLOSE], NOTHING),
]
MAIN, SPEECH = [(1, "speaker", MOVE, NOTHING)], [(1, "speaker", SAY, NOTHING)]
SENTENCES = {  # and how often
    Text("{statement}.", "{statement}."): 20,
    Text("{fronted}.", "{fronted}."): 10,
    Text("{question}?", "{question}?"): 8,
    Text("{says} that {subordinate}.", "{says}, dass {subordinate}."): 10,
    Text("{moves} because {subordinate}.", "{moves}, weil {subordinate}."): 8,
    Text("if {present}, {then}.", "wenn {present}, {then}."): 6,
    Text("{nominative} costs {price}.", "{nominative} kostet {price}."): 5,
    Text("{things} cost {price}.", "{things} kosten {price}."): 4,
    Text("{nominative} is {at_place}.", "{nominative} ist {at_place}."): 5,
    Text("it is {clock}.", "es ist {clock}."): 2,
    Text("{house} is open until {clock}.", "{house} ist bis {clock} geöffnet."): 3,
    Text("{house} is {count} years old.", "{house} ist {count} Jahre alt."): 3,
    Text("{house} was built on {date}.", "{house} wurde am {date} gebaut."): 4,
    Text("{today} {full_date}.", "{today} {full_date}."): 3,
    Text("{city} has {inhabitants} inhabitants.", "{city} hat {inhabitants} Einwohner."): 3,
}
NUMBERS = _texts("""
    zero = null; one = eins; two = zwei; three = drei; four = vier; five = fünf; six = sechs
    seven = sieben; eight = acht; nine = neun; ten = zehn; eleven = elf; twelve = zwölf
    thirteen = dreizehn; fourteen = vierzehn; fifteen = fünfzehn; sixteen = sechzehn
    seventeen = siebzehn; eighteen = achtzehn; nineteen = neunzehn
""")
TENS = dict(
    enumerate("zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig hundert".split(), 2)
)
ORDINALS = _texts("""
    first = erste; second = zweite; third = dritte; fourth = vierte; fifth = fünfte
    sixth = sechste; seventh = siebte; eighth = achte; ninth = neunte; tenth = zehnte
    eleventh = elfte; twelfth = zwölfte; thirteenth = dreizehnte; fourteenth = vierzehnte
    fifteenth = fünfzehnte; sixteenth = sechzehnte; seventeenth = siebzehnte
    eighteenth = achtzehnte; nineteenth = neunzehnte; twentieth = zwanzigste
""")
TEXTS = {
    "amount": _texts("{decimal}; {count}"),
    "city": _texts("""
        Berlin; Cologne = Köln; Geneva = Genf; Hamburg
        Munich = München; Prague = Prag; Rome = Rom; Vienna = Wien
    """),
    "clock": _texts("{spoken_time}; {spoken_time}; {digits} = {digits} Uhr"),
    "company": _texts("by {vehicle} = mit dem {vehicle}; with {receiver} = mit {receiver}"),
    "at_place": _texts("{preposition} {place_dative}"),
    "to_place": _texts("{preposition} {place_accusative}"),
    "goods": _texts("kilograms of flour = Kilogramm Mehl; liters of milk = Liter Milch"),
    "house": _texts("the museum = das Museum; the shop = das Geschäft; the theater = das Theater"),
    "month": _texts("""
        January = Januar; February = Februar; March = März; April; May = Mai; June = Juni
        July = Juli; August; September; October = Oktober; November; December = Dezember
    """),
    "name": _texts("Anna; Jonas; Julia; Lena; Maria; Max; Paul; Peter"),
    "object": _texts("{things}; {things}; {accusative}; {accusative}; {amount} {goods}"),
    "person": _texts("{pronoun}; {name}; {relative}"),
    "preposition": _texts("""
        behind = hinter; in front of = vor; next to = neben; on = auf; under = unter
    """),
    "pronoun": _texts("I = ich; we = wir; he = er; she = sie; they = sie"),
    "show": _texts("the film = der Film; the concert = das Konzert; the school = die Schule"),
    "speaker": _texts("{pronoun}; {pronoun}; the doctor = der Arzt; the teacher = die Lehrerin"),
    "today": _texts("yesterday was = gestern war; today is = heute ist; tomorrow is = morgen ist"),
    "transport": _texts("the {vehicle} = der {vehicle}"),
    "vehicle": _texts("bus = Bus; train = Zug"),
    "past": _texts("{before}; at {clock} = um {clock}; {day}; on {date} = am {date}"),
    "not_past": _texts("{soon}; at {clock} = um {clock}; {day}; {day}"),
    "before": _texts("yesterday = gestern; last week = letzte Woche; last year = letztes Jahr"),
    "soon": _texts("tomorrow = morgen; next week = nächste Woche; every day = jeden Tag"),
    "day": _texts("""
        on {weekday} = am {weekday}; on {weekday} {part} = am {weekday}{part}
        on {month_day} = am {month_day}; on the {ordinal} of {month} = am {ordinal}n {month}
    """),
    "part": _texts("morning = morgen; afternoon = nachmittag; evening = abend"),
    "weekday": _texts("""
        Monday = Montag; Tuesday = Dienstag; Wednesday = Mittwoch; Thursday = Donnerstag
        Friday = Freitag; Saturday = Samstag; Sunday = Sonntag
    """),
}
CLOCK = _texts("""
    {this} o'clock = {this} Uhr; five past {this} = fünf nach {this}
    ten past {this} = zehn nach {this}; quarter past {this} = Viertel nach {this}
    twenty past {this} = zwanzig nach {this}; twenty-five past {this} = fünf vor halb {next}
    half past {this} = halb {next}; twenty-five to {next} = fünf nach halb {next}
    twenty to {next} = zwanzig vor {next}; quarter to {next} = Viertel vor {next}
    ten to {next} = zehn vor {next}; five to {next} = fünf vor {next}
""")  # of this hour and the next; every five minutes
