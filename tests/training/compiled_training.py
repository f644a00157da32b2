"""Trains a small model for three epochs, compiled, and prints the shapes of its batches.

python -m tests.training.compiled_training KIND

A program of its own, since XLA is told by its environment to write down what it compiles. Prints
a JSON list of lists: shapes of training and of validation, each (rows, longest), and the steps of
an epoch.
"""

import json
import sys

import keras
import numpy as np

import keras_transformer as kt
from keras_transformer.data import (
    FewShapes,
    LabelledBatches,
    PackedDocuments,
    PackedRows,
    PretrainingBatches,
    TokenBatches,
    tokenize_documents,
)
from keras_transformer.ops import attention, chunked_attention
from keras_transformer.tokenizers import train_word_pieces
from keras_transformer.training import PretrainingLoss, TokenAccuracy, TokenCrossentropy

LONG = 20  # tokens, from which on attention is computed in chunks
SIZES = {"size": "tiny", "num_layers": 1, "hidden_dim": 8, "intermediate_dim": 8, "num_heads": 2}
SIZES |= {"dropout": 0.0}  # which takes XLA most of the time on a CPU
RANDOM = np.random.default_rng(5)
LENGTHS = np.clip(RANDOM.gamma(1.9, 9, 500).astype(int), 2, 40)


def drawn(lengths):
    return [RANDOM.integers(4, 30, length).tolist() for length in lengths]


def translated(shapes):
    sides = drawn(LENGTHS), drawn(np.maximum(2, LENGTHS + RANDOM.integers(-3, 4, 500)))
    batches = [
        TokenBatches(*(side[:count] for side in sides), 700, 50, shapes=shapes)
        for count in (500, 200)
    ]
    model = kt.translation(30, **SIZES)
    return model, batches, {"loss": TokenCrossentropy(), "metrics": [TokenAccuracy()]}


def documents():
    texts = drawn(LENGTHS)
    batches = [PackedDocuments(texts[:count], 24, 20) for count in (500, 130)]
    return (
        kt.language_model(30, **{**SIZES, "size": "small"}),
        batches,
        {"loss": TokenCrossentropy()},
    )


def classified():
    texts, labels = drawn(LENGTHS), np.eye(3)[RANDOM.integers(0, 3, 500)]
    batches = [
        LabelledBatches(texts[:count], labels[:count], list("abc"), 700, shapes=FewShapes(2))
        for count in (500, 200)
    ]
    loss = keras.losses.CategoricalCrossentropy(True, reduction="mean_with_sample_weight")
    model = kt.classifier(30, 3, **{**SIZES, "size": "small"})
    return model, batches, {"loss": loss, "weighted_metrics": ["accuracy"]}


def pretrained():
    words = np.array(list("abcdefgh"))
    texts = [[" ".join(RANDOM.choice(words, 6)) for _ in range(5)] for _ in range(30)]
    tokenizer = train_word_pieces(
        [sentence for text in texts for sentence in text], vocabulary_size=13
    )
    ids = tokenize_documents(texts, tokenizer)
    shapes = FewShapes(1)
    batches = [PretrainingBatches(ids, tokenizer, rows, 24, shapes=shapes) for rows in (8, 16)]
    model = kt.bert_pretraining(kt.bert(13, **SIZES, max_sequence_length=24))
    metrics = [[TokenAccuracy(name="accuracy")], [TokenAccuracy(pad_id=-1, name="accuracy")]]
    return model, batches, {"loss": PretrainingLoss(), "metrics": metrics}


KINDS = {
    "translation": lambda: translated(FewShapes(2)),
    "packed translation": lambda: translated(PackedRows()),
    "documents": documents,
    "classification": classified,
    "pretraining": pretrained,
}


def shapes_of(dataset):
    """Distinct pairs of the rows of a batch and its longest axis."""
    inputs = (keras.tree.flatten(element[0]) for element in dataset)
    longest = (max(tensors, key=lambda tensor: tensor.shape[1]) for tensors in inputs)
    return sorted({tuple(map(int, tensor.shape)) for tensor in longest})


def main(kind):
    attention.MIN_WEIGHTS, chunked_attention.CHUNK_ROWS = LONG**2, 7
    keras.utils.set_random_seed(3)
    model, (train, valid), settings = KINDS[kind]()
    model.compile("adam", jit_compile=True, **settings)
    steps = train.steps_per_epoch
    of_validation = valid.dataset().take(valid.steps_per_epoch)
    data = {"validation_data": of_validation, "steps_per_epoch": steps}
    model.fit(train.dataset(), epochs=3, verbose=0, **data)
    shapes = [shapes_of(train.dataset().take(steps)), shapes_of(of_validation)]
    print(json.dumps([*shapes, int(steps)]))


if __name__ == "__main__":
    main(*sys.argv[1:])
