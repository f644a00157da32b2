"""What may change when a stopped run goes on, and what may not."""

import json
import re
import shutil
import sys

import numpy as np
import pytest

from keras_transformer.serving import RunFolder
from keras_transformer.training.checkpoint_files import steps_in
from train import translation
from train.language_model import LanguageModelConfig
from train.progress import read_log
from train.run import Run
from train.training_config import MAY_CHANGE
from train.translation import TranslationConfig

from .conftest import SETTINGS


def folder_of(path, config, finished=False):
    path.mkdir()
    run = Run(path, type(config))
    run.save_config(config)
    if finished:
        run.model_file.touch()
    return run


SAFE = {
    "peak_rate": 0.25,
    "warmup_steps": 7,
    "schedule": "cosine",
    "weight_decay": 0.5,
    "clip_norm": 3.0,
    "average": 7,
    "patience": 3,
    "num_beams": 3,
    "length_penalty": 0.5,
    "scoring": "huggingface",
    "token_rules": '{"min_length": 3}',
    "max_target_length": 40,
    "sampling": '{"temperature": 0.5}',
    "tensorboard": True,
    "steps": 8001,
    "checkpoint_every": 250,
    "bleu_every": 0,
    "prepared": "moved",
}


@pytest.mark.parametrize("name", SAFE)
def test_a_stopped_run_may_go_on_with_a_safe_change_and_keeps_it(name, tmp_path, capsys):
    is_sampling = name == "sampling"  # which translation has not
    config = LanguageModelConfig() if is_sampling else TranslationConfig(bleu_every=2)
    run = folder_of(tmp_path / "run", config)
    now = run.config().replace(**{name: SAFE[name]})
    assert run.holds(now)
    before = getattr(run.config(), name)
    run.record(now)
    flag = "--" + name.replace("_", "-")
    assert capsys.readouterr().out == (
        f"Resuming with other settings: {flag} was {before} and is {SAFE[name]}.\n"
    )
    assert run.config() == now
    assert [path.name for path in run.path.iterdir()] == ["config.json"], "no draft is left"
    run.record(now)
    assert capsys.readouterr().out == ""


def test_all_that_may_change_is_tried():
    assert SAFE.keys() == MAY_CHANGE.keys()


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 7999},
        {"checkpoint_every": 300},  # those at 500 would no longer be kept
        {"seed": 2},
        {"dropout": 0.3},
        {"beta_2": 0.9},
        {"label_smoothing": 0.2},
        {"accumulation_steps": 2},
        {"tokens_per_batch": 2048},
        {"metric": "chrf"},  # the best score so far is of another
        {"source": "other.txt"},
        {"dtype": "mixed_bfloat16"},
    ],
)
def test_other_changes_are_refused_in_a_line(change, tmp_path):
    run = folder_of(tmp_path / "run", TranslationConfig(bleu_every=2))
    [(name, value)] = change.items()
    flag = "--" + name.replace("_", "-")
    before = getattr(run.config(), name)
    with pytest.raises(ValueError, match="was begun with settings that can no longer") as caught:
        # Beside one that might change.
        run.holds(run.config().replace(peak_rate=0.5, **change))
    assert str(caught.value).endswith(f"Received: {flag} was {before} and is {value}.")


def test_nothing_of_a_finished_run_changes(tmp_path):
    run = folder_of(tmp_path / "run", TranslationConfig(), finished=True)
    assert run.holds(run.config())
    expected = "run is already trained: its settings can no longer change.*--peak-rate was 0.001"
    with pytest.raises(ValueError, match=expected):
        run.holds(run.config().replace(peak_rate=0.5))


