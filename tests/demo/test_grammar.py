"""German word order and endings, each against sentences written by hand."""

import pytest

from train.demo import grammar, words
from train.demo.words import Noun, Phrase

RED, OLD = Phrase("red", "rot"), Phrase("old", "alt")
COAT = Noun("coat", "coats", "Mantel", "Mäntel", "m")
LAMP = Noun("lamp", "lamps", "Lampe", "Lampen", "f")
EGG = Noun("egg", "eggs", "Ei", "Eier", "n")
MONDAY, EGGS = Phrase("on Monday", "am Montag"), Phrase("three eggs", "drei Eier")
ANNA, PETER = (next(n for n in words.NAMES if n.english == name) for name in ("Anna", "Peter"))
HE, SHE, THEY = words.PRONOUNS[2:]


def clause(subject, base, tense, near=grammar.NOTHING, far=EGGS):
    [verb] = [verb for verb in (*words.TRADE, *words.GIVE, *words.MOVE) if verb.base == base]
    return grammar.Clause(subject, verb, tense, MONDAY, near, far)


@pytest.mark.parametrize(
    ("tense", "english", "main", "fronted", "question", "subordinate"),
    [
        (
            "present",
            "Anna picks up three eggs on Monday",
            "Anna holt am Montag drei Eier ab",
            "am Montag holt Anna drei Eier ab",
            "holt Anna am Montag drei Eier ab",
            "Anna am Montag drei Eier abholt",
        ),
        (
            "past",
            "Anna picked up three eggs on Monday",
            "Anna hat am Montag drei Eier abgeholt",
            "am Montag hat Anna drei Eier abgeholt",
            "hat Anna am Montag drei Eier abgeholt",
            "Anna am Montag drei Eier abgeholt hat",
        ),
        (
            "must",
            "Anna must pick up three eggs on Monday",
            "Anna muss am Montag drei Eier abholen",
            "am Montag muss Anna drei Eier abholen",
            "muss Anna am Montag drei Eier abholen",
            "Anna am Montag drei Eier abholen muss",
        ),
    ],
)
def test_place_of_a_separable_verb(tense, english, main, fronted, question, subordinate):
    sentence = clause(ANNA, "pick up", tense)
    assert grammar.english(sentence) == english
    assert grammar.german(sentence) == main, "verb second, its rest last"
    assert grammar.german_fronted(sentence) == fronted, "subject after the verb"
    assert grammar.german_question(sentence) == question, "verb first"
    assert grammar.german_subordinate(sentence) == subordinate, "verb last"


def test_verbs_agree_with_their_subject():
    assert grammar.german(clause(words.I, "give back", "present")).startswith("ich gebe am")
    assert grammar.german(clause(SHE, "give back", "present")).startswith("sie gibt am")
    assert grammar.german(clause(THEY, "give back", "present")).startswith("sie geben am")
    assert grammar.german(clause(words.WE, "buy", "will")).startswith("wir werden am")
    assert grammar.english(clause(words.I, "buy", "present")).startswith("I buy three")
    assert grammar.english(clause(HE, "buy", "present")).startswith("he buys three")


def test_verbs_of_motion_build_their_past_with_sein():
    sentence = clause(words.I, "get up", "past", far=grammar.NOTHING)
    assert grammar.german(sentence) == "ich bin am Montag aufgestanden"
    assert grammar.german_subordinate(sentence) == "ich am Montag aufgestanden bin"
    assert grammar.english(sentence) == "I got up on Monday"


@pytest.mark.parametrize(
    ("subject", "tense", "english", "german"),
    [
        (ANNA, "present", "does Anna buy", "kauft Anna"),
        (THEY, "present", "do they buy", "kaufen sie"),
        (HE, "past", "did he buy", "hat er"),
        (HE, "should", "should he buy", "soll er"),
    ],
)
def test_english_questions_take_an_auxiliary(subject, tense, english, german):
    sentence = clause(subject, "buy", tense)
    assert grammar.english_question(sentence).startswith(f"{english} three eggs")
    assert grammar.german_question(sentence).startswith(f"{german} am Montag drei Eier")


def test_receiver_comes_before_the_time_in_german():
    sister = grammar.relative(PETER, next(n for n in words.FAMILY if n.english == "sister"))
    receiver = Phrase(sister.english_object, sister.dative)
    sentence = clause(PETER, "give", "past", near=receiver)
    assert grammar.english(sentence) == "Peter gave his sister three eggs on Monday"
    assert grammar.german(sentence) == "Peter hat seiner Schwester am Montag drei Eier gegeben"


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("nominative", "der rote Mantel, die rote Lampe, das rote Ei"),
        ("accusative", "den roten Mantel, die rote Lampe, das rote Ei"),
        ("dative", "dem roten Mantel, der roten Lampe, dem roten Ei"),
    ],
)
def test_endings_after_the_definite_article(case, expected):
    phrases = [grammar.the(noun, case, RED) for noun in (COAT, LAMP, EGG)]
    assert ", ".join(p.german for p in phrases) == expected
    assert ", ".join(p.english for p in phrases) == "the red coat, the red lamp, the red egg"


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("nominative", "ein roter Mantel, eine rote Lampe, ein rotes Ei"),
        ("accusative", "einen roten Mantel, eine rote Lampe, ein rotes Ei"),
        ("dative", "einem roten Mantel, einer roten Lampe, einem roten Ei"),
    ],
)
def test_endings_after_the_indefinite_article(case, expected):
    phrases = [grammar.a(noun, case, RED) for noun in (COAT, LAMP, EGG)]
    assert ", ".join(p.german for p in phrases) == expected
    assert ", ".join(p.english for p in phrases) == "a red coat, a red lamp, a red egg"


def test_other_determiners_bend_like_the_indefinite_article():
    no = Phrase("no", "kein")
    assert grammar.a(COAT, "accusative", OLD, no) == ("no old coat", "keinen alten Mantel")
    assert grammar.a(EGG, "accusative", grammar.NOTHING, no) == ("no egg", "kein Ei")


def test_english_article_before_a_vowel_is_an():
    assert grammar.a(EGG, "accusative", grammar.NOTHING).english == "an egg"
    assert grammar.a(EGG, "accusative", RED).english == "a red egg"
    assert grammar.a(COAT, "accusative", OLD).english == "an old coat"


def test_plural_takes_its_own_form_and_ending():
    three = Phrase("three", "drei")
    assert grammar.several(three, COAT, RED) == ("three red coats", "drei rote Mäntel")
    assert grammar.several(three, EGG, grammar.NOTHING) == ("three eggs", "drei Eier")


def test_family_belongs_to_its_owner():
    mother = next(noun for noun in words.FAMILY if noun.english == "mother")
    hers = grammar.relative(ANNA, mother)
    assert (hers.english, hers.german, hers.dative) == ("her mother", "ihre Mutter", "ihrer Mutter")
    assert (hers.english_possessive, hers.possessive) == ("her", "ihr"), "of whom it can be said"
    ours = grammar.parents(words.WE)
    assert (ours.german, ours.dative, ours.form) == ("unsere Eltern", "unseren Eltern", 2)
