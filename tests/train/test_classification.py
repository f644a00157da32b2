"""The command from files of texts to a served label."""

import io
import json
import random
import re
import shutil
import sys
import types
from functools import partial

import numpy as np
import pytest

from keras_transformer.data import LabelledBatches, labelled
from keras_transformer.serving import Classifier
from keras_transformer.serving.publishing.c_api import ask
from train import classification
from train.classification import ClassificationConfig, ClassificationExperiment
from train.progress import StopWithoutProgress
from train.run import Run
from train.scores import spearman

FLAGS = [
    "--vocabulary-size=20", "--num-layers=1", "--hidden-dim=16", "--intermediate-dim=32",
    "--num-heads=2", "--tokens-per-batch=64", "--max-length=16", "--warmup-steps=5",
    "--peak-rate=0.01", "--steps=120", "--checkpoint-every=60", "--average=1",
]  # fmt: skip


def write_tsv(path, multi_label):
    """Words of which one decides: "yes" is good; with several labels "loud" adds another."""
    draw = random.Random(3)
    lines = []
    for _ in range(150):
        words = draw.choices(["a", "b", "yes", "loud"], [4, 4, 1, 1], k=draw.randint(1, 9))
        labels = ["good" if "yes" in words else "bad"]
        labels += ["noisy"] * (multi_label and "loud" in words)
        lines.append(" ".join(words) + "\t" + ",".join(labels))
    path.write_text("\n".join(lines) + "\n")


def flags_of(folder):
    return ["--tsv", str(folder / "texts.tsv"), "--hold-out=30", *FLAGS]


def train(multi_label, folder):
    write_tsv(folder / "texts.tsv", multi_label)
    classification.main([*flags_of(folder), "--run", str(folder / "run")])


@pytest.fixture(scope="module", params=["one label", "multi-label"])
def trained(request, made_once):
    multi_label = request.param == "multi-label"
    folder = made_once(f"classifier of {request.param}", partial(train, multi_label))
    return folder, flags_of(folder), multi_label


@pytest.mark.slow
def test_a_run_learns_which_words_decide(trained, capsys):
    folder, _, multi_label = trained
    names = {path.name for path in (folder / "run").iterdir()}
    assert names >= {"learning_curves.png", "attention.png", "attention.html"}
    history = Run(folder / "run", ClassificationConfig).history()
    assert history["val_accuracy"][-1] > 0.9
    flags = ["--run", str(folder / "run"), "--tsv", str(folder / "texts.tsv")]
    classification.main(["evaluate", *flags])
    out = capsys.readouterr().out
    if not multi_label:  # a folder may hold texts of some labels only
        labels = json.loads((folder / "run" / "labels.json").read_text())["names"]
        (folder / "some" / labels[0]).mkdir(parents=True)
        (folder / "some" / labels[0] / "1.txt").write_text("a text")
        run = ["--run", str(folder / "run")]
        classification.main(["evaluate", *run, "--folder", str(folder / "some")])
        assert " of 1" in capsys.readouterr().out
    share, right = re.search(r"Accuracy: ([\d.]+)% \((\d+) of 150", out).groups()
    assert float(share) == pytest.approx(int(right) / 1.5, abs=0.01)
    assert int(right) > 135
    assert ("Micro F1" in out) == multi_label
    labels = json.loads((folder / "run" / "labels.json").read_text())
    assert labels["multi_label"] == multi_label


