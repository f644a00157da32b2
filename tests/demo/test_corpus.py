"""The demo corpus: repeatable, without duplicates, one German answer to an English sentence.

German word order, endings, numbers, dates and times are each compared with what a German wrote.
"""

import datetime
import random
import re

import pytest

from train.demo import corpus, words
from train.demo.corpus import MAX_PAIRS, demo_corpus
from train.demo.words import NOTHING, Noun, Text


@pytest.fixture(scope="module")
def pairs():
    return demo_corpus(2003, seed=7)


def test_seed_fixes_the_sentences(pairs):
    assert demo_corpus(2003, seed=7) == pairs, "the same seed, the same corpus"
    assert demo_corpus(101, seed=7).sources == pairs.sources[:101], "a smaller one is its beginning"
    assert demo_corpus(101, seed=11).sources != pairs.sources[:101], "another seed, another one"


def test_no_sentence_of_either_language_comes_twice(pairs):
    assert len(set(pairs.sources)) == len(pairs.sources) == 2003
    assert len(set(pairs.targets)) == len(pairs.targets) == 2003


def test_sentences_with_the_same_translation_are_made_once(monkeypatch):
    """The rules hardly ever make two; here every English sentence has one of three answers."""

    def number(draw):
        value = draw.randrange(1009)
        return Text(str(value), str(value % 3))

    monkeypatch.setitem(corpus.WRITERS, "number", number)
    sentence = Text("number {number}.", "nummer {number}.")
    monkeypatch.setattr(words, "SENTENCES", {sentence: 1})
    assert sorted(demo_corpus(3).targets) == [f"Nummer {n}." for n in range(3)]


def test_english_sentence_has_one_german_answer():
    draw, answers = random.Random(5), {}
    for sentence in words.SENTENCES:
        for _ in range(701):
            english, german = corpus.fill(draw, sentence)
            assert answers.setdefault(english, german) == german, english


def test_sentences_are_written_as_sentences(pairs):
    for sentence in pairs.sources + pairs.targets:
        assert sentence[0].isupper() or not sentence[0].isalpha(), sentence
        assert sentence[-1] in ".?" and "  " not in sentence and " ," not in sentence, sentence
        assert not any(mark in sentence for mark in "\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}{}")


def test_sentences_are_short(pairs):
    lengths = [len(sentence.split()) for sentence in pairs.targets]
    assert max(lengths) < 25 and sum(lengths) / len(lengths) < 11, "words of a German sentence"


def test_every_text_is_used_and_every_blank_can_be_filled():
    """A text or blank that nothing draws would be dead; a blank that nothing fills, an error."""
    acts = [rest for *_, rest in words.ACTS]
    templates = [
        *words.SENTENCES,
        *acts,
        *(text for texts in words.TEXTS.values() for text in texts),
    ]
    subjects = {who for _, who, *_ in (*words.ACTS, *words.MAIN, *words.SPEECH)}
    used = {"past", "not_past"} | subjects
    for template in templates:
        english, german = (set(re.findall(r"{(\w+)}", side)) for side in template)
        assert english == german, template
        used |= english
    assert used <= words.TEXTS.keys() | corpus.WRITERS.keys()
    assert words.TEXTS.keys() <= used


GOLDEN = {
    "{statement}.": (
        "Peter bought 8.5 kilograms of flour.",
        "Peter hat 8,5 Kilogramm Mehl gekauft.",
    ),
    "{fronted}.": (
        "last year, Peter brought along her cheap clock.",
        "letztes Jahr hat Peter ihre billige Uhr mitgebracht.",
    ),
    "{question}?": (
        "did Peter buy 8.5 kilograms of flour?",
        "hat Peter 8,5 Kilogramm Mehl gekauft?",
    ),
    "{says} that {subordinate}.": (
        "he thinks that her aunt pays €25 for our letter at twenty-five to 12.",
        "er denkt, dass ihre Tante um fünf nach halb zwölf 25 € für unseren Brief zahlt.",
    ),
    "{moves} because {subordinate}.": (
        "the doctor woke up because her aunt pays €25 for our letter at twenty-five to 12.",
        "der Arzt ist aufgewacht, weil ihre Tante um fünf nach halb zwölf 25 € "
        "für unseren Brief zahlt.",
    ),
    "if {present}, {then}.": (
        "if his daughter picks up 1.8 liters of milk, the teacher falls asleep.",
        "wenn seine Tochter 1,8 Liter Milch abholt, schläft die Lehrerin ein.",
    ),
    "{nominative} costs {price}.": ("the car costs €95.", "das Auto kostet 95 €."),
    "{things} cost {price}.": ("nine pears cost £2.65.", "neun Birnen kosten 2,65 £."),
    "{nominative} is {at_place}.": (
        "the car is under the old bench.",
        "das Auto ist unter der alten Bank.",
    ),
    "it is {clock}.": ("it is twenty to 10.", "es ist zwanzig vor zehn."),
    "{house} is open until {clock}.": (
        "the museum is open until 1:32 PM.",
        "das Museum ist bis 13:32 Uhr geöffnet.",
    ),
    "{house} is {count} years old.": (
        "the museum is 29 years old.",
        "das Museum ist neunundzwanzig Jahre alt.",
    ),
    "{house} was built on {date}.": (
        "the museum was built on July 19, 1983.",
        "das Museum wurde am 19. Juli 1983 gebaut.",
    ),
    "{today} {full_date}.": (
        "yesterday was Tuesday, July 19, 1983.",
        "gestern war Dienstag, der 19. Juli 1983.",
    ),
    "{city} has {inhabitants} inhabitants.": (
        "Hamburg has 2,486,716 inhabitants.",
        "Hamburg hat 2.486.716 Einwohner.",
    ),
}


