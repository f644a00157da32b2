"""Trains a translation model for 20 steps, on JAX's devices in one of several arrangements.

KERAS_BACKEND=jax XLA_FLAGS=--xla_force_host_platform_device_count=4 \\
    python -m tests.training.on_jax ARRANGEMENT OUTPUT
"""

import sys

import keras
import numpy as np

from keras_transformer import Perplexity, TokenAccuracy, TokenCrossentropy, translation
from keras_transformer.training.layouts import layout_map

NUM_ROWS, BATCH_SIZE, LENGTH, VOCABULARY_SIZE = 40, 8, 7, 22


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


def trained(weights=None):
    """The model after 20 steps of SGD, and what `fit` logged.

    Args:
        weights: to begin with; None for those of a seed.

    Returns:
        The model, the weights at the start and the history.
    """
    keras.utils.set_random_seed(3)
    model = translation(
        VOCABULARY_SIZE, num_layers=1, hidden_dim=8, intermediate_dim=12, num_heads=2, dropout=0.0
    )
    if weights is not None:
        model.set_weights(weights)
    start = model.get_weights()
    model.compile(
        keras.optimizers.SGD(0.1),
        TokenCrossentropy(0.1),
        metrics=[TokenAccuracy(), Perplexity()],
        clip_norm=0.5,
        accumulation_steps=2,
        ema_momentum=0.9,
    )
    history = model.fit(
        *data(),
        batch_size=BATCH_SIZE,
        epochs=20 // (NUM_ROWS // BATCH_SIZE),
        shuffle=False,
        verbose=0,
        validation_data=data(),
    )
    return model, start, history.history


def results(weights=None):
    """A dict of arrays: the weights, their average and the logs after 20 steps; the start."""
    model, start, logs = trained(weights)
    cut = []
    if keras.backend.backend() == "jax":
        weights = model.trainable_variables
        cut = [v.path for v in weights if not v.value.sharding.is_fully_replicated]
    arrays = {**logs, "cut": np.array(cut, dtype=str)}
    arrays |= {f"start/{i}": weight for i, weight in enumerate(start)}
    arrays |= {f"weight/{i}": weight for i, weight in enumerate(model.get_weights())}
    model.swap_averaged_weights()
    return arrays | {f"average/{i}": weight for i, weight in enumerate(model.get_weights())}


def main(arrangement, output):
    set_distribution(arrangement)
    np.savez(output, **results())


if __name__ == "__main__":
    main(*sys.argv[1:])
