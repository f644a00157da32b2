# ruff: noqa: RUF001 (letters that look like others are what is tested)
"""Word pieces against independent tokenizers, and on text that nobody expects."""

import gzip
import os
import string

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.data.token_ids import tokenizer_checksum
from keras_transformer.tokenizers import load_tokenizer
from keras_transformer.tokenizers.word_pieces import (
    WordPieceTokenizer,
    split_words,
    train_word_pieces,
    word_spans,
)

from .served import served_round_trip

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SENTENCES = ["the cat sat on the mat", "a cat and a hat", "that hat sat there", "Grüße, 17 Äpfel"]
LETTERS = string.ascii_letters + "éÉäÄöÖüÜßñ½αιςσ日本語中文한국어단аб😀🐈☃กक"
CHARACTERS = [*LETTERS, *string.digits, *string.punctuation, *"“”—、"]
# Emoji, accents, CJK, code, controls; words too long to be known; what only looks like a space.
STRANGE = [
    "", " ", "  two  spaces ", "日本語", "日本語 text 中文字", "cat🐈hat", "😀 a 😀😀",
    "🐈‍⬛", "❤️", "👩‍👩‍👧", "tab\there\nand\r", "1234567", "▁", "ﬁne ½ …",
    "naïve façade É Å ñ", "e\u0301 combining", "İstanbul ıŞ ß ẞ",
    "def f(x):\n    return x**2 != y_1 && z||w", "a\x00b", "a\ufffdb", "a\u200bb zero",
    "a\u200db", "a\xadb soft", "\x07bell\x1b[0m", "a\u00a0b\u3000c\u2028d", "b\x85c",
    "العربية", "हिन्दी क", "한국어 단어", "ไทย", "$5.00 <tag> `x` ~^ |+=",
    "“quotes” — dash–", "x" * 100, "x" * 101, "x" * 200, "é" * 60, "é" * 100, "日" * 101,
    "🐈" * 30, "ก" * 34, "ก" * 100, "ก" * 101, "a" * 99 + "é", "a" * 100 + "é",
    "[CLS] [MASK] x [SEP]", "[UNK]", "Ǆ ǅ ﬀ", "１２３ fullwidth", "①②", "Ω K Å",
    "a\u0300\u0301b", "\u0300", "ǰ", "ŉ", "𝐀𝐁", "𠀀x𠀀", "豈 﨎", "㐀", "〇々", "ー・「」",
    "゛", "\u180e", "\u2060x", "\ufeffbom", "x\ufe0fy", "if (a<b) {c[i]++;}",
]  # fmt: skip


def full_vocabulary(lowercase):
    """Learned pieces, and every character above to begin a word and to go on with one."""
    learned = train_word_pieces(SENTENCES * 3, 79, lowercase)
    pieces = learned.pieces(range(learned.vocabulary_size))
    own = [*CHARACTERS, *("##" + character for character in CHARACTERS), "def", "x##", "##…"]
    return [*pieces, *(piece for piece in dict.fromkeys(own) if piece not in pieces)]


@pytest.fixture(scope="module")
def tokenizer():
    return train_word_pieces(SENTENCES, 53)


