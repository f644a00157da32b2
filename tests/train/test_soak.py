"""Twenty kills at random moments: pytest -m soak (about four minutes each)."""

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

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]
ROOT = pathlib.Path(__file__).parents[2]
STEPS = 200
DEVICES = ["", "--virtual-devices=2"]


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "train.translation", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def finish(process):
    assert process.wait(timeout=600) == 0, process.stderr.read().decode()[-3000:]


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


@pytest.mark.parametrize("devices", DEVICES)
def test_twenty_kills_change_nothing(text, tmp_path, devices):
    draw = random.Random(len(devices))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    flags = [*text, *SETTINGS, f"--steps={STEPS}", "--checkpoint-every=2", "--run"]
    device_flags = [devices] if devices else []
    finish(start(*flags, whole, *device_flags))

    kills = 0
    for index in range(14):
        process = start(*flags, killed, *device_flags)
        if index % 2:  # while a checkpoint is being written
            temporary = killed / "checkpoints"
            goal = newest_step(killed) + 2 * draw.randint(1, 5)

            def happens(goal=goal, temporary=temporary):
                return newest_step(killed) >= goal and any(temporary.glob(".draft-*"))

            kills += kill_when(process, happens, draw.uniform(0, 0.003))
        else:
            goal = newest_step(killed) + 2 * draw.randint(1, 10)
            kills += kill_when(process, lambda g=goal: newest_step(killed) >= g, draw.random() / 4)
    assert kills == 14
    finish(start(*flags, killed, *device_flags))
    pairs = zip(RunFolder(whole).model().weights, RunFolder(killed).model().weights, strict=True)
    for one, other in pairs:
        np.testing.assert_array_equal(one.numpy(), other.numpy())

    models = tmp_path / "models"
    export = ["export", "--directory", models, "--name", "letters", "--run"]
    finish(start(*export, whole))
    request = {"signature_name": "serving_default", "inputs": {"text": ["abc", "fedcba"]}}
    expected = ask(models / "letters" / "1", [request])
    for _ in range(6):  # while an export is being written or checked
        process = start(*export, killed)

        before = set(models.iterdir())

        def happens(before=before):
            return bool(set(models.iterdir()) - before)

        assert kill_when(process, happens, draw.uniform(0, 4))
        versions = [p.name for p in (models / "letters").iterdir()]
        assert versions == ["1"], "no half version is served"
    finish(start(*export, killed))
    assert ask(models / "letters" / "2", [request]) == expected
