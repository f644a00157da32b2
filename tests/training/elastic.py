"""Trains models of all kinds of batches on some devices, from their last checkpoints to a step.

python -m tests.training.elastic FOLDER DEVICES STEP [save|kill [KINDS]]

Writes FOLDER/<kind>.npz, the weights after that step; or the last worker kills itself in the next
of the last kind.
"""

import functools
import pathlib
import sys

import keras
import numpy as np

import keras_transformer as kt
from keras_transformer.data import (
    FewShapes,
    LabelledBatches,
    PretrainingBatches,
    tokenize_documents,
)
from keras_transformer.models import bert, bert_pretraining, classifier, language_model, translation
from keras_transformer.tokenizers import train_word_pieces
from keras_transformer.training.checkpoints import Checkpoints
from keras_transformer.training.distribution import this_worker
from train.devices import choose_devices
from train.options import TrainOptions
from train.translation import TranslationConfig

from ..data.every_kind import VOCABULARY, every_kind
from .interrupted import Die

SMALL = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 12, "num_heads": 2}
LABELS = keras.losses.CategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")


def pretraining():
    documents = [["a b c", "c b"], ["b", "a a"], ["c c", "b a"], ["a b", "b c a"]]
    lines = [line for document in documents for line in document]
    tokenizer = train_word_pieces(lines, vocabulary_size=8)
    ids = tokenize_documents(documents, tokenizer)
    batches = PretrainingBatches(ids, tokenizer, 2, 9, seed=3, shapes=FewShapes(1))
    return batches, tokenizer.vocabulary_size


def kinds():
    """{name: batches, a function that builds the model, its loss}"""
    batches, block = every_kind(), {**SMALL, "dropout": 0.0}
    texts = [[5, 6, 7], [4], [8], [9, 4, 5, 6, 7]] * 5
    labels = np.eye(2)[[0, 1, 1, 0] * 5]
    batches["labelled"] = LabelledBatches(texts, labels, "ab", 16, 4, 2, shapes=FewShapes(2))
    tokens = kt.TokenCrossentropy(0.1)
    passages, pieces = pretraining()
    builders = {
        "few": (translation, (VOCABULARY,), block, tokens),
        "packed": (translation, (VOCABULARY,), block, tokens),
        "labelled": (classifier, (VOCABULARY, 2), block, LABELS),
        "documents": (language_model, (VOCABULARY,), block, tokens),
        "windows": (language_model, (104,), block, tokens),
    }
    made = {
        name: (batches[name], functools.partial(build, *given, **settings), loss)
        for name, (build, given, settings, loss) in builders.items()
    }

    def heads():
        backbone = bert(pieces, max_sequence_length=9, attention_dropout=0.0, **block)
        return bert_pretraining(backbone)

    return {**made, "pretraining": (passages, heads, kt.training.PretrainingLoss())}


def main(folder, devices, last, end, names):
    last = int(last)
    options = TrainOptions(run=folder, virtual_devices=int(devices) if devices != "1" else None)
    strategy = choose_devices(TranslationConfig(), options)
    is_last_worker = this_worker(strategy).index == this_worker(strategy).count - 1
    made, names = kinds(), names.split()
    for name in names:
        batches, build, loss = made[name]
        keras.utils.set_random_seed(5)
        with strategy.scope():
            model = build()
            model.compile(keras.optimizers.SGD(0.05), loss)
        checkpoints = Checkpoints(pathlib.Path(folder, name), model, every=1)
        step = checkpoints.restore()
        callbacks = [checkpoints]
        is_killed = end == "kill" and name == names[-1]
        if is_killed and is_last_worker:
            callbacks.append(Die(last + 1, checkpoints))
        data = batches.dataset(step, strategy.num_replicas_in_sync)
        steps = last - step + is_killed
        model.fit(data, steps_per_epoch=steps, shuffle=False, verbose=0, callbacks=callbacks)
        checkpoints.save()
        if this_worker(strategy).index == 0:
            weights = [keras.ops.convert_to_numpy(weight) for weight in model.weights]
            np.savez(pathlib.Path(folder, f"{name}.npz"), *weights)


if __name__ == "__main__":
    main(*sys.argv[1:])
