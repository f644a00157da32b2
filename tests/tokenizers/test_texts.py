"""What is no text: every class and function that takes texts reads or refuses it alike."""

import math
import random
import unicodedata

import pytest

from keras_transformer import data, tokenizers

LINES = ["to be or not to be", "that is the question", "a cat sat"] * 3
TOKENIZERS = {
    "pieces": lambda: tokenizers.train_sentencepiece(LINES, 290),
    "words": lambda: tokenizers.train_sentencepiece(LINES, 12, "words"),
    "byte pairs": lambda: tokenizers.train_byte_pairs(LINES, 270),
    "word pieces": lambda: tokenizers.train_word_pieces(LINES, 40),
    "bytes": lambda: tokenizers.SymbolTokenizer(),
    "characters": lambda: tokenizers.SymbolTokenizer("abt \ufffd"),
}


def vocabulary_of(train, *arguments):
    tokenizer = train(*arguments)
    return tokenizer.pieces(range(tokenizer.vocabulary_size))


def readers():
    """Functions from a list of texts to a value that can be compared."""
    made = {name: make() for name, make in TOKENIZERS.items()}
    letters = made["bytes"]
    labels = [("a",), ("b",), ("c",)] * 3
    return {
        **{name: lambda texts, t=t: t.tokenize(texts).to_list() for name, t in made.items()},
        "tokenize": lambda texts: data.tokenize(texts, letters).to_list(),
        "documents": lambda texts: data.tokenize_documents([texts], letters).to_list(),
        "sentences": data.split_sentences,
        "labelled": lambda texts: data.labelled(texts, labels[: len(texts)]).texts,
        "train pieces": lambda texts: vocabulary_of(tokenizers.train_sentencepiece, texts, 277),
        "train words": lambda texts: vocabulary_of(
            tokenizers.train_sentencepiece, texts, 17, "words"
        ),
        "train byte pairs": lambda texts: vocabulary_of(tokenizers.train_byte_pairs, texts, 270),
        "train word pieces": lambda texts: vocabulary_of(tokenizers.train_word_pieces, texts, 40),
    }


READ_BYTES = {*TOKENIZERS, "tokenize", "documents"}  # U+FFFD for what is not UTF-8


def check_texts(seeds):
    refused = 0
    for name, read in readers().items():
        for seed in seeds:
            draw = random.Random(f"{name} {seed}")
            texts, row = list(LINES), draw.randrange(len(LINES))
            cut = draw.randrange(len(texts[row]) + 1)
            parts = texts[row][:cut], texts[row][cut:]
            texts[row] = chr(draw.randrange(0xD800, 0xE000)).join(parts)
            expected = read([*texts[:row], "\ufffd".join(parts), *texts[row + 1 :]])
            assert read(texts) == expected, (name, texts[row])
            wrong = draw.choice([None, 3, math.nan, 2.5, True, b"a \xff", {}, object()])
            texts[row] = wrong
            if isinstance(wrong, bytes) and name in READ_BYTES:
                continue
            with pytest.raises(ValueError, match=rf"(Received: )?.*\[{row}\]") as error:
                read(texts)
            assert len(str(error.value).splitlines()) == 1, name
            refused += 1
    return refused


def test_a_lone_surrogate_is_read_as_u_fffd_and_what_is_no_text_is_named_with_its_row():
    assert check_texts(range(1)) > 12


@pytest.mark.soak
def test_many_lone_surrogates_and_values_that_are_no_text():
    assert check_texts(range(1, 21)) > 250


PARTS = [
    *LINES, "", " ", "  a", "a  ", "tab\there", "日本語", "cat🐈hat", "\0", "▁", "<s>",
    "</s>", "<unk>", "<|endoftext|>", "\ufeffx", "e\u0301", "ﬁ½…", "\r\n", "\ue000x\ue001",
    "\u2028", "\x85", "\ufffd",
]  # fmt: skip


def check_round_trips(count):
    """Joined tokens are the text, as far as each class of tokenizers keeps it."""
    draw = random.Random(count)
    ranges = [(0, 0x80), (0x80, 0x3000), (0x3000, 0xD800), (0xE000, 0x20000)]
    texts = PARTS + [
        "".join(
            draw.choice(PARTS) if draw.random() < 0.5 else chr(draw.randrange(*draw.choice(ranges)))
            for _ in range(draw.randint(1, 9))
        )
        for _ in range(count)
    ]
    pairs = TOKENIZERS["byte pairs"]()
    listed = {piece: i for i, piece in enumerate(pairs.pieces(range(pairs.vocabulary_size)))}
    others = {
        words: tokenizers.BytePairTokenizer(listed, pairs.merges, words=words)
        for words in ("llama3", "qwen2")
    }
    end = tokenizers.BytePairTokenizer({**listed, "<|endoftext|>": len(listed)}, pairs.merges)
    characters = TOKENIZERS["characters"]()
    cases = [
        (pairs, str),
        (others["llama3"], str),
        (others["qwen2"], lambda text: unicodedata.normalize("NFC", text)),
        (end, lambda text: text.replace("<|endoftext|>", "")),
        (TOKENIZERS["bytes"](), str),
        (characters, lambda t: "".join(c if c in characters.characters else "\ufffd" for c in t)),
    ]
    for tokenizer, kept in cases:
        joined = tokenizer.detokenize(tokenizer.tokenize(texts)).numpy()
        assert [text.decode() for text in joined] == list(map(kept, texts))


def test_joined_tokens_are_what_each_tokenizer_keeps_of_a_text():
    check_round_trips(20)


@pytest.mark.soak
def test_many_joined_tokens_are_what_each_tokenizer_keeps_of_a_text():
    check_round_trips(1000)
