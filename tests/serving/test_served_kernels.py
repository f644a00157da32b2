"""Kernels that an export stores as (input, output)."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import classifier, language_model, translation
from keras_transformer.decoding import BeamSearch
from keras_transformer.layers.projection import Projection
from keras_transformer.models import add_lora
from keras_transformer.ops.projection import with_columns
from keras_transformer.serving import (
    Classifier,
    Generator,
    SamplingSettings,
    SearchSettings,
    Translator,
    served_model,
)
from keras_transformer.serving.publishing.export import golden_answers
from keras_transformer.serving.served_model import served_kernels, transposed_kernels

# 512 columns are stored as 544, those of a table as well.
SMALL = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 512, "num_heads": 3}
TEXTS = np.array([b"A dog runs.", b"Zwei Katzen"], object)


def random(model):
    """The model with weights all of which matter."""
    numbers = np.random.default_rng(7)
    for weight in model.weights:
        if weight.dtype == "float32":
            weight.assign(numbers.normal(0, 0.5, weight.shape))
    return model


def translator(tokenizer, **settings):
    model = random(translation(tokenizer.vocabulary_size, size="tiny", **SMALL, **settings))
    search = SearchSettings(BeamSearch(2), max_source_length=7, max_target_length=5)
    return Translator(model, tokenizer, settings=search)


def writer(tokenizer, **settings):
    model = random(language_model(tokenizer.vocabulary_size, **SMALL, **settings))
    return Generator(model, tokenizer, SamplingSettings(context=12, max_tokens=4, empty_prompt="A"))


def moods(tokenizer, lora=False):
    model = classifier(tokenizer.vocabulary_size, 3, **SMALL)
    return Classifier(
        random(add_lora(model, rank=2) if lora else model), tokenizer, ["bad", "good", "so"], 9
    )


SERVED = {
    "translation": translator,
    "translation, a table and blocks of today": lambda t: translator(
        t, blocks="llama", tie_output=False
    ),
    "language model": writer,
    "classifier with LoRA": lambda t: moods(t, lora=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in SERVED if kind != "translation"])
def test_an_export_answers_as_the_model_without_reading_its_kernels(kind, tokenizer):
    served = SERVED[kind](tokenizer)
    exported = served.as_exported()
    for each in (served, exported):
        if "generate" in each.signatures:  # a generator, which draws with settings of its own, too
            del each.signatures["serving_default"]
    requests, expected = golden_answers(served, TEXTS)
    _, answers = golden_answers(exported, TEXTS)
    for (signature, _), ours, theirs in zip(requests, expected, answers, strict=True):
        for key, values in ours.items():
            if values.dtype.kind == "f":
                np.testing.assert_allclose(theirs[key], values, rtol=1e-4, atol=1e-4)
            else:
                assert theirs[key].tolist() == values.tolist(), (signature, key)
    stored = {id(weight) for weight in exported.weights}
    for function in exported.signatures.values():
        read = function.get_concrete_function().graph.variables
        assert {id(weight) for weight in read} <= stored
    kernels = [w for w in served.model.weights if w.path.endswith("_kernel")]
    assert {id(w) for w in kernels} <= {id(w) for w in served_kernels(served.model)}
    for ours, theirs in zip(served.weights, exported.weights, strict=True):
        if ours is not theirs:
            width = ours.shape[0]
            assert theirs.shape == (ours.shape[1], width + 32 * (width % 512 == 0))
            np.testing.assert_array_equal(theirs[:, :width], tf.transpose(ours))


@pytest.mark.parametrize("kind", SERVED)
def test_an_export_is_refused_if_what_it_stores_answers_otherwise(
    kind, tokenizer, tmp_path, monkeypatch
):
    served, right = SERVED[kind](tokenizer), served_model.transposed_kernels

    def one_wrong(model):
        columns = right(model)
        last = columns[list(columns)[-1]]
        last.assign(tf.reverse(last, [1]))
        return columns

    monkeypatch.setattr(served_model, "transposed_kernels", one_wrong)
    with pytest.raises(RuntimeError, match="answers otherwise with kernels as they are stored"):
        served.export(tmp_path, "wrong", ["A dog runs."])
    assert not list(tmp_path.iterdir())


def test_an_export_keeps_its_answers_when_the_model_is_trained_further(tokenizer):
    served = moods(tokenizer)
    exported = served.as_exported()
    before, texts = exported.answer(["A dog runs."])["probabilities"], ["A dog runs."]
    kernel = served_kernels(served.model)[0]
    kernel.assign(-2 * kernel)
    np.testing.assert_array_equal(exported.answer(texts)["probabilities"], before)
    after = served.answer(texts)["probabilities"]
    assert np.abs(after - before).max() > 1e-3
    fresh = served.as_exported().answer(texts)["probabilities"]
    np.testing.assert_allclose(fresh, after, rtol=1e-5)


def test_parts_and_rows_of_a_kernel_are_those_of_the_transpose():
    kernel = keras.Variable(keras.random.normal((5, 3), seed=1))
    turned = keras.Variable(keras.ops.pad(keras.ops.transpose(kernel) * 2, ((0, 0), (0, 3))))
    inputs = keras.random.normal((2, 4, 3), seed=2)
    part = Projection(kernel).rows(1, 4)(inputs)
    with with_columns({id(kernel): turned}):
        whole, twice = Projection(kernel)(inputs), Projection(kernel).rows(1, 4)(inputs)
        merged = Projection(kernel).merged_kernel()
    np.testing.assert_array_equal(merged, 2 * kernel)
    np.testing.assert_allclose(twice, 2 * part, rtol=1e-6)
    np.testing.assert_allclose(whole[..., 1:4], 2 * part, rtol=1e-6)
    assert Projection(kernel)(inputs).shape == (2, 4, 5)


@pytest.mark.parametrize("vocabulary_size", (11, 512))
@pytest.mark.parametrize("beyond", (0, 31, 32, -1))
def test_ids_that_a_turned_table_lacks_are_refused(vocabulary_size, beyond):
    model = language_model(vocabulary_size, **SMALL)
    ids = [[beyond if beyond < 0 else vocabulary_size + beyond]]
    with with_columns(transposed_kernels(model)):
        np.testing.assert_array_equal(model.embedding(np.zeros((0, 2), "int32")).shape, (0, 2, 6))
        with pytest.raises(tf.errors.InvalidArgumentError, match="not in"):
            model.embedding(np.array(ids, "int32"))
