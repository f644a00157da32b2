import keras
import numpy as np
import pytest

from keras_transformer.layers import (
    PositionEmbedding,
    SinusoidalEncoding,
    TokenDropout,
    TokenEmbedding,
)
from tests import reference
from tests.reference import array, exact, normal, truth

IDS = np.array([[7, 3, 0], [10, 7, 2]], "int32")


def test_token_vectors_are_rows_of_the_table_times_the_root_of_their_width():
    layer = TokenEmbedding(11, 16)
    vectors = array(layer(IDS))
    np.testing.assert_allclose(vectors, 4 * exact(layer.embeddings)[IDS], rtol=1e-6)
    layer.scale = False
    np.testing.assert_allclose(array(layer(IDS)), exact(layer.embeddings)[IDS], rtol=1e-6)


@pytest.mark.parametrize(("stddev", "expected"), [(None, 0.25), (0.02, 0.02)])
def test_a_new_table_has_the_standard_deviation_asked_for(stddev, expected):
    keras.utils.set_random_seed(1)
    layer = TokenEmbedding(3000, 16, stddev=stddev)
    layer.build()
    assert abs(exact(layer.embeddings).std() / expected - 1) < 0.02
    assert TokenEmbedding.from_config(layer.get_config()).stddev == stddev


def test_in_reverse_a_vector_is_scored_by_its_product_with_every_row():
    layer = TokenEmbedding(11, 6)
    layer(IDS)
    vectors = normal(2, 3, 6)
    logits = layer(vectors, reverse=True)
    np.testing.assert_allclose(array(logits), vectors @ exact(layer.embeddings).T, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "bfloat16"])
def test_logits_are_float32_under_every_policy(dtype):
    layer = TokenEmbedding(11, 6, dtype=dtype)
    logits = layer(layer(IDS), reverse=True)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32", "eager"
    vectors = keras.Input((None, 6))
    symbolic = layer(vectors, reverse=True)
    assert (symbolic.dtype, symbolic.shape) == ("float32", (None, None, 11)), "symbolic"
    model = keras.Model(vectors, symbolic)
    assert model.predict(normal(2, 3, 6), verbose=0).dtype == np.float32, "compiled"


def test_one_table_serves_both_ways_and_is_trained_by_both():
    layer = TokenEmbedding(11, 6)
    ids = keras.Input((None,), dtype="int32")
    model = keras.Model(ids, layer(layer(ids), reverse=True))
    assert len(model.weights) == 1, "tied"
    before = exact(layer.embeddings)
    model.compile("sgd", loss="mse", jit_compile=False)
    model.fit(IDS, normal(2, 3, 11), verbose=0)
    changed = np.abs(exact(layer.embeddings) - before).max(axis=1) > 0
    assert changed.all(), "ids that were not looked up are trained as outputs"


def test_the_implicit_mask_is_true_for_every_id_but_zero():
    layer = TokenEmbedding(11, 6)
    assert truth(layer.compute_mask(keras.ops.array(IDS))).tolist() == [[True, True, False]] + [
        [True] * 3
    ]
    vectors = keras.ops.array(normal(2, 3, 6))
    assert layer.compute_mask(vectors) is None, "vectors have no padding of their own"


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "bfloat16"])
def test_ids_that_arrive_as_floats_are_the_same_ids(dtype):
    # A Sequential model without an Input makes floats of them; under a bfloat16 policy it
    # needs one, because bfloat16 knows no 257.
    layer = TokenEmbedding(1009, 6, dtype=dtype)
    ids = np.array([[257, 1003, 0]], "int32")
    expected = array(layer(ids))
    np.testing.assert_array_equal(array(layer(ids.astype("float32"))), expected, err_msg="floats")
    inputs = keras.Input((None,), dtype="int32")
    model = keras.Sequential([inputs, layer] if "bfloat16" in dtype else [layer])
    np.testing.assert_array_equal(array(model(ids)), expected, err_msg="model")


