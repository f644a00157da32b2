"""What Keras does wrong today. A failure here is good news: some of our code can go."""

import json
import pathlib
import subprocess
import sys

import keras
import pytest

from .conftest import needs_tensorflow

pytestmark = needs_tensorflow
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


def test_the_private_names_that_we_override_exist():
    assert hasattr(keras.optimizers.Adam, "_all_reduce_sum_gradients")
    assert hasattr(keras.Model, "_maybe_symbolic_build")
    assert hasattr(keras.Model, "_symbolic_build")
    assert "_distribute_strategy" in vars(keras.Sequential([keras.layers.Dense(2)]))


def test_the_private_names_that_we_read_exist():
    assert keras.losses.CosineSimilarity(axis=1)._fn_kwargs == {"axis": 1}, "of `loss_sums`"
    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile("sgd", "mse", metrics=["mae"])
    assert len(model._flatten_layers()) == 2, "of `regularisation` and `compile_checks`"
    assert model.layers[0]._get_own_losses() == []
    assert model._compile_metrics is not None and model._loss_tracker is not None
    assert callable(keras.Model._unpickle_model)
    embedded = keras.layers.Embedding(3, 2, mask_zero=True)(keras.ops.array([[1, 0]]))
    assert embedded._keras_mask.numpy().tolist() == [[True, False]]
