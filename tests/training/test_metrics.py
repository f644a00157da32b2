import keras
import numpy as np
import pytest

from keras_transformer.training import Perplexity, TokenAccuracy

BATCH, TARGET, VOCABULARY_SIZE = 2, 3, 5
LOGITS = np.random.default_rng(7).normal(size=(BATCH, TARGET, VOCABULARY_SIZE)).astype("float32")
LABELS = np.array([[4, 1, 3], [2, 0, 0]])
LABELS[0, :2] = LOGITS[0, :2].argmax(-1)  # some hits


def by_hand(labels, logits, weights):
    nats = (
        np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, labels[..., None], -1)[..., 0]
    )
    hits = logits.argmax(-1) == labels
    return {
        TokenAccuracy: (hits * weights).sum() / weights.sum(),
        Perplexity: np.exp((nats * weights).sum() / weights.sum()),
    }


def update(metric, labels, logits, **arguments):
    metric.update_state(keras.ops.array(labels), keras.ops.array(logits), **arguments)


@pytest.mark.parametrize("kind", [TokenAccuracy, Perplexity])
def test_batches_with_different_tokens_count_each_token_once(kind):
    metric = kind()
    for row in range(BATCH):
        update(metric, LABELS[row : row + 1], LOGITS[row : row + 1])
    expected = by_hand(LABELS, LOGITS, LABELS != 0)[kind]
    assert float(metric.result()) == pytest.approx(expected, abs=1e-6)
    metric.reset_state()
    update(metric, LABELS[:1], LOGITS[:1])
    expected = by_hand(LABELS[:1], LOGITS[:1], LABELS[:1] != 0)[kind]
    assert float(metric.result()) == pytest.approx(expected, abs=1e-6), "a new start after reset"


@pytest.mark.parametrize("kind", [TokenAccuracy, Perplexity])
def test_sample_weights_are_of_rows_or_of_tokens(kind):
    rows, tokens = np.array([2.0, 5.0]), np.array([[2.0, 0.0, 3.0], [7.0, 1.0, 1.0]])
    for given, weights in ((rows, rows[:, None]), (tokens, tokens)):
        metric = kind()
        update(metric, LABELS, LOGITS, sample_weight=given)
        expected = by_hand(LABELS, LOGITS, (LABELS != 0) * weights)[kind]
        assert float(metric.result()) == pytest.approx(expected, abs=1e-6), str(given.shape)


def test_padding_only_gives_no_hits_and_a_perplexity_of_one():
    for metric, expected in ((TokenAccuracy(), 0.0), (Perplexity(), 1.0)):
        update(metric, 0 * LABELS, LOGITS)
        assert float(metric.result()) == expected, "no tokens, and no NaN"


def test_config_round_trip_keeps_name_and_padding():
    for kind in (TokenAccuracy, Perplexity):
        metric = kind(pad_id=3, name="mine")
        config = keras.saving.serialize_keras_object(metric)
        restored = keras.saving.deserialize_keras_object(config)
        assert (type(restored), restored.name, restored.pad_id) == (kind, "mine", 3)


@pytest.mark.parametrize("kind", [Perplexity, TokenAccuracy])
def test_padding_may_be_an_id_that_the_vocabulary_lacks(kind):
    labels, logits = np.array([[1, -100, 2]]), np.random.default_rng(3).normal(size=(1, 3, 4))
    metric, short = kind(pad_id=-100), kind(pad_id=-100)
    metric.update_state(labels, logits)
    short.update_state(labels[:, [0, 2]], logits[:, [0, 2]])
    assert float(metric.result()) == pytest.approx(float(short.result()), rel=1e-6)
