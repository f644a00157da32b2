"""A long text is cut before it is tokenised, and the tokens that count stay the same."""

import io
import random

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

from keras_transformer.serving import reading
from keras_transformer.serving.reading import (
    bytes_of,
    cut,
    read_part,
)
from keras_transformer.tokenizers import (
    SentencePieceTokenizer,
    SymbolTokenizer,
    WordPieceTokenizer,
    train_byte_pairs,
    train_sentencepiece,
    train_word_pieces,
)

from .conftest import SENTENCES, SMALL_MODULES, small_module

LEARNED = [*SENTENCES, "aaaa abab aabb", "dogdog catcat", "wide and bold letters 1234"]
# What normalisation shrinks: wide and bold letters, ligatures, accents and parts of syllables that
# are joined, and half-width kana; what is spelled in bytes; what begins and ends words.
PARTS = [
    *LEARNED, "a", "aa", "ab", "b", " ", "  ", "\t", "\n", "\u3000", ".", "...", "dog", "'s", "5",
    "\uff44\uff4f\uff47", "\U0001d41d\U0001d428\U0001d420", "\ufb01\ufb02", "e\u0301", "½", "ß",
    "\u1112\u1161\u11ab", "\uff76\uff9e", "㌔", "日本", "🦜", "\u200b", "\xad", "[SEP]",
    "<s>", "\x00",
]  # fmt: skip
TOKENS = 7


def unigram():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LEARNED * 3), model_writer=model, vocab_size=300,
        model_type="unigram", byte_fallback=True, hard_vocab_limit=False, pad_id=0, unk_id=1,
        bos_id=2, eos_id=3, pad_piece="<pad>", minloglevel=2,
    )  # fmt: skip
    return SentencePieceTokenizer(model.getvalue())


TOKENIZERS = {
    "pieces": lambda: train_sentencepiece(LEARNED, 330),
    "pieces of every character": lambda: train_sentencepiece(LEARNED, 330, "pieces", "identity"),
    "unigram": unigram,
    "byte pairs": lambda: train_byte_pairs(LEARNED, 300),
    "word pieces": lambda: train_word_pieces(LEARNED, 70),
    "cased word pieces": lambda: WordPieceTokenizer(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "##s", "##dog"], lowercase=False
    ),
    "characters": lambda: SymbolTokenizer("abdgo "),
    "bytes": SymbolTokenizer,
}


def drawn_text(draw, size, space=""):
    """A text of at least `size` bytes, of few parts in long repetition or of all of them.

    With a space after every repetition, where an end may begin whatever is before it.
    """
    parts = draw.sample(PARTS, draw.choice([1, 2, 3, len(PARTS)]))
    parts = parts if set("".join(parts)) - set(" \t\n\u3000\u200b\xad") else [*parts, "dog"]
    text = b""
    while len(text) < size:
        text += draw.choice(parts).encode() * draw.choice([1, 1, 2, 5]) + space.encode()
    return text


@pytest.mark.parametrize("space", ["", " "])
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_the_tokens_that_count_are_those_of_the_whole_text(kind, space, monkeypatch):
    monkeypatch.setattr(reading, "NEVER_CUT", 0)
    tokenizer, draw = TOKENIZERS[kind](), random.Random(5)
    size, before = bytes_of(tokenizer, TOKENS), TOKENS // 4
    texts = [drawn_text(draw, draw.randint(size // 2, 5 * size), space) for _ in range(40)]
    texts += [b"", b"a dog"]
    whole = tokenizer.tokenize(texts).to_list()
    is_long = [len(text) > size for text in texts]
    parts = [(True, False), (False, True), (True, True)]
    for part in parts if space else parts[:1]:
        found, is_cut = read_part(tokenizer, texts, TOKENS, *part)
        count = sum(part)
        assert is_cut.numpy().tolist() == [len(text) > count * size for text in texts]
        for text, ids, expected in zip(texts, found.to_list(), whole, strict=True):
            if len(text) <= count * size:
                assert ids == expected
            elif part == (True, False):
                assert ids[:TOKENS] == expected[:TOKENS], text
            elif part == (False, True):
                assert ids[-TOKENS:] == expected[-TOKENS:], text
            else:
                assert ids[:before] == expected[:before], text
                assert ids[before - TOKENS :] == expected[before - TOKENS :], text
                assert len(ids) > TOKENS or len(expected) <= TOKENS
    assert sum(is_long) > 20


def test_a_cut_is_between_characters():
    draw = random.Random(7)
    characters = "aä日🦜\x00"
    for _ in range(50):
        texts = ["".join(draw.choices(characters, k=draw.randint(0, 23))) for _ in range(5)]
        before, after = draw.randint(0, 11), draw.randint(0, 11)
        found, is_cut = cut(tf.constant(texts), before, after)
        for text, got, was_cut in zip(texts, found.numpy(), is_cut.numpy(), strict=True):
            content = text.encode()
            assert was_cut == (len(content) > before + after)
            if was_cut:
                first = content[:before].decode(errors="ignore")
                # The end begins with the whole character that its first byte is in.
                last = content[: len(content) - after].decode(errors="ignore")
                assert got.decode() == first + text[len(last) :]
            else:
                assert got == content


def test_bytes_that_are_not_utf8_are_cut_too():
    for text in (b"\x80" * 31, b"\xff" * 31, b"\xf0\x9f" * 15):
        [found] = cut(tf.constant([text]), 7, 5)[0].numpy()
        assert 9 <= len(found) <= 15
    assert cut(tf.constant([], tf.string), 2, 3)[0].shape == (0,)


LONG = {"translator": "x dog " * 700, "classifier": "dog x " * 1000, "generator": "dog " * 1000}


@pytest.mark.slow
@pytest.mark.parametrize("kind", LONG)
def test_answers_to_long_texts_are_those_without_the_cut_and_say_so(kind, monkeypatch):
    monkeypatch.setattr(reading, "NEVER_CUT", 2**10)
    module = SMALL_MODULES[kind]()
    key = "prompt" if kind == "generator" else "text"
    texts = tf.constant([LONG[kind], "a dog", ""])
    found = module.signatures["serving_default"](**{key: texts})
    read = []

    def uncut(texts, before, after):
        read.append(before + after)
        texts = tf.convert_to_tensor(texts)
        return texts, tf.zeros_like(texts, tf.bool)

    monkeypatch.setattr(reading, "cut", uncut)
    expected = tf.function(module.signatures["serving_default"].python_function)(texts)
    assert read and read[0] < len(LONG[kind])
    for name, value in found.items():
        np.testing.assert_array_equal(value.numpy(), expected[name].numpy(), name)
    assert found["truncated"].numpy()[:2].tolist() == [True, False]


def test_a_long_text_of_few_tokens_is_truncated_all_the_same():
    """A translator says so if the text, its prefix, or what it scores has lost bytes."""
    spaces = " " * 200_000 + "dog"
    translator = small_module("translator")
    answer = translator.signatures["serving_default"](text=tf.constant([spaces]))
    assert answer["truncated"].numpy().tolist() == [True]
    assert answer["translation"].numpy().tolist() == [b""]
    answer = translator.signatures["translate_nbest"](
        text=tf.constant(["dog"]), target_prefix=tf.constant([spaces]), max_length=[0]
    )
    assert answer["truncated"].numpy().tolist() == [True]
