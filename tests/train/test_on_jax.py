"""Runs that are trained on JAX: stopped and gone on with, then used under TensorFlow."""

import importlib.util
import json
import os
import pathlib
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_transformer.serving import RunFolder
from keras_transformer.serving.publishing.c_api import ask
from keras_transformer.training.checkpoint_files import steps_in
from train import classification, language_model, pretraining, translation
from train.run import Run
from train.translation import TranslationConfig

from . import conftest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.other_backend,
    pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs jax"),
]
ROOT = pathlib.Path(__file__).parents[2]
STEPS = 11
SETTINGS = [*conftest.SETTINGS, "--r-drop=1"]
FEW = "--shapes=2"  # JAX compiles a step for each shape
TWO = ["--virtual-devices=2"]
CUT = ["--virtual-devices=4", "--model-parallel=2"]  # batches are cut, too
XL = ["--context=16", "--model=transformer_xl", "--batch-size=6"]


def on_jax(module, *arguments, input=None, **environment):
    """Runs a module, or "-c" and code, with its arguments and what it reads."""
    of_python = [module] if module == "-c" else ["-m", module]
    return subprocess.run(
        [sys.executable, *of_python, *map(str, arguments)],
        cwd=ROOT,
        env={
            **os.environ,
            "KERAS_BACKEND": "jax",
            "JAX_PLATFORMS": "cpu",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            **environment,
        },
        input=input,
        capture_output=True,
        text=True,
        timeout=600,
    )


def flags_of(text):
    """Eleven steps, without a validation text."""
    return [*text[:2], *text[4:6], *SETTINGS, FEW, f"--steps={STEPS}"]


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory):
    """A run that nothing has interrupted."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    done = on_jax("train.translation", *flags_of(text), "--run", run)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "KERAS_BACKEND=tensorflow" in done.stdout.splitlines()[-1]
    return run


@pytest.fixture(scope="module")
def told_to_end(text, tmp_path_factory):
    """The same run, told to end after its seventh step."""
    folder = tmp_path_factory.mktemp("runs")
    flags = [*flags_of(text), "--run", folder / "run"]
    done = on_jax("tests.train.dying", *flags, DIES="0:7:15", DIED=str(folder / "died"))
    assert done.returncode == 75, done.stderr[-3000:]
    assert max(steps_in(folder / "run/checkpoints")) == 7
    return folder / "run"


@pytest.mark.soak
def test_a_run_told_to_end_goes_on_to_bit_identical_weights(text, whole, told_to_end, tmp_path):
    run = shutil.copytree(told_to_end, tmp_path / "run")
    done = on_jax("train.translation", *flags_of(text), "--run", run)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"Resuming from step 7 of {STEPS}." in done.stdout
    runs = (RunFolder(folder).model().weights for folder in (run, whole))
    for one, other in zip(*runs, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.soak
def test_a_killed_run_of_packed_rows_on_several_devices_goes_on_to_bit_identical_weights(
    text, tmp_path
):
    flags = [*text, *SETTINGS, "--steps=5", "--average=1", *CUT, "--packed"]
    done = on_jax("train.translation", *flags, "--run", tmp_path / "whole")
    assert done.returncode == 0, done.stderr[-3000:]
    dies = {"DIES": "0:4:9", "DIED": str(tmp_path / "died")}
    for code in (-9, 0):
        done = on_jax("tests.train.dying", *flags, "--run", tmp_path / "run", **dies)
        assert done.returncode == code, done.stderr[-3000:]
    assert "Resuming from step 3 of 5." in done.stdout
    runs = (RunFolder(tmp_path / name).model().weights for name in ("run", "whole"))
    for one, other in zip(*runs, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.soak
@pytest.mark.usefixtures("told_results")
def test_a_run_is_measured_used_and_exported_under_tensorflow(text, whole, tmp_path, capsys):
    run = ["--run", str(whole)]
    translation.main([*flags_of(text), *run])
    assert "already trained" in capsys.readouterr().out
    assert (whole / "attention.html").exists()
    sides = [f"--source={text[3]}", f"--target={text[7]}"]
    translation.main(["evaluate", *run, *sides])
    assert "BLEU: " in capsys.readouterr().out
    translation.main(["export", *run, f"--directory={tmp_path}", "--name=reverser"])
    request = {"signature_name": "serving_default", "inputs": {"text": ["abc"]}}
    [answer] = ask(tmp_path / "reverser" / "1", [request])
    assert len(answer["outputs"]["translation"]) == 1


OTHER_NOISE = "step-{}.npz was saved on {}. On {}, dropout now draws different noise."


def test_a_run_begun_on_jax_ends_on_tensorflow(text, told_to_end, tmp_path, capsys, caplog):
    run = shutil.copytree(told_to_end, tmp_path / "run")
    translation.main([*flags_of(text), "--run", str(run)])
    assert f"Resuming from step 7 of {STEPS}." in capsys.readouterr().out
    assert caplog.text.count(OTHER_NOISE.format(7, "jax", "tensorflow")) == 1


@pytest.mark.soak
def test_a_run_begun_on_tensorflow_ends_on_jax(text, tmp_path):
    flags = [*text, *SETTINGS, FEW, "--run", str(tmp_path / "run")]
    translation.main([*flags, "--steps=6"])
    (tmp_path / "run" / "model.keras").unlink()  # as if stopped just before its end
    done = on_jax("train.translation", *flags, f"--steps={STEPS}")
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"Resuming from step 6 of {STEPS}." in done.stdout
    assert done.stderr.count(OTHER_NOISE.format(6, "tensorflow", "jax")) == 1


WITH_SGD = """
import sys
import keras, train.experiment

