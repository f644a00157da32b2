import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.training import projected_loss as module
from keras_transformer.training.projected_loss import compiled_projected_loss, projected_loss

from .conftest import needs_tensorflow

pytestmark = needs_tensorflow
BATCH, TARGET, DIM, VOCABULARY_SIZE = 3, 5, 2, 7


@pytest.fixture
def tensors():
    generator = np.random.default_rng(11)
    features = generator.normal(size=(BATCH, TARGET, DIM)).astype("float32")
    table = generator.normal(size=(VOCABULARY_SIZE, DIM)).astype("float32")
    labels = generator.integers(1, VOCABULARY_SIZE, (BATCH, TARGET)).astype("int32")
    labels[0, 3:] = labels[2, 1:] = 0  # 3, 5 and 1 real tokens
    return tf.constant(features), tf.constant(table), tf.constant(labels)


def reference(features, table, labels, smoothing):
    """The same sums and gradients from Keras's own loss, one-hot labels and the tape."""
    real = tf.cast(labels != 0, tf.float32)
    with tf.GradientTape() as tape:
        tape.watch([features, table])
        logits = tf.matmul(tf.cast(features, tf.float32), table, transpose_b=True)
        one_hot = tf.one_hot(labels, VOCABULARY_SIZE)
        loss = keras.losses.categorical_crossentropy(one_hot, logits, True, smoothing)
        total = tf.reduce_sum(loss * real)
    plain = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    hits = tf.cast(tf.argmax(logits, -1, output_type=tf.int32) == labels, tf.float32)
    sums = [total, *(tf.reduce_sum(values * real) for values in (plain, hits)), tf.reduce_sum(real)]
    return np.array(sums), *tape.gradient(total, [features, table])


@pytest.mark.parametrize("rows", [1, 2, 4, 100])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_chunks_of_any_size_equal_keras_loss_and_gradients(tensors, monkeypatch, rows, smoothing):
    monkeypatch.setattr(module, "CHUNK_NUMBERS", rows * VOCABULARY_SIZE)
    sums, *gradients = module.projected_loss(*tensors, smoothing)
    expected_sums, *expected = reference(*tensors, smoothing)
    np.testing.assert_allclose(sums, expected_sums, atol=1e-5, err_msg="loss, nll, hits, tokens")
    for name, ours, theirs in zip(("features", "table"), gradients, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5, err_msg=f"gradient of the {name}")
    only_sums, *no_gradients = module.projected_loss(*tensors, smoothing, gradients=False)
    np.testing.assert_array_equal(only_sums, sums, "without gradients the sums are the same")
    assert no_gradients == [None, None]


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [VOCABULARY_SIZE, 2, 1])  # 1, 4 and 7 chunks of 15 tokens
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_under_xla_it_equals_keras_loss_and_gradients(tensors, monkeypatch, numbers, smoothing):
    monkeypatch.setattr(module, "COMPILED_CHUNK_NUMBERS", numbers)
    compiled = tf.function(compiled_projected_loss, jit_compile=True)
    sums, *gradients = compiled(*tensors, smoothing)
    expected_sums, *expected = reference(*tensors, smoothing)
    np.testing.assert_allclose(sums, expected_sums, atol=1e-5, err_msg="loss, nll, hits, tokens")
    for ours, theirs in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    only_sums, *no_gradients = compiled(*tensors, smoothing, gradients=False)
    np.testing.assert_allclose(only_sums, sums, rtol=1e-6)
    assert no_gradients == [None, None]


def test_under_xla_labels_outside_of_the_vocabulary_are_nan(tensors):
    features, table, labels = tensors
    compiled = tf.function(compiled_projected_loss, jit_compile=True)
    assert np.isnan(compiled(features, table, labels + VOCABULARY_SIZE)[0].loss)
    shifted = tf.where(labels == 0, -1, labels)  # another id of padding, outside as well
    np.testing.assert_allclose(
        compiled(features, table, shifted, pad_id=-1)[0], compiled(features, table, labels)[0]
    )


def under_xla(*given):
    return tf.function(compiled_projected_loss, jit_compile=True)(*given)


@pytest.mark.parametrize("loss", [projected_loss, under_xla])
def test_bfloat16_features_stay_near_float32(tensors, loss):
    features, table, labels = tensors
    sums, *gradients = loss(tf.cast(features, tf.bfloat16), table, labels, 0.1)
    assert gradients[0].dtype == tf.bfloat16, "gradient of the features has their dtype"
    assert gradients[1].dtype == tf.float32, "gradient of the table has its dtype"
    expected_sums, *expected = reference(*tensors, 0.1)
    np.testing.assert_allclose(sums, expected_sums, atol=0.2)
    for ours, theirs in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(tf.cast(ours, tf.float32), theirs, atol=0.05)


@pytest.mark.parametrize("loss", [projected_loss, compiled_projected_loss])
def test_it_also_runs_in_a_graph_with_shapes_unknown(tensors, loss):
    features, table, labels = tensors
    signature = [
        tf.TensorSpec((None, None, DIM)),
        tf.TensorSpec((VOCABULARY_SIZE, DIM)),
        tf.TensorSpec((None, None), tf.int32),
    ]
    in_graph = tf.function(loss, input_signature=signature)
    for ours, eager in zip(
        in_graph(features, table, labels), loss(features, table, labels), strict=True
    ):
        np.testing.assert_allclose(ours, eager, atol=1e-6)


@pytest.mark.parametrize("loss", [projected_loss, compiled_projected_loss])
@pytest.mark.parametrize("rows", [BATCH, 0], ids=["all padding", "no rows"])
def test_without_tokens_everything_is_zero(tensors, rows, loss):
    features, table, labels = tensors
    outputs = loss(features[:rows], table, 0 * labels[:rows], 0.1)
    for output in outputs:
        assert not np.any(np.array(output)), "zeros, and no NaN"
    assert outputs[1].shape == (rows, TARGET, DIM), "gradient has the shape of the features"


@pytest.mark.parametrize("loss", [projected_loss, compiled_projected_loss])
@pytest.mark.parametrize("number", [np.inf, np.nan])
def test_vectors_of_padding_may_be_anything(tensors, loss, number):
    features, table, labels = tensors
    filled = tf.where(labels[..., None] == 0, number, features)
    given, expected = (loss(each, table, labels, 0.1) for each in (filled, features))
    keras.tree.map_structure(np.testing.assert_array_equal, tuple(given), tuple(expected))


@pytest.mark.parametrize("loss", [projected_loss, compiled_projected_loss])
def test_huge_logits_do_not_overflow(tensors, monkeypatch, loss):
    monkeypatch.setattr(module, "COMPILED_CHUNK_NUMBERS", 2)  # 4 chunks, some computed again
    features, table, labels = tensors
    huge = 100 * features, 100 * table, labels, 0.1
    sums, *gradients = loss(*huge)
    expected_sums, *expected = reference(*huge)
    np.testing.assert_allclose(sums, expected_sums, 1e-5)
    for ours, theirs in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, 1e-5, atol=1e-3)
