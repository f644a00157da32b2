"""A small text and the settings of a model so small that it is trained in seconds."""

import contextlib
import gzip
import importlib
import os
import pathlib
import random
import subprocess
import sys
import warnings
from functools import partial

import pytest

from tests.conftest import leave_results_untold
from train import gpus

SETTINGS = [
    "--vocabulary-size=280", "--num-layers=1", "--hidden-dim=16", "--intermediate-dim=32",
    "--num-heads=2", "--dropout=0.1", "--tokens-per-batch=128", "--max-length=24",
    "--warmup-steps=5", "--checkpoint-every=3", "--average=2", "--num-beams=2",
]  # fmt: skip


@pytest.fixture(scope="session", autouse=True)
def only_small_pictures(small_pictures):
    """For every run of this folder."""


@pytest.fixture(autouse=True)
def results_of_few(request):
    """Trainings draw and score what they learnt only in tests that ask for `told_results`."""
    if "told_results" not in request.fixturenames:
        request.getfixturevalue("untold_results")


@pytest.fixture
def told_results():
    """Trainings of this process end as usual, with pictures and scores."""


@contextlib.contextmanager
def run_eagerly(value):
    """Whether TensorFlow leaves out graphs: of few small steps, most of the time is tracing."""
    import tensorflow as tf

    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(value)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Even though the `tf.config")  # datasets have graphs
            yield
    finally:
        tf.config.run_functions_eagerly(before)


@pytest.fixture
def eager():
    """Trainings and searches of this process run eagerly."""
    with run_eagerly(True):
        yield


def write_pairs(folder):
    draw = random.Random(3)
    words = ["".join(draw.choices("abcdef", k=draw.randint(1, 7))) for _ in range(211)]
    for side, lines in (("source", words), ("target", [word[::-1] for word in words])):
        with gzip.open(folder / f"train.{side}.gz", "wt") as file:
            file.write("\n".join(lines) + "\n")
        (folder / f"valid.{side}").write_text("\n".join(lines[:13]) + "\n")


@pytest.fixture(scope="session")
def text(made_once):
    """Flags for a training and a validation text, letters spelled backwards, one file packed."""
    folder = made_once("text", write_pairs)
    flags = []
    for side in ("source", "target"):
        flags += [f"--{side}", f"{folder}/train.{side}.gz"]
        flags += [f"--valid-{side}", f"{folder}/valid.{side}"]
    return flags


SMALL = ["--num-layers=1", "--hidden-dim=8", "--intermediate-dim=8", "--num-heads=1"]


def train_one(command, text, folder):
    """A run of a command in folder/run, of text in `folder`."""
    flags = [*SMALL, "--steps=3", "--checkpoint-every=1", "--average=2", "--warmup-steps=1"]
    if command == "translation":
        flags = [*text, *SETTINGS, "--steps=3", "--checkpoint-every=1"]
    elif command == "language_model":
        (folder / "text.txt").write_text("the cat sat on the mat.\n" * 30)
        flags += ["--text", f"{folder}/text.txt", "--context=16", "--batch-size=4"]
    elif command == "classification":
        (folder / "texts.tsv").write_text("a good day\tgood\na bad day\tbad\n" * 20)
        flags += ["--tsv", f"{folder}/texts.tsv", "--hold-out=8", "--vocabulary-size=20"]
        flags += ["--tokens-per-batch=64", "--max-length=8"]
    else:
        (folder / "text.txt").write_text("One cat. Two dogs. One dog.\n\n" * 40)
        flags += ["--documents", f"{folder}/text.txt", "--hold-out=8", "--vocabulary-size=30"]
        flags += ["--batch-size=4", "--max-length=16", "--positions=16"]
    importlib.import_module(f"train.{command}").main([*flags, "--run", f"{folder}/run"])


@pytest.fixture(scope="session")
def run_of(text, made_once):
    """`run_of(command)` is a small finished run of three steps, trained once for both processes.

    A test that changes it copies it first.
    """

    def run(command):
        with pytest.MonkeyPatch.context() as patch, run_eagerly(False):
            leave_results_untold(patch)
            return made_once(f"{command} run", partial(train_one, command, text)) / "run"

    return run


def command_that_dies(text, run, *flags):
    """Trains eleven steps; tests/train/dying.py says how it is told to die."""
    return [
        sys.executable, "-m", "tests.train.dying", *text, *SETTINGS, "--steps=11",
        "--run", str(run), *flags,
    ]  # fmt: skip


def launch_two_workers(text, run, dies="", restarts=1, flags=()):
    """Runs the command on two workers, of which one dies in each start that `dies` has."""
    launch = [sys.executable, "-m", "train.launch", "--workers", "2", "--restarts", str(restarts)]
    return subprocess.run(
        [*launch, "--", *command_that_dies(text, run, *flags)],
        cwd=pathlib.Path(__file__).parents[2],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "DIES": dies, "DIED": f"{run}.died"},
        capture_output=True,
        text=True,
        timeout=900,
    )


@pytest.fixture(scope="session")
def on_two_workers(text, made_once):
    """A folder with a run of two workers that nothing has interrupted, and what it printed."""

    def train(folder):
        done = launch_two_workers(text, folder / "run")
        assert done.returncode == 0, done.stderr[-3000:]
        (folder / "printed.txt").write_text(done.stdout)

    return made_once("run of two workers", train)


@pytest.fixture
def machine(tmp_path_factory, monkeypatch):
    """Pretends that the driver has the devices of so many GPUs; returns the folder they are in."""

    def with_gpus(count):
        root = tmp_path_factory.mktemp("root")
        (root / "dev").mkdir()
        if count:
            for name in (*range(count), "ctl", "-uvm"):
                (root / "dev" / f"nvidia{name}").touch()
        monkeypatch.setattr(gpus, "ROOT", root)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        return root

    return with_gpus
