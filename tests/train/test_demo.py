"""`python -m train`, the README's command, with fewer sentences and steps than it takes."""

import json
import re
import sys

import pytest

from keras_transformer.serving.publishing.c_api import ask
from train import __main__
from train.translation import TranslationConfig

from .test_optimizer import HAS_MUON

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_MUON, reason="its optimizer needs Keras 3.13"),
]
FEW = {
    "vocabulary_size": 500, "num_layers": 1, "hidden_dim": 16, "intermediate_dim": 32,
    "num_heads": 2, "steps": 5, "warmup_steps": 2, "checkpoint_every": 2, "average": 2,
    "num_beams": 2,
}  # fmt: skip


@pytest.fixture
def demonstrate(tmp_path, monkeypatch, capsys):
    """Runs the command in an empty folder and returns what it prints."""
    config = TranslationConfig.load("demo").replace(**FEW)
    monkeypatch.setattr(TranslationConfig, "load", {"demo": config}.__getitem__)
    monkeypatch.setattr(__main__, "NUM_TRAIN", 300)
    monkeypatch.setattr(__main__, "NUM_HELD_OUT", 7)
    monkeypatch.setattr(sys, "argv", ["train"])
    monkeypatch.chdir(tmp_path)

    def run():
        __main__.main()
        return capsys.readouterr().out

    return run


@pytest.mark.usefixtures("unchecked_exports")
def test_the_demo_trains_measures_draws_exports_and_asks(demonstrate, tmp_path):
    printed = demonstrate()
    assert (tmp_path / "runs" / "demo" / "model.keras").exists()
    assert re.search(r"^BLEU: \d", printed, re.MULTILINE), printed
    assert re.search(r"^Exact match on 7 held-out sentences: \d+\.\d%$", printed, re.MULTILINE)
    pictures = re.findall(r"^Picture: (.+)$", printed, re.MULTILINE)
    assert {"attention.png", "attention.html", "learning_curves.png"} == {
        path.name for path in map(tmp_path.joinpath, pictures) if path.stat().st_size
    }

    # The request that it shows has the answer that it shows.
    published = re.search(r"^Published (.+?)\. One request", printed, re.MULTILINE)[1]
    assert published == "saved_models/demo/1"
    request, answer = re.findall(r"^\{.+\}$", printed, re.MULTILINE)
    assert ask(published, [json.loads(request)]) == [json.loads(answer)]
    assert set(json.loads(answer)["outputs"]) == {"translation", "score", "length", "truncated"}

    # Again with the trained run.
    again = demonstrate()
    assert "Published saved_models/demo/2." in again
    asked_again = re.findall(r"^\{.+\}$", again, re.MULTILINE)
    assert list(map(json.loads, asked_again)) == list(map(json.loads, (request, answer)))
