"""Ids, labels and rows that a model has no vector for stop training before the step."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer import layers

from .conftest import needs_tensorflow

pytestmark = needs_tensorflow

SIZES = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 2, "dropout": 0.0}
VOCABULARY_SIZE, LONGEST = 11, 5


def language_model(**settings):
    model = kt.language_model(VOCABULARY_SIZE, LONGEST, **SIZES)
    model.compile("sgd", kt.TokenCrossentropy(), **settings)
    return model


def bert_classifier():
    sizes = {**SIZES, "max_sequence_length": LONGEST}
    model = kt.bert_classifier(kt.bert(VOCABULARY_SIZE, **sizes), 3)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def as_arrays(x, y):
    return x, y


def as_dataset(x, y):
    return tf.data.Dataset.from_tensor_slices((x, y)).padded_batch(3), None


def as_generator(x, y):
    return (batch for batch in [(x, y)]), None


WAYS = {"arrays": as_arrays, "dataset": as_dataset, "generator": as_generator}
GOOD = np.array([[3, 10, 0], [1, 2, 5]])


def with_one(value, dtype="int32"):
    ids = GOOD.copy()
    ids[1, 1] = value
    return ids.astype(dtype)


def caught(model, way, x, y, message):
    before = [np.array(weight) for weight in model.weights]
    with pytest.raises(ValueError, match=message):
        data, labels = WAYS[way](x, y)
        model.fit(data, labels, verbose=0)
    for old, weight in zip(before, model.weights, strict=True):
        np.testing.assert_array_equal(weight, old, err_msg="no step was taken")


IDS = r"token_ids must be integers from 0 to 10\. Received: {}\."
LABELS = r"labels must be integers from 0 to 10\. Received: {}\."
LENGTH = r"Rows of token_ids must have at most 5 tokens.*Received: rows of length {}\."


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("settings", [{}, {"jit_compile": True}], ids=["plain", "xla"])
def test_ids_labels_and_rows_outside_are_errors_before_the_step(way, settings):
    model = language_model(**settings)
    for value in (11, -1, 400):
        caught(model, way, with_one(value), GOOD, IDS.format(value))
        caught(model, way, GOOD, with_one(value, "int64"), LABELS.format(value))
    caught(model, way, np.ones((2, 7), "int32"), np.ones((2, 7)), LENGTH.format(7))
    caught(model, way, np.ones((2, 6), "int8"), np.ones((2, 6)), LENGTH.format(6))
    data, labels = WAYS[way](GOOD, GOOD)
    history = model.fit(data, labels, verbose=0).history
    assert np.isfinite(history["loss"][0]), "the model is of use after that"


def test_an_overflow_in_float16_is_not_what_an_id_outside_is_taken_for():
    model = kt.language_model(VOCABULARY_SIZE, LONGEST, dtype="mixed_float16", **SIZES)
    model.compile("sgd", kt.TokenCrossentropy(), jit_compile=True)
    for way in WAYS:
        caught(model, way, with_one(11), GOOD, IDS.format(11))
        caught(model, way, GOOD, with_one(-2), LABELS.format(-2))
    assert model._step.loss_scale.skipped == 0


@pytest.mark.slow
@pytest.mark.parametrize("way", ["arrays", "dataset"])
def test_evaluation_and_prediction_are_checked_too(way):
    model = language_model(jit_compile=True)
    for x, y, message in (
        (with_one(11), GOOD, IDS.format(11)),
        (GOOD, with_one(12), LABELS.format(12)),
        (np.ones((2, 7)), np.ones((2, 7)), LENGTH.format(7)),
    ):
        with pytest.raises(ValueError, match=message):
            model.evaluate(*WAYS[way](x, y), verbose=0)
        with pytest.raises(ValueError, match=message):
            validation_data = WAYS[way](x, y)
            validation_data = validation_data[0] if way == "dataset" else validation_data
            model.fit(GOOD, GOOD, validation_data=validation_data, verbose=0)
        with pytest.raises(ValueError, match=message):
            model.train_on_batch(x, y)
        with pytest.raises(ValueError, match=message):
            model.test_on_batch(x, y)
        if x is not GOOD:
            for predict in (model.predict_on_batch, lambda x: model.predict(x, verbose=0)):
                with pytest.raises(ValueError, match=message):
                    predict(x)
    unlabelled = tf.data.Dataset.from_tensors(with_one(11))
    with pytest.raises(ValueError, match=IDS.format(11)):
        model.predict(unlabelled, verbose=0)


@pytest.mark.parametrize("way", WAYS)
def test_every_input_has_its_own_limits(way):
    model = bert_classifier()
    ids, segments, labels = GOOD, GOOD % 2, np.array([0, 2])
    wrong = {
        r"segment_ids must be integers from 0 to 1\. Received: 2\.": (ids, segments + 1, labels),
        r"token_ids must be .* 0 to 10\. Received: -1\.": (with_one(-1), segments, labels),
        r"labels must be integers from 0 to 2\. Received: 3\.": (ids, segments, labels + 1),
        r"Rows of (token|segment)_ids must have at most 5.*length 6\.": (
            *(np.ones((2, 6), "int32"),) * 2, labels,
        ),
    }  # fmt: skip
    for message, (ids, segments, labels) in wrong.items():
        caught(model, way, {"token_ids": ids, "segment_ids": segments}, labels, message)
    outer = {name: keras.Input((None,), dtype="int32", name=name) for name in model.input}
    nested = kt.Model(outer, model(outer))
    nested.compile("sgd", "sparse_categorical_crossentropy")
    for message, (ids, segments, labels) in wrong.items():
        caught(nested, way, {"token_ids": ids, "segment_ids": segments}, labels, message)


@pytest.mark.slow
def test_source_and_target_have_their_own_vocabularies():
    model = kt.translation(7, 11, **SIZES)
    model.compile("sgd", kt.TokenCrossentropy(pad_id=-1), run_eagerly=True)
    good = {"source_ids": GOOD % 7, "target_ids": GOOD}
    for name, count in (("source_ids", 7), ("target_ids", 11)):
        message = rf"{name} must be integers from 0 to {count - 1}\. Received: {count}\."
        caught(model, "dataset", {**good, name: with_one(count) % (count + 1)}, GOOD, message)
    message = r"labels must be integers from 0 to 10, or -1 for padding\. Received: -2\."
    caught(model, "arrays", good, with_one(-2), message)
    model.fit(good, with_one(-1), verbose=0)


def test_models_without_a_graph_or_tables_take_what_keras_takes():
    model = kt.Model(inputs := keras.Input((3,)), keras.layers.Dense(2)(inputs))
    model.compile("sgd", "mse")
    dataset = tf.data.Dataset.from_tensors((-np.ones((2, 3)), np.ones((2, 2))))
    model.fit(dataset, verbose=0)
    embedding = keras.Sequential([layers.TokenEmbedding(11, 6), layers.SequencePooling()])
    model = type("Mine", (kt.Model,), {"call": lambda self, x: embedding(x)})()
    model.compile("sgd", "mse", jit_compile=True)
    history = model.fit(with_one(11), np.ones((2, 6)), verbose=0)
    assert np.isnan(history.history["loss"][0]), "NaN where nothing else is known"


@pytest.mark.parametrize("count", [-1, 0, 3])
def test_without_the_checks_xla_gives_nan_for_what_is_in_no_table(count):
    embedding, positions = layers.TokenEmbedding(3, 2, pad_id=None), layers.PositionEmbedding(4)

    @tf.function(jit_compile=True, input_signature=[tf.TensorSpec([None, None], "int32")])
    def vectors_of(ids):
        return positions(embedding(ids))

    found = vectors_of(np.array([[2, 1, count, 0, 0]], "int32")).numpy()
    is_nan = np.isnan(found[0]).all(axis=-1)
    assert is_nan.tolist() == [False, False, not 0 <= count < 3, False, True]