@pytest.mark.parametrize("sentence", words.SENTENCES, ids=lambda sentence: sentence.english)
def test_template_makes_the_sentence_that_a_german_checked(sentence):
    assert corpus.fill(random.Random(3), sentence) == GOLDEN[sentence.english]


def test_sizes_outside_of_the_range_are_refused():
    for num_pairs in (0, -3, MAX_PAIRS + 1):
        with pytest.raises(ValueError, match=rf"1 to 1000000 .*num_pairs={num_pairs}"):
            demo_corpus(num_pairs)


# Clauses

VERBS = {verb.english: verb for verb in (*words.TRADE, *words.GIVE, *words.MOVE)}
EGGS, MONDAY = Text("three eggs", "drei Eier"), Text("on Monday", "am Montag")
I, SHE, WE, THEY = (  # noqa: E741
    next(text for text in words.TEXTS["pronoun"] if text.english == english)
    for english in ("I", "she", "we", "they")
)
ANNA = Text("Anna", "Anna")


def clause(order, subject, verb, tense, rest=EGGS):
    verb = corpus.conjugated(VERBS[verb], tense, words.FORMS.get(subject.english, 1))
    order = corpus.ORDERS[order]
    return corpus.fill(None, order, subject=subject, rest=rest, when=MONDAY, **verb)


@pytest.mark.parametrize(
    ("tense", "english", "main", "fronted", "question", "subordinate", "then"),
    [
        (
            "present",
            "Anna picks up three eggs on Monday",
            "Anna holt am Montag drei Eier ab",
            "am Montag holt Anna drei Eier ab",
            "holt Anna am Montag drei Eier ab",
            "Anna am Montag drei Eier abholt",
            "holt Anna ab",
        ),
        (
            "past",
            "Anna picked up three eggs on Monday",
            "Anna hat am Montag drei Eier abgeholt",
            "am Montag hat Anna drei Eier abgeholt",
            "hat Anna am Montag drei Eier abgeholt",
            "Anna am Montag drei Eier abgeholt hat",
            "hat Anna abgeholt",
        ),
        (
            "must",
            "Anna must pick up three eggs on Monday",
            "Anna muss am Montag drei Eier abholen",
            "am Montag muss Anna drei Eier abholen",
            "muss Anna am Montag drei Eier abholen",
            "Anna am Montag drei Eier abholen muss",
            "muss Anna abholen",
        ),
    ],
)
def test_place_of_a_separable_verb(tense, english, main, fronted, question, subordinate, then):
    def german(order):
        return clause(order, ANNA, "pick up", tense).german

    assert clause("statement", ANNA, "pick up", tense) == (english, main), "verb second"
    assert german("fronted") == fronted, "subject after the verb"
    assert german("question") == question, "verb first"
    assert german("subordinate") == subordinate, "verb last"
    assert german("then") == then, "verb first after a subordinate clause"


def test_verbs_agree_with_their_subject():
    assert clause("statement", I, "give back", "present").german.startswith("ich gebe am")
    assert clause("statement", SHE, "give back", "present").german.startswith("sie gibt am")
    assert clause("statement", THEY, "give back", "present").german.startswith("sie geben am")
    assert clause("statement", WE, "buy", "will").german.startswith("wir werden am")
    assert clause("statement", I, "buy", "present").english.startswith("I buy three")
    assert clause("statement", SHE, "buy", "present").english.startswith("she buys three")
    assert clause("statement", SHE, "give back", "present").english.startswith("she gives back")
    assert clause("statement", SHE, "have", "present").english.startswith("she has three")
    assert clause("statement", THEY, "have", "present").english.startswith("they have three")


