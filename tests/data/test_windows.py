import itertools

import numpy as np
import pytest

from keras_transformer.data import (
    LabelledBatches,
    TextSegments,
    TextWindows,
    TokenBatches,
    sliding_windows,
)

TEXT = np.arange(100, 141)  # 41 tokens, each of them once


def test_labels_are_the_window_one_token_further_on():
    windows = TextWindows(TEXT, length=7, batch_size=5, seed=3)
    for inputs, labels in windows.dataset().take(3):
        assert tuple(inputs.shape) == (5, 7)
        np.testing.assert_array_equal(labels, inputs + 1)
        np.testing.assert_array_equal(np.diff(inputs), 1)


def test_windows_begin_everywhere_and_equally_often():
    windows = TextWindows(TEXT, length=7, batch_size=340, seed=3)
    starts = np.concatenate([inputs[:, 0] for inputs, _ in windows.dataset().take(10)]) - 100
    counts = np.bincount(starts, minlength=34)
    assert len(counts) == 34, "the last window ends with the text"
    assert np.abs(counts - 100).max() < 50, "five standard deviations"


def test_data_are_a_pure_function_of_seed_and_step():
    def windows(seed, start):
        return TextWindows(TEXT, 7, 5, seed=seed).dataset(start)

    first = [x.numpy() for x, _ in windows(3, 0).take(5)]
    later = [x.numpy() for x, _ in windows(3, 2).take(3)]
    np.testing.assert_array_equal(first[2:], later)
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first[0], next(iter(windows(4, 0)))[0])


def test_no_thread_tunes_endless_data_for_whose_end_fit_would_wait():
    pairs = TokenBatches([[5, 6]] * 9, [[7]] * 9, 64, 8)
    labelled = LabelledBatches([[5, 6]] * 9, np.eye(2)[[0, 1, 0] * 3], ["a", "b"], 64)
    for batches in (pairs, labelled, TextWindows(TEXT, 7, 5), TextSegments(TEXT, 7, 2)):
        assert batches.dataset().options().autotune.enabled is False


def test_the_first_id_is_subtracted():
    for make in (TextWindows, TextSegments):
        plain, shifted = (
            next(iter(make(TEXT, 7, 5, first_id=first).dataset(3))) for first in (0, 4)
        )
        np.testing.assert_array_equal(np.subtract(plain, 4), shifted)
        assert shifted[0].dtype == "int32"


def test_rows_of_segments_go_on_from_batch_to_batch():
    segments = TextSegments(TEXT, length=4, batch_size=3)
    assert segments.steps_per_epoch == 3, "36 of 40 labels are in the streams"
    batches = [(x.numpy(), y.numpy()) for x, y in segments.dataset().take(10)]
    for inputs, labels in batches:
        np.testing.assert_array_equal(labels, inputs + 1)
    for step, ((before, _), (after, _)) in enumerate(itertools.pairwise(batches), 1):
        goes_on = after[:, 0] == before[:, -1] + 1
        assert goes_on.sum() == (3 if step % 3 else 2), "one row begins the text anew an epoch"
    epoch = np.concatenate([inputs.ravel() for inputs, _ in batches[:3]])
    assert sorted(epoch) == list(range(100, 136))
    later = [x.numpy() for x, _ in segments.dataset(5).take(2)]
    np.testing.assert_array_equal(later, [batches[5][0], batches[6][0]])


@pytest.mark.parametrize(("length", "stride"), [(7, 1), (7, 3), (7, 7), (40, 11), (64, 5), (1, 1)])
def test_each_token_but_the_first_is_a_label_once(length, stride):
    seen = []
    for inputs, labels in sliding_windows(TEXT, length, stride, batch_size=3):
        for row, of_row in zip(inputs.numpy(), labels.numpy(), strict=True):
            counted = np.flatnonzero(of_row)
            np.testing.assert_array_equal(of_row[counted], row[counted] + 1)
            if 101 not in of_row and len(counted):
                assert counted[0] >= length - stride, "as much context as the stride leaves"
            seen += of_row[counted].tolist()
    assert sorted(seen) == list(range(101, 141))


@pytest.mark.parametrize("batch_size", [3, 50])
def test_replicas_share_windows_equally_and_add_no_label(batch_size):
    one, several = (
        [labels.numpy() for _, labels in sliding_windows(TEXT, 7, 3, batch_size, replicas=count)]
        for count in (1, 4)
    )
    assert all(len(labels) % 4 == 0 for labels in several)
    counts = [np.concatenate(each)[np.concatenate(each) != 0] for each in (one, several)]
    np.testing.assert_array_equal(*counts)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: TextWindows(TEXT, 41, 5), "Received: 41 tokens, length=41"),
        (lambda: TextWindows(TEXT, 7, 0), "batch_size must be .* Received: batch_size=0"),
        (lambda: TextSegments(TEXT, 14, 3), "Received: 41 tokens, length=14, batch_size=3"),
        (lambda: sliding_windows(TEXT, 7, 8, 3), "Received: 41 tokens, stride=8, length=7"),
        (lambda: sliding_windows(TEXT[:1], 7, 3, 3), "Received: 1 tokens"),
    ],
)
def test_sizes_that_cannot_be_are_refused(call, expected):
    with pytest.raises(ValueError, match=expected):
        call()
