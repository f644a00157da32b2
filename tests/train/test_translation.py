"""The command from files to a served answer, on letters that are spelled backwards."""

import io
import json
import re
import shutil
import sys

import keras
import numpy as np
import pytest

from keras_transformer.data import ParallelText
from keras_transformer.decoding.compiling import compiled
from keras_transformer.serving import Translator, served_model, translator
from keras_transformer.serving.publishing.c_api import ask
from train import translation
from train.run import Run
from train.translation import TranslationConfig, TranslationExperiment

from .conftest import SETTINGS, run_eagerly

# Steps of the whole text, so that an epoch is one and all have the same shape.
TRAINED = [
    "--tokens-per-batch=4096", "--checkpoint-every=1", "--steps=2", "--bleu-every=1",
    "--peak-rate=0.01",
]  # fmt: skip


@pytest.fixture(scope="module")
def trained(text, tmp_path_factory):
    """The folder of a run of 2 steps, whose mean are its averaged weights.

    The first are its best: both have a BLEU of 0.
    """
    run = tmp_path_factory.mktemp("runs") / "whole"
    with run_eagerly(True):
        translation.main([*text, *SETTINGS, *TRAINED, "--run", str(run)])
    return run


def exit_message(capsys, *arguments):
    with pytest.raises(SystemExit) as caught:
        translation.main(list(arguments))
    printed = capsys.readouterr().err
    message = printed if isinstance(caught.value.code, int) else caught.value.code
    assert message.strip().count("\n") == 0
    return message


@pytest.mark.slow
def test_a_run_leaves_model_history_and_pictures(trained):
    names = {path.name for path in trained.iterdir()}
    assert {"config.json", "tokenizer.model", "model.keras", "history.csv"} <= names
    assert {"learning_curves.png", "attention.png", "attention.html", "best.keras"} <= names
    assert not [name for name in names if name.startswith(".")], "no drafts"
    history = Run(trained, TranslationConfig).history()
    assert np.isfinite(history["loss"]).all() and history["val_loss"]


@pytest.mark.slow
@pytest.mark.usefixtures("told_results")
def test_scores_during_training_compile_one_search_for_all_epochs(
    text, tmp_path, monkeypatch, capsys
):
    """As on a GPU, where the cache is static."""
    searches = []

    def kept(search):
        searches.append(compiled(search))
        return searches[-1]

    monkeypatch.setattr(served_model, "is_static", lambda *_: True)
    monkeypatch.setattr(translator, "compiled", kept)
    run = tmp_path / "run"
    flags = ["--metric=rouge", "--bleu-every=1", "--run", str(run)]
    translation.main([*text, *SETTINGS, *TRAINED, *flags])
    assert len(Run(run, TranslationConfig).history()["val_rouge"]) > 1
    assert (run / "best.keras").exists()
    printed = capsys.readouterr().out
    assert "ROUGE-L: " in printed and "BLEU: " not in printed
    assert len(searches) == 2, "one for all epochs, and one of the finished run"
    assert searches[0].experimental_get_tracing_count() == 1


@pytest.mark.slow
@pytest.mark.usefixtures("told_results", "eager")
def test_a_run_without_a_validation_text_has_pictures_too(text, tmp_path):
    run = tmp_path / "run"
    translation.main([*text[:2], *text[4:6], *SETTINGS, "--steps=1", "--run", str(run)])
    assert set(Run(run, TranslationConfig).history()) == {
        "loss", "perplexity", "token_accuracy", "tokens_per_second",
    }  # fmt: skip
    assert (run / "learning_curves.png").exists()


@pytest.mark.slow
def test_a_finished_run_is_not_trained_again(text, trained, capsys):
    before = (trained / "model.keras").read_bytes()
    translation.main([*text, *SETTINGS, *TRAINED, "--run", str(trained)])
    assert "already trained" in capsys.readouterr().out
    assert (trained / "model.keras").read_bytes() == before


@pytest.mark.slow
def test_other_settings_never_overwrite_a_run(text, trained, capsys):
    flags = [*text, *SETTINGS, *TRAINED, "--steps=1", "--run", str(trained)]
    assert "--steps was 2 and is 1" in exit_message(capsys, *flags)


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_translate_keeps_order_and_number_of_lines(trained, monkeypatch, capfdbinary):
    lines = b"abc\n\n\xff\xfe d\n" + b"fed " * 999 + b"\n\nabc"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), write_through=True))
    translation.main(["translate", "--run", str(trained)])
    answer = sys.stdout.buffer.getvalue().decode().split("\n")
    assert len(answer) == 7 and answer[-1] == ""
    assert answer[0] == answer[5] and answer[1] == answer[4] == ""


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_translate_writes_what_the_translator_finds_as_json(trained, monkeypatch):
    flags = ["--num-beams=3", "--format=json", "--num-best=2", "--run", str(trained)]

    def answers(lines):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), write_through=True))
        translation.main(["translate", *flags])
        return list(map(json.loads, sys.stdout.buffer.getvalue().decode().splitlines()))

    first, empty, long = answers(b"abc\n\n" + b"fed " * 999)
    assert [answer["truncated"] for answer in (first, empty, long)] == [False, False, True]
    [expected] = Translator.load(trained, num_beams=3).n_best(["abc"])
    for answer, best in zip(first["translations"], expected[:2], strict=True):
        assert answer.pop("score") == pytest.approx(best.score, rel=1e-5)
        assert answer == {"text": best.text, "num_tokens": best.num_tokens}
    assert empty["translations"] == [{"text": "", "score": 0, "num_tokens": 0}]
    assert answers(b"\n") == [empty]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--num-best=2"], "--num-best needs --format json.*--num-best 2, --format text"),
        (["--format=json", "--num-best=3"], "--num-best must be at most --num-beams.*3 and 2"),
    ],
)
def test_a_number_of_translations_that_cannot_be_is_refused(flags, expected, trained, capsys):
    with pytest.raises(SystemExit) as caught:
        translation.main(["translate", *flags, "--run", str(trained)])
    assert caught.value.code == 2
    assert re.search(expected, capsys.readouterr().err)


