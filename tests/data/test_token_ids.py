"""Ids that a user brings along, from any tokenizer: what is taken, and what is refused."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.data import (
    IdRows,
    LabelledBatches,
    PretrainingBatches,
    TokenBatches,
    tokenize,
    tokenize_documents,
)
from keras_transformer.data.token_ids import checked_ids
from keras_transformer.tokenizers import SymbolTokenizer, WordPieceTokenizer

LETTERS = SymbolTokenizer("abc")
WORDS = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"])


def test_many_texts_are_tokenised_as_each_is_alone():
    texts = ["abc"[: n % 4] * (n % 3) for n in range(2051)]
    assert tokenize(texts, LETTERS).to_list() == [LETTERS.tokenize([t]).to_list()[0] for t in texts]
    assert tokenize([], LETTERS).to_list() == []


def test_documents_keep_their_sentences():
    documents = [["a b", "b"], [], ["a"]]
    assert tokenize_documents(documents, WORDS).to_list() == [[[5, 6], [6]], [], [[5]]]


@pytest.mark.parametrize(
    "kind", [list, np.array, tf.ragged.constant, IdRows], ids=["lists", "numpy", "tf", "flat"]
)
def test_ids_of_any_kind_make_the_same_batches(kind):
    def rows(ids):
        if kind is IdRows:
            return IdRows(np.concatenate(ids), [len(row) for row in ids])
        return kind(ids) if kind is not np.array else [np.array(row, np.int64) for row in ids]

    source, target = rows([[4, 5, 6], [7]]), rows([[8], [9, 8, 7, 6]])
    ((inputs, labels),) = TokenBatches(source, target).epoch()
    assert inputs["source_ids"].numpy().tolist() == [[4, 5, 6, 3], [7, 3, 0, 0]]
    assert inputs["target_ids"].numpy().tolist() == [[2, 8, 0, 0, 0], [2, 9, 8, 7, 6]]
    assert labels.numpy().tolist() == [[8, 3, 0, 0, 0], [9, 8, 7, 6, 3]]
    assert labels.dtype == tf.int32


def test_documents_of_as_many_sentences_each_may_be_uniform():
    nested = [[[5, 6], [6]], [[5], [6, 6]]]
    sentences = tf.ragged.constant([[5, 6], [6], [5], [6, 6]])
    uniform = tf.RaggedTensor.from_uniform_row_length(sentences, 2)
    flat = IdRows(IdRows(np.array([5, 6, 6, 5, 6, 6]), [2, 1, 1, 2]), [2, 2])
    assert flat.to_list() == nested
    batches = [PretrainingBatches(ids, WORDS, max_length=7) for ids in (nested, uniform, flat)]
    assert len({each.checksum() for each in batches}) == 1


def test_lengths_that_are_not_those_of_the_ids_are_refused():
    for lengths in ([2, 2], [4, -1]):
        with pytest.raises(ValueError, match=r"add up to the length of values.* and 3 values"):
            IdRows(np.array([4, 5, 6]), lengths)


@pytest.mark.parametrize("lengths", [[1.7, 1.2], [[1, 2]]])
def test_lengths_are_a_row_of_integers(lengths):
    with pytest.raises(ValueError, match="lengths must be integers"):
        IdRows([4, 5, 6], lengths)


def test_rows_of_python_objects_and_of_several_dtypes_are_ids():
    rows = [np.array([4, 5], object), np.array([6], np.uint64), np.array([7], np.int64)]
    assert checked_ids(rows, "ids").to_list() == [[4, 5], [6], [7]]
    ids = IdRows([4, 5, 6], [1, 2])
    assert (ids.to_list(), ids.take([1]).to_list()) == ([[4], [5, 6]], [[5, 6]])


@pytest.mark.parametrize("row", [np.array([True]), np.ma.array([4, 5], mask=[0, 1])])
def test_booleans_and_masks_are_no_ids(row):
    with pytest.raises(ValueError, match=r"booleans|masked"):
        checked_ids([row, np.array([4])], "ids")


def test_padded_rows_and_other_mistakes_are_refused():
    good = [[4], [5]]
    for wrong, message in {
        "padding": ([[4, 0], [5, 6]], r"source_ids must be at least 1.* Received: ids from 0 to 6"),
        "negative": ([[4], [-1]], r"Received: ids from -1 to 4"),
        "too large": ([[4], [2**32 + 5]], r"at most 2147483647.* to 4294967301"),
        "real numbers": ([[4.5], [5]], r"integer ids of rank 2. Received: float64"),
        "text": (["ab", "c"], r"integer ids of rank 2. Received: str32"),
        "one text": ([4, 5], r"sequences of ids"),
        "too deep": ([[[4]], [[5]]], r"source_ids must be"),
    }.values():
        with pytest.raises(ValueError, match=message):
            TokenBatches(wrong, good)
    with pytest.raises(ValueError, match=r"one target. Received: 1 sources, 2"):
        TokenBatches([[4]], good)
    names = ["bad", "good"]
    for labels in ([[1, 0]], [[1, 0], [2, 0]], [[1], [0]]):
        with pytest.raises(ValueError, match=r"a row for each text and a column for each name"):
            LabelledBatches(good, labels, names)
    with pytest.raises(ValueError, match="ids from 0 to 6"):
        PretrainingBatches([[[5], [0]], [[5], [6]]], WORDS)
    with pytest.raises(ValueError, match=r"below 7. Received: an id 99"):
        PretrainingBatches([[[5], [99]], [[5], [6]]], WORDS)
    with pytest.raises(ValueError, match="at least one text"):
        LabelledBatches([], np.zeros((0, 2)), names)


def test_one_string_is_not_taken_for_its_letters():
    with pytest.raises(ValueError, match=r"list of strings.*Received: texts='to be'"):
        tokenize("to be", SymbolTokenizer())
    with pytest.raises(ValueError, match=r"documents\[0\] must be a list of strings"):
        tokenize_documents(["a b", "c"], SymbolTokenizer())
