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
from keras_transformer.training.distribution import checksum
from train.devices import make_deterministic

if sys.argv[1] == "True":
    make_deterministic()
    assert not tf.config.experimental.tensor_float_32_execution_enabled()
    try:
        tf.random.uniform([])
    except RuntimeError as error:
        assert "determinism is enabled" in str(error)
    else:
        raise AssertionError("operations may still vary")
keras.utils.set_random_seed(3)
sentences = [np.random.default_rng(n).integers(4, 30, 7).tolist() for n in range(40)]
batches = TokenBatches(sentences, sentences, 64, 8, seed=2)
sizes = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 8, "num_heads": 2}
for jit_compile in (False, True) if sys.argv[1] == "True" else (False,):
    model = kt.translation(30, size="tiny", dropout=0.25, **sizes)
    model.compile(kt.Adam(0.01), kt.TokenCrossentropy(0.1), clip_norm=1.0, jit_compile=jit_compile)
    model.fit(batches.dataset(), steps_per_epoch=3, epochs=1, verbose=0)
    print(checksum(v.numpy() for v in model.weights))
"""


@pytest.mark.slow
def test_runs_are_equal_and_on_a_cpu_no_other_than_without_determinism():
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TF_CPP_MIN_LOG_LEVEL": "3"}
    printed = []
    for wanted in (False, True, True):
        command = [sys.executable, "-c", TRAIN, str(wanted)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        printed.append(done.stdout.split())
    [without, *runs] = printed
    assert runs[0] == runs[1] and len(runs[0]) == 2
    # Uncompiled: XLA compiles other code when it must be deterministic.
    assert runs[0][:1] == without
