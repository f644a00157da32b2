"""Dropout: the same noise compiled and not, of the right rate, and other noise each time."""

import keras
import numpy as np
import pytest

from keras_transformer.layers import ReproducibleDropout, TokenDropout
from tests.reference import array

ON_TENSORFLOW = keras.backend.backend() == "tensorflow"


def noise(layer, *shape):
    return array(layer(keras.ops.ones(shape), training=True))


@pytest.mark.skipif(not ON_TENSORFLOW, reason="the other backends have one generator")
@pytest.mark.parametrize(
    "layer_class, width",
    [*((ReproducibleDropout, width) for width in (1, 2, 7, 64)), (TokenDropout, 7)],
)
def test_noise_is_the_same_eager_in_a_graph_and_under_xla(layer_class, width):
    import tensorflow as tf

    shape, found = (17, width), []
    unknown = {"input_signature": [tf.TensorSpec([None, None], tf.float32)]}
    for settings in (None, unknown, {"jit_compile": True}):
        keras.utils.set_random_seed(11)
        layer = layer_class(0.5)

        def drop(inputs, layer=layer):
            return layer(inputs, training=True)

        if settings is not None:
            drop = tf.function(drop, **settings)
        found.append([drop(tf.ones(shape)).numpy() for _ in range(2)])
    assert not np.array_equal(found[0][0], found[0][1])
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.9])
def test_units_are_dropped_at_the_rate_and_the_rest_scaled(rate):
    units = noise(ReproducibleDropout(rate, seed=5), 201, 501)
    dropped = units == 0
    # Four standard deviations of a share of 100,701 units.
    assert abs(dropped.mean() - rate) < 4 * (rate * (1 - rate) / units.size) ** 0.5
    np.testing.assert_allclose(units[~dropped], 1 / (1 - rate), rtol=1e-6)
    neighbours = np.corrcoef(dropped[:, :-1].ravel(), dropped[:, 1:].ravel())[0, 1]
    assert abs(neighbours) < 4 / units.size**0.5


def test_nothing_is_dropped_at_rest_and_everything_at_rate_one():
    assert array(ReproducibleDropout(0.5)(keras.ops.ones((2, 3)))).all()
    assert not noise(ReproducibleDropout(1.0), 2, 3).any()
    assert noise(ReproducibleDropout(0.0), 2, 3).all()


def test_noise_of_a_smaller_shape_is_broadcast():
    units = noise(ReproducibleDropout(0.5, noise_shape=(None, 1, 7), seed=2), 3, 5, 7)
    np.testing.assert_array_equal(units, np.broadcast_to(units[:, :1], units.shape))
    assert len({row.tobytes() for row in units[:, 0]}) == 3


def test_a_model_with_it_is_saved_and_loaded(tmp_path):
    inputs = keras.Input((64,))
    model = keras.Model(inputs, ReproducibleDropout(0.5, seed=7, name="noise")(inputs))
    model.save(tmp_path / "model.keras")
    layer = keras.saving.load_model(tmp_path / "model.keras").get_layer("noise")
    assert type(layer) is ReproducibleDropout
    np.testing.assert_array_equal(noise(layer, 2, 64), noise(model.get_layer("noise"), 2, 64))