def test_verbs_of_motion_build_their_past_with_sein():
    got_up = clause("statement", I, "get up", "past", rest=NOTHING)
    assert got_up == ("I got up on Monday", "ich bin am Montag aufgestanden")
    subordinate = clause("subordinate", I, "get up", "past", rest=NOTHING)
    assert subordinate.german == "ich am Montag aufgestanden bin"


@pytest.mark.parametrize(
    ("subject", "tense", "english", "german"),
    [
        (ANNA, "present", "does Anna buy", "kauft Anna"),
        (THEY, "present", "do they buy", "kaufen sie"),
        (SHE, "past", "did she buy", "hat sie"),
        (SHE, "should", "should she buy", "sollte sie"),
    ],
)
def test_english_questions_take_an_auxiliary(subject, tense, english, german):
    question = clause("question", subject, "buy", tense)
    assert question.english.startswith(f"{english} three eggs")
    assert question.german.startswith(f"{german} am Montag drei Eier")


# Nouns, numbers and times

COAT = Noun("coat", "der", "Mantel", "Mäntel")
LAMP = Noun("lamp", "die", "Lampe", "Lampen")
EGG = Noun("egg", "das", "Ei", "Eier")
A = Text("a", "ein")


class Drawn(random.Random):
    """Gives the numbers that a test wants, in turn, and of options the first or one of those."""

    def __init__(self, *integers, real=0.3):
        super().__init__()
        self._wanted, self._integers, self._real = integers, iter(integers), real

    def randrange(self, *_):
        return next(self._integers)

    def random(self):
        return self._real

    def choice(self, options):
        return next((option for option in options if option in self._wanted), options[0])


def plain(text):
    return corpus.fill(None, Text("{text}", "{text}"), text=text)


@pytest.fixture
def red(monkeypatch):
    monkeypatch.setattr(words, "ADJECTIVES", [Text("red", "rot")])


@pytest.mark.usefixtures("red")
@pytest.mark.parametrize(
    ("determiner", "case", "expected"),
    [
        (words.THE, "nominative", "der rote Mantel, die rote Lampe, das rote Ei"),
        (words.THE, "accusative", "den roten Mantel, die rote Lampe, das rote Ei"),
        (words.THE, "dative", "dem roten Mantel, der roten Lampe, dem roten Ei"),
        (A, "nominative", "ein roter Mantel, eine rote Lampe, ein rotes Ei"),
        (A, "accusative", "einen roten Mantel, eine rote Lampe, ein rotes Ei"),
        (A, "dative", "einem roten Mantel, einer roten Lampe, einem roten Ei"),
        (Text("no", "kein"), "accusative", "keinen roten Mantel, keine rote Lampe, kein rotes Ei"),
        (Text("1", "ein"), "accusative", "einen roten Mantel, eine rote Lampe, ein rotes Ei"),
    ],
)
def test_endings_after_an_article(determiner, case, expected):
    phrases = [
        plain(corpus.draw_noun(Drawn(), case, [noun], [determiner])) for noun in (COAT, LAMP, EGG)
    ]
    assert ", ".join(phrase.german for phrase in phrases) == expected
    english = ", ".join(phrase.english for phrase in phrases)
    assert english == ", ".join(f"{determiner.english} red {n}" for n in ("coat", "lamp", "egg"))


def test_english_article_before_a_vowel_is_an():
    assert plain(corpus.draw_noun(Drawn(real=0.9), "accusative", [EGG], [A])) == (
        "an egg",
        "ein Ei",
    )
    assert plain(Text("a egg and a old coat, a red egg", "")).english == (
        "an egg and an old coat, a red egg"
    )


@pytest.mark.usefixtures("red")
def test_plural_takes_its_own_form_and_ending(monkeypatch):
    monkeypatch.setattr(words, "THINGS", [COAT])
    assert plain(corpus.draw_things(Drawn(3))) == ("three red coats", "drei rote Mäntel")
    monkeypatch.setattr(words, "THINGS", [EGG])
    assert plain(corpus.draw_things(Drawn(13, real=0.9))) == ("13 eggs", "dreizehn Eier")


def test_family_belongs_to_its_owner_and_has_no_adjective(monkeypatch):
    monkeypatch.setattr(words, "FAMILY", [Noun("mother", "die", "Mutter")])
    for case, expected in (("nominative", "ihre Mutter"), ("dative", "ihrer Mutter")):
        drawn = corpus.draw_noun(Drawn(), case, words.FAMILY, [Text("her", "ihr")])
        assert plain(drawn) == ("her mother", expected)


