"""What earlier versions have saved loads, answers and goes on as it did there."""

import importlib
import io
import json
import pathlib
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
    assert last_line(capsys.readouterr().out) == last_line(recorded["answer"])


@pytest.mark.slow
@pytest.mark.usefixtures("untold_results")
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_stopped_run_goes_on_to_the_same_weights(version, name, folders, monkeypatch):
    monkeypatch.chdir(folders[version])
    recorded = json.loads(pathlib.Path("runs.json").read_text())[name]
    ask(recorded["command"], *recorded["flags"], f"--run=stopped/{name}")
    resumed, whole = (
        keras.saving.load_model(f"{folder}/{name}/model.keras", compile=False).weights
        for folder in ("stopped", "runs")
    )
    for weight, expected in zip(resumed, whole, strict=True):
        # A step is about 1e-3. The bias of keys has no gradient but rounding, which differs from
        # machine to machine, and which Adam enlarges to whole steps.
        is_rounding = "key" in weight.path and weight.path.endswith("bias")
        atol = 6e-3 if is_rounding else 2e-4
        np.testing.assert_allclose(weight, expected, atol=atol, err_msg=weight.path)


def ask(command, *flags):
    importlib.import_module(f"train.{command}").main([*flags])


def last_line(text):
    return text.strip().splitlines()[-1]
