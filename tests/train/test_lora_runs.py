"""Runs with --lora-rank of the commands that do not tune a classifier, and what uses them."""

import re

import keras
import numpy as np
import pytest

from keras_transformer.models.lora import lora_of, merge_lora
from keras_transformer.serving import RunFolder, Translator
from tests.reference import array
from train import language_model, pretraining, translation

from .conftest import SETTINGS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("untold_results", "eager")]
TINY = ["--num-layers=1", "--hidden-dim=8", "--intermediate-dim=10", "--num-heads=2"]
LORA = ["--lora-rank=2", "--lora-targets=value, narrow", "--steps=2", "--checkpoint-every=1"]
LORA += ["--average=2", "--warmup-steps=1", "--peak-rate=0.1"]
XL = ["--text={folder}/text", "--model=transformer_xl", "--memory-length=5", "--context=8"]
RUNS = {
    "translation": (
        translation,
        [*SETTINGS, "--tokens-per-batch=4096", "--bleu-every=1", "--max-target-length=4"],
    ),
    "transformer_xl": (language_model, [*XL, *TINY, "--tokens=bytes", "--batch-size=4"]),
    "transformer_xl tuned": (language_model, [*XL[:1], "--pretrained={folder}/transformer_xl"]),
    "pretraining": (
        pretraining,
        ["--documents={folder}/text", *TINY, "--vocabulary-size=50", "--max-length=24",
         "--positions=30", "--batch-size=4"],
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of the runs, which are named as in RUNS."""
    folder = tmp_path_factory.mktemp("runs")
    sentence = "The cats sat on the mat. The dog lay on the log.\n"
    (folder / "text").write_text("\n".join([sentence * 4] * 12))
    return folder


def begin(name, folder, text):
    """Trains a run, unless it is there; returns its path and the call that goes on with it."""
    (command, flags), run = RUNS[name], folder / name
    given = text if command is translation else []
    flags = [*given, *(flag.format(folder=folder) for flag in flags), *LORA, f"--run={run}"]
    command.main(flags)
    return run, lambda: command.main(flags)


@pytest.mark.parametrize("name", RUNS)
def test_a_run_trains_only_lora_is_merged_when_loaded_and_resumes(name, folder, text, capsys):
    if name.endswith(" tuned"):
        begin(name.removesuffix(" tuned"), folder, text)
    run, go_on = begin(name, folder, text)
    trained = keras.saving.load_model(run / "model.keras", compile=False)
    assert lora_of(trained).targets == ("value", "narrow")
    assert trained.trainable_weights
    for weight in trained.trainable_weights:
        assert "_lora_" in weight.name and np.abs(array(weight)).max() > 0, "B begins at zero"
    merged = RunFolder(run).model()
    assert lora_of(merged) is None
    for one, other in zip(merge_lora(trained).get_weights(), merged.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)

    (run / "model.keras").unlink()  # as if killed after its first step
    for path in (run / "checkpoints").iterdir():
        if re.search(r"\b2\b", path.stem):
            path.unlink()
    capsys.readouterr()
    go_on()
    assert "Resuming from step 1 of 2." in capsys.readouterr().out
    for one, other in zip(merged.get_weights(), RunFolder(run).model().get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_best_weights_are_merged_for_an_export(folder, text, monkeypatch):
    run, _ = begin("translation", folder, text)
    kept = keras.saving.load_model(run / "best.keras", compile=False)
    best, averaged = (Translator.load(run, weights=which) for which in ("best", "averaged"))
    for one, other in zip(merge_lora(kept).get_weights(), best.model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    scores = best.answer(["abc"])["score"], averaged.answer(["abc"])["score"]
    assert abs(scores[0] - scores[1]) > 1e-4, "BLEU is 0 after both steps: the first is the best"
    published = []
    monkeypatch.setattr(Translator, "export", lambda served, *_, **__: published.append(served))
    translation.main(["export", f"--run={run}", "--name=tuned", "--weights=best"])
    [served] = published
    np.testing.assert_array_equal(served.answer(["abc"])["score"], scores[0])