@pytest.mark.parametrize("wrong", [{"no_such": 3}, {"steps": 0}])
def test_a_config_of_another_command_is_named(wrong, tmp_path):
    run = folder_of(tmp_path / "run", TranslationConfig())
    run.config_file.write_text(json.dumps(json.loads(run.config_file.read_text()) | wrong))
    [(name, value)] = wrong.items()
    flag = name if name == "no_such" else f"--{name}"
    with pytest.raises(
        ValueError, match=f"config.json belongs to another command, .*{flag}.*{value}"
    ):
        run.config()


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_another_rate_saves_a_training_whose_loss_was_not_finite(text, tmp_path, capsys):
    run = tmp_path / "run"
    flags = [*text[:2], *text[4:6], *SETTINGS, "--run", str(run)]
    translation.main([*flags, "--steps=4"])
    (run / "model.keras").unlink()  # as if stopped just before its end
    with pytest.raises(SystemExit) as caught:
        translation.main([*flags, "--steps=9", "--weight-decay=1e30"])
    assert caught.value.code == 2
    # A checkpoint of the same step may see it first, before the loss is read.
    said = capsys.readouterr().err
    assert re.search(r"not finite (at|after) step 6[.,].* Lower the learning rate", said)
    translation.main([*flags, "--steps=9", "--weight-decay=0", "--peak-rate=0.0005"])
    said = capsys.readouterr().out
    assert "--peak-rate was 0.001 and is 0.0005; --weight-decay was 1e+30 and is 0.0." in said
    assert "Resuming from step 4 of 9." in said
    assert json.loads((run / "config.json").read_text())["peak_rate"] == 0.0005
    assert all(np.isfinite(weights).all() for weights in RunFolder(run).model().get_weights())


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_a_run_goes_on_longer_with_the_new_rate_from_its_checkpoint(text, run_of, tmp_path, capsys):
    run, other = (shutil.copytree(run_of("translation"), tmp_path / name) for name in "ab")
    flags = [*text, *SETTINGS, "--checkpoint-every=1", "--average=1", "--steps=5"]
    for path, rate in ((run, "0.001"), (other, "0.01")):
        (path / "model.keras").unlink()  # as if stopped just before its end
        translation.main([*flags, f"--peak-rate={rate}", "--run", str(path)])
    assert capsys.readouterr().out.count("Resuming from step 3 of 5.") == 2
    one, two = (RunFolder(path).model().get_weights() for path in (run, other))
    assert any(np.abs(a - b).max() > 1e-3 for a, b in zip(one, two, strict=True))


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_bleu_may_be_measured_later_and_no_more(text, tmp_path, capsys):
    """history.csv gets the column, and epochs without it say so."""
    run = Run(tmp_path / "run", TranslationConfig)
    flags = [*text, *SETTINGS, "--tokens-per-batch=4096", "--run", str(run.path)]
    for steps, bleu_every in ((1, 0), (2, 1), (3, 0)):
        run.model_file.unlink(missing_ok=True)  # as if stopped just before its end
        translation.main([*flags, f"--steps={steps}", f"--bleu-every={bleu_every}"])
    said = capsys.readouterr().out
    assert "3 steps, 1 per epoch" in said
    assert "--bleu-every was 0 and is 1." in said and "--bleu-every was 1 and is 0." in said
    rows = read_log(run.history_file).values()
    assert ["val_bleu" in row for row in rows] == [False, True, False]
    history = run.history()
    assert np.isfinite(history["val_bleu"]).tolist() == [False, True, False]
    assert len(history["val_loss"]) == 3


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_a_finished_run_goes_on_with_more_steps_as_if_it_had_them_from_the_start(
    text, tmp_path, capsys
):
    run, whole = tmp_path / "run", tmp_path / "whole"
    flags = [*text, *SETTINGS, "--average=1"]
    translation.main([*flags, "--steps=3", "--run", str(run)])
    before = (run / "model.keras").read_bytes()
    translation.main([*flags, "--steps=3", "--run", str(run)])
    assert "is already trained: nothing to do." in capsys.readouterr().out
    translation.main([*flags, "--steps=6", "--run", str(run)])
    said = capsys.readouterr().out
    assert "--steps was 3 and is 6." in said and "Resuming from step 3 of 6." in said
    assert (run / "model.keras").read_bytes() != before
    translation.main([*flags, "--steps=6", "--run", str(whole)])
    one, two = (RunFolder(path).model().get_weights() for path in (run, whole))
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a, b)
    # Also the epoch within which it had ended, although validation has used the same metrics since.
    (ours,), (theirs,) = (read_log(path / "history.csv").values() for path in (run, whole))
    for name in theirs.keys() - {"tokens_per_second"}:
        assert float(ours[name]) == pytest.approx(float(theirs[name]), rel=1e-5), name


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_a_run_that_goes_on_keeps_its_model_until_the_next_is_finished(
    text, run_of, tmp_path, capsys, monkeypatch
):
    """Stopped before its first new checkpoint or after its last, it is not taken for finished."""
    run = Run(shutil.copytree(run_of("translation"), tmp_path / "run"), TranslationConfig)
    flags = [*text, *SETTINGS, "--checkpoint-every=1", "--run", str(run.path)]
    run.record(run.config().replace(steps=6))  # as if killed after this
    before = run.model_file.read_bytes()
    with monkeypatch.context() as killed:
        killed.setattr(Run, "save", lambda *_: sys.exit(1))
        with pytest.raises(SystemExit):
            translation.main([*flags, "--steps=6"])
    assert "Resuming from step 3 of 6." in capsys.readouterr().out
    assert run.model_file.read_bytes() == before and steps_in(run.checkpoints)[-1] == 6
    translation.main([*flags, "--steps=6"])
    assert "Resuming from step 6 of 6." in capsys.readouterr().out
    assert run.model_file.read_bytes() != before
    translation.main([*flags, "--steps=6"])
    assert "is already trained: nothing to do." in capsys.readouterr().out


def test_a_finished_run_without_checkpoints_does_not_go_on(tmp_path):
    run = folder_of(tmp_path / "run", TranslationConfig(), finished=True)
    assert run.holds(run.config())
    with pytest.raises(ValueError, match=r"already trained: its settings.*--steps was 8000"):
        run.holds(run.config().replace(steps=9000))


def test_a_run_that_stopped_early_is_finished_before_its_last_step(tmp_path):
    run = folder_of(tmp_path / "run", TranslationConfig(patience=2), finished=True)
    run.checkpoints.mkdir()
    (run.checkpoints / "step-500.npz").touch()
    run.history_file.write_text("epoch,val_loss\n0,3.0\n1,4.0\n")
    assert not run.is_finished(run.config())
    run.history_file.write_text("epoch,val_loss\n0,3.0\n1,4.0\n2,3.5\n")
    assert run.is_finished(run.config())