@pytest.mark.slow
def test_standard_input_is_classified_line_by_line(trained, monkeypatch, capsys):
    folder, _, multi_label = trained
    stdin = io.TextIOWrapper(io.BytesIO(b"a yes b\na b\n\nyes LOUD, a\n"))
    monkeypatch.setattr(sys, "stdin", stdin)
    classification.main(["classify", "--run", str(folder / "run")])
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 4 and all(0.3 < float(share) <= 1 for _, share in rows)
    assert [rows[0][0], rows[1][0]] == ["good", "bad"]
    assert rows[3][0] == ("good,noisy" if multi_label else "good")


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked_exports")
@pytest.mark.parametrize("trained", ["multi-label"], indirect=True)
def test_a_trained_run_is_served(trained, tmp_path, capsys):
    folder = trained[0]
    run = ["--run", str(folder / "run"), "--directory", str(tmp_path)]
    classification.main(["export", *run, "--name", "moods"])
    assert f"Published {tmp_path}/moods/1." in capsys.readouterr().out
    [answer] = ask(tmp_path / "moods" / "1", [{"inputs": {"text": ["a yes b", "b b"]}}])
    assert answer["outputs"]["label"] == ["good", "bad"]
    assert len(answer["outputs"]["probabilities"][0]) == 3


@pytest.mark.slow
def test_the_same_command_finds_the_trained_run(trained, capsys):
    folder, flags, _ = trained
    classification.main([*flags, "--run", str(folder / "run")])
    assert "is already trained: nothing to do." in capsys.readouterr().out


@pytest.mark.slow
def test_a_run_without_progress_stops_and_stays_stopped(tmp_path):
    draw = random.Random(5)
    rows = [f"{' '.join(draw.choices('abc', k=5))}\t{draw.choice(['x', 'y'])}" for _ in range(99)]
    (tmp_path / "noise.tsv").write_text("\n".join(rows) + "\n")
    flags = ["--tsv", str(tmp_path / "noise.tsv"), "--hold-out=30", *FLAGS, "--patience=2"]
    flags += ["--run", str(tmp_path / "run"), "--steps=4000"]
    classification.main(flags)
    run = Run(tmp_path / "run", ClassificationConfig)
    losses = run.history()["val_loss"]
    assert 3 <= len(losses) < 50 and min(losses) == losses[-3], "two epochs after the best"
    weights = run.model().get_weights()
    run.model_file.unlink()  # as if killed just before
    classification.main(flags)
    assert run.history()["val_loss"] == losses, "no epoch more"
    for value, expected in zip(run.model().get_weights(), weights, strict=True):
        np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize("again", [[2.5], [2.5, 9.0], []])
def test_patience_outlasts_the_process(again):
    """`again` are losses of epochs that an earlier process ended, and that are repeated."""
    stop = StopWithoutProgress(2, [3.0, 2.0, *again])
    stop.set_model(types.SimpleNamespace(stop_training=False))
    stop.on_epoch_end(2, {"val_loss": 2.5})
    assert not stop.model.stop_training and not stop.is_due(3)
    stop.on_epoch_end(3, {"val_loss": 2.0})
    assert stop.model.stop_training and stop.is_due(4), "as low as the best is not lower"
    stop.on_epoch_end(3, {"val_loss": 1.5})
    assert stop.model.stop_training, "whoever stopped it, it stays stopped"
    stop.model.stop_training = False  # as `fit` does when it begins
    stop.on_epoch_end(3, {"val_loss": 1.5})
    assert not stop.model.stop_training


@pytest.mark.slow
def test_a_run_keeps_the_names_of_its_labels(trained, tmp_path):
    folder, flags, _ = trained
    stopped = shutil.copytree(folder / "run", tmp_path / "run")
    (stopped / "model.keras").unlink()
    (stopped / "labels.json").unlink()
    text = (folder / "texts.tsv").rename(tmp_path / "gone.tsv")
    try:
        classification.main([*flags, "--run", str(stopped)])
    finally:
        text.rename(folder / "texts.tsv")
    assert (stopped / "labels.json").read_text() == (folder / "run" / "labels.json").read_text()