@pytest.mark.parametrize(
    ("value", "english", "german"),
    [
        (0, "zero", "null"),
        (2, "two", "zwei"),
        (12, "twelve", "zwölf"),
        (13, "13", "dreizehn"),
        (16, "16", "sechzehn"),
        (17, "17", "siebzehn"),
        (20, "20", "zwanzig"),
        (21, "21", "einundzwanzig"),
        (30, "30", "dreißig"),
        (66, "66", "sechsundsechzig"),
        (77, "77", "siebenundsiebzig"),
        (100, "100", "hundert"),
    ],
)
def test_german_counts_in_words(value, english, german):
    assert corpus.draw_number(Drawn(), value) == (english, german)
    assert corpus.draw_number(Drawn(real=0.9), value) == (str(value), german), "digits"


def test_small_numbers_are_counted_in_digits_too():
    counts = [corpus.draw_count(random.Random(seed)) for seed in range(2003)]
    german = {count.german: count.english for count in counts}
    assert len(german) == 100, "0 to 100 but 1"
    digits = {count.english for count in counts if count.english.isdigit()}
    assert digits == {str(value) for value in range(101) if value != 1}
    assert sum(len(count.english) == 1 for count in counts) > 2003 / 7


@pytest.mark.parametrize(
    ("hour", "minute", "english", "german"),
    [
        (3, 0, "three o'clock", "drei Uhr"),
        (1, 0, "one o'clock", "ein Uhr"),
        (3, 30, "half past three", "halb vier"),
        (0, 30, "half past twelve", "halb eins"),
        (0, 15, "quarter past twelve", "Viertel nach zwölf"),
        (1, 15, "quarter past one", "Viertel nach eins"),
        (3, 45, "quarter to four", "Viertel vor vier"),
        (3, 10, "ten past three", "zehn nach drei"),
        (6, 10, "ten past six", "zehn nach sechs"),
        (11, 55, "five to twelve", "fünf vor zwölf"),
        (0, 55, "five to one", "fünf vor eins"),
        (3, 25, "twenty-five past three", "fünf vor halb vier"),
        (3, 35, "twenty-five to four", "fünf nach halb vier"),
    ],
)
def test_german_clock_looks_ahead_to_the_next_hour(monkeypatch, hour, minute, english, german):
    monkeypatch.setattr(words, "CLOCK", words.CLOCK[minute // 5 :])
    assert corpus.draw_spoken_time(Drawn(hour)) == (english, german)


def at(moment):
    """Draws this moment."""
    days = (moment - datetime.datetime(1930, 1, 1)) / datetime.timedelta(days=33_000)
    return Drawn(real=days)


@pytest.mark.parametrize(
    ("hour", "minute", "english", "german"),
    [
        (15, 45, "3:45 PM", "15:45"),
        (0, 7, "12:07 AM", "00:07"),
        (12, 0, "12:00 PM", "12:00"),
        (4, 5, "4:05 AM", "04:05"),
    ],
)
def test_german_digits_of_a_time_run_to_24(hour, minute, english, german):
    draw = at(datetime.datetime(1987, 3, 3, hour, minute, 1))
    assert corpus.WRITERS["digits"](draw) == (english, german)


@pytest.mark.parametrize(
    ("blank", "english", "german"),
    [
        ("month_day", "March 3", "3. März"),
        ("date", "March 3, 1987", "3. März 1987"),
        ("full_date", "Tuesday, March 3, 1987", "Dienstag, der 3. März 1987"),
    ],
)
def test_days_take_the_german_order(blank, english, german):
    assert corpus.WRITERS[blank](at(datetime.datetime(1987, 3, 3, 12))) == (english, german)


@pytest.mark.parametrize(
    ("value", "english", "german"),
    [(3, "third", "dritten"), (20, "twentieth", "zwanzigsten")]
    + [(21, "twenty-first", "einundzwanzigsten"), (28, "twenty-eighth", "achtundzwanzigsten")],
)
def test_ordinal_takes_the_dative(value, english, german):
    day, month = words.TEXTS["day"][-1], Text("March", "März")
    ordinal = corpus.WRITERS["ordinal"](Drawn(value))
    expected = (f"on the {english} of March", f"am {german} März")
    assert corpus.fill(None, day, ordinal=ordinal, month=month) == expected


def test_prices_swap_point_and_comma_and_put_the_sign_last():
    assert corpus.draw_price(Drawn(1250)) == ("€12.50", "12,50 €")
    assert corpus.draw_price(Drawn(325000)) == ("€3,250.00", "3.250,00 €")
    assert corpus.draw_price(Drawn(325099, real=0.2)) == ("€3,250", "3.250 €")
    assert corpus.draw_price(Drawn(99, real=0.2)) == ("€0.99", "0,99 €")


def test_decimals_swap_point_and_comma():
    assert corpus.WRITERS["decimal"](Drawn(2, 5)) == ("2.5", "2,5")
    assert corpus.WRITERS["inhabitants"](Drawn(1512491)) == ("1,512,491", "1.512.491")
