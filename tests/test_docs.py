"""What README and docs/ show runs as shown, or says that it does not.

A block of Python whose title begins with "not run" is left out; one titled "oracle" is run in
tests/serving/test_grpc.py or tests/convert/.
All others of a page run in their order, in one process, in a folder with tiny runs and texts of the
names that the pages use. So do the commands, with a few steps, each on the first page that has it.
What trains must learn; of translations only the first trains, the others read their texts. Sizes of
models are those of `SMALLER`. Only the page about serving exports all that it says: on the others
there is no SavedModel in what is published.
"""

import csv
import functools
import gzip
import importlib
import inspect
import io
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import subprocess
import sys
import unittest.mock

import keras
import numpy as np
import pyarrow
import pytest
import tensorflow as tf
import yaml
from pyarrow import parquet
from scipy import special

import keras_transformer as kt
from keras_transformer.serving.publishing import c_api
from tests.conftest import leave_exports_unchecked, leave_results_untold
from train import cli

pytestmark = pytest.mark.usefixtures("small_pictures")
ROOT = pathlib.Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
BLOCK = re.compile(r"^```(\w+)(?: title=\"(.*?)\")?\n(.*?)^```", re.MULTILINE | re.DOTALL)

MODEL = ["--num-layers=1", "--hidden-dim=16", "--intermediate-dim=32", "--num-heads=2"]
TRAINING = [*MODEL, "--warmup-steps=2", "--steps=40", "--checkpoint-every=20", "--average=1"]
COMMANDS = {
    "translation": [*TRAINING, "--vocabulary-size=300", "--max-length=24",
                    "--tokens-per-batch=256"],
    "classification": [*TRAINING, "--hold-out=10", "--tokens-per-batch=128"],
    "language-model": [*TRAINING, "--context=32", "--batch-size=4", "--evaluate-every=4"],
    "pretraining": [*TRAINING, "--hold-out=4", "--batch-size=4"],
    "prepare": ["--vocabulary-size=300", "--held-out=4"],
}  # fmt: skip
# Run by a test of their own, or by the reader: tests/train/, tests/demo/, .ci/run.
ELSEWHERE = {"train", "launch", "serve", "venv"}
NAME = re.compile(r"(?:python3? -m|keras-transformer) ([\w.-]+)")


def blocks(page, language):
    """Pairs of title and content of the blocks of a language."""
    found = BLOCK.findall(page.read_text("utf-8"))
    return [(title, content) for name, title, content in found if name == language]


