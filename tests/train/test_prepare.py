"""The command `keras-transformer prepare`, and trainings on what it writes."""

import itertools
import json
import shutil
import sys

import numpy as np
import pytest

from keras_transformer.data import Prepared
from keras_transformer.tokenizers import train_byte_pairs
from train import classification, language_model, prepare, pretraining, translation
from train.run import Run
from train.translation import TranslationConfig

SMALL = (
    "--size=tiny --num-layers=1 --hidden-dim=8 --intermediate-dim=8 --num-heads=1 "
    "--checkpoint-every=4 --tokens-per-batch=800 --max-length=60 --num-beams=1 --warmup-steps=5"
).split()


@pytest.fixture(scope="module")
def text(data):
    return [f"--source={data}/multi30k/val.en.gz", f"--target={data}/multi30k/val.de.gz"]


@pytest.fixture(scope="module")
def folder(text, tmp_path_factory):
    path = tmp_path_factory.mktemp("prepared") / "text"
    flags = ["--vocabulary-size=700", "--held-out=20", "--distinct"]
    prepare.main([*text, f"--output={path}", *flags])
    return path


def told(capsys, arguments, main=translation.main):
    """What a command prints that fails."""
    with pytest.raises(SystemExit):
        main(arguments)
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_it_says_what_it_did_and_checks_every_byte(text, tmp_path, capsys, caplog):
    flags = [
        "--vocabulary-size=600",
        "--max-characters=80",
        f"--output={tmp_path}/out",
    ]
    prepare.main([*text, *flags])
    printed = capsys.readouterr().out
    prepared = Prepared(tmp_path / "out")
    assert f"{tmp_path}/out holds {len(prepared):,} pairs:" in printed
    assert f"{prepared.columns['target'].num_ids:,} target tokens of 600 pieces" in printed
    left_out = prepared.manifest["counts"]["characters"]
    assert left_out and f"{left_out:,} pairs left out: characters" in printed
    prepare.main([*text, *flags])
    assert "already prepared: nothing to do" in caplog.text
    prepare.main(["--check", f"{tmp_path}/out"])
    assert "as they were written" in capsys.readouterr().out
    file = tmp_path / "out" / "source.ids.npy"
    content = bytearray(file.read_bytes())
    content[500] ^= 1
    file.write_bytes(content)
    assert "source.ids.npy is damaged" in told(capsys, ["--check", f"{tmp_path}/out"], prepare.main)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "Give --output, the folder to write, or --check"),
        (["--output=a", "--check=b"], "Received: --output a and --check b."),
        (["--output=a"], "Give one kind of text"),
        (["--output=a", "--text=b", "--tsv=c"], "Give one kind of text: --source and"),
        (["--output=a", "--source=*.none", "--target=b"], "*.none, which does not exist"),
        (["--output=a", "--held-out=-1"], "--held-out must be a number, at least 0"),
        (["--output=a", "--tsv=b", "--kind=pretraining"], "--kind has no effect without --text."),
        (["--output=a", "--text=b", "--numbers"], "--numbers has no effect without --labelled."),
        (["--output=a", "--table=b", "--source-language=de"], "no effect without --dataset. Leave"),
        (
            ["--output=a", "--tsv=b", "--source-column=de"],
            "has no effect without --table.",
        ),
        (["--output=a", "--tsv=b", "--label-column=a"], "--label-column has no effect without"),
        (["--output=a", "--tsv=b", "--tokenizer=c", "--vocabulary-size=500"], "with --tokenizer."),
        (["--check=a", "--seed=2"], "--seed has no effect with --check. Leave it out. Received:"),
        (["--output=a", "--text=b", "--kind=pretraining", "--held-out=1"], "at least 2 documents"),
        (["--output=a", "--held-out=1.5"], "--held-out must be a whole number of pairs, or a"),
    ],
)
def test_mistakes_are_told_in_one_line(flags, message, capsys):
    assert message in told(capsys, flags, prepare.main)


