"""One tiny model with random weights, and its export, shared by all tests of serving."""

import functools

import keras
import pytest

from keras_transformer.models.translation import encode, start_cache, step, translation
from keras_transformer.serving import (
    ModelFunctions,
    SearchSettings,
    Translator,
    export,
    with_dtype,
)
from keras_transformer.text.tokenizers import train_tokenizer

SENTENCES = ["A dog runs in the park.", "It is ten past six.", "Zwei Katzen sehen den Hund."]
VOCABULARY_SIZE = 307
SETTINGS = SearchSettings(num_beams=3, num_best=2, max_source_length=13, max_target_length=11)


def functions_of(model):
    return ModelFunctions(
        weights=model.weights,
        encode=functools.partial(encode, model),
        start_cache=functools.partial(start_cache, model),
        step=functools.partial(step, model),
        logits=lambda source_ids, target_ids: model(
            {"source_ids": source_ids, "target_ids": target_ids}
        ),
    )


@pytest.fixture(scope="session")
def tokenizer():
    return train_tokenizer(SENTENCES, VOCABULARY_SIZE)


@pytest.fixture(scope="session")
def model():
    keras.utils.set_random_seed(3)
    return translation(
        VOCABULARY_SIZE,
        size="tiny",
        num_layers=2,
        hidden_dim=30,
        intermediate_dim=17,
        num_heads=3,
    )


@pytest.fixture(scope="session")
def translator(model, tokenizer):
    return Translator(functions_of(model), tokenizer, settings=SETTINGS)


@pytest.fixture(scope="session")
def exported(translator, tmp_path_factory):
    return export(translator, tmp_path_factory.mktemp("saved_models"), "tiny", SENTENCES[:2])


@pytest.fixture(scope="session")
def half_translator(model, tokenizer):
    return Translator(functions_of(with_dtype(model, "bfloat16")), tokenizer, settings=SETTINGS)
