"""What is installed from a wheel works without the repository."""

import os
import pathlib
import subprocess
import sys
import zipfile

import pytest

import keras_transformer as kt

pytestmark = pytest.mark.slow
ROOT = pathlib.Path(__file__).parents[1]
USE = """
import keras_transformer as kt

assert kt.__file__.startswith({place!r}), kt.__file__
tokenizer = kt.tokenizers.train_sentencepiece(["a dog runs", "ein Hund läuft"], 280)
ids = [kt.data.tokenize([text], tokenizer) for text in ("a dog runs", "ein Hund läuft")]
model = kt.translation(tokenizer.vocabulary_size, size="tiny", num_layers=1)
model.compile(kt.Adam(0.001), kt.TokenCrossentropy())
model.fit(kt.data.TokenBatches(*ids).dataset(), steps_per_epoch=1, verbose=0)
translator = kt.serving.Translator(model, tokenizer)
assert len(translator(["a dog runs"])) == len(translator.n_best(["a dog runs"])) == 1
assert translator.score(["a dog runs"], ["ein Hund läuft"]) < 0
attention = translator.attention("a dog runs")
assert attention.figure() and "a dog runs" in attention.page()
classifier = kt.serving.Classifier(kt.classifier(280, 2), tokenizer, ["bad", "good"])
assert classifier(["a dog runs"])[0] in ("bad", "good")
letters = kt.tokenizers.SymbolTokenizer()
generator = kt.serving.Generator(kt.language_model(letters.vocabulary_size), letters)
assert len(list(generator.stream("a dog", max_tokens=3))) <= 3
print(translator.export("saved_models", "mine"))
"""


def test_the_library_works_from_its_wheel_alone(tmp_path):
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run([*pip, *build], check=True, cwd=tmp_path)
    [wheel] = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert f"-{kt.__version__}-" in wheel.name
    assert "keras_transformer/figures/html_page.html" in names
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"keras_transformer"}, "the commands and the tests stay in the repository"
    place = tmp_path / "installed"
    install = ["install", "--no-deps", "--target", str(place), str(wheel)]
    subprocess.run([*pip, *install], check=True)
    # No path of the repository: neither as the folder it runs in nor from an editable install.
    environment = {**os.environ, "PYTHONPATH": str(place), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", USE.format(place=str(place))],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "saved_models/mine/1"
