"""Every family, read and written again by our library alone."""

import dataclasses

import numpy as np
import pytest

from keras_transformer import convert
from tests.convert.folders import FAMILIES, TEXTS
from tests.reference import array

# The families that are written without a tokenizer that another library has learned.
FORMATS = {
    "marian": "huggingface",
    "marian of two vocabularies": "huggingface",
    "bart": "huggingface",
    "mbart": "huggingface",
    "gpt2": "huggingface",
    "llama": "huggingface",
    "bert": "huggingface",
    "preset of bert": "keras_hub",
    "preset of gpt2": "keras_hub",
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.usefixtures("unchecked")
def test_what_is_written_is_what_was_read(name, tmp_path):
    FAMILIES[name](tmp_path / "theirs")
    found = convert.load(tmp_path / "theirs")
    again = convert.load(convert.write(found, FORMATS[name], tmp_path / "again"))
    for one, other in zip(found.model.weights, again.model.weights, strict=True):
        np.testing.assert_allclose(array(other), array(one), rtol=1e-6, err_msg=one.path)
    if name.startswith("marian"):  # whose positions are sines, and one more in what is written
        found.settings = dataclasses.replace(found.settings, max_source_length=513)
    for name in ("settings", "labels"):
        assert getattr(again, name, None) == getattr(found, name, None)
    texts = [*TEXTS.sources[:50], "naïve Café", "日本 is 12,50 €!", ""]
    for name in ("tokenizer", "target_tokenizer"):
        ids, expected = (
            getattr(each, name).tokenize(texts).to_list() if hasattr(each, name) else None
            for each in (again, found)
        )
        assert ids == expected
