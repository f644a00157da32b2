"""What the tests of conversion share."""

import pathlib
import types
import warnings

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer import convert
from keras_transformer.convert import checks, writing

from .drawn import CORPUS


@pytest.fixture(scope="session")
def tokenizer():
    return kt.tokenizers.train_sentencepiece([*CORPUS.sources, *CORPUS.targets], 400)


def run_here(command, **_):
    """As `subprocess.run` of the check of what was written, in this process: imports are done."""
    name, draft, example = command[-3:]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            getattr(checks, name)(pathlib.Path(draft), dict(np.load(example)))
    except SystemExit as error:
        return types.SimpleNamespace(returncode=1, stderr=str(error))
    return types.SimpleNamespace(returncode=0)


@pytest.fixture
def checked_here(monkeypatch):
    """Whether another library answers as we do is asked in this process."""
    monkeypatch.setattr(writing, "subprocess", types.SimpleNamespace(run=run_here))


@pytest.fixture
def unchecked(monkeypatch):
    """No other library is asked, nor imported."""
    monkeypatch.setattr(writing, "check", lambda *args: None)
    monkeypatch.setattr(convert.peft, "check", lambda *args: None)
