"""What is installed from a wheel works without the repository."""

import os
import pathlib
import subprocess
import sys

import pytest

import keras_transformer as kt
from tests.train.serve.client import Client, serving
from train.cli import MODULES

pytestmark = pytest.mark.slow
ROOT = pathlib.Path(__file__).parents[1]
SMALL = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 16, "num_heads": 2}
USE = """
import keras
import keras_transformer as kt

assert kt.__file__.startswith({place!r}), kt.__file__
tokenizer = kt.tokenizers.train_sentencepiece(["a dog runs", "ein Hund läuft"], 280)
ids = [kt.data.tokenize([text], tokenizer) for text in ("a dog runs", "ein Hund läuft")]
model = kt.translation(tokenizer.vocabulary_size, size="tiny", **{small!r})
model.compile(kt.Adam(0.001), kt.TokenCrossentropy())
model.fit(kt.data.TokenBatches(*ids).dataset(), steps_per_epoch=1, verbose=0)
model.save("model.keras")
again = keras.saving.load_model("model.keras")
translator = kt.serving.Translator(again, tokenizer)
assert len(translator(["a dog runs"])) == len(translator.n_best(["a dog runs"])) == 1
assert translator.score(["a dog runs"], ["ein Hund läuft"]) < 0
assert "a dog runs" in translator.attention("a dog runs").page()
print("All of it ran.")
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The folder that the wheel is installed into."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run([*pip, *build], check=True, cwd=folder)
    [wheel] = folder.glob("*.whl")
    assert f"-{kt.__version__}-" in wheel.name
    install = ["install", "--no-deps", "--target", str(folder / "installed"), str(wheel)]
    subprocess.run([*pip, *install], check=True)
    return folder / "installed"


def outside(place, folder, *command, **options):
    """Runs a command with no path of the repository, as its folder or from an editable install."""
    environment = {**os.environ, "PYTHONPATH": str(place), "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, **options
    )


def test_the_wheel_holds_the_library_and_the_commands_and_no_tests(place):
    tops = {path.name for path in place.iterdir() if not path.name.endswith(".dist-info")}
    assert tops == {"bin", "keras_transformer", "keras_transformer_train"}
    assert (place / "keras_transformer" / "figures" / "html_page.html").exists()
    assert (place / "keras_transformer_train" / "serve" / "page.html").exists()
    assert not (place / "keras_transformer_train" / "benchmark").exists()


def test_the_library_works_from_its_wheel_alone(place, tmp_path):
    code = USE.format(place=str(place), small=SMALL)
    done = outside(place, tmp_path, sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "All of it ran."


def test_the_program_names_its_commands_and_itself(place, tmp_path):
    program = f"{place}/bin/keras-transformer"
    assert outside(place, tmp_path, program, "--version").stdout == f"{kt.__version__}\n"
    for command in MODULES:
        done = outside(place, tmp_path, program, command, "--help")
        assert done.returncode == 0 and not done.stderr
        assert f"keras-transformer {command}" in done.stdout.replace("_", "-")
        assert "python -m train" not in done.stdout
    done = outside(place, tmp_path, program, "translate", "--run=runs/mine")
    assert done.returncode == 2
    assert done.stderr.startswith("keras-transformer: ") and done.stderr.count("\n") == 1
    config = outside(place, tmp_path, program, "language_model", "--config=shakespeare_gpt2")
    assert config.returncode == 2 and config.stderr == "error: --run is required.\n"


@pytest.fixture(scope="module")
def published(place, tmp_path_factory):
    """A folder in which the program has trained, classified and exported."""
    folder = tmp_path_factory.mktemp("empty")
    (folder / "texts.tsv").write_text("a good day\tgood\na bad day\tbad\n" * 20)
    program = f"{place}/bin/keras-transformer"
    training = [program, "classification", "--tsv=texts.tsv", "--run=runs/mine", "--steps=3"]
    training += [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]
    training += ["--vocabulary-size=20", "--max-length=8", "--tokens-per-batch=64", "--hold-out=8"]
    done = outside(place, folder, *training)
    assert done.returncode == 0, done.stderr[-3000:]
    use = [program, "classification"]
    done = outside(place, folder, *use, "classify", "--run=runs/mine", input="a day\n" * 3)
    assert (done.returncode, done.stdout.count("\n")) == (0, 3), done.stderr[-3000:]
    done = outside(place, folder, *use, "export", "--run=runs/mine", "--name=mine")
    assert done.stdout == "Published saved_models/mine/1.\n", done.stderr[-3000:]
    return folder


def test_the_commands_work_in_an_empty_folder(published):
    assert (published / "runs" / "mine" / "model.keras").exists()


def test_the_server_answers_in_an_empty_folder(place, published, monkeypatch):
    monkeypatch.chdir(published)
    program = [f"{place}/bin/keras-transformer", "serve"]
    with serving("saved_models", program=program, place=place) as (port, _):
        client = Client(port)
        code, answer = client.predict("mine", {"instances": ["a day"]})
        assert code == 200 and len(answer["predictions"]) == 1
        # The page shows where the model of a run looked.
        assert client.get("/v1/models")[1]["attention"] == ["mine"]
        client.close()
