"""What a run shows while it trains: a bar on a terminal, plain lines everywhere else."""

import itertools
import os
import pty
import re
import sys
import threading

import keras
import numpy as np
import pytest

import keras_transformer as kt
from train import progress, translation

from .conftest import SETTINGS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("eager")]

NUMBER = r"[\d.,e+-]+"


@pytest.fixture
def flags(text, tmp_path):
    return [*text, *SETTINGS, "--run", str(tmp_path / "run")]


def test_a_log_has_a_plain_line_for_each_epoch_and_every_hundred_steps(
    flags, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("train.progress.LINE_EVERY", 2)
    log = tmp_path / "run" / "log.txt"
    translation.main([*flags, "--steps=11", f"--log-file={log}", "--bleu-every=2"])
    shown = capsys.readouterr().out
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", shown), "no control characters"
    lines = [line for line in shown.splitlines() if re.match("(step|epoch|checkpoint) ", line)]
    assert log.read_text().splitlines() == lines
    number = re.search(r"11 steps, (\d+) per epoch", shown)[1]
    per_epoch, steps = int(number), [line for line in lines if line.startswith("step ")]
    assert [line.split(":")[0] for line in steps] == [f"step {n} of 11" for n in (2, 4, 6, 8, 10)]
    saved = [line for line in lines if line.startswith("checkpoint ")]
    assert all(re.search(r"MB, copied in \S+ s, written in \S+ s$", line) for line in saved)
    assert len(saved) == 4 and "step 11: " in saved[-1]
    lines = [line for line in lines if line not in saved]
    assert all(re.search(f": .*loss {NUMBER}, perplexity {NUMBER}", line) for line in lines)
    epochs = [line for line in lines if line.startswith("epoch ")]
    total = -(-11 // per_epoch)
    for index, line in enumerate(epochs, start=1):
        step = min(11, index * per_epoch)
        assert line.startswith(f"epoch {index} of {total}, step {step} of 11, "), line
        assert ("val_bleu" in line) == (index % 2 == 0) and "val_loss " in line
    assert "nan" not in shown and "per_second 0" not in shown


def test_a_resumed_run_appends_to_its_log_and_counts_its_own_steps(flags, tmp_path, capsys):
    log = tmp_path / "log.txt"
    translation.main([*flags, "--steps=6", f"--log-file={log}"])
    (tmp_path / "run" / "model.keras").unlink()  # as if stopped just before its end
    translation.main([*flags, "--steps=9", f"--log-file={log}"])
    said = capsys.readouterr().out
    assert "Resuming from step 6 of 9." in said
    assert re.search(r"^epoch \d+ of \d+, step 9 of 9, ", log.read_text(), re.MULTILINE)
    steps = [int(n) for n in re.findall(r"step (\d+) of \d", log.read_text())]
    assert steps == sorted(steps) and steps[-1] == 9


def test_a_log_that_cannot_be_written_is_named_before_any_work(flags, tmp_path, capsys):
    with pytest.raises(SystemExit):
        translation.main([*flags, "--steps=6", f"--log-file={tmp_path}"])
    assert f"Is a directory: '{tmp_path}'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_terminal_has_a_bar_that_counts_the_epochs_of_the_run(flags, monkeypatch):
    ours, theirs = pty.openpty()
    shown = []
    reader = threading.Thread(target=lambda: shown.extend(iter(lambda: _read(ours), b"")))
    reader.start()
    try:
        with os.fdopen(theirs, "w", encoding="utf-8") as terminal, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", terminal)
            translation.main([*flags, "--steps=11"])
    finally:
        reader.join()
        os.close(ours)
    text = b"".join(shown).decode()
    last = re.search(r"11 steps, (\d+) per epoch", text)
    epochs = -(-11 // int(last[1]))
    titles = re.findall(r"Epoch (\d+)/(\d+)", text)
    assert titles == [(str(n), str(epochs)) for n in range(1, epochs + 1)]
    assert "━━" in text and not re.search("^epoch ", text, re.MULTILINE)
    assert "per_second: 0" not in text


def _read(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux's end of a terminal whose other side is closed
        return b""


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(("is_late", "steps"), [(False, [2, 4]), (True, [3, 4])])
def test_losses_within_an_epoch_are_means_over_tokens(is_late, steps, tmp_path, monkeypatch):
    """A callback that cannot read late logs makes the log read each step before the next one."""
    monkeypatch.setattr(progress, "ROWS_OF_A_RUN", 2)
    ids, labels = np.random.default_rng(0).integers(1, 7, (2, 8, 5))
    starts = [0, 1, 4, 5, 8]  # of four batches, in rows
    batches = [(ids[a:b], labels[a:b]) for a, b in itertools.pairwise(starts)]
    model = kt.language_model(7, num_layers=1, num_heads=1, hidden_dim=4, intermediate_dim=4)
    model.compile(keras.optimizers.SGD(0.0), kt.TokenCrossentropy())
    callbacks = [progress.StepLog(tmp_path / "losses.csv", steps=4, per_epoch=4)]
    if not is_late:
        callbacks.append(
            keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None)
        )
    model.fit((pair for pair in batches), steps_per_epoch=4, callbacks=callbacks, verbose=0)
    rows = progress.read_log(tmp_path / "losses.csv")
    assert {step: row["epochs"] for step, row in rows.items()} == {s: s / 4 for s in steps}
    for before, step in itertools.pairwise([0, *steps]):
        part = slice(starts[before], starts[step])
        expected = model.evaluate(ids[part], labels[part], verbose=0, return_dict=True)["loss"]
        assert rows[step]["loss"] == pytest.approx(expected, rel=1e-5)