@pytest.mark.slow
def test_texts_are_judged_as_the_model_was_trained(trained, tmp_path, capsys):
    folder, flags, multi_label = trained
    (tmp_path / "none.tsv").write_text("yes\tgood\na b\t\n")
    command = ["evaluate", "--run", str(folder / "run"), "--tsv", str(tmp_path / "none.tsv")]
    if multi_label:
        (tmp_path / "none.tsv").write_text("yes loud\tgood\na b\tbad\n")
        classification.main(command)  # by the share of each label, as it is served
        assert "(1 of 2 texts)" in capsys.readouterr().out
        return
    training = [*flags[:2], *FLAGS, "--valid-tsv", str(tmp_path / "none.tsv")]
    for arguments in (command, [*training, "--run", str(tmp_path / "run")]):
        with pytest.raises(SystemExit):
            classification.main(arguments)
        assert "Received: 0 labels of 'a b'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], "Give one training text"),
        (["--tsv=missing.tsv"], "missing.tsv, which does not exist"),
        (["--folder=missing"], "Expected a folder of labels. Received: missing"),
        (["--tsv", "TEXTS", "--hold-out=150"], "hold_out=150 of 150 examples"),
        (
            ["--tsv", "TEXTS", "--hold-out=3", "--valid-tsv", "TEXTS"],
            "one validation text",
        ),
        (
            ["--tsv", "TEXTS", "--pooling=last"],
            "--pooling must be one of mean, max, first. Received: last",
        ),
        (
            ["--tsv", "TEXTS", "--tokens=bytes"],
            "--tokens must be one of words, pieces. Received: bytes",
        ),
        (
            ["--tsv", "TEXTS", "--max-length=0"],
            "--max-length must be a whole number, at least 1. Received: 0",
        ),
        (
            ["--tsv", "TEXTS", "--dtype=bfloat16"],
            "--dtype must be one of float32, mixed_bfloat16, mixed_float16. Received: bfloat16",
        ),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(trained, flags, expected, tmp_path, capsys):
    texts = str(trained[0] / "texts.tsv")
    flags = [texts if flag == "TEXTS" else flag for flag in flags]
    with pytest.raises(SystemExit) as caught:
        classification.main([*FLAGS, *flags, "--run", str(tmp_path / "run")])
    message = capsys.readouterr().err
    assert caught.value.code == 2 and message.count("\n") == 1, message
    assert re.search(expected, message)
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def rated(tmp_path_factory):
    """A run that learned how often "yes" occurs in a text, on a scale of hundreds."""
    folder = tmp_path_factory.mktemp("ratings")
    draw = random.Random(3)
    texts = [draw.choices(["a", "b", "yes"], k=7) for _ in range(150)]
    rows = [f"{' '.join(words)}\t{300 + words.count('yes')}" for words in texts]
    (folder / "texts.tsv").write_text("\n".join(rows) + "\n")
    flags = ["--tsv", str(folder / "texts.tsv"), "--hold-out=30", *FLAGS, "--task=regression"]
    classification.main([*flags, "--run", str(folder / "run")])
    return folder


@pytest.mark.slow
def test_a_regression_predicts_numbers_and_is_measured_over_all_texts(rated, monkeypatch, capsys):
    run = ["--run", str(rated / "run")]
    regressor = Classifier.load(rated / "run")
    lines = [line.split("\t") for line in (rated / "texts.tsv").read_text().splitlines()]
    texts, numbers = [text for text, _ in lines], np.array([float(label) for _, label in lines])
    values = np.array(regressor(texts))
    error = np.mean((values - numbers) ** 2)
    assert error < 0.5 * numbers.var(), "better than the mean"
    classification.main(["evaluate", *run, "--tsv", str(rated / "texts.tsv")])
    out = capsys.readouterr().out
    measured = re.search(
        r"Mean squared error: (\S+)\. Correlation: (\S+) \(Pearson\), (\S+) \(Spearman\)\. 150", out
    ).groups()
    expected = [error, np.corrcoef(values, numbers)[0, 1], spearman(values, numbers)]
    np.testing.assert_allclose([float(n) for n in measured], expected, rtol=1e-3)
    history = Run(rated / "run", ClassificationConfig).history()
    assert history["val_absolute_error"][0] < 10, "from the mean on"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a yes b\n\n")))
    classification.main(["classify", *run])
    np.testing.assert_array_equal(
        [np.float32(line) for line in capsys.readouterr().out.split()], regressor(["a yes b", ""])
    )


