import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.decoding import beams

FREE = -1


def plain_candidates(logits, live_log_probs, forbidden_ids):
    """One sort over all beams and tokens, in float32 as the search; of equals the lowest first."""
    num_rows, num_beams, size = logits.shape
    highest = logits.max(-1, keepdims=True)
    normaliser = highest + np.log(np.exp(logits - highest).sum(-1, keepdims=True))
    scores = logits + (live_log_probs[:, :, None] - normaliser)
    scores[:, :, list(forbidden_ids)] = -np.inf
    flat = scores.reshape(num_rows, -1)
    order = np.argsort(-flat, axis=1, kind="stable")[:, : 2 * num_beams]
    return np.take_along_axis(flat, order, 1), order // size, order % size


@pytest.mark.parametrize("size", [7, 257, 300, 331, 640])
@pytest.mark.parametrize("forbidden_ids", [(), (0, 2), (1, 5, 6)])
def test_candidates_are_those_of_one_sort(size, forbidden_ids):
    generator = np.random.default_rng(size)
    logits = generator.normal(0, 3, (5, 3, size)).astype("float32")
    logits[:, :, list(forbidden_ids)] += 40.0  # high, or they would prove nothing
    logits[:, :, 50::128] += 20.0  # the best tokens stand in different blocks
    live = np.sort(generator.normal(-3, 2, (5, 3)).astype("float32"))[:, ::-1].copy()
    live[0, 1:] = -np.inf
    free = tf.fill((5, 1), FREE)
    found = beams.best_candidates(tf.constant(logits), tf.constant(live), free, forbidden_ids)
    log_probs, parents, token_ids = plain_candidates(logits, live, forbidden_ids)
    exists = log_probs > -np.inf
    np.testing.assert_allclose(found.log_probs, log_probs, rtol=1e-5)
    np.testing.assert_array_equal(found.beams.numpy()[exists], parents[exists])
    np.testing.assert_array_equal(found.token_ids.numpy()[exists], token_ids[exists])
    assert np.all(found.token_ids < size)


@pytest.mark.parametrize("size", [257, 331])
@pytest.mark.parametrize("last", [-np.inf, 0.0])
def test_padding_columns_of_a_block_are_never_chosen(size, last):
    logits = np.full((2, 3, size), -np.inf, "float32")
    logits[:, :, 0] = 0.0
    logits[:, :, size - 1] = last
    live = np.array([[-1.0, -2.0, -3.0], [-np.inf] * 3], "float32")
    found = beams.best_candidates(tf.constant(logits), tf.constant(live), tf.fill((2, 1), FREE), ())
    assert np.all(found.token_ids < size)
    assert np.all(found.beams < 3)


@pytest.mark.parametrize("size", [300, 331, 640])
def test_the_lowest_beam_and_token_win_ties(size):
    generator = np.random.default_rng(size)
    # Few different whole numbers, and beams that are alike: ties in blocks and across them,
    # also of a block's second best with the best of an earlier block.
    logits = generator.geometric(0.5, (5, 1, size)).astype("float32").repeat(3, axis=1)
    live = np.zeros((5, 3), "float32")
    free = tf.fill((5, 1), FREE)
    found = beams.best_candidates(tf.constant(logits), tf.constant(live), free, (0, 2))
    allowed = logits.copy()
    allowed[:, :, [0, 2]] = -np.inf
    order = np.argsort(-allowed.reshape(5, -1), axis=1, kind="stable")[:, :6]
    np.testing.assert_array_equal(found.beams * size + found.token_ids, order)


def test_a_forced_token_keeps_its_own_log_probability():
    generator = np.random.default_rng(3)
    logits = generator.normal(0, 3, (2, 3, 331)).astype("float32")
    live = np.array([[-1.0, -2.0, -np.inf], [-1.0, -2.0, -3.0]], "float32")
    forced = tf.constant([[2], [FREE]])
    found = beams.best_candidates(tf.constant(logits), tf.constant(live), forced, (0, 2))
    exists = found.log_probs[0].numpy() > -np.inf
    log_probs = tf.nn.log_softmax(logits)[0, :2, 2] + live[0, :2]
    np.testing.assert_allclose(found.log_probs[0].numpy()[exists], log_probs, rtol=1e-5)
    assert found.beams[0].numpy()[exists].tolist() == [0, 1]
    assert found.token_ids[0].numpy()[exists].tolist() == [2, 2]
    expected = plain_candidates(logits, live, (0, 2))[2][1]
    np.testing.assert_array_equal(found.token_ids[1], expected)


def test_log_probabilities_never_rise_above_zero():
    logits = np.zeros((1, 1, 300), "float32")
    logits[0, 0, 7] = 1e4
    found = beams.best_candidates(tf.constant(logits), tf.zeros((1, 1)), tf.fill((1, 1), FREE), ())
    assert found.log_probs.numpy().tolist() == [[0.0]], "the early stop relies on it"


@pytest.mark.parametrize(
    "size, width", [(5, 5), (8000, 125), (10000, 125), (32000, 128), (331, 128)]
)
def test_block_width_divides_the_vocabulary_where_it_can(size, width):
    assert beams._block_width(size) == width


def test_finished_sequences_stay_as_they_are():
    before = beams.Beams(
        live_ids=tf.constant([[[1, 5], [1, 6]]]),
        live_log_probs=tf.constant([[-1.0, -1.5]]),
        finished_ids=tf.constant([[[1, 9], [0, 0]]]),
        finished_scores=tf.constant([[-2.0, -np.inf]]),
        parents=tf.constant([[0, 0]]),
    )
    candidates = beams.Candidates(
        log_probs=tf.constant([[-2.0, -3.0, -4.0, -5.0]]),
        beams=tf.constant([[0, 1, 0, 1]]),
        token_ids=tf.constant([[9, 7, 8, 9]]),
    )
    after = beams.extend(before, candidates, end_id=9, divisor=tf.constant(1.0))
    assert after.finished_ids.numpy().tolist() == [[[1, 9, 0], [1, 5, 9]]], "the earlier wins a tie"
    assert after.finished_scores.numpy().tolist() == [[-2.0, -2.0]]
    assert after.live_ids.numpy().tolist() == [[[1, 6, 7], [1, 5, 8]]]
    assert after.live_log_probs.numpy().tolist() == [[-3.0, -4.0]]
    assert after.parents.numpy().tolist() == [[1, 0]]


def test_only_one_beam_counts_before_the_first_token():
    start = beams.start_beams(tf.constant([4, 0]), num_beams=3, num_finished=2, start_id=7)
    inf = np.inf
    assert start.live_log_probs.numpy().tolist() == [[0.0, -inf, -inf], [-inf, -inf, -inf]]
    assert start.live_ids.numpy().tolist() == [[[7]] * 3] * 2
    assert start.finished_ids.shape == (2, 2, 1)
    assert start.parents.numpy().tolist() == [[0, 1, 2]] * 2, "each goes on from itself"
