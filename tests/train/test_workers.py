"""The command on two workers and on two replicas: killed, told to stop, and as one device."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from keras_transformer.serving import RunFolder
from keras_transformer.training.checkpoint_files import steps_in
from train import classification, language_model, pretraining
from train.run import Run
from train.translation import TranslationConfig

from .conftest import command_that_dies, launch_two_workers

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parents[2]
STEPS = 11
ENVIRONMENT = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}


def weights_of(run):
    return [weight.numpy() for weight in RunFolder(run).model().weights]


@pytest.fixture(scope="module")
def whole(on_two_workers):
    return on_two_workers / "run"


def test_only_the_chief_writes_and_prints(on_two_workers, whole):
    names = {path.name for path in whole.iterdir()}
    assert names == {
        "config.json", "tokenizer.model", "data", "plan", "checkpoints", "history.csv",
        "model.keras", "learning_curves.png", "attention.png", "attention.html", "checksums.npz",
        "lock",
    }  # fmt: skip
    printed = (on_two_workers / "printed.txt").read_text()
    assert printed.count("2 replicas on 2 workers.") == 1
    assert printed.count("BLEU: ") == 1
    epochs = (whole / "history.csv").read_text().splitlines()
    assert len(epochs) == len(set(epochs)) > 2, "each epoch once"


@pytest.mark.parametrize(
    "dies", [pytest.param("0:7:9 1:8:15", id="the chief"),
             pytest.param("1:7:9 0:8:15", id="another worker", marks=pytest.mark.soak)]
)  # fmt: skip
def test_a_killed_worker_and_one_told_to_end_change_nothing_but_the_time(
    text, whole, tmp_path, dies
):
    """One is killed, in the next start the other is told to end, and the third trains the rest."""
    run = tmp_path / "run"
    done = launch_two_workers(text, run, dies, restarts=2)
    assert done.returncode == 75, done.stderr[-3000:]
    assert "restarting all workers (1 of 2)" in done.stderr
    assert f"Resuming from step 6 of {STEPS}." in done.stdout
    assert done.stderr.count("restarting") == 1 and "again" not in done.stderr
    saved = max(steps_in(run / "checkpoints"))
    assert 8 <= saved < STEPS, "all at the same, the end of the epoch or of ten steps"
    done = launch_two_workers(text, run, dies)
    assert done.returncode == 0 and f"Resuming from step {saved} of {STEPS}." in done.stdout
    for one, other in zip(weights_of(run), weights_of(whole), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.soak
def test_the_chief_alone_records_a_changed_setting(text, whole, tmp_path):
    run = tmp_path / "stopped"
    shutil.copytree(whole, run)
    (run / "model.keras").unlink()  # as if stopped just before its end
    done = launch_two_workers(text, run, flags=[f"--steps={STEPS + 1}", "--peak-rate=0.0005"])
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("--peak-rate was 0.001 and is 0.0005") == 1
    assert f"Resuming from step {STEPS} of {STEPS + 1}." in done.stdout
    before, after = (Run(folder, TranslationConfig).config() for folder in (whole, run))
    assert after == before.replace(steps=STEPS + 1, peak_rate=0.0005)


@pytest.mark.parametrize(
    ("trainer", "flags", "said"),
    [
        (
            language_model,
            ["--text", "{text}", "--context=16", "--model=transformer_xl", "--batch-size=6"],
            "nats a token",
        ),
        pytest.param(
            pretraining,
            ["--documents", "{text}", "--vocabulary-size=60"],
            "Masked pieces found",
            marks=pytest.mark.soak,
        ),
        pytest.param(
            classification,
            ["--tsv", "{text}", "--vocabulary-size=40"],
            "Accuracy",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_the_other_commands_train_and_measure_on_two_replicas_too(trainer, flags, said, tmp_path):
    name = trainer.__name__.removeprefix("train.")
    lines = [f"The cat {i} sat. It was {i} too.\t{'ab'[i % 2]}\n\n" for i in range(50)]
    if name == "classification":
        lines = [line[:-1] for line in lines]
    (tmp_path / "text").write_text("".join(lines))
    flags = [
        *(flag.format(text=tmp_path / "text") for flag in flags),
        "--steps=2", "--average=1", "--num-layers=1", "--hidden-dim=8", "--intermediate-dim=8",
        "--num-heads=2", "--warmup-steps=1",
        "--dropout=0", "--attention-dropout=0", "--activation-dropout=0",
        f"--hold-out={0.2 if name == 'language_model' else 10}",
    ]  # fmt: skip
    command = [sys.executable, "-m", trainer.__name__, *flags, "--virtual-devices=2"]
    done = subprocess.run(
        [*command, "--run", str(tmp_path / "two")],
        cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert said in done.stdout
    trainer.main([*flags, "--run", str(tmp_path / "one")])
    # Not the weights: Adam makes steps out of the rounding of gradients that are zero.
    one, two = (Run(tmp_path / devices, TranslationConfig).history() for devices in ("one", "two"))
    assert one["val_loss"] == pytest.approx(two["val_loss"], rel=1e-5)
    assert one["loss"] == pytest.approx(two["loss"], rel=1e-5)


@pytest.mark.soak
def test_two_replicas_of_one_process_told_to_end_go_on_too(text, whole, tmp_path):
    run = tmp_path / "mirrored"
    arguments = command_that_dies(text, run, "--virtual-devices=2")
    environment = {**ENVIRONMENT, "DIES": "0:7:15", "DIED": str(run) + ".died"}
    options = {"cwd": ROOT, "env": environment, "capture_output": True, "timeout": 300}
    assert subprocess.run(arguments, **options).returncode == 75
    done = subprocess.run(arguments, **options)
    assert done.returncode == 0, done.stderr[-3000:]
    for one, other in zip(weights_of(run), weights_of(whole), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4, err_msg="as on two workers")


def test_a_worker_left_alone_ends_with_a_line(text, tmp_path, capfd):
    """Started by hand, without a launcher to end it; or TensorFlow itself aborts, with its own.

    Which of the two depends on what sees the loss first; tests/train/test_devices.py has ours.
    """
    from train.launch.local import Workers

    run = tmp_path / "alone"
    with Workers(command_that_dies(text, run), 2) as workers:
        deadline = time.monotonic() + 200
        while not list(tmp_path.glob("alone/checkpoints/step-*.npz")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        workers.processes[1].send_signal(signal.SIGKILL)
        code = workers.processes[0].wait(timeout=900)
    errors = capfd.readouterr().err
    assert code in (76, -6)
    if code == 76:
        assert "Another worker was lost: " in errors
        assert "Start all workers again with the same command" in errors
    else:
        assert "coordination" in errors.lower()
