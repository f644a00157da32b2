"""Kills at random moments, of trainings and of exports: pytest -m soak."""

import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from keras_transformer.serving import RunFolder
from keras_transformer.serving.publishing.c_api import ask

from .conftest import SETTINGS

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]
ROOT = pathlib.Path(__file__).parents[2]
STEPS = 80
DEVICES = {"one device": [], "two replicas": ["--virtual-devices=2"]}


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "tests.train.dying", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "DIES": "1:0:9", "DIED": "nobody"},
        stdout=subprocess.DEVNULL,
    )


def finish(process):
    assert process.wait(timeout=600) == 0


def newest_step(run):
    steps = [int(path.stem[5:]) for path in (run / "checkpoints").glob("step-*.npz")]
    return max(steps, default=0)


def kill_when(process, happens, delay):
    """Kills a process `delay` seconds after something happens; False if it ended before."""
    while not happens():
        if process.poll() is not None:
            return False
        time.sleep(0.0005)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize("devices", DEVICES)
def test_kills_of_a_training_change_nothing(text, made_once, tmp_path, devices, part):
    draw, killed = random.Random(f"{devices} {part}"), tmp_path / "killed"
    flags = [*text[:2], *text[4:6], *SETTINGS, *DEVICES[devices], f"--steps={STEPS}"]
    flags += ["--checkpoint-every=2", "--run"]
    whole = made_once(f"whole on {devices}", lambda run: finish(start(*flags, run / "run"))) / "run"
    kills = 0
    for index in range(2):
        process = start(*flags, killed)
        if (index + part) % 2:  # while a checkpoint is being written
            goal = newest_step(killed) + 2 * draw.randint(1, 5)

            def happens(goal=goal):
                drafts = (killed / "checkpoints").glob(".draft-*")
                return newest_step(killed) >= goal and any(drafts)

            kills += kill_when(process, happens, draw.uniform(0, 0.003))
        else:
            goal = newest_step(killed) + 2 * draw.randint(1, 10)
            kills += kill_when(process, lambda g=goal: newest_step(killed) >= g, draw.random() / 20)
    assert kills == 2
    finish(start(*flags, killed))
    pairs = zip(RunFolder(whole).model().weights, RunFolder(killed).model().weights, strict=True)
    for one, other in pairs:
        np.testing.assert_array_equal(one.numpy(), other.numpy())


@pytest.mark.parametrize("part", range(2))
def test_kills_of_an_export_leave_no_half_version(run_of, tmp_path, part):
    draw, models = random.Random(part), tmp_path / "models"
    export = ["export", "--directory", models, "--name=letters", "--run", run_of("translation")]
    finish(start(*export))
    request = {"signature_name": "serving_default", "inputs": {"text": ["abc", "fedcba"]}}
    expected = ask(models / "letters" / "1", [request])
    for _ in range(2):  # while an export is being written or checked
        process, before = start(*export), set(models.iterdir())
        assert kill_when(process, lambda b=before: set(models.iterdir()) - b, draw.uniform(0, 4))
        versions = [path.name for path in (models / "letters").iterdir()]
        assert versions == ["1"], "no half version is served"
    finish(start(*export))
    assert ask(models / "letters" / "2", [request]) == expected
