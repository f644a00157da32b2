"""Trains a translation model on JAX's devices in one of several arrangements.

KERAS_BACKEND=jax XLA_FLAGS=--xla_force_host_platform_device_count=4 \\
    python -m tests.training.on_jax ARRANGEMENT OUTPUT
"""

import sys

import keras
import numpy as np

from keras_transformer import TokenCrossentropy, translation
from keras_transformer.training.layouts import layout_map

NUM_ROWS, BATCH_SIZE, LENGTH, VOCABULARY_SIZE = 24, 8, 7, 22


def set_distribution(arrangement):
    devices = keras.distribution.list_devices()
    if arrangement == "data":
        keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices[:2]))
    elif arrangement == "model":
        mesh = keras.distribution.DeviceMesh((2, 2), ["batch", "model"], devices)
        keras.distribution.set_distribution(
            keras.distribution.ModelParallel(layout_map=layout_map(mesh), batch_dim_name="batch")
        )


def data():
    """Long rows in the first half of each batch, short ones in the second."""
    draw = np.random.default_rng(5)
    ids = draw.integers(4, VOCABULARY_SIZE, (3, NUM_ROWS, LENGTH)).astype("int32")
    lengths = np.where(np.arange(NUM_ROWS) % BATCH_SIZE < BATCH_SIZE // 2, LENGTH, 2)
    ids[:, np.arange(LENGTH) >= lengths[:, None]] = 0
    return {"source_ids": ids[0], "target_ids": ids[1]}, ids[2]


def main(arrangement, output):
    set_distribution(arrangement)
    keras.utils.set_random_seed(3)
    model = translation(
        VOCABULARY_SIZE, num_layers=2, hidden_dim=8, intermediate_dim=12, num_heads=2, dropout=0.0
    )
    optimizer = keras.optimizers.SGD(0.1, global_clipnorm=0.5)
    model.compile(optimizer, TokenCrossentropy(0.1))
    start = [keras.ops.convert_to_numpy(v) for v in model.trainable_variables]
    history = model.fit(*data(), batch_size=BATCH_SIZE, epochs=3, shuffle=False, verbose=0).history
    weights = [keras.ops.convert_to_numpy(v) for v in model.trainable_variables]
    cut = [v.path for v in model.trainable_variables if not v.value.sharding.is_fully_replicated]
    moved = max(np.abs(w - s).max() for w, s in zip(weights, start, strict=True))
    np.savez(output, *weights, loss=history["loss"], cut=np.array(cut, dtype=str), moved=moved)


if __name__ == "__main__":
    main(*sys.argv[1:])
