"""What --deterministic turns on, and that a CPU gives the same bits with it and without."""

import os
import pathlib
import subprocess
import sys

import keras
import pytest

pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="compares on it")
REPOSITORY = pathlib.Path(__file__).parents[2]

TRAIN = """
import sys
import keras
import numpy as np
import tensorflow as tf
import keras_transformer as kt
from keras_transformer.data import TokenBatches
from keras_transformer.files import checksum_of
from train.devices import make_deterministic

def turn_on():
    make_deterministic()
    tf.random.set_seed(None)  # as before any training
    assert not tf.config.experimental.tensor_float_32_execution_enabled()
    try:
        tf.random.uniform([])
    except RuntimeError as error:
        assert "determinism is enabled" in str(error)
    else:
        raise AssertionError("operations may still vary")

sentences = [np.random.default_rng(n).integers(4, 30, 7).tolist() for n in range(40)]
batches = TokenBatches(sentences, sentences, 64, 8, seed=2)
sizes = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 8, "num_heads": 2}
for way in sys.argv[1:]:
    if way == "turned on":
        turn_on()
        continue
    keras.utils.set_random_seed(3)
    model = kt.translation(30, size="tiny", dropout=0.25, **sizes)
    compiled = {"jit_compile": way == "compiled"}
    model.compile(kt.Adam(0.01), kt.TokenCrossentropy(0.1), clip_norm=1.0, **compiled)
    model.fit(batches.dataset(), steps_per_epoch=3, epochs=1, verbose=0)
    print(checksum_of(v.numpy() for v in model.weights))
"""


@pytest.mark.slow
def test_runs_are_equal_and_on_a_cpu_no_other_than_without_determinism():
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TF_CPP_MIN_LOG_LEVEL": "3"}
    printed = []
    for ways in (["plain", "turned on", "compiled"], ["turned on", "compiled", "plain"]):
        command = [sys.executable, "-c", TRAIN, *ways]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        printed.append(done.stdout.split())
    # Uncompiled: XLA compiles other code when it must be deterministic.
    [without, compiled], [compiled_again, plain] = printed
    assert compiled == compiled_again and plain == without
