"""Runs whose rows hold several texts: trained, resumed, served, refused where they cannot be."""

import re

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.data import PackedRows
from keras_transformer.serving import Generator, RunFolder, Translator
from train import language_model, loop, translation
from train.language_model import LanguageModelConfig, read_documents
from train.loop import with_plan
from train.run import Run
from train.translation import TranslationConfig

from .conftest import SETTINGS
from .test_language_model import FLAGS
from .test_recovery import Break

DOCUMENTS = "".join(f"{'so ' * (n % 7)}it goes\n\n" for n in range(150))


def weights_of(run):
    return [weight.numpy() for weight in RunFolder(run).model().weights]


def train_whole_and_in_two_parts(command, flags, folder, monkeypatch):
    flags = [*flags, "--steps=4", "--checkpoint-every=2", "--average=1", "--run"]
    whole, resumed = folder / "whole", folder / "resumed"
    command.main([*flags, str(whole)])
    with monkeypatch.context() as patched:
        patched.setattr(loop, "StopOnNonFiniteLoss", lambda: Break(3))
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            command.main([*flags, str(resumed)])
    assert not (resumed / "model.keras").exists()
    command.main([*flags, str(resumed)])
    for one, other in zip(weights_of(whole), weights_of(resumed), strict=True):
        np.testing.assert_array_equal(one, other)
    return whole, resumed


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_a_packed_translation_resumes_exactly_and_is_served(text, tmp_path, capsys, monkeypatch):
    flags = [*text[:2], *text[4:6], *SETTINGS, "--packed"]
    run, _ = train_whole_and_in_two_parts(translation, flags, tmp_path, monkeypatch)
    assert "; 1 shape, " in capsys.readouterr().out
    assert Run(run, TranslationConfig).config().packed
    assert len(Translator.load(run)(["a b c", "d"])) == 2
    with pytest.raises(SystemExit):
        translation.main([*flags, "--no-packed", "--steps=4", "--average=1", "--run", str(run)])
    assert "packed was True and is False" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("told_results")
def test_packed_documents_resume_exactly_and_are_continued(tmp_path, capsys, monkeypatch):
    (tmp_path / "text.txt").write_text(DOCUMENTS)
    flags = ["--text", str(tmp_path / "text.txt"), *FLAGS, "--packed", "--schedule=inverse_sqrt"]
    runs = train_whole_and_in_two_parts(language_model, flags, tmp_path, monkeypatch)
    out = capsys.readouterr().out
    assert " documents; 1 shape, " in out and " documents, in rows of 16." in out
    whole, resumed = (Run(run, LanguageModelConfig).history()["val_loss"] for run in runs)
    assert len(whole) >= 1 and resumed == whole
    assert len(Generator.load(runs[0])(["it "], max_tokens=5)) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_any_run_is_tuned_with_packed_rows_or_without(run_of, text, tmp_path, capsys):
    before = run_of("translation")
    flags = [*text[:2], *text[4:6], "--max-length=24", "--steps=2", "--average=1"]
    for flag, is_packed in (("--packed", True), ("--no-packed", False)):
        run = tmp_path / flag
        translation.main([*flags, flag, "--pretrained", str(before), "--run", str(run)])
        assert ("; 1 shape, " in capsys.readouterr().out) == is_packed
        assert len(Translator.load(run)(["a b c", "d"])) == 2
        before = run


def test_documents_end_after_empty_lines_and_lose_nothing(tmp_path):
    (tmp_path / "text.txt").write_bytes(b"\n\na b\nc\n\n\nb\r\n\r\nc")
    documents = read_documents(tmp_path / "text.txt")
    assert documents == [b"\n\n", b"a b\nc\n\n\n", b"b\r\n\r\n", b"c"]


@pytest.mark.parametrize(
    ("command", "flags", "expected"),
    [
        (translation, ["--shapes=4"], "--packed makes batches of one shape.* --shapes 4"),
        (language_model, ["--shapes=4"], "--packed makes batches of one shape.* --shapes 4"),
        (
            language_model, ["--model=transformer_xl", "--size=small"],
            "--packed needs another --model.* Received: --packed and --model transformer_xl",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_packed_is_one_line(command, flags, expected, tmp_path, capsys):
    with pytest.raises(SystemExit) as caught:
        command.main(["--packed", *flags, "--run", str(tmp_path / "run")])
    message = capsys.readouterr().err
    assert caught.value.code == 2 and message.count("\n") == 1
    assert re.search(expected, message)


def test_a_packed_run_keeps_one_shape_where_steps_are_compiled(tmp_path, monkeypatch):
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [kind])
    run = Run(tmp_path / "run", TranslationConfig)
    config = with_plan(TranslationConfig(packed=True), run, tf.distribute.get_strategy())
    assert config.shapes == 0 and config.batch_shapes() == PackedRows()
    assert with_plan(TranslationConfig(), run, tf.distribute.get_strategy()).shapes == 16
