import random

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.tokenizers import SymbolTokenizer, load_tokenizer

TEXTS = ["To be,\r\n or  not\t", "", "naïve 日本 🦜🏽 e\u0301", "<pad></s>"]


def test_bytes_keep_every_text_as_it_is():
    tokenizer = SymbolTokenizer()
    ids = tokenizer.tokenize(TEXTS)
    assert ids.dtype == tf.int32 and tokenizer.vocabulary_size == 260
    for row, text in zip(ids.to_list(), TEXTS, strict=True):
        assert row == [byte + 4 for byte in text.encode()]
    assert [text.decode() for text in tokenizer.detokenize(ids).numpy()] == TEXTS


def test_characters_keep_every_text_of_their_own():
    tokenizer = SymbolTokenizer("".join(sorted(set("".join(TEXTS)))))
    ids = tokenizer.tokenize(TEXTS)
    assert [len(row) for row in ids.to_list()] == [len(text) for text in TEXTS]
    assert [text.decode() for text in tokenizer.detokenize(ids).numpy()] == TEXTS
    assert max(map(max, filter(None, ids.to_list()))) == tokenizer.vocabulary_size - 1


def test_unknown_characters_and_broken_bytes_become_the_replacement_character():
    tokenizer = SymbolTokenizer("bca")
    assert tokenizer.tokenize(["a\u00e4~c"]).to_list() == [[4, 1, 1, 6]]
    assert tokenizer.detokenize([[4, 1, 6]]).numpy()[0].decode() == "a\ufffdc"
    assert SymbolTokenizer().detokenize([[0xE4 + 4, 101]]).numpy()[0].decode() == "\ufffda"


@pytest.mark.parametrize("characters", [None, "abc"])
def test_strange_ids_and_no_rows_are_welcome(characters):
    tokenizer = SymbolTokenizer(characters)
    assert tokenizer.detokenize([[-7, 0, 2, 3, 2**30], [0] * 5]).numpy().tolist() == [b"", b""]
    assert tokenizer.tokenize(tf.zeros([0], tf.string)).shape[0] == 0
    assert tokenizer.detokenize(tf.zeros([0, 3], tf.int32)).numpy().tolist() == []


def test_a_tokenizer_works_in_a_graph_and_is_the_same_after_saving(tmp_path):
    for arguments in ((), ("cab 日",), (None, "ignore")):
        tokenizer = SymbolTokenizer(*arguments)
        tokenizer.save(tmp_path / "tokenizer.model")
        loaded = load_tokenizer(tmp_path / "tokenizer.model")
        again = tf.function(lambda text, t=loaded: t.detokenize(t.tokenize(text)))
        assert again(tf.constant(["cab 日"])).numpy()[0].decode() == "cab 日"
        assert loaded.vocabulary_size == tokenizer.vocabulary_size
        assert loaded.errors == tokenizer.errors


def test_the_longest_token_is_a_byte_or_the_longest_character_of_utf_8():
    assert SymbolTokenizer().longest_token == 1
    assert SymbolTokenizer("a🦜").longest_token == len("🦜".encode())


def test_pieces_name_the_symbols():
    assert SymbolTokenizer("ab").pieces([0, 3, 4, 5]) == ["<pad>", "</s>", "a", "b"]
    assert SymbolTokenizer().pieces(np.array([101, 14])) == ["a", "<0x0A>"]


@pytest.mark.parametrize("characters", ["", "aa"])
def test_no_or_repeated_characters_are_refused(characters):
    with pytest.raises(ValueError, match="at least one, each of them once"):
        SymbolTokenizer(characters)


def test_bytes_that_are_no_text_are_replaced_or_left_out_as_by_python(tmp_path):
    draw = random.Random(3)
    alphabet = [*range(256), *"aé€🦜".encode() * 9]
    texts = [bytes(draw.choices(alphabet, k=draw.randrange(12))) for _ in range(2000)]
    texts += [b"\xed\xa0\x80a", b"\xf4\x90\x80\x80", b"\xc0\xaf", b"a\x00\xef\xbf\xbd\xef\xbf\xbe"]
    SymbolTokenizer(errors="ignore").save(tmp_path / "tokenizer.model")
    ignoring = load_tokenizer(tmp_path / "tokenizer.model")
    ids = ignoring.tokenize(texts)
    assert [bytes(i - 4 for i in row) for row in ids.to_list()] == texts
    left = [text.decode(errors="ignore").encode() for text in texts]
    assert ignoring.detokenize(ids).numpy().tolist() == left
    for written in SymbolTokenizer().detokenize(ids).numpy():
        assert written.decode() is not None
    with pytest.raises(
        ValueError, match=r"errors must be replace or ignore\. Received: errors='x'"
    ):
        SymbolTokenizer(errors="x")
