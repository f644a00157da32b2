"""Batches of every kind that needs no tokenizer, as arrays: on any backend, the same."""

import itertools

import keras
import numpy as np

from keras_transformer.data import (
    FewShapes,
    IdRows,
    LabelledBatches,
    PackedDocuments,
    PackedRows,
    TextSegments,
    TextWindows,
    TokenBatches,
    sliding_windows,
)

VOCABULARY = 23


def pairs(shapes):
    random = np.random.default_rng(7)
    sides = []
    for _ in range(2):
        lengths = random.integers(1, 11, 31)
        sides.append(IdRows(random.integers(4, VOCABULARY, lengths.sum()), lengths))
    return TokenBatches(*sides, 48, 12, seed=3, shapes=shapes)


def every_kind():
    """{name: some batches, and those of validation where there are any}"""
    texts = [[5, 6, 7], [], [8], [9, 4, 5, 6, 7]] * 5
    labels = np.eye(2)[[0, 1, 1, 0] * 5]
    labelled = [texts, labels, ["a", "b"], 16, 4, 2]
    text = np.arange(4, 104)
    return {
        "pairs": pairs(None),
        "few": pairs(FewShapes(2, 3)),
        "packed": pairs(PackedRows()),
        "labelled": LabelledBatches(*labelled),
        "prepared": LabelledBatches(*labelled, lambda ids: {"ids": ids + 1}, FewShapes(2)),
        "documents": PackedDocuments([row for row in texts if row], 5, 3, 2),
        "windows": TextWindows(text, 7, 5, seed=3),
        "segments": TextSegments(text, 7, 5),
    }


def as_arrays():
    """{name of a part of a batch: its array}"""
    data = {"sliding": sliding_windows(np.arange(4, 104), 7, 3, 5)}
    for name, batches in every_kind().items():
        late = batches.dataset(3)
        data[name] = itertools.islice(late, batches.steps_per_epoch + 1)
        if hasattr(batches, "epoch"):
            data[f"{name} epoch"] = batches.epoch()
    return {
        f"{name} {step} {place}": np.asarray(part)
        for name, batches in data.items()
        for step, batch in enumerate(batches)
        for place, part in enumerate(keras.tree.flatten(batch))
    }
