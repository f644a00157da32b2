import keras
import numpy as np
import pytest

from keras_transformer.training import Adam, InverseSqrtWarmup

from .conftest import (
    IDS,
    LABELS,
    assert_weights_equal,
    language_model,
    needs_tensorflow,
    numpy_of,
    weights_of,
)

SHAPES = [(3, 5), (7,)]


def run(optimizer, steps=5):
    """Weights after a few steps with gradients of very different sizes."""
    generator = np.random.default_rng(5)
    variables = [keras.Variable(generator.normal(size=shape)) for shape in SHAPES]
    optimizer.build(variables)
    for step in range(steps):
        gradients = [generator.normal(scale=10.0**-step, size=shape) for shape in SHAPES]
        optimizer.apply([keras.ops.cast(g, "float32") for g in gradients], variables)
    return [numpy_of(variable) for variable in variables]


@pytest.mark.parametrize(
    "settings",
    [
        {"learning_rate": 0.1},
        {"learning_rate": InverseSqrtWarmup(0.1, 3)},
        {"learning_rate": 0.1, "weight_decay": 0.03},
        {"learning_rate": 0.1, "amsgrad": True},
    ],
    ids=["rate", "schedule", "weight_decay", "amsgrad"],
)
def test_it_gives_the_numbers_of_keras_adam(settings):
    ours = run(Adam(**settings))
    theirs = run(keras.optimizers.Adam(beta_2=0.98, epsilon=1e-9, **settings))
    start = np.random.default_rng(5).normal(size=SHAPES[0])
    assert np.abs(ours[0] - start).max() > 0.1, "the weights moved"
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6, rtol=0)


@needs_tensorflow
def test_a_model_of_keras_accumulates_gradients_with_it():
    """There, the number of updates is a tensor."""

    def trained(optimizer):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile(optimizer, "mse")
        x, y = np.random.default_rng(1).normal(size=(2, 12, 3)).astype("float32")
        model.fit(x, y[:, :2], batch_size=2, shuffle=False, verbose=0)
        return model.get_weights()

    ours = trained(Adam(0.1, gradient_accumulation_steps=2))
    settings = {"beta_2": 0.98, "epsilon": 1e-9, "gradient_accumulation_steps": 2}
    for a, b in zip(ours, trained(keras.optimizers.Adam(0.1, **settings)), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6, rtol=0)


def test_defaults_are_those_of_the_paper():
    config = Adam().get_config()
    assert [config[name] for name in ("beta_1", "beta_2", "epsilon")] == [0.9, 0.98, 1e-9]


def test_config_round_trip():
    optimizer = Adam(InverseSqrtWarmup(0.5, 5), beta_2=0.75, weight_decay=0.25)
    restored = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(optimizer))
    assert type(restored) is Adam and restored.get_config() == optimizer.get_config()


@needs_tensorflow
def test_rows_of_an_embedding_are_updated_as_by_keras():
    import tensorflow as tf

    values = []
    for kind in (Adam, keras.optimizers.Adam):
        variable = keras.Variable(np.ones((7, 2)))
        optimizer = kind(0.1, beta_2=0.98, epsilon=1e-9)
        optimizer.build([variable])
        rows = tf.IndexedSlices(tf.constant([[1.0, -2.0], [3.0, 5.0]]), tf.constant([2, 5]), (7, 2))
        optimizer.apply([rows], [variable])
        values.append(numpy_of(variable))
    np.testing.assert_allclose(values[0], values[1], atol=1e-6)
    assert np.abs(values[0] - 1).max() > 0.05, "rows moved"


@needs_tensorflow
def test_its_state_is_saved_and_loaded_with_the_model(tmp_path):
    from keras_transformer.training import TokenCrossentropy

    model = language_model()
    model.compile(Adam(InverseSqrtWarmup(0.1, 3)), TokenCrossentropy())
    for _ in range(2):
        model.train_step((IDS, LABELS))
    model.save(tmp_path / "model.keras")
    restored = keras.models.load_model(tmp_path / "model.keras")
    assert type(restored.optimizer) is Adam
    states = [[numpy_of(v) for v in m.optimizer.variables] for m in (model, restored)]
    assert len(states[0]) == 1 + 2 * 3, "iterations and two moments for each weight"
    for a, b in zip(*states, strict=True):
        np.testing.assert_array_equal(a, b)
    for m in (model, restored):
        m.train_step((IDS, LABELS))
    assert_weights_equal(restored, weights_of(model), atol=1e-7)
