"""The attention that a server shows, of the weights that were exported from a run."""

import copy
import dataclasses
import json
import re
import shutil

import pytest

from keras_transformer.serving import RunFolder, Translator
from keras_transformer.tokenizers import train_byte_pairs, train_sentencepiece
from tests.conftest import leave_exports_unchecked
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


@pytest.fixture(scope="module")
def trained(runs, tmp_path_factory):
    """A folder with a run whose best weights are others than its last."""
    folder = tmp_path_factory.mktemp("trained")
    run = shutil.copytree(runs / "tiny", folder / "tiny")
    changed(RunFolder(run).model(), 1.5).save(run / "best.keras")
    return folder


@pytest.fixture(scope="module")
def loaded(best):
    return SavedModel("tiny", 1, best)


@pytest.fixture
def tiny(loaded):
    """Of its own, for a test may change its attributes."""
    return copy.copy(loaded)


@pytest.fixture(scope="module")
def best(trained):
    """The export of its best weights, without the check in a process of its own."""
    with pytest.MonkeyPatch.context() as patch:
        leave_exports_unchecked(patch)
        model = text_model_of(trained / "tiny", "best")
        return model.export(trained / "served", "tiny", SENTENCES[:2])


def test_the_attention_is_computed_by_the_weights_that_were_exported(runs, trained, tiny, tmp_path):
    run = shutil.copytree(trained / "tiny", tmp_path / "tiny")
    shown = AttentionPages(tmp_path)
    best, last = (Translator.load(run, weights=weights) for weights in ("best", "averaged"))
    expected = best.attention("A dog runs.").page()
    assert shown.page(tiny, body_of("A dog runs.")) == expected
    assert expected != last.attention("A dog runs.").page()
    # Another training does not change what is served.
    changed(RunFolder(run).model(), 0.5).save(run / "model.keras")
    for again in (shown, AttentionPages(tmp_path)):
        text, answer = "A dog runs.", best(["A dog runs."])[0]
        assert again.page(tiny, body_of(text, answer)) == expected
    shutil.copy(runs / "mood" / "model.keras", run / "model.keras")
    with pytest.raises(ValueError, match="model"):
        AttentionPages(tmp_path).page(tiny, body_of("A dog runs."))


def test_a_run_with_another_model_is_told(trained, tiny):
    tiny.weights = tiny.weights[1:]
    with pytest.raises(ValueError, match=r"run tiny has other weights .* Export it again\."):
        AttentionPages(trained).page(tiny, body_of("A dog runs."))


def check_that_another_tokenizer_is_told(name, served, runs, tmp_path):
    assert AttentionPages(runs).page(served, body_of("A dog runs."))
    trained, train = small_models()[name], train_sentencepiece
    train = train_byte_pairs if name == "writer" else train
    other = train([*SENTENCES, "The dog runs again."], trained.tokenizer.vocabulary_size)
    save_run(dataclasses.replace(trained, tokenizer=other), tmp_path / name)
    with pytest.raises(ValueError, match=rf"run {name} has another tokenizer .* Export it again"):
        AttentionPages(tmp_path).page(served, body_of("A dog runs."))


def test_a_run_with_another_tokenizer_of_the_same_size_is_told(trained, tiny, tmp_path):
    check_that_another_tokenizer_is_told("tiny", tiny, trained, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["mood", "writer"])
def test_another_tokenizer_of_other_models_is_told(name, runs, folder, tmp_path):
    served = SavedModel(name, 1, folder / name / "1")
    check_that_another_tokenizer_is_told(name, served, runs, tmp_path)


def test_the_page_of_a_translation_opens_on_its_cross_attention(trained, tiny):
    page = AttentionPages(trained).page(tiny, body_of("A dog runs.", "Ein Hund"))
    data = re.search(r'id="data">(.*)</script>', page)[1]
    assert [kind["name"] for kind in json.loads(data)] == ["cross", "decoder", "encoder"]


PARROTS = "\U0001f99c" * 99  # four bytes each, and as many tokens


def check_that_long_texts_are_refused(shown, served, *texts):
    message = r"of texts of at most 256 tokens\. Received: 39[67] tokens\."
    with pytest.raises(ValueError, match=message):
        shown.page(served, body_of(*texts))


@pytest.mark.parametrize("texts", [[PARROTS], ["a", PARROTS]])
def test_attention_is_shown_of_so_many_tokens(texts, trained, tiny):
    check_that_long_texts_are_refused(AttentionPages(trained), tiny, *texts)


@pytest.mark.soak
def test_attention_of_other_models_is_shown_of_so_many_tokens(runs, folder):
    shown = AttentionPages(runs)
    mood, writer = (SavedModel(name, 1, folder / name / "1") for name in ("mood", "writer"))
    check_that_long_texts_are_refused(shown, writer, PARROTS)
    # What a classifier does not read does not count.
    assert shown.page(mood, body_of(PARROTS)).startswith("<!doctype")
