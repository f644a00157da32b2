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
BY_WORKERS = ["few", "packed"]  # tests/data/test_empty_rows.py: the plans of all kinds
STEPS = 5


def train(folder, devices, last, *rest, **environment):
    """Trains from the last checkpoints on."""
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


def weights_of(folder, name):
    with np.load(folder / f"{name}.npz") as file:
        return [file[key] for key in file.files]


def check_equal(folder, expected, name):
    for one, other in zip(weights_of(folder, name), weights_of(expected, name), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6, rtol=0)


@pytest.mark.soak
@pytest.mark.parametrize("names", ["labelled windows", "documents pretraining"])
def test_three_devices_then_one_equal_one(names, tmp_path):
    """Of devices of one process."""
    train(tmp_path / "alone", 1, STEPS, "save", names)
    for devices, last in [(3, 3), (1, STEPS)]:
        train(tmp_path / "changed", devices, last, "save", names)
    for name in names.split():
        check_equal(tmp_path / "changed", tmp_path / "alone", name)


def test_two_workers_of_which_one_is_killed_then_three_then_one_equal_one(tmp_path):
    names, alone = " ".join(BY_WORKERS), tmp_path / "alone"
    train(alone, 1, STEPS, "save", names)
    command = [sys.executable, "-m", "tests.training.elastic", str(tmp_path), "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        assert run_here([*command, "2", "kill", names], 2, restarts=0, start_timeout=600)
        for name in BY_WORKERS:
            assert (tmp_path / name / "step-2.npz").exists()
        assert not (tmp_path / f"{BY_WORKERS[-1]}.npz").exists()
        assert run_here([*command, "4", "save", names], 3, 0, 600) == 0
    for name in BY_WORKERS:
        pairs = zip(weights_of(tmp_path, name), weights_of(alone, name), strict=True)
        changes = [np.abs(one - other).max() for one, other in pairs]
        assert min(changes) > 1e-5, "the comparison sees a step"
    train(tmp_path, 1, STEPS, "save", names)
    for name in BY_WORKERS:
        check_equal(tmp_path, alone, name)


@pytest.mark.soak
@pytest.mark.other_backend
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs jax")
def test_four_devices_of_jax_then_one_equal_one(tmp_path):
    changed, alone, name = tmp_path / "changed", tmp_path / "alone", "packed"
    for folder, devices, last in [(alone, 1, STEPS), (changed, 4, 3), (changed, 1, STEPS)]:
        train(folder, devices, last, "save", name, KERAS_BACKEND="jax")
    check_equal(changed, alone, name)
