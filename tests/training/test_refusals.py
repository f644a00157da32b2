"""What `kt.Model` refuses, because it could not be exact, each with the way out."""

import keras
import pytest
import tensorflow as tf

from keras_transformer.training import FunctionalModel, Model, TokenCrossentropy

from .conftest import IDS, LABELS, language_model, needs_tensorflow, pair_of_models, rows
from .drawn_steps import Squares

pytestmark = needs_tensorflow


def test_a_loss_of_ones_own_that_would_pair_rows_is_refused():
    x, y = rows(outputs=1)
    [ours] = pair_of_models(Squares(), outputs=1, kinds=[Model])
    with pytest.raises(ValueError, match=r"same rank, or each row.*Received: labels of shape"):
        ours.fit(x, y[:, 0], verbose=0)


@pytest.mark.parametrize(
    ("method", "jit_compile"),
    [("fit", False), ("evaluate", False), ("train_on_batch", True), ("test_on_batch", True)],
)
def test_labels_that_are_not_as_long_as_the_predictions_are_refused(method, jit_compile):
    """The loss is computed with the projection, where they could be those of other tokens."""
    model = language_model()
    model.compile("sgd", TokenCrossentropy(), jit_compile=jit_compile)
    for wrong in (LABELS[:, 1:], LABELS[:, 0], LABELS[:, :, None], LABELS[:, :1]):
        with pytest.raises(ValueError, match=r"labels must be integers, \(batch, target\)"):
            getattr(model, method)(IDS, wrong)
    expected = float(TokenCrossentropy()(LABELS, model.predict(IDS, verbose=0)))
    for labels in (LABELS, [LABELS], {model.output_names[0]: LABELS}):
        assert model.test_on_batch(IDS, labels) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("method", ["fit", "evaluate", "train_on_batch", "test_on_batch"])
def test_a_model_that_is_not_compiled_says_so(method):
    inputs = keras.Input((3,))
    model = Model(inputs, keras.layers.Dense(2)(inputs))
    with pytest.raises(ValueError, match=rf"Compile the model before {method}: model.compile"):
        getattr(model, method)(*rows())
    assert model.predict(rows()[0], verbose=0).shape == (7, 2), "which needs none"


def test_data_without_labels_are_refused():
    [model] = pair_of_models(kinds=[Model])
    for method in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match=r"need labels.*Received: inputs without labels"):
            method(rows()[0], verbose=0)


def test_several_outputs_are_refused():
    inputs = keras.Input((3,))
    two = [keras.layers.Dense(1)(inputs), keras.layers.Dense(2)(inputs)]
    model = Model(inputs, two)
    model.compile("sgd", "mse")
    x, y = rows()
    with pytest.raises(ValueError, match=r"one loss for one output. Received: 2 outputs"):
        model.fit(x, [y[:, :1], y], verbose=0)


@pytest.mark.parametrize("method", ["compute_loss", "compute_metrics"])
def test_methods_that_the_step_does_not_call_cannot_be_overridden(method):
    kind = type("Mine", (FunctionalModel,), {method: lambda self, *args, **kwargs: None})
    inputs = keras.Input((3,))
    with pytest.raises(ValueError, match=rf"cannot include a custom {method}\. .*Received: Mine"):
        kind(inputs, keras.layers.Dense(2)(inputs)).compile("sgd", "mse")


class Penalised(keras.layers.Layer):
    def call(self, inputs):
        self.add_loss(keras.ops.sum(inputs))
        return inputs


def test_penalties_that_may_be_no_sum_over_rows_are_refused():
    inputs = keras.Input((3,))
    for layer in (Penalised(), keras.layers.Dense(2, activity_regularizer=keras.ops.max)):
        model = Model(inputs, keras.layers.Dense(2)(layer(inputs)))
        model.compile("sgd", "mse")
        with pytest.raises(ValueError, match=rf"penalties of rows.*the layer {layer.name}"):
            model.fit(*rows(), verbose=0)


def test_batch_normalisation_of_a_part_of_a_batch_is_refused():
    inputs = keras.Input((3,))
    norm = keras.layers.BatchNormalization()
    model = Model(inputs, keras.layers.Dense(2)(norm(inputs)))
    model.compile("sgd", "mse")  # of whole batches it is Keras's
    with pytest.raises(ValueError, match=r"BatchNormalization would see a part.*the layer batch"):
        model.compile("sgd", "mse", accumulation_steps=2)
    norm.trainable = False
    model.compile("sgd", "mse", accumulation_steps=2)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (keras.losses.Circle(), "must not depend on the other rows.*Received: circle"),
        ("circle", "must not depend on the other rows.*Received: circle"),
        (keras.losses.MeanSquaredError(reduction=None), "Received: reduction=None"),
        (type("Own", (keras.losses.Loss,), {"__call__": lambda *a: 0.0})(), "must define call"),
    ],
)
def test_losses_that_do_not_add_up_are_refused(loss, message):
    with pytest.raises(ValueError, match=message):
        next(pair_of_models(loss, kinds=[Model]))


@pytest.mark.parametrize("axis", [0, -2])
def test_losses_along_the_rows_are_refused(axis):
    [model] = pair_of_models(keras.losses.CosineSimilarity(axis=axis), kinds=[Model])
    with pytest.raises(ValueError, match=rf"must not depend on the other rows.*axis={axis}"):
        model.fit(*rows(), verbose=0)


def test_a_loss_with_fewer_values_than_rows_is_refused():
    [model] = pair_of_models(lambda y, p: keras.ops.mean(y - p, axis=0), kinds=[Model])
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=r"for each row"):
        model.fit(*rows(), verbose=0)