BATCHES_OF_DOCUMENTS = {
    "language_model": (language_model, ["--context=8", "--batch-size=2"]),
    "documents": (language_model, ["--context=8", "--batch-size=2", "--packed"]),
    "pretraining": (pretraining, ["--batch-size=2"]),
}


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("kind", BATCHES_OF_DOCUMENTS)
def test_documents_that_were_prepared_are_trained_on(kind, tmp_path, capsys):
    words = ["".join(letters) for letters in itertools.permutations("abcdef", 3)]
    text = "".join(
        f"To be, or not. What is {word}? It is a {word}{word[::-1]}.\n\n" for word in words
    )
    (tmp_path / "text").write_text(text)
    flags = ["--vocabulary-size=290", "--held-out=5", f"--kind={kind}"]
    prepare.main([f"--text={tmp_path}/text", f"--output={tmp_path}/out", *flags])
    module, flags = BATCHES_OF_DOCUMENTS[kind]
    size = "--num-layers=1 --hidden-dim=8 --intermediate-dim=8 --num-heads=1 --warmup-steps=1"
    flags = [f"--prepared={tmp_path}/out", f"--run={tmp_path}/run", *flags, *size.split()]
    module.main([*flags, "--steps=2"])
    assert "val_loss" in capsys.readouterr().out, "of the documents that were held out"
    assert not (tmp_path / "run" / "data").exists()
    other = next(name for name in BATCHES_OF_DOCUMENTS if name != kind)
    (tmp_path / "text").write_text(text * 2)
    prepare.main([f"--text={tmp_path}/text", f"--output={tmp_path}/other", f"--kind={other}"])
    flags[:2] = [f"--prepared={tmp_path}/other", f"--run={tmp_path}/run2"]
    assert f"--prepared must be of the kind {kind}" in told(capsys, flags, module.main)


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_labelled_texts_that_were_prepared_are_trained_on(tmp_path, capsys):
    lines = [f"{'a good' if n % 2 else 'a bad'} film {n}\t{'pn'[n % 2]}\n" for n in range(40)]
    (tmp_path / "text.tsv").write_text("".join(lines))
    flags = ["--vocabulary-size=280", "--held-out=9"]
    prepare.main([f"--labelled={tmp_path}/text.tsv", f"--output={tmp_path}/out", *flags])
    assert "out holds 31 texts" in capsys.readouterr().out
    size = "--num-layers=1 --hidden-dim=8 --intermediate-dim=8 --num-heads=1 --warmup-steps=1"
    flags = [f"--prepared={tmp_path}/out", f"--run={tmp_path}/run", *size.split(), "--steps=2"]
    classification.main(flags)
    assert "val_loss" in capsys.readouterr().out
    assert "needs labels that are numbers" in told(
        capsys, [*flags[:1], f"--run={tmp_path}/r", "--task=regression"], classification.main
    )


def test_labels_of_equal_texts_are_kept_and_a_single_one_is_demanded(tmp_path, capsys):
    lines = [f"a film {n}\tpos\n" for n in range(30)] + ["ok\tpos\n", "ok\tneg\n", "ok\tneg\n"]
    (tmp_path / "text.tsv").write_text("".join([*lines, "both\tpos,neg\n"]))
    flags = ["--vocabulary-size=290", "--distinct", f"--output={tmp_path}/out"]
    prepare.main([f"--labelled={tmp_path}/text.tsv", *flags])
    printed = capsys.readouterr().out
    assert "out holds 33 texts" in printed and "1 texts left out: duplicates" in printed
    flags = [f"--prepared={tmp_path}/out", f"--run={tmp_path}/run"]
    message = told(capsys, [*flags, "--task=single_label"], classification.main)
    assert "needs one label for each text. Received: 2 labels for text 33 of" in message
    assert not (tmp_path / "run").exists()
    needs = "a text that is not --prepared"
    given = {"tokens": "pieces", "hold_out": 5}
    config = classification.ClassificationConfig(prepared=str(tmp_path), **given, patience=3)
    assert config.without_effect() == {
        **dict.fromkeys(given, needs), "patience": "a validation text"
    }  # fmt: skip


