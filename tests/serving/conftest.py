"""Tiny models with random weights, and their exports, shared by all tests of serving."""

import functools

import keras
import pytest

from keras_transformer import classifier, language_model, translation
from keras_transformer.decoding import BeamSearch
from keras_transformer.models import with_dtype
from keras_transformer.serving import (
    Classifier,
    Generator,
    SamplingSettings,
    SearchSettings,
    Translator,
)
from keras_transformer.tokenizers import (
    SymbolTokenizer,
    WordPieceTokenizer,
    train_byte_pairs,
    train_sentencepiece,
)

SENTENCES = ["A dog runs in the park.", "It is ten past six.", "Zwei Katzen sehen den Hund."]
VOCABULARY_SIZE = 307
SETTINGS = SearchSettings(BeamSearch(3, num_best=2), max_source_length=13, max_target_length=11)


@pytest.fixture(scope="session")
def tokenizer():
    return train_sentencepiece(SENTENCES, VOCABULARY_SIZE)


@pytest.fixture(scope="session")
def model():
    keras.utils.set_random_seed(3)
    return translation(
        VOCABULARY_SIZE,
        size="tiny",
        num_layers=2,
        hidden_dim=30,
        intermediate_dim=17,
        num_heads=3,
    )


@pytest.fixture(scope="session")
def translator(model, tokenizer):
    return Translator(model, tokenizer, settings=SETTINGS)


@pytest.fixture(scope="session")
def half_translator(model, tokenizer):
    return Translator(with_dtype(model, "bfloat16"), tokenizer, settings=SETTINGS)


SMALL = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 3}


def small_translator(tokenizer):
    model = translation(tokenizer.vocabulary_size, size="tiny", dropout=0.0, **SMALL)
    settings = SearchSettings(BeamSearch(3, num_best=2), max_source_length=7, max_target_length=5)
    return Translator(model, tokenizer, settings=settings)


def small_classifier(tokenizer, multi_label=False):
    model = classifier(tokenizer.vocabulary_size, 3, **SMALL)
    return Classifier(
        model, tokenizer, ["bad", "good", "schön"], max_length=7, multi_label=multi_label
    )


def small_generator(tokenizer):
    model = language_model(tokenizer.vocabulary_size, **SMALL)
    return Generator(model, tokenizer, SamplingSettings(context=11, max_tokens=5))


# A served module of each kind, and of each kind of tokenizer; made only when asked for.
SMALL_MODULES = {
    "translator": lambda: small_translator(train_sentencepiece(SENTENCES, VOCABULARY_SIZE)),
    "classifier": lambda: small_classifier(train_sentencepiece(SENTENCES, VOCABULARY_SIZE)),
    "classifier-words": lambda: small_classifier(train_sentencepiece(SENTENCES, 9, "words")),
    "classifier-word-pieces": lambda: small_classifier(
        WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "##s"]),
        multi_label=True,
    ),
    "classifier-characters": lambda: small_classifier(SymbolTokenizer("abc dog")),
    "generator": lambda: small_generator(SymbolTokenizer()),
    "generator-characters": lambda: small_generator(SymbolTokenizer("abc dog")),
    "generator-byte-pairs": lambda: small_generator(train_byte_pairs(SENTENCES, 270)),
}


@functools.cache
def small_module(kind):
    """One of `SMALL_MODULES`, of the same weights in every process."""
    keras.utils.set_random_seed(3)
    return SMALL_MODULES[kind]()


@pytest.fixture(scope="session")
def exported(request, made_once):
    """`exported(kind)` is a served module and the path of its export, checked once for both.

    The kind is that of a small module, or "tiny" for the one of the fixture `translator`.
    """

    def export(kind):
        is_tiny = kind == "tiny"
        module = request.getfixturevalue("translator") if is_tiny else small_module(kind)
        folder = made_once(
            f"export of {kind}", lambda folder: module.export(folder, kind, SENTENCES[:2])
        )
        return module, str(folder / kind / "1")

    return export


@pytest.fixture(scope="session")
def exported_translator(exported):
    return exported("tiny")[1]
