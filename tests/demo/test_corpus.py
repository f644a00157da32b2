"""The embedded corpus: repeatable, without duplicates, one German answer to an English sentence."""

import random
import sys

import pytest

from train.demo.corpus import _TEMPLATES, MAX_PAIRS, _written, demo_corpus, demo_split

pytest.importorskip("babel", reason="extra `train`")
pytest.importorskip("num2words", reason="extra `train`")


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

    def template(draw):
        number = draw.randrange(1009)
        return f"number {number}.", f"nummer {number % 3}."

    monkeypatch.setattr(sys.modules[_written.__module__], "_TEMPLATES", {template: 1})
    assert sorted(demo_corpus(3).targets) == [f"Nummer {n}." for n in range(3)]


def test_split_shares_no_sentence_in_either_language():
    train, heldout = demo_split(997, 503, seed=3)
    assert (len(train.sources), len(heldout.targets)) == (997, 503)
    assert set(train.sources).isdisjoint(heldout.sources), "no source seen in training"
    assert set(train.targets).isdisjoint(heldout.targets), "no target either"


def test_english_sentence_has_one_german_answer():
    draw, answers = random.Random(5), {}
    for template in _TEMPLATES:
        for _ in range(701):
            english, german = template(draw)
            assert answers.setdefault(english, german) == german, english


def test_sentences_are_written_as_sentences(pairs):
    for sentence in pairs.sources + pairs.targets:
        assert sentence[0].isupper() or not sentence[0].isalpha(), sentence
        assert sentence[-1] in ".?" and "  " not in sentence and " ," not in sentence, sentence
        assert not any(mark in sentence for mark in "\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}{}")


def test_sentences_are_short(pairs):
    lengths = [len(sentence.split()) for sentence in pairs.targets]
    assert max(lengths) < 25 and sum(lengths) / len(lengths) < 11, "words of a German sentence"


GOLDEN = {
    "_statement": (
        "Peter picked up 72 old cars at seven o'clock.",
        "Peter hat um sieben Uhr zweiundsiebzig alte Autos abgeholt.",
    ),
    "_fronted": (
        "At seven o'clock, Peter picked up 72 old cars.",
        "Um sieben Uhr hat Peter zweiundsiebzig alte Autos abgeholt.",
    ),
    "_question": (
        "Did Peter pick up 72 old cars at seven o'clock?",
        "Hat Peter um sieben Uhr zweiundsiebzig alte Autos abgeholt?",
    ),
    "_reported": (
        "She hopes that my uncle must lay the chair in front of the bench.",
        "Sie hofft, dass mein Onkel den Stuhl vor die Bank legen muss.",
    ),
    "_reason": (
        "They are happy because my uncle must lay the chair in front of the bench.",
        "Sie sind glücklich, weil mein Onkel den Stuhl vor die Bank legen muss.",
    ),
    "_condition": (
        "If my uncle lays the chair in front of the bench, they are happy.",
        "Wenn mein Onkel den Stuhl vor die Bank legt, sind sie glücklich.",
    ),
    "_cost": ("The car costs £99.44.", "Das Auto kostet 99,44 £."),
    "_place": ("The car is in front of the shelf.", "Das Auto ist vor dem Regal."),
    "_time": ("It is twenty-five to eight.", "Es ist fünf nach halb acht."),
    "_hours": (
        "The museum is open from twenty-five to eight until five to twelve.",
        "Das Museum ist von fünf nach halb acht bis fünf vor zwölf geöffnet.",
    ),
    "_today": ("Yesterday was Wednesday, May 27, 1953.", "Gestern war Mittwoch, der 27. Mai 1953."),
    "_born": ("They were born on May 27, 1953.", "Sie wurden am 27. Mai 1953 geboren."),
    "_age": ("They are 71 years old.", "Sie sind einundsiebzig Jahre alt."),
    "_inhabitants": (
        "Hamburg has 2,486,716 inhabitants.",
        "Hamburg hat 2.486.716 Einwohner.",
    ),
}


@pytest.mark.parametrize("template", _TEMPLATES, ids=lambda template: template.__name__)
def test_template_makes_the_sentence_that_a_german_checked(template):
    made = tuple(_written(text) for text in template(random.Random(3)))
    assert made == GOLDEN[template.__name__]


def test_sizes_outside_of_the_range_are_refused():
    for num_pairs in (0, -3, MAX_PAIRS + 1):
        with pytest.raises(ValueError, match=rf"1 to 1000000 .*num_pairs={num_pairs}"):
            demo_corpus(num_pairs)
    with pytest.raises(ValueError, match=r"at least one pair.*num_train=7, num_heldout=0"):
        demo_split(7, 0)
    with pytest.raises(ValueError, match=rf"1 to 1000000 .*num_pairs={MAX_PAIRS + 7}"):
        demo_split(MAX_PAIRS, 7)
