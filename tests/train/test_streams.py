"""Standard streams that are closed, full or left by their reader: one line, never a traceback."""

import itertools
import os
import random
import shlex
import subprocess
import sys

import pytest

from keras_transformer.serving import Translator

from .conftest import SETTINGS

ENVIRONMENT = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
CLOSED = ("<&-", ">&-", "2>&-", "<&- >&- 2>&-")
COMMANDS = (
    "train.translation", "train.classification", "train.language_model", "train.pretraining",
    "train.convert", "train.launch", "train", "train.serve", "train.translation translate",
    "train.classification classify", "train.language_model sample",
)  # fmt: skip


def run_in_shell(command, redirection, **options):
    """Runs `python -m <command>` by a shell that redirects its streams."""
    line = f"{sys.executable} -m {command} {redirection}"
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        capture_output=True, text=True, env=ENVIRONMENT, timeout=300, **options,
    )  # fmt: skip


@pytest.mark.slow
def test_help_and_mistakes_end_quietly():
    others = ("| head -1", "2>&1 | head -1", "> /dev/full")
    ways = itertools.product(COMMANDS, ("--help", "--no-such-flag=1"), (*CLOSED, *others))
    for command, flag, redirection in random.Random(3).sample(list(ways), 22):
        done = run_in_shell(f"{command} {flag}", redirection)
        for word in ("Traceback", "Exception ignored", "Error"):
            assert word not in done.stderr, (command, flag, redirection, done.stderr)
        assert done.returncode == (0 if flag == "--help" else 2), (command, flag, redirection)


FULL = "error: [Errno 28] No space left on device\n"
ANSWERS = [
    ("translation translate", "<&- 2>&-", 0, ""),
    ("translation translate", "<<< abc > /dev/full", 2, FULL),
    ("language_model sample", "<&- >&-", 0, ""),
    ("language_model sample --length=0", "> /dev/full", 2, FULL),
    ("translation translate --num-beams=0", "2>&1 >&- | head -0", 2, ""),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("command", "redirection", "code", "message"), ANSWERS)
def test_answers_end_in_one_line_or_none(run_of, command, redirection, code, message):
    run = shlex.quote(str(run_of(command.split()[0])))
    done = run_in_shell(f"train.{command} --run {run}", redirection)
    assert (done.returncode, done.stderr) == (code, message)


@pytest.mark.slow
def test_a_training_needs_no_stream_and_writes_its_files_whole(text, tmp_path):
    flags = [*text[:2], *text[4:6], *SETTINGS, "--steps=1", "--average=1", f"--run={tmp_path}/run"]
    done = run_in_shell(f"train.translation {' '.join(flags)}", CLOSED[-1])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"model.keras", "attention.html", "history.csv"} <= files
    Translator.load(tmp_path / "run")