def test_text_for_pretraining_needs_word_pieces_and_documents_to_measure_on(tmp_path, capsys):
    train_byte_pairs(["a b c a b c"], 262).save(tmp_path / "pairs")
    words = ["".join(letters) for letters in itertools.permutations("abcdef", 3)]
    alone = "".join(f"{word}{word[::-1]} alone.\n\n" for word in words)
    sentences = "To be, or not. What is it? It is a very long sentence of many words.\n\n"
    (tmp_path / "text").write_text(alone + sentences * 3)
    flags = [f"--text={tmp_path}/text", "--kind=pretraining", f"--output={tmp_path}/out"]
    message = told(capsys, [*flags, f"--tokenizer={tmp_path}/pairs"], prepare.main)
    assert "must be a WordPieceTokenizer" in message and "BytePairTokenizer" in message
    message = told(capsys, [*flags, "--held-out=2", "--vocabulary-size=290"], prepare.main)
    assert "held_out must be at least two documents of two sentences" in message
    prepare.main([*flags, "--max-tokens=9", "--vocabulary-size=290"])
    assert "3 sentences left out: tokens" in capsys.readouterr().out


def test_documents_are_prepared_and_counted(tmp_path, capsys):
    (tmp_path / "text").write_text("To be, or not.\n\nTo be.\n\nTo be.\n\n")
    flags = ["--vocabulary-size=270", "--distinct", "--held-out=0.0001", "--kind=language_model"]
    prepare.main([f"--text={tmp_path}/text", f"--output={tmp_path}/out", *flags])
    printed = capsys.readouterr().out
    assert "out holds 2 documents:" in printed
    learned = Prepared(tmp_path / "out").vocabulary_size
    assert f"{learned} pieces learned from all 2 documents" in printed and learned < 270
    assert "1 documents left out: duplicates" in printed


@pytest.mark.slow
@pytest.mark.usefixtures("eager")
def test_a_run_on_a_prepared_folder_goes_on_bit_for_bit(folder, tmp_path, capsys, monkeypatch):
    moved = shutil.copytree(folder, tmp_path / "moved")
    translation.main([f"--prepared={folder}", f"--run={tmp_path}/whole", *SMALL, "--steps=8"])
    assert "val_loss" in capsys.readouterr().out, "of the pairs that were held out"
    run = Run(tmp_path / "whole", TranslationConfig)
    assert not run.data.exists()
    monkeypatch.setattr(translation.TranslationExperiment, "show_result", lambda *_: None)
    part = Run(tmp_path / "part", TranslationConfig)
    translation.main([f"--prepared={folder}", f"--run={part.path}", *SMALL, "--steps=4"])
    made = (part.plan / "order.npy").stat().st_mtime_ns
    translation.main([f"--prepared={moved}", f"--run={part.path}", *SMALL, "--steps=8"])
    assert (part.plan / "order.npy").stat().st_mtime_ns == made, "not sorted again"
    weights = [each.model().get_weights() for each in (run, part)]
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_another_folder_is_refused_when_a_run_goes_on(folder, text, tmp_path, capsys, monkeypatch):
    with monkeypatch.context() as stopped, pytest.raises(SystemExit):  # before its first step
        stopped.setattr(translation.TranslationExperiment, "callbacks", lambda *_: sys.exit())
        translation.main([f"--prepared={folder}", f"--run={tmp_path}/run", *SMALL, "--steps=4"])
    other = tmp_path / "other"
    prepare.main([*text, f"--output={other}", "--vocabulary-size=700", "--held-out=21"])
    capsys.readouterr()
    arguments = [f"--prepared={other}", f"--run={tmp_path}/run", *SMALL, "--steps=4"]
    assert "must be the folder that" in told(capsys, arguments)


def test_what_needs_pairs_that_were_held_out_has_no_effect_without(folder, tmp_path):
    given = {"patience": 2, "bleu_every": 1}
    assert not TranslationConfig(prepared=str(folder), **given).without_effect()
    without = TranslationConfig(prepared=str(tmp_path), **given).without_effect()
    assert without == dict.fromkeys(given, "a validation text")


def test_what_a_prepared_text_does_not_go_with_is_refused(folder, text, tmp_path, capsys):
    run = f"--run={tmp_path}/run"
    said = told(capsys, [f"--prepared={folder}", *text, run, *SMALL])
    assert "Give one training text" in said and f"and --prepared {folder}." in said
    wrong = shutil.copytree(folder, tmp_path / "wrong")
    manifest = json.loads((wrong / "manifest.json").read_text())
    (wrong / "manifest.json").write_text(json.dumps({**manifest, "kind": "documents"}))
    assert "was edited" in told(capsys, [f"--prepared={wrong}", run, *SMALL])
    assert "has no manifest.json" in told(capsys, [f"--prepared={tmp_path}", run, *SMALL])
    assert not (tmp_path / "run").exists()
