"""The same run in several processes: one trains, and what a killed one leaves does no harm."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from .conftest import SETTINGS

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]


def command(text, run, steps=3000):
    settings = [flag for flag in SETTINGS if "checkpoint" not in flag]
    return [
        sys.executable, "-m", "train.translation", *text, *settings, f"--steps={steps}",
        "--checkpoint-every=1", "--run", str(run),
    ]  # fmt: skip


def start(text, run, steps=3000):
    return subprocess.Popen(
        command(text, run, steps), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )  # fmt: skip


def wait_for(condition, process, seconds=200):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline and process.poll() is None, process.stderr.read()
        time.sleep(0.02)


def test_a_second_process_is_refused_until_the_first_is_killed(text, tmp_path):
    run = tmp_path / "run"
    first = start(text, run)
    try:
        wait_for(lambda: list(run.glob("checkpoints/step-*.npz")), first)
        second = start(text, run)
        _, message = second.communicate(timeout=200)
        assert second.returncode == 2
        lines = [line for line in message.splitlines() if line.startswith("error")]
        assert lines == [
            f"error: Another process is training in {run}. Wait until it ends, or choose "
            "another --run."
        ]
        assert "Traceback" not in message and first.poll() is None
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    for draft in (
        tmp_path / ".draft-7-run",
        tmp_path / ".draft-7-other",
        run / ".draft-7-model.keras",
        run / ".draft-7-onnx",
        run / "checkpoints" / ".draft-7-step-9.npz",
    ):
        draft.write_text("left by a killed process")
    third = start(text, run)
    try:
        wait_for(lambda: not (run / ".draft-7-model.keras").exists(), third)
        newest = max(int(p.stem[5:]) for p in run.glob("checkpoints/step-*.npz"))
        wait_for(lambda: not (run / "checkpoints" / f"step-{newest}.npz").exists(), third)
        left = {path.name for path in tmp_path.rglob(".draft-7*")}
        assert left == {".draft-7-other", ".draft-7-onnx"}, "only training's are removed"
    finally:
        third.send_signal(signal.SIGKILL)
        assert "Resuming from step" in third.communicate()[0]
