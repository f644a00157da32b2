"""What the tests of conversion share."""

import pytest

import keras_transformer as kt

from .drawn import CORPUS


@pytest.fixture(scope="session")
def tokenizer():
    return kt.tokenizers.train_sentencepiece([*CORPUS.sources, *CORPUS.targets], 400)
