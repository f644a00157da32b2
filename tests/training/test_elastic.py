"""A training goes on with another number of devices or workers, to the weights of one device."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from train.launch.local import run_here

from .conftest import needs_tensorflow

pytestmark = [needs_tensorflow, pytest.mark.slow]
ROOT = pathlib.Path(__file__).parents[2]
KINDS = ["pairs", "few", "packed", "labelled", "documents", "windows", "pretraining"]
BY_WORKERS = ["few", "packed"]  # tests/data/test_empty_rows.py: the plans of all kinds
STEPS = 5


def train(folder, devices, last, *rest, **environment):
    """Trains from the last checkpoints on; returns what is logged."""
    arguments = [folder, devices, last, *rest]
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.elastic", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", **environment},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def weights_of(folder, name):
    with np.load(folder / f"{name}.npz") as file:
        return [file[key] for key in file.files]


def check_equal(folder, expected, name):
    for one, other in zip(weights_of(folder, name), weights_of(expected, name), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6, rtol=0)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What one device makes of all steps, and of the first."""
    folder = tmp_path_factory.mktemp("elastic")
    train(folder / "whole", 1, STEPS, "save", " ".join(BY_WORKERS))
    train(folder / "begun", 1, 1, "save", "few")
    return folder / "whole", folder / "begun"


@pytest.mark.soak
def test_two_devices_then_three_then_one_equal_one(tmp_path):
    """All kinds, on devices of one process."""
    train(tmp_path / "alone", 1, STEPS)
    for devices, last in [(2, 2), (3, 4), (1, STEPS)]:
        train(tmp_path / "changed", devices, last)
    for name in KINDS:
        check_equal(tmp_path / "changed", tmp_path / "alone", name)


def test_the_comparison_sees_a_step(alone):
    for one, other in zip(*(weights_of(folder, "few") for folder in alone), strict=True):
        assert np.abs(one - other).max() > 1e-5


def test_two_workers_of_which_one_is_killed_then_three_then_one_equal_one(alone, tmp_path):
    command = [sys.executable, "-m", "tests.training.elastic", str(tmp_path), "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        for name in BY_WORKERS:
            assert run_here([*command, "2", "kill", name], 2, restarts=0, start_timeout=600)
            assert (tmp_path / name / "step-2.npz").exists()
            assert not (tmp_path / f"{name}.npz").exists()
        assert run_here([*command, "4", "save", " ".join(BY_WORKERS)], 3, 0, 600) == 0
    train(tmp_path, 1, STEPS, "save", " ".join(BY_WORKERS))
    for name in BY_WORKERS:
        check_equal(tmp_path, alone[0], name)


@pytest.mark.other_backend
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs jax")
@pytest.mark.parametrize(
    "name", ["packed", *(pytest.param(n, marks=pytest.mark.soak) for n in ("few", "documents"))]
)
def test_four_devices_of_jax_then_two_then_one_equal_one(name, tmp_path):
    changed, alone = tmp_path / "changed", tmp_path / "alone"
    for folder, devices, last in [
        (alone, 1, STEPS), (changed, 4, 2), (changed, 2, 4), (changed, 1, STEPS)
    ]:  # fmt: skip
        train(folder, devices, last, "save", name, KERAS_BACKEND="jax")
    check_equal(changed, alone, name)


def test_that_dropout_draws_other_noise_is_said(tmp_path):
    assert "noise" not in train(tmp_path, 2, 1, "save", "few", "0.1")
    said = train(tmp_path, 1, 2, "save", "few", "0.1")
    assert "step-1.npz was saved on 2 replicas. On 1, dropout now draws different noise." in said
    assert "noise" not in train(tmp_path, 1, 3, "save", "few", "0.1")
