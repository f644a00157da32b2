"""The launcher through Ray Train, where Ray is installed."""

import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest

from keras_transformer.serving import RunFolder
from train.launch.on_ray import run_on_ray

from .conftest import SETTINGS

LAUNCH = [sys.executable, "-m", "train.launch"]
pytestmark = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs ray")


def program(folder, body):
    head = "import json, os, pathlib, sys; c = json.loads(os.environ['TF_CONFIG']); "
    head += f"i = c['task']['index']; d = pathlib.Path({str(folder)!r}); "
    head += "n = len(list(d.glob(f'{i}-*'))); (d / f'{i}-{n}').write_text(json.dumps(c)); "
    return [sys.executable, "-c", head + body]


def test_ray_starts_all_again_when_one_is_lost(tmp_path):
    body = "import time; n or (os.kill(os.getpid(), 9) if i else time.sleep(100))"
    assert run_on_ray(program(tmp_path, body), 2, restarts=1) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-0", "0-1", "1-0", "1-1"]
    config = json.loads((tmp_path / "1-1").read_text())
    assert config["task"] == {"type": "worker", "index": 1}
    assert len(config["cluster"]["worker"]) == 2


def test_ray_does_not_start_again_what_was_told_to_stop(tmp_path):
    assert run_on_ray(program(tmp_path, "sys.exit(75)"), 2, restarts=1) == 75
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-0", "1-0"]


def test_ray_trains_as_the_launcher_of_one_machine_does(text, tmp_path):
    training = [sys.executable, "-m", "train.translation", *text, *SETTINGS, "--steps=7"]
    assert run_on_ray([*training, f"--run={tmp_path}/ray"], 2, restarts=0) == 0
    here = subprocess.run(
        [*LAUNCH, "--workers", "2", "--", *training, f"--run={tmp_path}/here"], timeout=900
    )
    assert here.returncode == 0
    ray, here = (RunFolder(tmp_path / name).model().weights for name in ("ray", "here"))
    for one, other in zip(ray, here, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
