"""Trains a model that carries a memory on the devices it is told of, and keeps what came out.

python -m tests.training.memories DEVICES FOLDER

A program of its own for several devices, which must be split before TensorFlow starts. With
TF_CONFIG it is one of several workers. Writes FOLDER/<index of the worker>.npz.
"""

import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.models.xl_model import transformer_xl
from keras_transformer.training import (
    Perplexity,
    TokenCrossentropy,
    choose_strategy,
    split_cpu,
)
from keras_transformer.training.checkpoints import Checkpoints
from keras_transformer.training.distribution import carried_variables, this_worker

ROWS, LENGTH, SEGMENTS, START = 4, 7, 6, 2


def compiled(strategy, dropout=0.0, dtype="float32"):
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = transformer_xl(
            11,
            batch_size=ROWS // strategy.num_replicas_in_sync,
            start_id=START,
            num_layers=2,
            hidden_dim=6,
            intermediate_dim=5,
            num_heads=3,
            memory_length=5,
            dropout=dropout,
            dtype=dtype,
        )
        model.compile(keras.optimizers.SGD(0.5), TokenCrossentropy(), metrics=[Perplexity()])
    return model


def batches(first=0, last=SEGMENTS):
    """Segments of four texts; documents begin at places that differ between the rows."""
    ids = np.random.default_rng(5).integers(3, 11, (ROWS, SEGMENTS * LENGTH + 1)).astype("int32")
    ids[0, [0, 21]] = ids[2, 10] = ids[3, 39] = START
    parts = [
        (ids[:, i * LENGTH : (i + 1) * LENGTH], ids[:, i * LENGTH + 1 : (i + 1) * LENGTH + 1])
        for i in range(first, last)
    ]
    inputs, labels = (np.concatenate(part) for part in zip(*parts, strict=True))
    return tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(ROWS, drop_remainder=True)


def weights_of(model, name):
    return {f"{name}/{i}": v.numpy() for i, v in enumerate(model.trainable_variables)}


def memories_of(model):
    """What all replicas carry, in the order of the rows of a batch."""
    copies = [v.numpy() for v in carried_variables(model)]
    replicas = (
        model.distribute_strategy.num_replicas_in_sync
        // this_worker(model.distribute_strategy).count
    )
    joined = [
        np.concatenate(copies[i : i + replicas]).astype("float32")
        for i in range(0, len(copies), replicas)
    ]
    return {f"memories/{i}": memory for i, memory in enumerate(joined)}


def trained(strategy):
    """Two passes over the texts, forgotten in between, and a validation."""
    model = compiled(strategy)
    before = [v.numpy() for v in model.trainable_variables]
    history = model.fit(batches(), verbose=0).history
    model.forget()
    remembered = [v.numpy() for v in carried_variables(model) if v.dtype == tf.bool]
    again = model.fit(batches(), validation_data=batches(), verbose=0).history
    moved = [
        np.abs(v.numpy() - b).max() for v, b in zip(model.trainable_variables, before, strict=True)
    ]
    return {
        **weights_of(model, "weights"),
        **memories_of(model),
        "loss": np.array([history["loss"], again["loss"], again["val_loss"]]),
        "perplexity": np.array([history["perplexity"], again["perplexity"]]),
        "moved": np.array(max(moved)),
        "remembered": np.stack(remembered),
    }


def resumed(strategy, folder):
    """The weights that a whole training leaves, and one that goes on from its checkpoint."""
    whole = compiled(strategy, dropout=0.25)
    whole.fit(batches(), verbose=0)
    first = compiled(strategy, dropout=0.25)
    first.fit(batches(last=3), verbose=0)
    Checkpoints(folder / "checkpoints", first).save()
    second = compiled(strategy, dropout=0.25)
    second.fit(batches(), verbose=0)  # so that nothing is as it was at the beginning
    steps = Checkpoints(folder / "checkpoints", second).restore()
    second.fit(batches(first=3), verbose=0)
    return {
        **weights_of(whole, "whole"),
        **weights_of(second, "resumed"),
        "steps": np.array(steps),
    }


def main(devices, folder):
    split_cpu(int(devices))
    strategy, folder = choose_strategy(), pathlib.Path(folder)
    folder.mkdir(exist_ok=True, parents=True)
    results, worker = trained(strategy), this_worker(strategy)
    if worker.count == 1:
        results.update(resumed(strategy, folder))
    results["size"] = np.array([worker.count, strategy.num_replicas_in_sync])
    np.savez(folder / f"{worker.index}.npz", **results)


if __name__ == "__main__":
    main(*sys.argv[1:])