@pytest.mark.slow
def test_the_best_weights_are_those_with_the_best_bleu(trained, tmp_path, capsys):
    best, averaged = (Translator.load(trained, weights=w) for w in ("best", "averaged"))
    kept = keras.saving.load_model(trained / "best.keras", compile=False)
    for one, other in zip(best.model.weights, kept.weights, strict=True):
        np.testing.assert_array_equal(one, other)
    pairs = zip(best.model.weights, averaged.model.weights, strict=True)
    assert any(np.any(one.numpy() != other.numpy()) for one, other in pairs)
    with pytest.raises(ValueError, match="weights must be one of averaged, best"):
        Translator.load(trained, weights="last")
    run = shutil.copytree(trained, tmp_path / "run")
    (run / "best.keras").unlink()
    with pytest.raises(SystemExit):
        translation.main(["translate", "--run", str(run), "--weights=best"])
    assert "no best.keras: no score was measured during training" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_evaluate_prints_the_metric_of_the_run_or_another(text, trained, capsys):
    flags = [*text[2:4], *text[6:8]]
    flags = ["--run", str(trained), *(flag.replace("--valid-", "--") for flag in flags)]
    translation.main(["evaluate", *flags])
    printed = capsys.readouterr().out
    assert "BLEU: " in printed and "tok:13a" in printed and "case:lc" in printed
    search = ["--num-beams=1", "--length-penalty=0"]
    translation.main(["evaluate", *flags, "--metric=chrf", *search])
    printed = capsys.readouterr().out
    assert "chrF: " in printed and "BLEU: " not in printed


@pytest.mark.slow
def test_the_best_weights_are_served_with_another_search(trained, capsys, tmp_path):
    flags = ["--run", str(trained), "--directory", str(tmp_path), "--name", "a", "--weights=best"]
    translation.main(["export", *flags, "--num-beams=3", "--length-penalty=0.5"])
    assert f"Published {tmp_path / 'a' / '1'}" in capsys.readouterr().out
    inputs = {"text": ["abc"], "target_prefix": [""], "max_length": [0]}
    request = {"signature_name": "translate_nbest", "inputs": inputs}
    default = {"signature_name": "serving_default", "inputs": {"text": ["abc", ""]}}
    nbest, best = (answer["outputs"] for answer in ask(tmp_path / "a" / "1", [request, default]))
    assert len(nbest["translation"][0]) == 3 and best["translation"][1] == ""
    ours = Translator.load(trained, num_beams=3, length_penalty=0.5, weights="best")
    search = ours.settings.search
    assert (search.num_beams, search.scoring.length_penalty) == (3, 0.5)
    averaged = Translator.load(trained, num_beams=3, length_penalty=0.5)
    with run_eagerly(True):
        answer, other = ours.answer(["abc", ""]), averaged.answer(["abc"])
    np.testing.assert_allclose(best["score"], answer["score"], rtol=1e-5)
    assert abs(other["score"][0] - answer["score"][0]) > 1e-4


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--stepps=3"], "unrecognized arguments: --stepps=3"),
        (["--steps=many"], "--steps must be a whole number, at least 1. Received: many."),
        ([], "Received: none"),
        (["--source=nowhere.en", "--target=nowhere.de"], "nowhere.en, which does not exist"),
        (["--source=nowhere.en"], "Give both --source and --target"),
        (
            ["--tsv=a.tsv", "--source=a", "--target=b"],
            "Received: --source a, --target b and --tsv a.tsv",
        ),
        (["--config=none"], "--config must be one of"),
    ],
)
def test_a_mistake_is_one_clear_line_and_leaves_nothing(flags, expected, tmp_path, capsys):
    run = tmp_path / "run"
    assert expected in exit_message(capsys, *flags, "--run", str(run))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("--vocabulary-size=9000", "at most"),
        ("--vocabulary-size=261", "vocabulary"),
        ("--size=huge", "tiny, base, big"),
        ("--num-heads=3", "divisible by --num-heads"),
        ("--max-length=2", "No text is left"),
        ("--dropout=1.5", "--dropout must be a number, at least 0 and below 1. Received: 1.5."),
    ],
)
def test_a_setting_that_cannot_be_is_told_before_anything_is_written(
    text, flag, expected, tmp_path, capsys
):
    run = tmp_path / "run"
    message = exit_message(capsys, *text, *SETTINGS, flag, "--run", str(run))
    assert expected in message
    assert not list(tmp_path.iterdir())


def test_of_two_runs_begun_at_once_in_a_folder_the_second_is_refused(tmp_path):
    run = Run(tmp_path / "run", TranslationConfig)
    config = TranslationConfig(seed=3, vocabulary_size=264)
    run.draft().write(TranslationExperiment(config, (ParallelText(["a b"], ["b a"]), None)))
    run.create()
    with pytest.raises(ValueError, match="Another process"):
        run.create()
    assert [path.name for path in tmp_path.iterdir()] == ["run"], "no draft is left"
    assert run.config().seed == 3


def test_an_untrained_folder_is_named(tmp_path, capsys):
    message = exit_message(capsys, "translate", "--run", str(tmp_path / "none"))
    assert "holds no run" in message