@pytest.mark.parametrize("lowercase", [True, False], ids=["uncased", "cased"])
def test_ids_equal_those_of_the_tokenizers_package(lowercase, data, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    sentences = []
    for name in ("val.en.gz", "val.de.gz"):
        with gzip.open(data / "multi30k" / name, "rt", encoding="utf-8") as file:
            sentences += file.read().splitlines()
    ours = WordPieceTokenizer(full_vocabulary(lowercase), lowercase)
    ours.save(tmp_path / "vocab.txt")
    theirs = tokenizers.BertWordPieceTokenizer(str(tmp_path / "vocab.txt"), lowercase=lowercase)
    theirs._tokenizer.encode_special_tokens = True  # "[SEP]" in a text is text
    texts = [*STRANGE, *sentences]
    expected = [theirs.encode(text, add_special_tokens=False).ids for text in texts]
    pairs = zip(texts, ours.tokenize(texts).to_list(), expected, strict=True)
    different = [ascii(text) for text, own, other in pairs if own != other]
    assert len(texts) > 2000 and different == [], "both must cut every text alike"
    known = [ours.unknown_id not in ids for ids in expected]
    assert sum(known) > 0.85 * len(known), "the vocabulary spells most of it"


def test_ids_of_plain_text_equal_those_of_keras_hub(data):
    keras_hub = pytest.importorskip("keras_hub")
    with gzip.open(data / "multi30k" / "val.en.gz", "rt", encoding="utf-8") as file:
        texts = file.read().splitlines()
    texts += ["😀 a 😀😀", "naïve façade É", "日本語 中文字", "x**2 != y_1 && z||w"]
    pieces = full_vocabulary(lowercase=True)
    theirs = keras_hub.tokenizers.BertTokenizer(pieces, lowercase=True, strip_accents=True)
    expected = [[int(token_id) for token_id in theirs(text)] for text in texts]
    assert WordPieceTokenizer(pieces).tokenize(texts).to_list() == expected


def test_no_piece_is_learned_from_a_word_too_long_to_be_known(tokenizer):
    learned = train_word_pieces([*SENTENCES, "x" * 101], 53)
    assert learned.pieces(range(53)) == tokenizer.pieces(range(53))
    assert "x" in train_word_pieces([*SENTENCES, "x" * 100], 53).pieces(range(53))


def test_the_longest_known_piece_comes_first():
    tokenizer = WordPieceTokenizer([*SPECIAL, "un", "una", "##able", "##ble", "##a"])
    [ids] = tokenizer.tokenize(["unable"]).to_list()
    assert tokenizer.pieces(ids) == ["una", "##ble"], "greedily from the left"


def test_a_word_that_cannot_be_spelled_is_unknown_as_a_whole(tokenizer):
    assert tokenizer.tokenize(["cat caΩt"]).to_list()[0][-1] == tokenizer.unknown_id


def test_case_and_accents_are_kept_in_a_cased_vocabulary():
    assert split_words(["Déjà Vu"], lowercase=False).to_list() == [["Déjà".encode(), b"Vu"]]
    assert split_words(["Déjà Vu"]).to_list() == [[b"deja", b"vu"]]
    assert split_words(["Straße Σας ΑΣ"]).to_list() == [
        [word.encode() for word in ("straße", "σας", "ας")]
    ], "small letters, not folded ones"


@pytest.mark.slow
def test_words_stand_where_their_spans_say():
    texts = [
        "Élise, 7, lives in  Köln; Bo lives in Ulm.",
        "", "  ", "a", "x\u200by cafe\u0301! ", "日本は12,50 €", "don't\tstop", "\u0301 a",
        "ΣΟΦΟΣ ΣΑΣ", "İstanbul", "한국 ½ ß ﬁ", "a\x00b", "\u0301", "-",
    ]  # fmt: skip
    draw = np.random.default_rng(3)
    signs = list("ab é,.!日 \t\n\u0301\u200b\ufffdß한́İΣ")
    texts += ["".join(draw.choice(signs, draw.integers(0, 12))) for _ in range(300)]
    for lowercase in (True, False):
        words = split_words(texts, lowercase)
        starts, ends = word_spans(texts, lowercase)
        assert starts.row_lengths().numpy().tolist() == words.row_lengths().numpy().tolist()
        for text, row, *places in zip(
            texts, words.to_list(), starts.to_list(), ends.to_list(), strict=True
        ):
            for word, start, end in zip(row, *places, strict=True):
                [same] = split_words([text[start:end]], lowercase).to_list()
                # A capital sigma at the end of a word has a small form of its own.
                sigmas = [w.decode().replace("\u03c2", "\u03c3") for w in (word, *same)]
                assert len(same) == 1 and sigmas[0] == sigmas[1], (text, start, end)
                assert end <= len(text) and not text[start].isspace()


def test_invalid_utf_8_is_left_out(tokenizer):
    ids = tokenizer.tokenize([b"c\xffat", b"\xe2\x82", b"cat"]).to_list()
    assert ids == [ids[2], [], ids[2]] and ids[2] != []


def test_ids_are_ragged_int32_without_special_ones(tokenizer):
    ids = tokenizer.tokenize(SENTENCES[:3])
    assert isinstance(ids, tf.RaggedTensor) and ids.dtype == tf.int32, "rows differ in length"
    assert ids.shape.as_list() == [3, None], "(batch, None)"
    assert not set(ids.flat_values.numpy()) & set(tokenizer.special_ids)


def test_batch_of_zero_gives_zero_rows(tokenizer):
    ids = tokenizer.tokenize(tf.zeros([0], tf.string))
    assert ids.nrows() == 0 and tokenizer.detokenize(ids).shape == [0]
    assert tokenizer.detokenize(tf.zeros([0, 5], tf.int32)).shape == [0], "dense rows as well"


def test_words_survive_there_and_back(tokenizer):
    texts = tokenizer.detokenize(tokenizer.tokenize(["That  CAT, 17", ""])).numpy()
    assert [text.decode() for text in texts] == ["that cat , 17", ""]


def test_special_ids_and_ids_outside_of_the_vocabulary_are_not_joined(tokenizer):
    [cat] = tokenizer.tokenize(["cat"]).to_list()
    row = [tokenizer.class_id, *cat, tokenizer.unknown_id, tokenizer.separator_id]
    row += [tokenizer.mask_id, tokenizer.pad_id, -1, tokenizer.vocabulary_size, 2**31 - 1]
    assert tokenizer.detokenize([row]).numpy().tolist() == [b"cat [UNK]"]


def test_special_ids_are_where_the_vocabulary_has_them():
    released = ["[PAD]", *(f"[unused{i}]" for i in range(99)), *SPECIAL[1:], "a"]
    tokenizer = WordPieceTokenizer(released)
    assert tokenizer.special_ids == (0, 100, 101, 102, 103)
    own = [tokenizer.pad_id, tokenizer.unknown_id, tokenizer.class_id]
    assert (*own, tokenizer.separator_id, tokenizer.mask_id) == tokenizer.special_ids
    assert tokenizer.tokenize(["a [MASK]"]).to_list() == [[104, 100, 100, 100]], "text stays text"


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_vocabulary_file_has_a_piece_a_line(ending, tmp_path):
    path = tmp_path / "vocab.txt"
    pieces = [*SPECIAL, "the", "##\u2028", "é"]  # U+2028 ends no line
    path.write_bytes(ending.join([*pieces, ""]).encode())
    tokenizer = WordPieceTokenizer.load(path, lowercase=False)
    assert tokenizer.pieces(range(8)) == pieces and not tokenizer.lowercase
    tokenizer.save_vocabulary(tmp_path / "new" / "vocab.txt")
    assert (tmp_path / "new" / "vocab.txt").read_bytes() == "\n".join([*pieces, ""]).encode()
    assert os.listdir(tmp_path / "new") == ["vocab.txt"], "and no draft stays behind"


@pytest.mark.parametrize("lowercase", [True, False], ids=["uncased", "cased"])
def test_a_saved_vocabulary_knows_its_case(lowercase, tmp_path):
    tokenizer = train_word_pieces(["Anna and Otto", "an Otter"] * 3, 30, lowercase)
    tokenizer.save(tmp_path / "vocab.txt")
    loaded = load_tokenizer(tmp_path / "vocab.txt")
    texts = ["Otto", "otto", "\u00d6tter"]
    assert loaded.tokenize(texts).to_list() == tokenizer.tokenize(texts).to_list()
    assert loaded.lowercase == lowercase


@pytest.mark.parametrize("pieces", [["\u1100\u1161", "\u304b\u3099", "a"], ["Otto", "otto"]])
@pytest.mark.parametrize("lowercase", [True, False], ids=["uncased", "cased"])
def test_a_saved_vocabulary_knows_its_case_whatever_its_letters(pieces, lowercase, tmp_path):
    tokenizer = WordPieceTokenizer([*SPECIAL, *pieces], lowercase)
    tokenizer.save(tmp_path / "tokenizer.model")
    loaded = load_tokenizer(tmp_path / "tokenizer.model")
    texts = ["\u304c", "\u304b\u3099", "\uac00", "\u1100\u1161", "Otto", "otto"]
    assert loaded.tokenize(texts).to_list() == tokenizer.tokenize(texts).to_list()
    assert loaded.lowercase == lowercase and loaded.vocabulary_size == len(pieces) + 5
    other = WordPieceTokenizer([*SPECIAL, *pieces], not lowercase)
    assert tokenizer_checksum(other) != tokenizer_checksum(tokenizer)
    assert (
        WordPieceTokenizer.load(tmp_path / "tokenizer.model", not lowercase).lowercase != lowercase
    )


def test_same_text_gives_the_same_vocabulary(tokenizer):
    again = train_word_pieces(iter(SENTENCES), tokenizer.vocabulary_size)
    assert again.pieces(range(53)) == tokenizer.pieces(range(53)) and again.vocabulary_size == 53


def test_frequent_words_become_one_piece(tokenizer):
    ids = tokenizer.tokenize(["cat sat hat"]).to_list()[0]
    assert tokenizer.pieces(ids) == ["cat", "sat", "hat"]


def test_module_that_holds_a_tokenizer_can_be_exported(tokenizer, tmp_path):
    texts = served_round_trip(tokenizer, tmp_path)(tf.constant(["A cat", ""]))
    assert texts.numpy().tolist() == [b"a cat", b""], "the vocabulary travels with the graph"


def test_new_random_seed_leaves_a_tokenizer_usable(tokenizer):
    tf.random.set_seed(17)  # throws away TensorFlow's kernels and what belongs to them
    texts = tf.data.Dataset.from_tensors(["a cat"]).map(tokenizer.tokenize)
    assert next(iter(texts.map(tokenizer.detokenize))).numpy().tolist() == [b"a cat"]


def test_vocabulary_of_no_text_is_refused():
    for sentences in ([], ["", " "]):
        with pytest.raises(ValueError, match=r"needs text to learn from.*no word"):
            train_word_pieces(sentences, 307)


def test_vocabulary_of_a_size_that_the_text_does_not_allow_is_refused_with_the_limit():
    with pytest.raises(ValueError, match=r"at most (\d+) pieces.*vocabulary_size=9973") as error:
        train_word_pieces(SENTENCES, 9973)
    most = int(str(error.value).split("at most ")[1].split()[0])
    assert train_word_pieces(SENTENCES, most).vocabulary_size == most, "the maximum is possible"
    with pytest.raises(ValueError, match=r"at least (\d+) pieces.*vocabulary_size=7") as error:
        train_word_pieces(SENTENCES, 7)
    least = int(str(error.value).split("at least ")[1].split()[0])
    assert train_word_pieces(SENTENCES, least).vocabulary_size == least, "the minimum is possible"


def test_vocabularies_that_the_models_cannot_use_are_refused():
    with pytest.raises(ValueError, match=r"must hold \[PAD\].*without \[CLS\], \[MASK\]"):
        WordPieceTokenizer(["[PAD]", "[UNK]", "[SEP]"])
    with pytest.raises(ValueError, match=r"first piece must be \[PAD\].*Received: 'a'"):
        WordPieceTokenizer(["a", *SPECIAL])
    with pytest.raises(ValueError, match=r"occur once. Received: \['a'\]"):
        WordPieceTokenizer([*SPECIAL, "a", "b", "a"])


def test_pieces_that_tensorflow_text_refuses_are_a_value_error():
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    with pytest.raises(ValueError, match=r"longer than 256 bytes\. Received: "):
        WordPieceTokenizer([*special, "a" * 257])
