"""What is masked, how often, and by what: within the bounds of the binomial distribution."""

import numpy as np
import pytest

from keras_transformer.data.masking import mask_tokens
from keras_transformer.tokenizers.word_pieces import WordPieceTokenizer

# As in a released vocabulary the special ids are not the first ones.
PIECES = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(str, range(10, 41))]
TOKENIZER = WordPieceTokenizer(PIECES)
UNKNOWN, CLASS, SEPARATOR, MASK = 2, 3, 4, 5
ORDINARY = [1, *range(6, len(PIECES))]
LENGTH, ROWS = 53, 997


@pytest.fixture(scope="module")
def rows():
    """Rows of different lengths: [CLS] tokens [SEP] tokens [SEP] padding."""
    random = np.random.default_rng(3)
    token_ids = np.zeros((ROWS, LENGTH), "int32")
    for row, length in zip(token_ids, random.integers(5, LENGTH + 1, ROWS), strict=True):
        row[:length] = random.choice(ORDINARY, length)
        row[[0, length // 2, length - 1]] = CLASS, SEPARATOR, SEPARATOR
    return token_ids


@pytest.fixture(scope="module", params=[0.15, 0.4])
def masking_rate(request):
    return request.param


@pytest.fixture(scope="module")
def masked(rows, masking_rate):
    return mask_tokens(rows, TOKENIZER, np.arange(ROWS), masking_rate)


def assert_binomial(hits, trials, probability, what):
    """Within five standard deviations: by chance once in 1.7 million draws."""
    deviation = np.sqrt(trials * probability * (1 - probability))
    expected = trials * probability
    assert abs(hits - expected) < 5 * deviation, f"{what}: {hits} of {trials}, not {probability}"


def test_a_row_loses_a_share_of_its_tokens_and_at_least_one(rows, masked, masking_rate):
    _, positions, labels = masked
    tokens = np.isin(rows, ORDINARY).sum(axis=1)
    expected = np.maximum(1, np.round(masking_rate * tokens))
    np.testing.assert_array_equal((labels != 0).sum(axis=1), expected)
    room = {0.15: 8, 0.4: 21}[masking_rate]  # of the whole length, 53
    assert positions.shape == labels.shape == (ROWS, room)


def test_chosen_positions_are_distinct_and_labels_are_what_was_there(rows, masked):
    _, positions, labels = masked
    for row, places, originals in zip(rows, positions, labels, strict=True):
        chosen = originals != 0
        assert len(set(places[chosen])) == chosen.sum(), "no position twice"
        np.testing.assert_array_equal(row[places[chosen]], originals[chosen])
        assert not chosen[np.argmin(chosen) :].any() or chosen.all(), "padding is at the end"
        assert (places[~chosen] == 0).all(), "and points to [CLS]"


def test_rows_without_special_tokens_lose_as_many():
    rows = np.full((499, 40), 7, "int32")
    rows[:, 11:] = 0  # two of eleven are chosen, and there is room for six
    masked_ids, positions, labels = mask_tokens(rows, TOKENIZER, np.arange(499))
    assert (positions[labels != 0] == 0).any(), "the first one may be chosen"
    shown = np.take_along_axis(masked_ids, positions, axis=1)[labels != 0]
    assert_binomial((shown == MASK).sum(), shown.size, 0.8, "[MASK]")
    assert_binomial((masked_ids[:, 0] == MASK).sum(), 499, 0.8 * 2 / 11, "[MASK] at the first")


def test_nothing_but_chosen_tokens_changes_and_no_special_one_is_chosen(rows, masked):
    masked_ids, positions, labels = masked
    chosen = np.zeros_like(rows, bool)
    for row, places, originals in zip(chosen, positions, labels, strict=True):
        row[places[originals != 0]] = True
    np.testing.assert_array_equal(masked_ids[~chosen], rows[~chosen])
    assert set(rows[chosen]) == set(ORDINARY), "every ordinary piece may be chosen"


def test_every_position_is_chosen_equally_often():
    same = np.tile(np.array([[CLASS, *ORDINARY[:20], SEPARATOR, 0, 0]], "int32"), (4001, 1))
    _, positions, _ = mask_tokens(same, TOKENIZER, np.arange(4001))
    counts = np.bincount(positions[:, :3].ravel(), minlength=24)
    for position in range(1, 21):  # three of twenty in each row
        assert_binomial(counts[position], 4001, 3 / 20, f"position {position}")


def test_masked_replaced_and_kept_tokens_are_within_binomial_bounds(masked):
    masked_ids, positions, labels = masked
    chosen = labels != 0
    shown = np.take_along_axis(masked_ids, positions, axis=1)[chosen]
    hidden, number = labels[chosen], chosen.sum()
    assert number > 3000
    by_chance = 0.1 / len(ORDINARY)  # a random piece may be the one that was there
    assert_binomial((shown == MASK).sum(), number, 0.8, "[MASK]")
    assert_binomial((shown == hidden).sum(), number, 0.1 + by_chance, "kept")
    replaced = shown[(shown != MASK) & (shown != hidden)]
    assert_binomial(len(replaced), number, 0.1 - by_chance, "replaced")
    assert set(replaced) <= set(ORDINARY), "never by a special piece"


def test_random_pieces_are_uniform_over_the_vocabulary():
    same = np.full((9001, 10), ORDINARY[4], "int32")
    masked_ids, _, _ = mask_tokens(same, TOKENIZER, np.arange(9001))
    counts = np.bincount(masked_ids.ravel(), minlength=len(PIECES))
    number = 9001 * round(0.15 * 10)
    for piece in ORDINARY:
        if piece != ORDINARY[4]:
            assert_binomial(counts[piece], number, 0.1 / len(ORDINARY), PIECES[piece])


def test_the_seed_of_a_row_decides_and_not_its_place(rows, masked, masking_rate):
    order = np.random.default_rng(5).permutation(ROWS)[:99]
    again = mask_tokens(rows[order], TOKENIZER, order, masking_rate)
    for one, other in zip(masked, again, strict=True):
        np.testing.assert_array_equal(one[order], other)
    other = mask_tokens(rows, TOKENIZER, ROWS + np.arange(ROWS), masking_rate)[1]
    chosen = masked[2] != 0
    assert (other != masked[1])[chosen].mean() > 0.5, "another seed chooses others"


@pytest.mark.parametrize("masking_rate", [0, -0.1, 1.1, float("nan")])
def test_a_masking_rate_that_is_no_share_is_refused(rows, masking_rate):
    with pytest.raises(ValueError, match=r"in \(0, 1\]. Received: masking_rate="):
        mask_tokens(rows, TOKENIZER, np.arange(ROWS), masking_rate)


def test_rows_without_ordinary_tokens_stay_as_they_are():
    special = np.array([[CLASS, SEPARATOR, UNKNOWN, 0, 0, 0, 0], [0] * 7], "int32")
    masked_ids, positions, labels = mask_tokens(special, TOKENIZER, [1, 2])
    np.testing.assert_array_equal(masked_ids, special)
    assert not positions.any() and not labels.any()
