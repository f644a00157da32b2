"""Cases beside the drawn ones in which a step once gave other numbers than Keras."""

import contextlib
import itertools
import pickle
import warnings

import keras
import numpy as np
import pytest

from keras_transformer.training import Model, TokenAccuracy, TokenCrossentropy

from .conftest import IDS, LABELS, language_model, needs_tensorflow

pytestmark = needs_tensorflow


def rows():
    chance = np.random.default_rng(5)
    return chance.normal(size=(7, 3)), chance.normal(size=(7, 2))


def fitted(kind, layers, x, y, optimizer=None, sample_weight=None, loss="mse", **settings):
    """The loss of two epochs and the weights, of a stack of layers that `layers` makes."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input(x.shape[1:])
    hidden = inputs
    for layer in layers():
        hidden = layer(hidden)
    model = kind(inputs, hidden)
    model.compile(keras.optimizers.SGD(0.1, **(optimizer or {})), loss, **settings)
    fit = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0}
    history = model.fit(x, y, sample_weight=sample_weight, **fit).history
    return history, model.get_weights()


def assert_as_keras(*args, **settings):
    (ours, weights), (theirs, their_weights) = (
        fitted(kind, *args, **settings) for kind in (Model, keras.Model)
    )
    assert ours.keys() == theirs.keys()
    for name, values in theirs.items():
        np.testing.assert_allclose(ours[name], values, atol=1e-6, err_msg=name)
    for one, other in zip(weights, their_weights, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


class LastStep(keras.layers.Layer):
    """Takes the vector of a sequence of one step, and keeps its mask, (batch, 1)."""

    def __init__(self):
        super().__init__()
        self.supports_masking = True

    def call(self, inputs):
        return inputs[:, 0]


class Penalised(keras.layers.Layer):
    supports_masking = True

    def call(self, inputs):
        self.add_loss(keras.ops.mean(keras.ops.square(inputs)))
        return inputs


class Unused(keras.layers.Layer):
    def build(self, input_shape):
        self.unused = self.add_weight(shape=(3,), initializer="ones")

    def call(self, inputs):
        return inputs


def test_weights_and_a_mask_of_other_rank_are_not_paired_with_all_rows():
    x = np.random.default_rng(5).normal(size=(7, 1, 3))
    x[2:4] = 0
    layers = [keras.layers.Masking, lambda: keras.layers.Dense(1), LastStep]
    weights = np.linspace(0.5, 2, 7)
    assert_as_keras(lambda: [make() for make in layers], x, x[:, 0, :1] + 1, sample_weight=weights)


def test_a_loss_that_a_layer_adds_is_refused_on_the_fast_path_too():
    ids = keras.Input((None,), dtype="int32")
    table = language_model().layers[1]
    model = Model(ids, table(Penalised()(table(ids)), reverse=True))
    model.compile("sgd", TokenCrossentropy())
    assert model._step.projected_loss is not None, "the path meant"
    for method in (model.train_step, model.test_step):
        with pytest.raises(ValueError, match=r"add_loss.*of the layer penalised"):
            method((IDS, LABELS))


class Fivefold(TokenCrossentropy):
    def call(self, y_true, y_pred):
        return 5 * super().call(y_true, y_pred)


def test_a_subclass_of_the_loss_of_tokens_is_called():
    losses = []
    for loss in (TokenCrossentropy(), Fivefold()):
        model = language_model()
        model.compile("sgd", loss)
        losses.append(model.test_on_batch(IDS, LABELS))
    assert losses[1] == pytest.approx(5 * losses[0], rel=1e-6)


def test_weights_without_a_gradient_are_left_alone():
    x, y = rows()
    layers = [lambda: keras.layers.Dense(2), Unused]
    assert_as_keras(lambda: [make() for make in layers], x, y, {"weight_decay": 0.5})
    with pytest.raises(ValueError, match=r"No gradients provided for any variable"):
        fitted(Model, lambda: [Unused()], x, np.ones((7, 3)))


def test_a_model_without_weights_can_be_fitted():
    x, _ = rows()
    history, _ = fitted(Model, lambda: [keras.layers.Rescaling(2.0)], x, x)
    assert history["loss"][0] == pytest.approx(np.mean(x**2), rel=1e-5)


class Stopped(keras.layers.Layer):
    def call(self, inputs):
        return keras.ops.stop_gradient(inputs)


def frozen():
    return keras.layers.Dense(3, trainable=False)


STACKS = {
    "no weights": [lambda: keras.layers.Rescaling(2.0)],
    "frozen": [frozen],
    "no gradient": [lambda: keras.layers.Dense(3), Stopped],
    "unused": [Unused],
    "some unused": [Unused, lambda: keras.layers.Dense(3), frozen],
    "some without": [lambda: keras.layers.Dense(3), Stopped, lambda: keras.layers.Dense(3)],
}


def trained(kind, stack, policy, is_built, rows, **settings):
    """Loss or error of two epochs, warnings, and the variables of model and optimizer."""
    keras.utils.set_random_seed(3)
    x = np.random.default_rng(5).normal(size=(7, 3)).astype("float32")[:rows]
    with warnings.catch_warnings(record=True) as warned, as_default(policy):
        warnings.simplefilter("always")
        layers = [make() for make in STACKS[stack]]
        model = stacked(kind, layers, is_built)
        # Momentum has a variable for each weight.
        model.compile(keras.optimizers.SGD(0.1, momentum=0.5), "mse", **settings)
        try:
            history = model.fit(x, x, batch_size=4, epochs=2, shuffle=False, verbose=0).history
        except ValueError as error:
            history = {"error": str(error)}
    own = ("The model does not have any", "Gradients do not exist", "Your input ran out")
    said = {str(w.message)[:20] for w in warned if str(w.message).startswith(own)}
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    return history, said, [v.numpy() for v in (*model.variables, *optimizer.variables)]


@contextlib.contextmanager
def as_default(policy):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    yield
    keras.config.set_dtype_policy(before)


def stacked(kind, layers, is_built):
    """A functional model, or one that its first batch builds."""
    if is_built:
        inputs = outputs = keras.Input((3,))
        for layer in layers:
            outputs = layer(outputs)
        return kind(inputs, outputs)

    class Stacked(kind):
        def __init__(self):
            super().__init__()
            self.stack = layers

        def call(self, inputs):
            for layer in self.stack:
                inputs = layer(inputs)
            return inputs

    return Stacked()


def assert_trained_as_in_keras(*case, clip_norm=None, **settings):
    ours = trained(Model, *case, **settings, clip_norm=clip_norm)
    theirs = trained(keras.Model, *case, **settings)
    (history, said, variables), (their_history, they_said, their_variables) = ours, theirs
    assert history.keys() == their_history.keys(), (case, history, their_history)
    assert said == they_said, case
    half = {"float32": 1e-5, "float64": 1e-5}.get(case[1], 2e-2)
    for name, values in their_history.items():
        if name != "error":
            np.testing.assert_allclose(history[name], values, rtol=half, err_msg=str(case))
    if "error" in history:
        return
    for one, other in zip(variables, their_variables, strict=True):
        np.testing.assert_allclose(one, other, rtol=half, atol=half, err_msg=str(case))


POLICIES = ("float32", "float64", "bfloat16", "mixed_bfloat16", "mixed_float16")


@pytest.mark.parametrize("policy", ["float32", "mixed_float16"])
@pytest.mark.parametrize("stack", ["no weights", "no gradient", "some unused"])
def test_weights_that_are_not_trained_have_the_state_and_warnings_of_keras(stack, policy):
    assert_trained_as_in_keras(stack, policy, stack != "some unused", 7)


@pytest.mark.soak
@pytest.mark.parametrize("stack", STACKS)
def test_all_weights_that_are_not_trained_have_the_state_and_warnings_of_keras(stack):
    draw = np.random.default_rng([*STACKS].index(stack))
    for case in itertools.product(POLICIES, [True, False], [7, 0]):
        if case[0] == "mixed_float16" and case[2] == 0:
            continue  # Keras skips a step without rows, whose mean it takes for an overflow
        settings = {"metrics": ["mae"], "clip_norm": 1e9} if draw.random() < 0.5 else {}
        assert_trained_as_in_keras(stack, *case, **settings)


class Squares(keras.regularizers.Regularizer):
    def __call__(self, weight):
        return 0.1 * weight**2


def test_a_penalty_of_any_shape_is_summed():
    x, y = rows()
    assert_as_keras(lambda: [keras.layers.Dense(2, kernel_regularizer=Squares())], x, y)


def test_metrics_of_tokens_are_weighted_where_keras_weighs_them():
    weights = np.array([2.0, 0, 1, 3, 0.5])
    values = []
    for kind in (Model, keras.Model):
        model = language_model()
        model = kind(model.inputs, model.outputs)
        metrics = {"metrics": [TokenAccuracy()], "weighted_metrics": [TokenAccuracy(name="w")]}
        model.compile("sgd", TokenCrossentropy(), **metrics)
        logs = model.test_on_batch(IDS, LABELS, sample_weight=weights, return_dict=True)
        values.append((float(logs["token_accuracy"]), float(logs["w"])))
    assert values[0] == pytest.approx(values[1], abs=1e-6)
    assert values[0][0] != pytest.approx(values[0][1], abs=1e-6)


def test_a_second_compile_forgets_the_metrics_of_the_first():
    model = language_model()
    model.compile("sgd", TokenCrossentropy(), metrics=["accuracy"])
    model.fit(IDS, LABELS, verbose=0)
    model.compile("sgd", TokenCrossentropy(), metrics=[TokenAccuracy()])
    assert set(model.fit(IDS, LABELS, verbose=0).history) == {"loss", "token_accuracy"}
    assert model._step.projected_loss is not None, "the fast path is back"


def test_a_loss_in_double_precision_can_be_clipped():
    loss = keras.losses.MeanSquaredError(dtype="float64")
    x, y = rows()
    clipped, _ = fitted(Model, lambda: [keras.layers.Dense(2)], x, y, loss=loss, clip_norm=1e3)
    free, _ = fitted(Model, lambda: [keras.layers.Dense(2)], x, y, loss=loss)
    assert clipped["loss"] == pytest.approx(free["loss"], rel=1e-6)


def test_models_can_be_pickled():
    model = language_model()
    copy = pickle.loads(pickle.dumps(model))
    assert isinstance(copy, Model)
    np.testing.assert_array_equal(copy.predict(IDS, verbose=0), model.predict(IDS, verbose=0))


@pytest.mark.parametrize(
    ("layers", "settings", "message"),
    [
        (
            lambda: [keras.layers.SpectralNormalization(keras.layers.Dense(2))],
            {"accumulation_steps": 2},
            "SpectralNormalization would see a part of each batch",
        ),
        (
            lambda: [keras.layers.Dense(2)],
            {"optimizer": {"loss_scale_factor": 64.0}},
            "itself scales the loss of models in float16.*Received: SGD, loss_scale_factor=64.0",
        ),
        (lambda: [keras.layers.Dense(2)], {"loss": "crossentropy"}, "Name the cross-entropy"),
    ],
)
def test_what_the_step_would_train_otherwise_is_refused(layers, settings, message):
    with pytest.raises(ValueError, match=message):
        fitted(Model, layers, *rows(), **settings)


def test_outputs_of_one_axis_are_refused_with_the_way_out():
    x, y = rows()
    layers = [lambda: keras.layers.Dense(1), lambda: keras.layers.Reshape(())]
    with pytest.raises(ValueError, match=r"not a scalar.*add a last axis of size 1 to the outputs"):
        fitted(Model, lambda: [make() for make in layers], x, y[:, 0])


def test_a_penalty_beside_one_of_add_loss_is_refused():
    class Both(Penalised):
        pass

    with pytest.raises(ValueError, match=r"Received: 2 loss\(es\) of the layer both"):
        fitted(Model, lambda: [Both(activity_regularizer="l2")], *(rows()[:1] * 2))
