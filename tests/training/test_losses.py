import keras
import numpy as np
import pytest

from keras_transformer.training import TokenCrossentropy
from keras_transformer.training.losses import PretrainingLoss

from .conftest import needs_tensorflow

BATCH, TARGET, VOCABULARY_SIZE = 2, 3, 5
LOGITS = np.random.default_rng(7).normal(size=(BATCH, TARGET, VOCABULARY_SIZE)).astype("float32")
LABELS = np.array([[4, 1, 3], [2, 0, 0]])


def by_hand(smoothing=0.0, pad_id=0, weights=1.0):
    log_probabilities = LOGITS - np.log(np.exp(LOGITS).sum(-1, keepdims=True))
    wanted = (1 - smoothing) * np.eye(VOCABULARY_SIZE)[LABELS] + smoothing / VOCABULARY_SIZE
    real = (pad_id != LABELS) * weights
    return (-(wanted * log_probabilities).sum(-1) * real).sum() / real.sum()


def value(loss, **arguments):
    return float(loss(keras.ops.array(LABELS), keras.ops.array(LOGITS), **arguments))


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.75])
def test_it_is_the_mean_over_real_tokens_against_the_smoothed_distribution(smoothing):
    assert value(TokenCrossentropy(smoothing)) == pytest.approx(by_hand(smoothing), abs=1e-6)


def test_padding_is_what_pad_id_says():
    assert value(TokenCrossentropy(pad_id=3)) == pytest.approx(by_hand(pad_id=3), abs=1e-6)
    assert by_hand(pad_id=3) != pytest.approx(by_hand(), abs=1e-3), "it makes a difference"


def test_padding_may_be_outside_of_the_vocabulary():
    labels = keras.ops.array(np.where(LABELS == 3, -100, LABELS))
    loss = float(TokenCrossentropy(pad_id=-100)(labels, keras.ops.array(LOGITS)))
    assert loss == pytest.approx(by_hand(pad_id=3), abs=1e-6)


@needs_tensorflow
@pytest.mark.parametrize("label", [-1, VOCABULARY_SIZE])
def test_a_label_outside_of_the_vocabulary_does_not_go_unseen(label):
    import tensorflow as tf

    loss = TokenCrossentropy(0.1)
    labels = np.array([[1, label, 0]])
    with pytest.raises(tf.errors.InvalidArgumentError):
        loss(labels, LOGITS[:1])
    compiled = tf.function(loss, jit_compile=True)  # which takes the nearest, as GPUs do
    assert np.isnan(compiled(labels, LOGITS[:1]))


def test_sample_weights_are_of_rows_or_of_tokens():
    rows, tokens = np.array([2.0, 5.0]), np.array([[2.0, 0.0, 3.0], [7.0, 1.0, 1.0]])
    loss = TokenCrossentropy(0.1)
    expected = by_hand(0.1, weights=rows[:, None])
    assert value(loss, sample_weight=rows) == pytest.approx(expected, abs=1e-6), "of rows"
    expected = by_hand(0.1, weights=tokens)
    assert value(loss, sample_weight=tokens) == pytest.approx(expected, abs=1e-6), "of tokens"


def test_a_batch_of_padding_has_no_loss():
    assert float(TokenCrossentropy(0.1)(0 * LABELS, keras.ops.array(LOGITS))) == 0.0


def test_bfloat16_logits_are_summed_in_float32():
    loss = TokenCrossentropy()(LABELS, keras.ops.cast(LOGITS, "bfloat16"))
    assert keras.backend.standardize_dtype(loss.dtype) == "float32"
    assert float(loss) == pytest.approx(by_hand(), abs=0.02)


def test_huge_logits_do_not_overflow():
    loss = TokenCrossentropy(0.1)(np.array([[1]]), keras.ops.array([[[1e4, -1e4, 0.0]]]))
    # 0.9 nats for each of 2e4 and 0.1 of their mean distance of 1e4.
    assert float(loss) == pytest.approx(0.9 * 2e4 + 0.1 * 1e4, rel=1e-5)


@needs_tensorflow
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_its_gradient_is_softmax_minus_the_smoothed_label(smoothing, is_compiled):
    import tensorflow as tf

    upstream = np.array([[2.0, -3.0, 0.0], [0.5, 1.0, 7.0]], "float32")

    @tf.function(jit_compile=is_compiled)
    def gradient(logits):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            total = tf.reduce_sum(TokenCrossentropy(smoothing).call(LABELS, logits) * upstream)
        return tape.gradient(total, logits)

    probabilities = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
    wanted = (1 - smoothing) * np.eye(VOCABULARY_SIZE)[LABELS] + smoothing / VOCABULARY_SIZE
    expected = (probabilities - wanted) * upstream[..., None]
    np.testing.assert_allclose(gradient(tf.constant(LOGITS)), expected, atol=1e-6)


@needs_tensorflow
def test_a_sure_prediction_loses_no_digits():
    logits = keras.ops.array([[[40.0, 25.0, 24.0]]])  # softmax of the label: 1 - 4.2e-7
    loss = float(TokenCrossentropy(pad_id=1)(keras.ops.array([[0]]), logits))
    assert loss == pytest.approx(np.log1p(np.exp(-15.0) + np.exp(-16.0)), abs=6e-8)


def test_config_round_trip_keeps_smoothing_and_padding():
    loss = TokenCrossentropy(0.25, pad_id=3, name="nats")
    restored = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(loss))
    assert isinstance(restored, TokenCrossentropy) and restored.name == "nats"
    assert value(restored) == value(loss)


@pytest.mark.parametrize("smoothing", [-0.1, 1.0])
def test_smoothing_out_of_range_is_refused(smoothing):
    with pytest.raises(ValueError, match=rf"in \[0, 1\). Received: label_smoothing={smoothing}"):
        TokenCrossentropy(smoothing)


def test_pretraining_loss_is_the_sum_of_two_means():
    following = np.random.default_rng(3).normal(size=(BATCH, 2)).astype("float32")
    real = LABELS != 0
    y_true = {
        "masked_tokens": LABELS,
        "masked_weights": real * BATCH / real.sum(),
        "next_sentence": np.array([1, 0]),
    }
    y_pred = {"masked_tokens": LOGITS, "next_sentence": following}
    both = keras.tree.map_structure(keras.ops.array, (y_true, y_pred))
    log_probabilities = following - np.log(np.exp(following).sum(-1, keepdims=True))
    expected = by_hand() - (log_probabilities[0, 1] + log_probabilities[1, 0]) / 2
    assert float(PretrainingLoss()(*both)) == pytest.approx(expected, abs=1e-6)
    assert tuple(PretrainingLoss().call(*both).shape) == (BATCH,), "one number an example"


def test_pretraining_loss_survives_a_config_round_trip():
    config = keras.saving.serialize_keras_object(PretrainingLoss(name="nats"))
    restored = keras.saving.deserialize_keras_object(config)
    assert isinstance(restored, PretrainingLoss) and restored.name == "nats"
