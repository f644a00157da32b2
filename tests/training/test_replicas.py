"""One device and two replicas give the same numbers, whatever the replicas hold."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from .conftest import needs_tensorflow

pytestmark = needs_tensorflow
ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def results():
    command = [sys.executable, "-m", "tests.training.replicas"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
    process = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads(process.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", ["plain", "empty share", "everything", "keras loss"])
def test_two_replicas_equal_one(results, case):
    result = results[case]
    assert result["moved"] > 1e-2, "the training moved the weights"
    assert result["weights"] < 1e-6, "weights after about 20 steps of SGD"
    assert result["averages"] < 1e-6, "moving averages of the weights"
    assert result["batch_logs"] < 1e-6, "values logged after each batch"
    assert result["values"] < 1e-6, "values of the epochs and of evaluate"


def test_two_replicas_equal_one_with_adam_schedule_and_weight_decay(results):
    result = results["adam"]
    assert result["moved"] > 1e-2, "the training moved the weights"
    assert result["weights"] < 1e-4, "Adam enlarges rounding where gradients are tiny"
    assert result["batch_logs"] < 1e-5, "losses logged after each batch"


def test_two_replicas_count_each_token_once(results):
    one, two = results["plain"]["counted"]
    # 4 batches of 3 rows of 7 tokens and 3 rows of 1.
    assert one == two == 96, "tokens the loss was averaged over"


def test_steps_per_execution_is_refused_under_a_strategy(results):
    assert "steps_per_execution must be 1 under a tf.distribute strategy" in results["refused"]
    assert results["refused"].endswith("Received: steps_per_execution=2.")
