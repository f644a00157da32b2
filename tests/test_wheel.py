"""What is installed from a wheel works without the repository."""

import json
import os
import pathlib
import re
import subprocess
import sys
import zipfile

import pytest

import keras_transformer as kt

pytestmark = pytest.mark.slow
ROOT = pathlib.Path(__file__).parents[1]
GUIDES = ["your-text", "classify", "language-models"]
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
again.fit(kt.data.TokenBatches(*ids).dataset(), steps_per_epoch=1, verbose=0)
translator = kt.serving.Translator(again, tokenizer)
assert len(translator(["a dog runs"])) == len(translator.n_best(["a dog runs"])) == 1
assert translator.score(["a dog runs"], ["ein Hund läuft"]) < 0
assert "a dog runs" in translator.attention("a dog runs").page()

kt.serving.Translator.load("runs/mine").export("saved_models", "mine")
for page, content in {blocks!r}:
    exec(compile(content, page, "exec"), globals())
print("All of it ran.")
"""


def save_runs(folder):
    """Runs as the commands leave them, with the names that the guides use, but untrained."""
    words = "A dog runs. It is ten past six. Ein Hund läuft. A film to see twice."
    pieces, letters = (
        kt.tokenizers.train_sentencepiece([words], 290),
        kt.tokenizers.SymbolTokenizer(),
    )
    settings = {"num_beams": 2, "length_penalty": 1.0, "max_length": 24, "context": 32}
    models = {
        "mine": (pieces, kt.translation(pieces.vocabulary_size, **SMALL)),
        "imdb": (pieces, kt.classifier(pieces.vocabulary_size, 2, **SMALL)),
        "shakespeare": (letters, kt.language_model(letters.vocabulary_size, **SMALL)),
    }
    for name, (tokenizer, model) in models.items():
        run = folder / "runs" / name
        run.mkdir(parents=True)
        (run / "config.json").write_text(json.dumps(settings))
        tokenizer.save(run / "tokenizer.model")
        model.save(run / "model.keras")
    labels = {"names": ["neg", "pos"], "multi_label": False}
    (folder / "runs" / "imdb" / "labels.json").write_text(json.dumps(labels))


def blocks():
    """Pairs of a guide and one of its blocks of Python, without those that say they do not run."""
    return [
        (page, content)
        for page in GUIDES
        for content in re.findall(
            r"^```python\n(.*?)^```",
            (ROOT / "docs" / "guides" / f"{page}.md").read_text("utf-8"),
            re.MULTILINE | re.DOTALL,
        )
    ]


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
    save_runs(tmp_path)
    # No path of the repository: neither as the folder it runs in nor from an editable install.
    environment = {**os.environ, "PYTHONPATH": str(place), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, "-c", USE.format(place=str(place), blocks=blocks(), small=SMALL)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "All of it ran."
    served = {path.parent.name for path in (tmp_path / "saved_models").glob("*/1")}
    assert served == {"mine", "imdb", "shakespeare"}
    assert (tmp_path / "attention.png").exists() and (tmp_path / "attention.html").exists()
