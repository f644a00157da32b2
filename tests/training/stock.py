"""What stock Keras does under strategies: prints it as JSON.

python -m tests.training.stock DEVICES
"""

import json
import sys

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.training import choose_strategy, split_cpu
from keras_transformer.training.distribution import has_workers, this_worker

from .replicas import VOCABULARY_SIZE, batches


def masked_mean(labels, logits):
    loss = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    real = keras.ops.cast(labels != 0, "float32")
    return keras.ops.sum(loss * real) / keras.ops.sum(real)


def train(strategy, loss, **optimizer):
    keras.utils.set_random_seed(3)
    with strategy.scope():
        ids = keras.Input((None,), dtype="int32")
        hidden = keras.layers.Embedding(VOCABULARY_SIZE, 3)(ids)
        model = keras.Model(ids, keras.layers.Dense(VOCABULARY_SIZE)(hidden))
        model.compile(keras.optimizers.SGD(0.1, **optimizer), loss, jit_compile=False)
    start = [v.numpy() for v in model.trainable_variables]
    model.fit(batches(24, 8), epochs=4, verbose=0)
    return start, [v.numpy() for v in model.trainable_variables]


def off(strategy, loss, **optimizer):
    """Largest difference to one device, in units of the largest movement of a weight."""
    start, one = train(tf.distribute.get_strategy(), loss, **optimizer)
    _, several = train(strategy, loss, **optimizer)
    moved = max(np.abs(w - s).max() for w, s in zip(one, start, strict=True))
    return float(max(np.abs(a - b).max() for a, b in zip(one, several, strict=True)) / moved)


def ignoring():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)


def main(devices):
    split_cpu(int(devices))
    strategy = choose_strategy()
    said = {}
    if has_workers(strategy):
        try:
            train(strategy, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        except Exception as error:
            said["several workers"] = f"{type(error).__name__}: {error}"
    else:
        plain = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        said["plain loss"] = off(strategy, plain)
        said["masked loss"] = off(strategy, ignoring())
        said["scalar loss"] = off(strategy, masked_mean)
        said["clipping"] = off(strategy, plain, global_clipnorm=0.05)
        try:
            train(strategy, plain, gradient_accumulation_steps=2)
        except Exception as error:
            said["accumulation"] = f"{type(error).__name__}: {error}"
    if this_worker(strategy).index == 0:
        print(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
