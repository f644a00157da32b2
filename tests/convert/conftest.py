"""What the tests of conversion share."""

import importlib.util
import io
import warnings

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import convert
from keras_transformer.convert import ConversionError, checks, writing

from .drawn import CORPUS

CHECK = writing.check


@pytest.fixture(scope="session")
def tokenizer():
    return kt.tokenizers.train_sentencepiece([*CORPUS.sources, *CORPUS.targets], 400)


def check_here(name, libraries, draft, example):
    """As `writing.check`, which starts a process, but in this one, where imports are done."""
    if not all(map(importlib.util.find_spec, libraries)):
        CHECK(name, libraries, draft, example)  # which warns
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            file = io.BytesIO()  # as they reach the other process
            np.savez(file, **example())
            file.seek(0)
            getattr(checks, name)(draft, dict(np.load(file)))
    except SystemExit as error:
        reason = f"the check by {libraries[0]} failed: {error}"
        raise ConversionError(f"Nothing was written: {reason}") from None


@pytest.fixture
def checked_here(monkeypatch):
    """Whether another library answers as we do is asked in this process."""
    monkeypatch.setattr(writing, "check", check_here)
    monkeypatch.setattr(convert.peft, "check", check_here)


@pytest.fixture
def unchecked(monkeypatch):
    """No other library is asked, nor imported."""
    monkeypatch.setattr(writing, "check", lambda *args: None)
    monkeypatch.setattr(convert.peft, "check", lambda *args: None)
