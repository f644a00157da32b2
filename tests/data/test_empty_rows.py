"""Batches for any number of replicas: the same rows, and the empty ones that they lack."""

import keras
import numpy as np
import pytest

from keras_transformer.data import (
    FewShapes,
    PretrainingBatches,
    TextSegments,
    TextWindows,
    tokenize_documents,
)
from keras_transformer.tokenizers import train_word_pieces

from .every_kind import every_kind

HAVE_ANY_SHAPE = ("pairs", "labelled")
KINDS = ("pairs", "few", "packed", "labelled", "prepared", "documents", "windows")


def arrays_of(batches, replicas):
    data = batches.dataset(2, replicas).take(batches.steps_per_epoch + 1)
    specs = keras.tree.flatten(data.element_spec)
    taken = [[np.asarray(part) for part in keras.tree.flatten(batch)] for batch in data]
    assert all(
        s.shape.is_compatible_with(part.shape)
        for batch in taken
        for s, part in zip(specs, batch, strict=True)
    )
    return taken


def check_rows(batches, replicas, is_empty):
    """Compares the batches for some replicas with those for one."""
    for parts, expected in zip(arrays_of(batches, replicas), arrays_of(batches, 1), strict=True):
        for number, (part, one) in enumerate(zip(parts, expected, strict=True)):
            assert len(part) == -(-len(one) // replicas) * replicas
            np.testing.assert_array_equal(part[: len(one)], one)
            assert is_empty(number, part[len(one) :])


@pytest.mark.parametrize("replicas", [3, 4])
@pytest.mark.parametrize("name", [name for name in KINDS if name not in HAVE_ANY_SHAPE])
def test_rows_are_filled_up_with_empty_ones(name, replicas):
    def is_empty(number, rows):
        is_prepared = name == "prepared" and number == 0  # ids of which 1 is added to each
        return (rows == int(is_prepared)).all()

    check_rows(every_kind()[name], replicas, is_empty)


@pytest.mark.parametrize("name", HAVE_ANY_SHAPE)
def test_batches_of_any_shape_stay_as_they_are(name):
    batches = every_kind()[name]
    for parts, expected in zip(arrays_of(batches, 4), arrays_of(batches, 1), strict=True):
        for part, one in zip(parts, expected, strict=True):
            np.testing.assert_array_equal(part, one)


def test_empty_windows_of_a_model_without_padding_have_no_labels():
    windows = TextWindows(np.arange(4, 104), 7, 5, seed=3, first_id=4)
    values = {0: 0, 1: -1}  # the inputs, the labels
    check_rows(windows, 4, lambda number, rows: (rows == values[number]).all() and len(rows) == 3)


def test_rows_for_pretraining_are_filled_up():
    documents = [["a b c", "c b"], ["b", "a a"], ["c c", "b a"]]
    tokenizer = train_word_pieces([*documents[0], *documents[1]], vocabulary_size=8)
    ids = tokenize_documents(documents, tokenizer)
    batches = PretrainingBatches(ids, tokenizer, 2, 7, shapes=FewShapes(1))
    names = keras.tree.flatten({
        "inputs": {"token_ids": "", "segment_ids": "", "masked_positions": ""},
        "labels": {"masked_tokens": "", "masked_weights": "", "next_sentence": "next"},
        "weights": "",
    })  # fmt: skip

    def is_empty(number, rows):
        return (rows == (-1 if names[number] == "next" else 0)).all()

    check_rows(batches, 3, is_empty)


def test_streams_that_do_not_divide_are_refused():
    segments = TextSegments(np.arange(4, 104), 7, 6)
    assert len(next(iter(segments.dataset(0, replicas=3)))[0]) == 6
    with pytest.raises(ValueError, match=r"memory .* Received: batch_size=6, 4 replicas\."):
        segments.dataset(0, replicas=4)
