"""Keras's `quantize` is refused by what it would leave as it is, and by nothing else."""

import inspect

import keras
import numpy as np
import pytest

import keras_transformer as kt
from tests.reference import array

SMALL = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 2}
MODELS = {
    "translation": lambda: kt.translation(11, **SMALL),
    "language_model": lambda: kt.language_model(11, **SMALL),
    "transformer_xl": lambda: kt.transformer_xl(11, 3, **SMALL),
    "classifier": lambda: kt.classifier(11, 3, **SMALL),
    "bert": lambda: kt.bert_classifier(kt.bert(11, size="tiny", **SMALL), 3),
}
LAYERS = {
    "encoder": lambda: kt.Encoder(1, num_heads=2, intermediate_dim=7),
    "attention": lambda: kt.MultiHeadAttention(2),
    "feed_forward": lambda: kt.FeedForward(7),
    "sliced": lambda: kt.SlicedAttention(2),
    "positions": lambda: kt.PositionEmbedding(5),
}
# Of the layers on the way that have nothing to quantize.
pytestmark = pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize")
REFUSED = "Export the model .* `keras-transformer convert --to ctranslate2`.* Received: mode='int8'"


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_ours_is_refused_and_stays_as_it_is(name):
    model = MODELS[name]()
    before = [(weight.path, weight.dtype) for weight in model.weights]
    with pytest.raises(ValueError, match=REFUSED):
        model.quantize("int8")
    assert [(weight.path, weight.dtype) for weight in model.weights] == before


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_of_ours_in_a_plain_model_is_refused(name):
    inputs = keras.Input((5, 6))
    model = keras.Model(inputs, LAYERS[name]()(inputs))
    with pytest.raises(ValueError, match=REFUSED):
        model.quantize("int8")


def test_plain_layers_are_quantized_as_ever():
    inputs = keras.Input((5, 6))
    model = kt.Model(inputs, keras.layers.Dense(7)(kt.ReproducibleDropout(0.1)(inputs)))
    values = np.random.default_rng(3).normal(size=(3, 5, 6)).astype("float32")
    before = array(model(values))
    model.quantize("int8")
    assert "int8" in {weight.dtype for weight in model.weights}
    np.testing.assert_allclose(array(model(values)), before, atol=0.1)


@pytest.mark.skipif(
    "filters" not in inspect.signature(keras.Model.quantize).parameters,
    reason="this version of Keras has no filters",
)
def test_filters_leave_ours_out():
    inputs = keras.Input((5, 6))
    model = keras.Model(
        inputs,
        keras.layers.Dense(7, name="top")(kt.Encoder(1, num_heads=2, intermediate_dim=7)(inputs)),
    )
    model.quantize("int8", filters="top")
    assert {w.path.split("/")[0] for w in model.weights if w.dtype == "int8"} == {"top"}
