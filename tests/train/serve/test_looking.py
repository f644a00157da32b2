"""The attention that a server shows, of the run that a model was exported from."""

import json
import shutil

import pytest

from keras_transformer.serving import RunFolder, Translator
from train.serve.looking import Runs

pytestmark = pytest.mark.slow


def test_the_attention_of_a_run_that_was_trained_again_is_the_new_one(runs, tmp_path):
    shutil.copytree(runs / "tiny", tmp_path / "tiny")
    shown, body = Runs(tmp_path), json.dumps({"text": "A dog runs."}).encode()
    before = shown.page("tiny", body)
    model = RunFolder(tmp_path / "tiny").model()
    for weight in model.weights:
        weight.assign(1.5 * weight)
    model.save(tmp_path / "tiny" / "model.keras")
    after = shown.page("tiny", body)
    assert after != before
    assert after == Translator.load(tmp_path / "tiny").attention("A dog runs.").page()


def test_attention_is_shown_of_so_many_tokens(runs):
    shown, parrots = Runs(runs), "\U0001f99c" * 99  # four bytes each, and as many tokens
    message = r"of texts of at most 256 tokens\. Received: 397 tokens\."
    for name, texts in [("tiny", [parrots]), ("tiny", ["a", parrots]), ("writer", [parrots])]:
        body = json.dumps(dict(zip(("text", "target"), texts, strict=False))).encode()
        with pytest.raises(ValueError, match=message.replace("397", "39[67]")):
            shown.page(name, body)
    # What a classifier does not read does not count.
    assert shown.page("mood", json.dumps({"text": parrots}).encode()).startswith("<!doctype")
