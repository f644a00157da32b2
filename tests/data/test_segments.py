"""Rows of one text or two: [CLS], [SEP], segments, and what is cut from long ones."""

import pytest
import tensorflow as tf

from keras_transformer.data.segments import pack_segments
from keras_transformer.tokenizers import train_byte_pairs
from keras_transformer.tokenizers.word_pieces import WordPieceTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TOKENIZER = WordPieceTokenizer([*SPECIAL, *"abcdefg"])
CLASS, SEPARATOR, A, B, C, D, E = 2, 3, 5, 6, 7, 8, 9


def packed(first, second=None, max_length=512):
    second = None if second is None else TOKENIZER.tokenize(second)
    rows = pack_segments(TOKENIZER, TOKENIZER.tokenize(first), second, max_length)
    assert {ids.dtype for ids in rows.values()} == {tf.int32}
    return rows["token_ids"].numpy().tolist(), rows["segment_ids"].numpy().tolist()


def test_one_text_is_one_segment():
    token_ids, segment_ids = packed(["a b", "c"])
    assert token_ids == [[CLASS, A, B, SEPARATOR], [CLASS, C, SEPARATOR, 0]]
    assert segment_ids == [[0] * 4, [0] * 4]


def test_two_texts_are_two_segments():
    token_ids, segment_ids = packed(["a b", ""], ["c", "d e"])
    assert token_ids == [
        [CLASS, A, B, SEPARATOR, C, SEPARATOR],
        [CLASS, SEPARATOR, D, E, SEPARATOR, 0],
    ]
    assert segment_ids == [[0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 1, 0]], "each with its [SEP]"


def test_two_texts_of_byte_pairs_are_a_pair_of_roberta():
    pytest.importorskip("tokenizers")
    tokenizer = train_byte_pairs(["zz zz"], 261)
    start, end = tokenizer.pieces([2, 3])
    texts = [tokenizer.tokenize(texts) for texts in (["ab", "", "abc"], ["c", "d", "defg"])]
    rows = {key: ids.numpy() for key, ids in pack_segments(tokenizer, *texts, 9).items()}
    pieces = ["".join(tokenizer.pieces(row[row > 0])) for row in rows["token_ids"]]
    middle = end + end
    assert (start, end) == ("<s>", "</s>")
    assert pieces == [
        f"{start}{first}{middle}{second}{end}"
        for first, second in (("ab", "c"), ("", "d"), ("ab", "def"))
    ]
    assert rows["segment_ids"][0].tolist() == [0, 0, 0, 0, 1, 1, 1, 0, 0]
    alone = pack_segments(tokenizer, texts[0])["token_ids"].numpy()
    assert "".join(tokenizer.pieces(alone[2])) == f"{start}abc{end}"
    with pytest.raises(ValueError, match=r"more than the 4 special tokens.*max_length=4"):
        pack_segments(tokenizer, *texts, max_length=4)


def test_the_longer_text_is_cut_until_both_fit():
    token_ids, _ = packed(["a b c d e", "a"], ["a b", "a b c d e"], max_length=8)
    assert token_ids[0] == [CLASS, A, B, C, SEPARATOR, A, B, SEPARATOR]
    assert token_ids[1] == [CLASS, A, SEPARATOR, A, B, C, D, SEPARATOR]
    token_ids, _ = packed(["a b c d e"], max_length=5)
    assert token_ids == [[CLASS, A, B, C, SEPARATOR]]


def test_a_batch_of_zero_rows_works():
    empty = tf.zeros([0], tf.string)
    rows = pack_segments(TOKENIZER, TOKENIZER.tokenize(empty), TOKENIZER.tokenize(empty))
    assert {len(ids) for ids in rows.values()} == {0}


def test_a_length_without_room_for_text_is_refused():
    with pytest.raises(ValueError, match=r"more than the 2 special tokens.*max_length=2"):
        packed(["a"], max_length=2)
    with pytest.raises(ValueError, match=r"more than the 3 special tokens.*max_length=3"):
        packed(["a"], ["b"], max_length=3)