train.experiment.optimizer_of = lambda config: keras.optimizers.SGD(0.1)
from train import translation

translation.main(sys.argv[1:])
"""


@pytest.mark.soak
def test_steps_on_another_backend_are_those_of_one_but_for_rounding(text, tmp_path, monkeypatch):
    """SGD adds the gradients up; Adam divides them by their size, and with it their rounding."""
    monkeypatch.setattr("train.experiment.optimizer_of", lambda _: keras.optimizers.SGD(0.1))
    flags = [*text, *conftest.SETTINGS, "--dropout=0", FEW, "--average=1"]
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    translation.main([*flags, "--steps=10", "--run", str(theirs)])
    translation.main([*flags, "--steps=3", "--run", str(ours)])
    start = RunFolder(ours).model().get_weights()
    (ours / "model.keras").unlink()  # as if stopped just before its end
    done = on_jax("-c", WITH_SGD, *flags, "--steps=7", "--run", ours)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Resuming from step 3 of 7." in done.stdout and "other noise" not in done.stderr
    (ours / "model.keras").unlink()
    translation.main([*flags, "--steps=10", "--run", str(ours)])
    models = (RunFolder(run).model().get_weights() for run in (ours, theirs))
    for one, other, first in zip(*models, start, strict=True):
        if one.dtype.kind == "f":
            np.testing.assert_allclose(one, other, atol=1e-5)
            assert np.abs(one - first).max() > 1e-4, "it has learned"


OTHER_COMMANDS = [
    (language_model, ["--text={text}", *XL], TWO),
    (pretraining, ["--documents={text}", "--vocabulary-size=60"], TWO),
    (classification, ["--tsv={text}", "--vocabulary-size=40"], TWO),
]


@pytest.mark.parametrize(
    ("trainer", "flags", "devices"),
    [
        (translation, ["--tsv={text}", "--valid-tsv={text}", "--vocabulary-size=300"], CUT),
        *(pytest.param(*case, marks=pytest.mark.soak) for case in OTHER_COMMANDS),
    ],
    ids=["translation", "xl", "pretraining", "classification"],
)
def test_every_command_gives_the_numbers_of_tensorflow(trainer, flags, devices, tmp_path):
    name = trainer.__name__.removeprefix("train.")
    lines = [f"The cat {i} sat. It was {i} too.\t{'ab'[i % 2]}\n\n" for i in range(50)]
    if name in ("classification", "translation"):
        lines = [line[:-1] for line in lines]
    (tmp_path / "text").write_text("".join(lines))
    flags = [
        *(flag.format(text=tmp_path / "text") for flag in flags),
        "--steps=5", "--average=5", "--checkpoint-every=1", "--num-layers=1", "--hidden-dim=8",
        "--intermediate-dim=8", "--num-heads=2", "--warmup-steps=1", "--clip-norm=0.5",
        "--shapes=1", "--row-multiple=2",
        "--dropout=0", "--attention-dropout=0", "--activation-dropout=0",
    ]  # fmt: skip
    if name != "translation":
        flags += [f"--hold-out={0.2 if name == 'language_model' else 10}"]
    # Seeds give other weights on JAX: it goes on from the first step of TensorFlow.
    ours, theirs = tmp_path / "jax", tmp_path / "tensorflow"
    trainer.main([*flags, "--run", str(theirs)])
    shutil.copytree(theirs, ours)
    for path in [ours / "model.keras", ours / "history.csv", *(ours / "checkpoints").iterdir()]:
        if path.stem != "step-1":
            path.unlink()
    done = on_jax(trainer.__name__, *flags, *devices, "--run", ours)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Resuming from step 1 of 5." in done.stdout
    one, two = (Run(run, TranslationConfig).history()["val_loss"] for run in (ours, theirs))
    assert one[-1] == pytest.approx(two[-1], rel=1e-5)


REFUSED = [
    (
        ["evaluate", "--run=none", "--source=none", "--target=none"],
        "`evaluate` needs TensorFlow, even for a run trained on JAX: set "
        "KERAS_BACKEND=tensorflow. Received: jax.",
    ),
    (["--run=none", "--bleu-every=1"], "--bleu-every needs TensorFlow, because it decodes."),
    (["--run=none", "--dtype=mixed_float16"], "--dtype must be float32 or mixed_bfloat16."),
    (["--run=none", "--strategy=multiworker"], "--strategy multiworker, backend jax."),
    (["--run=none", *TWO, "--model-parallel=3"], "--model-parallel 3, 2 devices."),
]
CALL_EACH = """
import contextlib, importlib, io, json, os, sys

