"""The same run in several processes: one trains, and what a killed one leaves does no harm."""

import os
import pathlib
import subprocess
import sys
import time

import pytest

from train import translation

from .conftest import SETTINGS
from .test_recovery import Break

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]


def flags_of(text, run):
    settings = [flag for flag in SETTINGS if "checkpoint" not in flag]
    return [*text, *settings, "--steps=3000", "--checkpoint-every=1", f"--run={run}"]


def newest_of(run):
    return max((int(path.stem[5:]) for path in run.glob("checkpoints/step-*.npz")), default=0)


@pytest.mark.usefixtures("eager")
def test_a_second_process_is_refused_until_the_first_is_killed(text, tmp_path, capsys, monkeypatch):
    run = tmp_path / "run"
    first = subprocess.Popen(
        [sys.executable, "-m", "train.translation", *flags_of(text, run)], cwd=ROOT,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 200
        while not newest_of(run):
            assert time.monotonic() < deadline and first.poll() is None, first.stderr.read()
            time.sleep(0.02)
        with pytest.raises(SystemExit) as refused:
            translation.main(flags_of(text, run))
        assert refused.value.code == 2
        assert capsys.readouterr().err == (
            f"error: Another process is training in {run}. Wait until it ends, or choose "
            "another --run.\n"
        )
        assert first.poll() is None
    finally:
        first.kill()
        first.communicate()
    for draft in (
        tmp_path / ".draft-7-run",
        tmp_path / ".draft-7-other",
        run / ".draft-7-model.keras",
        run / ".draft-7-onnx",
        run / "checkpoints" / ".draft-7-step-9.npz",
    ):
        draft.write_text("left by a killed process")
    newest = newest_of(run)
    monkeypatch.setattr("train.loop.StopOnNonFiniteLoss", lambda: Break(newest + 3))
    with pytest.raises(SystemExit) as stopped:
        translation.main(flags_of(text, run))
    assert stopped.value.code == 130
    assert f"Resuming from step {newest} of 3000." in capsys.readouterr().out
    left = {path.name for path in tmp_path.rglob(".draft-7*")}
    assert left == {".draft-7-other", ".draft-7-onnx"}, "only training's are removed"
    assert not (run / "checkpoints" / f"step-{newest}.npz").exists()