def test_a_new_table_gives_vectors_and_logits_of_variance_one():
    layer = TokenEmbedding(101, 97)
    vectors = array(layer(np.arange(101)[None]))
    np.testing.assert_allclose(vectors.std(), 1, atol=0.05, err_msg="vectors")
    logits = array(layer(normal(1, 101, 97), reverse=True))
    np.testing.assert_allclose(logits.std(), 1, atol=0.05, err_msg="logits")


@pytest.mark.parametrize("start", [0, 5])
def test_sinusoidal_encoding_adds_the_paper_s_pattern(start):
    vectors = normal(2, 3, 6)
    encoded = array(SinusoidalEncoding()(vectors, start=start))
    pattern = reference.positions(start + 3, 6)[start:]
    np.testing.assert_allclose(encoded, vectors + pattern, atol=1e-5)


def test_position_embedding_adds_its_rows():
    layer, vectors = PositionEmbedding(11), normal(2, 3, 6)
    layer(vectors)
    rows = exact(layer.embeddings)
    np.testing.assert_allclose(array(layer(vectors)), vectors + rows[:3], atol=1e-6)
    later = array(layer(vectors, start=5))
    np.testing.assert_allclose(later, vectors + rows[5:8], atol=1e-6, err_msg="from 5")


@pytest.mark.parametrize("dim", [6, 5])
def test_learned_positions_start_as_the_paper_s_pattern_made_small(dim):
    layer = PositionEmbedding(11)
    layer(normal(2, 3, dim))
    pattern = reference.positions(11, 6)[:, :dim] * 0.02 * 2**0.5  # of a pair's mean square 1/2
    np.testing.assert_allclose(exact(layer.embeddings), pattern, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("layer_class", [SinusoidalEncoding, PositionEmbedding])
def test_one_step_encodes_its_position_into_every_beam(layer_class, dtype):
    arguments = {"max_sequence_length": 11} if layer_class is PositionEmbedding else {}
    layer = layer_class(**arguments, dtype=dtype)
    vectors = keras.ops.cast(normal(2, 7, 6), layer.compute_dtype)
    expected = array(layer(vectors))
    beams = keras.ops.repeat(vectors[:, 3, None], 5, axis=1)  # (batch, beams, dim)
    for position in (3, keras.ops.array(3, dtype="int32")):
        stepped = layer.step(beams, position)
        assert keras.backend.standardize_dtype(stepped.dtype) == layer.compute_dtype, "dtype"
        np.testing.assert_allclose(
            array(stepped), np.repeat(expected[:, 3, None], 5, axis=1), atol=1e-6
        )


def test_token_dropout_leaves_out_its_share_but_never_the_first():
    layer = TokenDropout.from_config(TokenDropout(0.25, pad_id=7).get_config())
    ids = np.full((101, 41), 3, "int32")
    np.testing.assert_array_equal(exact(layer(ids)), ids, err_msg="none at rest")
    left = exact(layer(ids, training=True))
    assert set(np.unique(left)) == {3, 7}, "tokens and padding"
    np.testing.assert_array_equal(left[:, 0], 3)
    # 4040 draws of a quarter have a standard deviation of 0.007.
    assert abs((left[:, 1:] == 7).mean() - 0.25) < 0.04
    assert np.abs(exact(layer(ids, training=True)) - left).max() > 0, "others each time"


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"dim must be even.*Received: dim=5"):
        SinusoidalEncoding()(normal(2, 3, 5))


def test_inputs_longer_than_the_learned_positions_are_refused():
    layer = PositionEmbedding(5)
    layer(normal(2, 5, 6))
    with pytest.raises(ValueError, match="last position 7, max_sequence_length=5"):
        layer(normal(2, 7, 6))
    with pytest.raises(ValueError, match="last position 6, max_sequence_length=5"):
        layer(normal(2, 3, 6), start=3)
