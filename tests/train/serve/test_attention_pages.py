"""The attention that a server shows, of the weights that were exported from a run."""

import dataclasses
import json
import re
import shutil

import pytest

from keras_transformer.serving import RunFolder, Translator
from keras_transformer.tokenizers import train_byte_pairs, train_sentencepiece
from tests.serving.conftest import SENTENCES
from train.convert import save_run, text_model_of
from train.serve.attention_pages import AttentionPages
from train.serve.saved_model import SavedModel

from .conftest import small_models

pytestmark = pytest.mark.slow


def changed(model, factor):
    for weight in model.weights:
        weight.assign(factor * weight)
    return model


def body_of(*texts):
    return json.dumps(dict(zip(("text", "target"), texts, strict=False))).encode()


def test_the_attention_is_computed_by_the_weights_that_were_exported(runs, tmp_path):
    run = tmp_path / "tiny"
    shutil.copytree(runs / "tiny", run)
    changed(RunFolder(run).model(), 1.5).save(run / "best.keras")
    shown, pages = AttentionPages(tmp_path), {}
    for version, weights in enumerate(("best", "averaged"), start=1):
        path = text_model_of(run, weights).export(tmp_path / "served", "tiny", SENTENCES[:2])
        served = SavedModel("tiny", version, path)
        pages[weights] = shown.page(served, body_of("A dog runs."))
        model = Translator.load(run, weights=weights)
        assert pages[weights] == model.attention("A dog runs.").page()
    assert pages["best"] != pages["averaged"]
    # Another training does not change what is served.
    changed(RunFolder(run).model(), 0.5).save(run / "model.keras")
    for again in (shown, AttentionPages(tmp_path)):
        text, answer = "A dog runs.", model(["A dog runs."])[0]
        assert again.page(served, body_of(text, answer)) == pages["averaged"]
    shutil.copy(runs / "mood" / "model.keras", run / "model.keras")
    with pytest.raises(ValueError, match="model"):
        AttentionPages(tmp_path).page(served, body_of("A dog runs."))


def test_a_run_with_another_model_is_told(runs, folder):
    served = SavedModel("tiny", 1, folder / "tiny" / "1")
    served.weights = served.weights[1:]
    with pytest.raises(ValueError, match=r"run tiny has other weights .* Export it again\."):
        AttentionPages(runs).page(served, body_of("A dog runs."))


@pytest.mark.parametrize("name", ["tiny", "mood", "writer"])
def test_a_run_with_another_tokenizer_of_the_same_size_is_told(name, runs, folder, tmp_path):
    served = SavedModel(name, 1, folder / name / "1")
    assert AttentionPages(runs).page(served, body_of("A dog runs."))
    trained, train = small_models()[name], train_sentencepiece
    train = train_byte_pairs if name == "writer" else train
    other = train([*SENTENCES, "The dog runs again."], trained.tokenizer.vocabulary_size)
    save_run(dataclasses.replace(trained, tokenizer=other), tmp_path / name)
    with pytest.raises(ValueError, match=rf"run {name} has another tokenizer .* Export it again"):
        AttentionPages(tmp_path).page(served, body_of("A dog runs."))


def test_the_page_of_a_translation_opens_on_its_cross_attention(runs, folder):
    served = SavedModel("tiny", 1, folder / "tiny" / "1")
    page = AttentionPages(runs).page(served, body_of("A dog runs.", "Ein Hund"))
    data = re.search(r'id="data">(.*)</script>', page)[1]
    assert [kind["name"] for kind in json.loads(data)] == ["cross", "decoder", "encoder"]


def test_attention_is_shown_of_so_many_tokens(runs, folder):
    shown, parrots = AttentionPages(runs), "\U0001f99c" * 99  # four bytes each, and as many tokens
    served = {name: SavedModel(name, 1, folder / name / "1") for name in ("tiny", "writer", "mood")}
    message = r"of texts of at most 256 tokens\. Received: 397 tokens\."
    for name, texts in [("tiny", [parrots]), ("tiny", ["a", parrots]), ("writer", [parrots])]:
        with pytest.raises(ValueError, match=message.replace("397", "39[67]")):
            shown.page(served[name], body_of(*texts))
    # What a classifier does not read does not count.
    assert shown.page(served["mood"], body_of(parrots)).startswith("<!doctype")
