"""A server of three small models, shared by the tests of one file."""

import contextlib
from functools import partial

import keras
import pytest

from keras_transformer import classifier, language_model, translation
from keras_transformer.convert import Converted
from keras_transformer.serving.publishing import c_api
from keras_transformer.tokenizers import train_byte_pairs, train_sentencepiece
from tests.conftest import leave_exports_unchecked
from tests.serving.conftest import SENTENCES, SMALL, VOCABULARY_SIZE
from train.convert import save_run, text_model_of

from .client import Client, serving

KINDS = ("tiny", "mood", "writer")
WIDE = {**SMALL, "intermediate_dim": 512}  # whose kernels are stored with more columns
TEXTS = [*SENTENCES, "", "ü🦜 日本", "a\x00b", "dog " * 99]


def small_models():
    """{name: a model as of a trained run}, of a translator, a classifier and a language model."""
    pieces, pairs = (
        train_sentencepiece(SENTENCES, VOCABULARY_SIZE),
        train_byte_pairs(SENTENCES, 270),
    )
    labels = ["bad", "good", "schön"]
    models = {
        "tiny": translation(VOCABULARY_SIZE, size="tiny", **WIDE),
        "mood": classifier(VOCABULARY_SIZE, len(labels), **SMALL),
        "writer": language_model(pairs.vocabulary_size, **SMALL),
    }
    return {
        "tiny": Converted(
            "translation", models["tiny"], pieces, config={"num_beams": 3, "max_length": 9}
        ),
        "mood": Converted(
            "classification", models["mood"], pieces, labels=labels, config={"max_length": 7}
        ),
        "writer": Converted("language_model", models["writer"], pairs, config={"context": 11}),
    }


def save_runs(folder):
    keras.utils.set_random_seed(7)
    for name, model in small_models().items():
        save_run(model, folder / name)


@pytest.fixture(scope="session")
def runs(made_once):
    """A folder with a run of each model."""
    return made_once("served runs", save_runs)


def export(runs, folder):
    """Without the check by a fresh process, as whose answers these tests want those of a server."""
    with pytest.MonkeyPatch.context() as patch:
        leave_exports_unchecked(patch)
        for name in KINDS:
            text_model_of(runs / name).export(folder, name, SENTENCES[:2])


@pytest.fixture(scope="session")
def folder(made_once, runs):
    return made_once("served models", partial(export, runs))


@pytest.fixture(scope="module")
def server(folder, runs):
    with serving(folder, f"--runs={runs}") as found:
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
