"""What Keras does wrong today. A failure here is good news: some of our code can go."""

import json
import pathlib
import subprocess
import sys

import pytest

from .conftest import needs_tensorflow

pytestmark = [needs_tensorflow, pytest.mark.slow]
ROOT = pathlib.Path(__file__).parents[2]


def run(*command):
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def two_replicas():
    return run("tests.training.stock", "2")


def test_a_plain_loss_is_right(two_replicas):
    assert two_replicas["plain loss"] < 1e-5, "so the comparison itself is"


@pytest.mark.parametrize("what", ["masked loss", "scalar loss", "clipping"])
def test_keras_is_wrong_on_two_replicas_without_a_word(two_replicas, what):
    assert two_replicas[what] > 0.05, "share of the weights' movement"


def test_keras_cannot_accumulate_on_two_replicas(two_replicas):
    assert "merge_call" in two_replicas["accumulation"]


def test_keras_cannot_fit_on_several_workers():
    launch = ["train.launch", "--workers", "2", "--restarts", "0", "--"]
    said = run(*launch, sys.executable, "-m", "tests.training.stock", "1")
    assert "PerReplica" in said["several workers"]