def pages_with(language):
    return [page for page in PAGES if blocks(page, language)]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A folder with texts of the names that the pages use."""
    folder = tmp_path_factory.mktemp("docs")
    draw = random.Random(3)
    words = "A dog runs in the park at ten past six to be or not a film to see twice".split()
    lines = [" ".join(draw.choices(words, k=draw.randint(1, 9))) for _ in range(60)]
    for name in ("train.en", "train.de", "val.en", "val.de", "test.en", "test.de", "in.txt"):
        (folder / name).write_text("\n".join(lines) + "\n")
    for name in ("text/a.en.gz", "text/a.de.gz", "in/a.txt.gz"):
        (folder / name).parent.mkdir(exist_ok=True)
        with gzip.open(folder / name, "wt") as file:
            file.write("\n".join(sorted(set(lines))) + "\n")
    (folder / "texts.txt").write_text("\n".join(lines[:7]) + "\n")
    (folder / "pairs.tsv").write_text("".join(f"{line}\t{line}\n" for line in lines))
    for split in ("train", "validation", "test"):
        (folder / "wmt16" / split).mkdir(parents=True)
        table = pyarrow.table({"translation": [{"en": line, "de": line} for line in lines]})
        parquet.write_table(table, folder / "wmt16" / split / "0.parquet")
    for name in ("shakespeare.txt", "other.txt"):
        (folder / name).write_text("\n".join(lines))
    for split in ("train", "test"):
        for label in ("pos", "neg"):
            (folder / "aclImdb" / split / label).mkdir(parents=True)
            for number, line in enumerate(lines[:20]):
                file = folder / "aclImdb" / split / label / f"{number}_1.txt"
                file.write_text(f"{line}. {lines[-number]}. {label}.")
    return folder


SMALLER = {  # layers of the models that pages make by the name of a size
    "encoder_decoder": {"tiny": 1},
    "decoder_only": {"medium": 2},
}


@pytest.fixture
def smaller_models(monkeypatch):
    for module, sizes in SMALLER.items():
        table = importlib.import_module(f"keras_transformer.models.{module}").SIZES
        for size, num_layers in sizes.items():
            monkeypatch.setitem(table, size, {**table[size], "num_layers": num_layers})


LOADED = ("mine", "imdb", "shakespeare")  # runs that the Python of pages loads


def training_of(name):
    """The first line of the pages that trains a run."""
    return next(line for line in PAGE_OF if is_training(line) and line.endswith(f"runs/{name}"))


@pytest.fixture(scope="module")
def workplace(texts, small_pictures):
    """The folder with a tiny run of each kind that the pages load, trained as they say."""
    with pytest.MonkeyPatch.context() as patch:
        leave_results_untold(patch)
        patch.chdir(texts)
        for name in LOADED:
            run(training_of(name))
        shutil.copytree(texts / "runs" / "mine", texts / "runs" / "demo")
    return texts


def run(line):
    """Runs one command line of a page in this process; a training takes a few steps."""
    words = shlex.split(line.split("|")[0].split(">")[0].split("<")[0])
    name, *arguments = words[1:]
    tiny = COMMANDS[name]
    if arguments[0].startswith("--"):
        if "--config" in arguments:  # of words, pieces or a dimension that a tiny text has not
            tiny = [*tiny, *OF_CONFIG.get(arguments[arguments.index("--config") + 1], [])]
        if "--pretrained" in arguments:
            tiny = [flag for flag in tiny if flag not in MODEL]
        arguments = [*arguments, *tiny]
    cli.main([name, *arguments])


OF_CONFIG = {
    "imdb": ["--vocabulary-size=20", "--dtype=float32"],
    "bert_imdb": ["--vocabulary-size=60", "--max-length=16"],
    "imdb_bert": ["--max-length=16"],
    "shakespeare_xl": ["--memory-length=16"],
}


def export_little(page, monkeypatch):
    """Saves and checks only what the page about serving exports; tests/train/ asks all exports."""
    if page.stem != "serving":
        leave_exports_unchecked(monkeypatch)
        monkeypatch.setattr(tf.saved_model, "save", lambda module, path, *_: os.makedirs(path))


@pytest.mark.filterwarnings("ignore:The output is not checked")  # without PEFT
@pytest.mark.slow
@pytest.mark.parametrize("page", pages_with("python"), ids=lambda page: page.stem)
@pytest.mark.usefixtures("smaller_models")
def test_the_python_of_a_page_runs_and_its_models_learn(page, workplace, monkeypatch):
    export_little(page, monkeypatch)
    monkeypatch.chdir(workplace)
    fits = recorded_fits(monkeypatch)
    names, compiled = {}, {}
    for title, content in blocks(page, "python"):
        if not title.startswith(("not run", "oracle")):
            exec(compile(content, page.name, "exec"), names)
            for name in re.findall(r"^ *(\w+)\.compile\(", content, re.MULTILINE):
                if names[name].compiled:  # not one that the block makes later, by this name
                    compiled[id(names[name])] = names[name]
    trained = {key: (model, example_of(model)) for key, model in compiled.items()} | fits
    bounds, answers = LEARNT.get(page.stem, ((), {}))
    for (model, batches), bound in zip(trained.values(), bounds, strict=True):
        learn(model, batches, bound)
    for code, expected in answers.items():
        assert eval(code, names) == expected


@pytest.mark.usefixtures("smaller_models")
def test_the_python_about_layers_runs(tmp_path, monkeypatch):
    """It needs no trained run, so that it is checked often."""
    monkeypatch.chdir(tmp_path)
    names = {}
    for _, content in blocks(ROOT / "docs" / "guides" / "layers.md", "python"):
        exec(compile(content, "layers.md", "exec"), names)


# The mean of -log(probability of a label) that the models of a page reach by its own `fit`, those
# with a name first; it is counted here, not by the loss of the model. Then what expressions of the
# page give.
LEARNT = {
    "README": ([0.1], {}),
    "layers": ([0.1, 7.0], {}),
    "classify": (
        [0.01],
        {"kt.serving.Classifier(model, tokenizer, text.names)(texts)": ["pos", "neg"] * 2},
    ),
    "extend": ([0.3], {}),
    "gpus": ([7.0, 0.1, 0.1], {}),
    "lora": ([3.7, 5.7], {}),
    "your-text": ([1.0, 5.0], {}),
}


def recorded_fits(monkeypatch):
    """The models that are fitted, with what they are: {id: (model, dataset)}."""
    fits = {}

    def recorded(model, *args, original, **named):
        is_dataset = isinstance(args[0], tf.data.Dataset)
        batches = args[0] if is_dataset else tf.data.Dataset.from_tensors(args).repeat()
        fits.setdefault(id(model), (model, batches))
        return original(model, *args, **named)

    for cls in (kt.Model, keras.Model):
        monkeypatch.setattr(cls, "fit", functools.partialmethod(recorded, original=cls.fit))
    return fits


def example_of(model):
    """Batches for a model that its page only compiles."""
    draw = np.random.default_rng(3)
    ids = draw.integers(5, 9, (16, 7))
    pair = {"source_ids": ids, "target_ids": np.roll(ids, 1, 1)}, ids
    is_pair = isinstance(model, kt.models.TranslationModel)
    return tf.data.Dataset.from_tensors(
        pair if is_pair else (ids, (ids == 7).any(1, keepdims=True))
    ).repeat()


def learn(model, batches, bound):
    """Trains a model in rounds of 15 steps, up to 60 of them, until it has at most so many nats."""
    first = found = nats(model, batches)
    for _ in range(60):
        if found <= bound:
            return
        model.fit(batches, steps_per_epoch=15, verbose=0)
        found = nats(model, batches)
    raise AssertionError(f"{found:.3f} nats, {first:.3f} before, must be at most {bound}")


def nats(model, batches):
    """The mean of -log(probability) of the labels in a batch, from probabilities or logits."""
    inputs, labels = (keras.tree.map_structure(np.array, part) for part in next(iter(batches))[:2])
    outputs = np.array(model(inputs), "float64")
    if outputs.shape[-1] == 1:
        outputs, labels = np.concatenate([1 - outputs, outputs], -1), labels[..., 0]
    elif labels.shape == outputs.shape:
        labels = labels.argmax(-1)
    labels = labels.astype(int)
    if not np.allclose(outputs.sum(-1), 1, atol=1e-3):
        outputs = special.softmax(outputs, -1)
    found = np.take_along_axis(outputs, np.maximum(labels, 0)[..., None], -1)[..., 0]
    is_label = labels != getattr(model.loss, "pad_id", None)
    if getattr(inputs, "shape", None) == labels.shape:
        is_label &= inputs != 0  # which Keras's mask leaves out
    return -np.log(found[is_label]).mean()


def built_of_layers(page):
    """The models that the blocks of a page build of layers, as readers would copy them."""
    for _, content in blocks(page, "python"):
        if "keras.Model(" in content:
            exec(compile(content, page.name, "exec"), names := {})
            yield from (each for each in names.values() if isinstance(each, keras.Model))


@pytest.mark.parametrize("name", ["README.md", "docs/guides/layers.md"])
def test_models_of_the_pages_answer_a_row_of_padding_with_numbers(name):
    models = [*built_of_layers(ROOT / name)]
    assert models
    for model in models:
        [ids] = model.inputs
        assert keras.ops.all(keras.ops.isfinite(model(keras.ops.zeros((2, 5), ids.dtype))))


COMMAND_LINES = [
    (page, line)
    for page in PAGES
    for title, content in blocks(page, "bash")
    if not title.startswith(("not run", "slurm"))
    for line in content.splitlines()
    if re.search("python|keras-transformer ", line) and "pip install" not in line
]
PAGE_OF = {line: page for page, line in reversed(COMMAND_LINES)}  # the first that has it


@pytest.mark.slow
@pytest.mark.usefixtures("untold_results")
@pytest.mark.parametrize("page", pages_with("bash"), ids=lambda page: page.stem)
def test_the_commands_of_a_page_run(page, workplace, monkeypatch, capsys):
    export_little(page, monkeypatch)
    monkeypatch.chdir(workplace)
    for line in [line for of, line in COMMAND_LINES if of == page == PAGE_OF[line]]:
        name = NAME.search(line)[1]
        if name in ELSEWHERE:
            continue
        if name.endswith("c_api"):
            arguments = shlex.split(line.split("|")[-1])[3:]
            stdin = '{"inputs": {"text": ["It is ten past six."]}}\n' if "|" in line else ""
            command = [sys.executable, c_api.__file__, *arguments]
            done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=True)
            assert done.stdout.count("outputs") == (1 if "--signatures" not in arguments else 4)
            continue
        if "--virtual-devices" in line:  # before TensorFlow has made its devices
            with unittest.mock.patch("train.loop.train_on_devices") as train:
                run(line)  # tests/train/test_workers.py trains another model so
            assert train.call_args.args[2].virtual_devices == 2
            continue
        source = re.search(r"< ?(\S+)", line)
        text = (workplace / source[1]).read_bytes() if source else b""
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
        capsys.readouterr()
        if name == "translation" and is_training(line) and line != training_of("mine"):
            with unittest.mock.patch("train.loop.train_run", read_and_copied):
                run(line)
            continue
        if line not in map(training_of, LOADED):
            run(line)
        if is_training(line) and (place := re.search(r"--run (\S+)", line)):
            with open(f"{place[1]}/history.csv") as file:
                losses = [float(row["loss"]) for row in csv.DictReader(file)]
            assert losses[-1] < 0.98 * losses[0], line
        if source:
            assert capsys.readouterr().out.count("\n") == text.count(b"\n")


def read_and_copied(run, experiment, *_):
    """Instead of training as the run `mine` was: reads the texts and makes a copy of that run."""
    texts = [text for text in (experiment.shown_text, experiment.valid_text) if text]
    assert texts and all(len(text.sources) == len(text.targets) > 3 for text in texts)
    shutil.copytree("runs/mine", run.path)


def is_training(line):
    return re.search(r"keras-transformer [\w-]+ --", line)


def test_every_command_that_is_shown_is_known():
    names = {NAME.search(line)[1] for _, line in COMMAND_LINES}
    assert names >= {*COMMANDS, "train", "launch"}
    assert names <= {*COMMANDS, *ELSEWHERE, "keras_transformer.serving.publishing.c_api"}


def test_what_does_not_run_says_why():
    titles = {
        title for page in PAGES for kind in ("python", "bash") for title, _ in blocks(page, kind)
    }
    assert all(re.fullmatch(r"not run: needs .+|oracle|slurm|", title) for title in titles)


def test_every_block_is_of_a_known_kind():
    """A fence that `BLOCK` does not find would never be run."""
    for page in PAGES:
        text = page.read_text("utf-8")
        fences = re.findall(r"^ *```.*$", text, re.MULTILINE)
        found = [name for name, _, _ in BLOCK.findall(text)]
        assert set(found) <= {"python", "bash", "yaml"}
        manifests = [code for name, _, code in BLOCK.findall(text) if name == "yaml"]
        assert all(part["kind"] for code in manifests for part in yaml.safe_load_all(code))
        plain = len(re.findall(r"^```\n(?:(?!```).*\n)*?```$", text, re.MULTILINE))
        assert len(fences) == 2 * (len(found) + plain), page


def test_every_row_is_of_a_table():
    """A blank line within a table would leave its last rows as text full of bars."""
    for page in PAGES:
        for table in re.findall(r"(?:^\|.*\n)+", page.read_text("utf-8"), re.MULTILINE):
            heads, line, *rows = table.splitlines()
            assert re.fullmatch(r"\|( ?:?-+:? ?\|)+", line), f"{page}: {heads}"
            widths = {len(re.split(r"\|", re.sub("`[^`]*`", "", row))) for row in [heads, *rows]}
            assert widths == {line.count("|") + 1}, f"{page}: {heads}"


README = (ROOT / "README.md").read_text("utf-8")


def test_the_readme_is_short_and_its_links_lead_somewhere():
    assert len(README.splitlines()) <= 150
    for page in PAGES:
        for target, _, anchor in re.findall(r"\]\(([^)#]*)(#([\w-]+))?\)", page.read_text("utf-8")):
            if not target.startswith("http"):
                path = page.parent / target if target else page
                assert path.exists(), f"{page.name}: {target}"
                assert not anchor or anchor in anchors(path), f"{page.name}: {target}#{anchor}"


def anchors(page):
    """Of the headings of a page, as MkDocs and GitHub name them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def test_the_reference_has_every_package_and_names_are_public():
    """mkdocstrings lists what `__all__` lists: each public package needs a page."""
    pages = {path.stem for path in (ROOT / "docs" / "reference").glob("*.md")}
    assert pages == {*kt.ROOMS, "layers", "models", "ops", "training"}
    for page in pages:
        text = (ROOT / "docs" / "reference" / f"{page}.md").read_text()
        assert f"::: keras_transformer.{page}" in text
        room = importlib.import_module(f"keras_transformer.{page}")
        for name in room.__all__:  # what has no docstring is left out of the page
            public = getattr(room, name)
            documented = inspect.isclass(public) or inspect.isfunction(public)
            assert public.__doc__ if documented else f"`{name}`" in text, name
    menu = (ROOT / "mkdocs.yml").read_text()
    for path in (ROOT / "docs").rglob("*.md"):
        assert f": {path.relative_to(ROOT / 'docs')}" in menu


def test_the_line_for_slurm_makes_a_tf_config():
    [block] = [
        text for title, text in blocks(ROOT / "docs/guides/gpus.md", "bash") if title == "slurm"
    ]
    functions = "srun() { shift; SLURM_PROCID=1 \"$@\"; }; scontrol() { printf 'n1\\nn2\\n'; }; "
    functions += "keras-transformer() { printenv TF_CONFIG; }; "
    functions += "export -f scontrol keras-transformer; "
    done = subprocess.run(["bash", "-c", functions + block], capture_output=True, text=True)
    assert json.loads(done.stdout) == {
        "cluster": {"worker": ["n1:12345", "n2:12345"]},
        "task": {"type": "worker", "index": 1},
    }


def test_ci_runs_the_test_command_of_the_readme():
    command = "pip install -e '.[test]' && pytest"
    assert command in README and command in (ROOT / ".ci" / "run").read_text()
