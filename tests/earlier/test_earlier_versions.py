"""What earlier versions have saved loads and answers as there; unfinished runs are refused."""

import importlib
import io
import json
import pathlib
import re
import sys
import zipfile

import keras
import numpy as np
import pytest

from .record import MODELS, RUNS, SINCE_0_3, inputs_of, outputs_of

pytestmark = pytest.mark.usefixtures("small_pictures")
VERSIONS = {"0.2.0": MODELS, "0.3.0.dev0": MODELS | SINCE_0_3}
SAVED = [(version, name) for version, models in VERSIONS.items() for name in models]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """{version: folder with what it has saved}."""
    found = {}
    for version in VERSIONS:
        found[version] = tmp_path_factory.mktemp(version)
        with zipfile.ZipFile(pathlib.Path(__file__).with_name(f"{version}.zip")) as archive:
            archive.extractall(found[version])
    return found


@pytest.mark.parametrize(("version", "name"), SAVED)
def test_a_model_gives_the_outputs_it_gave(version, name, folders):
    model = keras.saving.load_model(folders[version] / "models" / f"{name}.keras")
    with np.load(folders[version] / "models.npz") as recorded:
        for index, output in enumerate(outputs_of(model, inputs_of(model))):
            np.testing.assert_allclose(output, recorded[f"{name}-{index}"], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_finished_run_gives_the_answer_it_gave(version, name, folders, monkeypatch, capsys):
    monkeypatch.chdir(folders[version])
    recorded = json.loads(pathlib.Path("runs.json").read_text())[name]
    stdin = io.TextIOWrapper(io.BytesIO(recorded["stdin"].encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    ask(recorded["command"], *recorded["question"], f"--run=runs/{name}")
    answer, expected = last_line(capsys.readouterr().out), last_line(recorded["answer"])
    if name == "pretraining":  # other tokens are masked now
        answer, expected = (re.sub(r"[\d.]+", "", line) for line in (answer, expected))
    assert answer == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_stopped_run_is_refused_and_kept(version, name, folders, monkeypatch, capsys):
    monkeypatch.chdir(folders[version])
    recorded = json.loads(pathlib.Path("runs.json").read_text())[name]
    run = pathlib.Path("stopped", name)
    (run / "tokens.npz").write_bytes(b"damaged: nothing of it is read")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(SystemExit):
        ask(recorded["command"], *recorded["flags"], f"--run={run}")
    assert (
        f"{run} was begun by version 0.2, whose batches come in another order. Finish it with that "
        "version, or choose another --run.\n" in capsys.readouterr().err
    )
    (run / "lock").unlink(missing_ok=True)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def ask(command, *flags):
    importlib.import_module(f"train.{command}").main([*flags])


def last_line(text):
    return text.strip().splitlines()[-1]
