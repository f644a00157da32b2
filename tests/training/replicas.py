"""Trains the same models on one device and on two replicas; prints the differences as JSON.

A program of its own, since the devices must be split before TensorFlow starts.
"""

import functools
import json

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.training import (
    Adam,
    InverseSqrtWarmup,
    Model,
    Perplexity,
    TokenAccuracy,
    TokenCrossentropy,
)

VOCABULARY_SIZE, DIM, TARGET = 11, 3, 7


def language_model():
    keras.utils.set_random_seed(3)
    ids = keras.Input((None,), dtype="int32")
    embedding = TokenEmbedding(VOCABULARY_SIZE, DIM)
    hidden = keras.layers.Dense(DIM, "tanh")(embedding(ids))
    return Model(ids, embedding(hidden, reverse=True))


def batches(rows, batch_size):
    """Long rows in the first half of each batch, short ones in the second."""
    generator = np.random.default_rng(5)
    ids = generator.integers(1, VOCABULARY_SIZE, (rows, TARGET)).astype("int32")
    labels = (2 * ids + 1) % (VOCABULARY_SIZE - 1) + 1  # something to learn
    lengths = np.where(np.arange(rows) % batch_size < batch_size // 2, TARGET, 1)
    padding = np.arange(TARGET) >= lengths[:, None]
    ids[padding] = labels[padding] = 0
    return tf.data.Dataset.from_tensor_slices((ids, labels)).batch(batch_size)


@functools.cache
def two_replicas():
    """Only one: strategies of one process disturb each other's collective operations."""
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


class BatchLogs(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.values = []

    def on_train_batch_end(self, batch, logs=None):
        self.values.append([float(logs[name]) for name in sorted(logs)])


def train(strategy, data, epochs, optimizer, loss, settings):
    with strategy.scope():
        model = language_model()
        model.compile(optimizer(), loss(), **settings())
    start = [np.array(v.value) for v in model.trainable_variables]
    logs = BatchLogs()
    history = model.fit(data, epochs=epochs, callbacks=[logs], verbose=0, shuffle=False).history
    evaluated = model.evaluate(data, verbose=0, return_dict=True)
    weights = [np.array(v.value) for v in model.trainable_variables]
    counted = float(model._loss_tracker.count.numpy())
    averages = [np.array(a) for a in model._step.averages or []]
    moved = max(np.abs(w - s).max() for w, s in zip(weights, start, strict=True))
    numbers = [*history.values(), list(evaluated.values())]
    return weights, averages, logs.values, numbers, counted, moved


def compare(data, epochs, optimizer, loss=TokenCrossentropy, settings=dict):
    arguments = (data, epochs, optimizer, loss, settings)
    one = train(tf.distribute.get_strategy(), *arguments)
    two = train(two_replicas(), *arguments)

    def difference(index):
        pairs = zip(one[index], two[index], strict=True)
        pairs = [(np.array(a), np.array(b)) for a, b in pairs]
        relative = [np.abs(a - b) / np.maximum(1, np.abs(a)) for a, b in pairs]
        return max((float(r.max()) for r in relative), default=0.0)

    names = ("weights", "averages", "batch_logs", "values")
    result = {name: difference(index) for index, name in enumerate(names)}
    return {**result, "counted": [one[4], two[4]], "moved": float(min(one[5], two[5]))}


def sgd():
    return keras.optimizers.SGD(0.1)


def adam():
    return Adam(InverseSqrtWarmup(0.1, 3), weight_decay=0.01)


def token_loss():
    return TokenCrossentropy(0.1)


def keras_loss():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)


def token_metrics():
    return {"metrics": [TokenAccuracy(), Perplexity()]}


def everything():
    return {**token_metrics(), "clip_norm": 0.125, "accumulation_steps": 2, "ema_momentum": 0.75}


def refusals():
    """What is said to settings that a strategy does not allow."""
    with two_replicas().scope():
        model = language_model()
    try:
        model.compile("sgd", TokenCrossentropy(), steps_per_execution=2)
    except ValueError as error:
        return str(error)


def main():
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
    )
    even, uneven = batches(rows=24, batch_size=6), batches(rows=13, batch_size=6)
    results = {
        "plain": compare(even, 5, sgd, token_loss, token_metrics),
        # 6, 6 and 1 rows: at the end the second replica has none.
        "empty share": compare(uneven, 7, sgd, token_loss, token_metrics),
        "everything": compare(uneven, 7, sgd, token_loss, everything),
        "keras loss": compare(uneven, 7, sgd, keras_loss),
        "adam": compare(uneven, 2, adam, token_loss),
        "refused": refusals(),
    }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
