"""What a run keeps of its text: written whole or not at all, and enough to go on without it."""

import contextlib
import os
import pathlib
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

from train.classification import ClassificationConfig, ClassificationExperiment
from train.language_model import LanguageModelConfig, LanguageModelExperiment
from train.pretraining import PretrainingConfig, PretrainingExperiment
from train.recovery import begun, load_data, locked
from train.run import Run
from train.translation import TranslationConfig, TranslationExperiment

STRATEGY = tf.distribute.get_strategy()
LINES = [f"The cat {i} sat.\tIt was {'ab'[i % 2]}.\n" for i in range(40)]
LABELS = [line.replace("It was ", "").replace(".\n", "\n") for line in LINES]
DOCUMENTS = ["".join(LINES[i : i + 4]).replace("\t", " ") + "\n" for i in range(0, 40, 4)]
TASKS = {
    "translation": (
        TranslationExperiment,
        LINES,
        TranslationConfig(tsv="text", vocabulary_size=300, tokens_per_batch=300, max_length=30),
    ),
    "classification": (
        ClassificationExperiment,
        LABELS,
        ClassificationConfig(tsv="text", vocabulary_size=30, tokens_per_batch=300, hold_out=7),
    ),
    "language model": (
        LanguageModelExperiment,
        DOCUMENTS,
        LanguageModelConfig(text="text", context=16, hold_out=0.2),
    ),
    "packed documents": (
        LanguageModelExperiment,
        DOCUMENTS,
        LanguageModelConfig(text="text", context=16, packed=True),
    ),
    "pretraining": (
        PretrainingExperiment,
        DOCUMENTS,
        PretrainingConfig(documents="text", vocabulary_size=60, max_length=24, hold_out=3),
    ),
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def begin(task, path, is_created=True):
    """An experiment, and its batch 3 as it is when its run begins."""
    experiment_class, lines, config = TASKS[task]
    pathlib.Path("text").write_text("".join(lines))
    experiment, run = experiment_class(config), Run(path, type(config))
    with contextlib.ExitStack() as stack:
        loaded = load_data(begun(run, experiment, STRATEGY, stack), experiment, STRATEGY)
        if is_created:
            run.create()
            experiment.prepared.path = run.data
        batch = batch_of(*loaded, experiment)
    return run, experiment, batch


def batch_of(tokenizer, batches, experiment):
    parts = [next(iter(batches.dataset(3))), experiment.describe(batches)]
    if (validation := experiment.validation(tokenizer)) is not None:
        parts.append(next(iter(validation)))
    return list(map(np.asarray, keras.tree.flatten(parts)))


@pytest.mark.parametrize("task", TASKS)
def test_a_run_goes_on_without_its_training_text(task):
    run, experiment, batch = begin(task, "run")
    pathlib.Path("text").unlink()
    again = type(experiment)(run.config(), run=run)
    for one, other in zip(batch_of(*load_data(run, again, STRATEGY), again), batch, strict=True):
        np.testing.assert_array_equal(one, other)
    assert again.valid_text == experiment.valid_text
    assert again.shown_text == (experiment.valid_text or experiment.example())


@pytest.mark.parametrize("place", ["new", "empty", "new/and/deep"])
def test_what_is_written_before_a_run_begins_lies_in_one_hidden_folder(place, folder):
    (folder / "empty").mkdir()
    draft = Run(folder / place, TranslationConfig).draft().path
    # An empty folder may be a mount point, which nothing beside it can replace.
    assert draft.parent == (folder / place if place == "empty" else (folder / place).parent)
    run, *_ = begin("translation", folder / place)
    assert {file.name for file in run.path.iterdir()} == {
        "config.json", "tokenizer.model", "data", "plan", "checksums.npz"
    }  # fmt: skip
    assert not list(folder.rglob(".*"))


@pytest.mark.parametrize("place", ["new", "empty"])
def test_a_start_that_fails_or_is_killed_leaves_nothing_behind(place, folder):
    (folder / "empty").mkdir()
    run, *_ = begin("translation", folder / place, is_created=False)
    assert sorted(os.listdir(folder)) == ["empty", "text"] and not os.listdir(folder / "empty")
    killed = run.draft(process=1)
    killed.write(TranslationExperiment(TASKS["translation"][2]))
    begin("translation", folder / place)
    with locked(run, STRATEGY):
        assert not killed.path.exists() and not list(folder.glob(".draft*"))


def test_a_plan_or_data_that_is_missing_is_made_again(folder):
    run, _, batch = begin("packed documents", "run")
    for missing in (run.plan, run.plan / "rows", run.data, run.tokenizer_file):
        if missing == run.tokenizer_file:
            missing.unlink()
        else:
            shutil.rmtree(missing)
        again = LanguageModelExperiment(run.config(), run=run)
        loaded = load_data(run, again, STRATEGY)
        for one, other in zip(batch_of(*loaded, again), batch, strict=True):
            np.testing.assert_array_equal(one, other)
        assert missing.exists()


@pytest.mark.parametrize(
    ("file", "place"),
    [
        ("plan/rows/plan.json", "plan"),
        ("plan/rows/order.npy", "plan/rows"),
        ("data/manifest.json", "data"),
        ("data/checksums.npz", "data"),
        ("data/text.ids.npy", "data"),
    ],
)
def test_a_folder_that_lacks_a_file_is_named_with_what_to_delete(file, place):
    run, experiment, _ = begin("packed documents", "run")
    (run.path / file).unlink()
    with pytest.raises(ValueError, match=rf"run/{place}") as caught:
        load_data(run, experiment, STRATEGY)
    assert "Delete" in str(caught.value) and "\n" not in str(caught.value)
    assert not (run.path / file).exists()
