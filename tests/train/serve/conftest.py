"""A server of three small models, shared by the tests of one file."""

import contextlib

import pytest

from keras_transformer import translation
from keras_transformer.convert.loading import Converted
from keras_transformer.serving import Translator, export
from keras_transformer.serving.publishing import c_api
from keras_transformer.tokenizers import train_sentencepiece
from tests.serving.conftest import SENTENCES, SMALL, SMALL_MODULES, VOCABULARY_SIZE
from train.convert import save_run

from .client import Client, serving

KINDS = {"tiny": "of a run", "mood": "classifier", "writer": "generator-byte-pairs"}
TEXTS = [*SENTENCES, "", "ü🦜 日本", "a\x00b", "dog " * 99]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with the run of one model."""
    folder = tmp_path_factory.mktemp("runs")
    tokenizer = train_sentencepiece(SENTENCES, VOCABULARY_SIZE)
    model = translation(VOCABULARY_SIZE, size="tiny", **SMALL)
    config = {"num_beams": 3, "max_length": 9}
    save_run(Converted("translation", model, tokenizer, config=config), folder / "tiny")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory, runs):
    folder = tmp_path_factory.mktemp("saved_models")
    Translator.load(runs / "tiny").export(folder, "tiny", SENTENCES[:2])
    for name in ("mood", "writer"):
        export(SMALL_MODULES[KINDS[name]](), folder, name, SENTENCES[:2])
    return folder


@pytest.fixture(scope="module")
def server(folder, runs):
    with serving(folder, "--poll-seconds=0.3", f"--runs={runs}") as found:
        yield found


@pytest.fixture
def client(server):
    with contextlib.closing(Client(server[0])) as client:
        yield client


@pytest.fixture(scope="module")
def alone(folder):
    """What the C library answers to each of `TEXTS` alone: {model: [{output: value}]}."""
    answers = {}
    for name in KINDS:
        key = "prompt" if name == "writer" else "text"
        found = c_api.ask(folder / name / "1", [{"inputs": {key: [text]}} for text in TEXTS])
        answers[name] = [{k: v[0] for k, v in answer["outputs"].items()} for answer in found]
    return answers