@pytest.mark.slow
def test_a_regression_is_served(rated, tmp_path):
    classification.main(
        ["export", "--run", str(rated / "run"), "--directory", str(tmp_path), "--name", "ratings"]
    )
    [answer] = ask(tmp_path / "ratings" / "1", [{"inputs": {"text": ["a yes b"]}}])
    [value] = answer["outputs"]["value"]
    assert value == pytest.approx(Classifier.load(rated / "run")(["a yes b"])[0], rel=1e-5)
    assert answer["outputs"].keys() == {"value", "truncated"}


def test_the_task_decides_what_is_learned_from_texts_of_one_label_each():
    text = labelled(["a", "b", "c"], [("x",), ("y",), ("x",)])
    batches = LabelledBatches([[4], [5], [6]], text.matrix(), text.names)

    def loss(task):
        experiment = ClassificationExperiment(ClassificationConfig(task=task), (text, None))
        return type(experiment.objective(batches)["loss"]).__name__

    assert loss(None) == loss("single_label") == "CategoricalCrossentropy"
    assert loss("multi_label") == "BinaryCrossentropy"
    assert loss("regression") == "MeanSquaredError"


def test_the_loss_of_several_labels_is_a_mean_over_them():
    several, one = (types.SimpleNamespace(labels="ab", multi_label=m) for m in (True, False))
    assert classification.loss_unit(several) == "nats per label"
    assert classification.loss_unit(one) == "nats per text"


@pytest.mark.parametrize(
    ("rows", "flags", "expected"),
    [
        ("a\t1\nb\tgood\n", ["--task=regression"], "Received: 'good', line 2 of .*texts.tsv"),
        ("a\tx\nb\tx,y\n", ["--task=single_label"], "Received: 2 labels of 'b'"),
        ("a\tx\nb\ty\n", ["--task=ranking"], "--task must be one of single_label, multi_label"),
    ],
)
def test_labels_of_another_task_are_one_line_and_leave_nothing(
    rows, flags, expected, tmp_path, capsys
):
    (tmp_path / "texts.tsv").write_text(rows)
    flags = [*FLAGS, "--tsv", str(tmp_path / "texts.tsv"), *flags]
    with pytest.raises(SystemExit):
        classification.main([*flags, "--run", str(tmp_path / "run")])
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and re.search(expected, message), message
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cut off", "a bit of a label", "no object"])
def test_damaged_labels_are_named_and_made_again(trained, tmp_path, capsys, how):
    folder, flags, _ = trained
    run = shutil.copytree(folder / "run", tmp_path / "run")
    whole = (run / "labels.json").read_text()
    damaged = {"cut off": whole[:9], "a bit of a label": whole.replace("bad", "bae")}
    (run / "labels.json").write_text(damaged.get(how, "[1]"))
    with pytest.raises(SystemExit):
        classification.main(["export", "--run", str(run), "--name", "none"])
    message = capsys.readouterr().err
    assert "labels.json is damaged: " in message and "training command again" in message
    assert message.count("\n") == 1
    classification.main([*flags, "--run", str(run)])
    assert (run / "labels.json").read_text() == whole


def test_losses_are_kept_for_a_process_that_goes_on_with_patience():
    stop = StopWithoutProgress(0)
    stop.set_model(types.SimpleNamespace(stop_training=False))
    for epoch, loss in enumerate([1.0, 2.0, 3.0]):
        stop.on_epoch_end(epoch, {"val_loss": loss})
    assert not stop.model.stop_training and not stop.is_due(3)
    assert StopWithoutProgress(2, stop.saved_state).is_due(3)
