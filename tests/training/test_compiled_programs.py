"""How many programs a compiled training makes, counted by what the compiler was given."""

import os
import pathlib
import subprocess
import sys

import pytest

REPOSITORY = pathlib.Path(__file__).parents[2]

TRAIN = """
import numpy as np
import keras_transformer as kt
from keras_transformer.data import TokenBatches
from keras_transformer.training import TokenAccuracy, TokenCrossentropy

random = np.random.default_rng(5)
lengths = np.clip(random.gamma(1.9, 9, 900).astype(int), 1, 40)
source = [random.integers(4, 30, n).tolist() for n in lengths]
target = [random.integers(4, 30, max(1, n + k)).tolist()
          for n, k in zip(lengths, random.integers(-3, 4, 900))]
train = TokenBatches(source, target, 700, 50, shapes=6)
valid = TokenBatches(source[:200], target[:200], 700, 50, shapes=6)
model = kt.translation(30, size="tiny", num_layers=1, hidden_dim=8, intermediate_dim=8, num_heads=2)
model.compile("adam", TokenCrossentropy(), metrics=[TokenAccuracy()], jit_compile=True)
model.fit(train.dataset(), epochs=3, steps_per_epoch=train.steps_per_epoch,
          validation_data=valid.epoch(), verbose=0)
print(len(np.unique(train.shapes, axis=0)), len(np.unique(valid.shapes, axis=0)),
      train.steps_per_epoch)
"""


@pytest.mark.slow
def test_three_epochs_compile_one_program_a_shape(tmp_path):
    environment = {
        **os.environ,
        "PYTHONPATH": str(REPOSITORY),
        "XLA_FLAGS": f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    run = subprocess.run(
        [sys.executable, "-c", TRAIN], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    in_training, in_validation, steps = map(int, run.stdout.split())
    programs = [
        path for path in tmp_path.glob("*before_optimizations.txt") if b" dot(" in path.read_bytes()
    ]
    assert steps > 3 * in_training
    assert len(programs) == in_training + in_validation
