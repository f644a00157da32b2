import random

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.tokenizers import WhitespaceTokenizer, load_tokenizer

from .served import served_round_trip

TOKENS = ["sh", "\u200e", "a", "\u064e", ".", "'", "\u00a0x"]


def test_tokens_are_what_stands_between_spaces():
    tokenizer = WhitespaceTokenizer(TOKENS)
    texts = ["sh a", "  a\t\u200e\r\n. ", "", "sha a. \u00a0x \u064e", "<pad> </s>", b"\xff a"]
    ids = tokenizer.tokenize(texts)
    assert ids.to_list() == [[4, 6], [6, 5, 8], [], [1, 1, 10, 7], [1, 1], [1, 6]]
    assert ids.dtype == tf.int32 and tokenizer.vocabulary_size == 11
    joined = [text.decode() for text in tokenizer.detokenize(ids).numpy()]
    assert joined[:4] == ["sh a", "a \u200e .", "", "<unk> <unk> \u00a0x \u064e"]
    assert tokenizer.longest_token == 4


def test_drawn_tokens_have_their_places_in_the_list():
    draw = random.Random(3)
    letters = "abcd\u0628\U0001f99c"
    tokens = sorted({"".join(draw.choices(letters, k=draw.randint(1, 5))) for _ in range(900)})
    draw.shuffle(tokens)
    tokenizer = WhitespaceTokenizer(tokens[:400])
    rows = [draw.choices(tokens, k=draw.randint(1, 9)) for _ in range(100)]
    places = {token: index + 4 for index, token in enumerate(tokens[:400])}
    expected = [[places.get(token, 1) for token in row] for row in rows]
    assert tokenizer.tokenize([" ".join(row) for row in rows]).to_list() == expected
    assert 50 < sum(i == 1 for row in expected for i in row) < 400


def test_strange_ids_and_no_rows_are_welcome():
    tokenizer = WhitespaceTokenizer(TOKENS)
    ids = [[-7, 0, 2, 3, 2**30], [1, 4, 0, 6, 3]]
    assert tokenizer.detokenize(ids).numpy().tolist() == [b"", b"<unk> sh a"]
    assert tokenizer.tokenize(tf.zeros([0], tf.string)).shape[0] == 0
    assert tokenizer.detokenize(tf.zeros([0, 3], tf.int32)).numpy().tolist() == []


def test_a_tokenizer_works_in_a_graph_and_is_the_same_after_saving(tmp_path):
    tokenizer = WhitespaceTokenizer(TOKENS)
    tokenizer.save(tmp_path / "tokenizer.model")
    loaded = load_tokenizer(tmp_path / "tokenizer.model")
    assert isinstance(loaded, WhitespaceTokenizer) and loaded.tokens == tokenizer.tokens
    again = served_round_trip(loaded, tmp_path / "saved")
    assert again(tf.constant(["a  b sh"])).numpy().tolist() == [b"a <unk> sh"]
    assert loaded.pieces(np.arange(6)) == ["<pad>", "<unk>", "<s>", "</s>", "sh", "\u200e"]


@pytest.mark.parametrize("tokens", [[], ["a", "a"], ["a b"], [""], ["a", "<s>"], ["a\n"]])
def test_tokens_that_no_text_could_tell_apart_are_refused(tokens):
    with pytest.raises(ValueError, match=r"distinct strings without spaces.* Received: \d"):
        WhitespaceTokenizer(tokens)