def called(command, arguments, config):
    os.environ["TF_CONFIG"] = config
    code, out, err = 0, io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            importlib.import_module(f"train.{command}").main(arguments)
        except SystemExit as stopped:
            code = stopped.code
    return code, out.getvalue(), err.getvalue()

print(json.dumps([called(*call) for call in json.load(sys.stdin)]))
"""


def worker(index):
    addresses = ["127.0.0.1:1", "127.0.0.1:2"]
    task = {"type": "worker", "index": index}
    return json.dumps({"cluster": {"worker": addresses}, "task": task})


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """The exit code, output and errors of each call in one process.

    At last it trains, on the two devices of a call that was refused.
    """
    folder = tmp_path_factory.mktemp("said")
    (folder / "text").write_text(" ".join(f"The cat {i} sat." for i in range(60)))
    of_worker = [f"--run={folder}/run", "--bleu-every=0"]
    training = [
        f"--text={folder}/text", "--context=16", "--batch-size=3", "--hold-out=0.2", "--steps=2",
        "--num-layers=1", "--hidden-dim=8", "--intermediate-dim=8", "--num-heads=2",
        "--warmup-steps=1", f"--run={folder}/trained",
    ]  # fmt: skip
    calls = [
        *(["translation", of_worker, worker(index)] for index in range(2)),
        *(["translation", arguments, "{}"] for arguments, _ in REFUSED),
        ["language_model", training, "{}"],
    ]
    done = on_jax("-c", CALL_EACH, input=json.dumps(calls))
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, json.loads(done.stdout.splitlines()[-1])


def test_workers_are_refused_before_any_work(said):
    folder, answers = said
    for code, _, errors in answers[:2]:
        assert "Several workers need TensorFlow." in errors
        assert "Received: TF_CONFIG of 2 workers, backend jax." in errors
        assert code == 2 and "Traceback" not in errors
    assert not (folder / "run").exists()


def test_what_jax_cannot_do_is_said_in_one_line(said):
    for (_, message), (code, _, errors) in zip(REFUSED, said[1][2:-1], strict=True):
        [error] = [line for line in errors.splitlines() if line.startswith("error: ")]
        assert message in error and code == 2


def test_devices_share_a_validation_text_of_an_odd_number_of_windows(said):
    code, printed, errors = said[1][-1]
    assert code == 0, errors
    assert "2 replicas on 1 worker." in printed and "val_loss" in printed


def test_layouts_are_refused_on_tensorflow(capsys):
    with pytest.raises(SystemExit):
        translation.main(["--run=none", "--model-parallel=2"])
    assert "--model-parallel needs JAX: set KERAS_BACKEND=jax." in capsys.readouterr().err
