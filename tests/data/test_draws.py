"""Permutations that are computed place by place: each place once, no order preferred."""

import collections
import itertools
import math

import numpy as np
import pytest

from keras_transformer.data.draws import key_of, permuted


def test_each_place_is_there_once_whatever_the_size():
    for size in [*range(1, 301), 65_537, 300_000]:
        for seed in range(3):
            found = np.bincount(permuted(np.arange(size), size, key_of(seed, size)))
            assert len(found) == size and (found == 1).all(), size


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_all_orders_are_equally_likely(size):
    count = 500 * math.factorial(size)
    orders = permuted(np.arange(size), size, key_of(7, np.arange(count))[:, None])
    counts = collections.Counter(map(tuple, orders.tolist()))
    assert set(counts) == set(itertools.permutations(range(size)))
    deviations = (np.array(list(counts.values())) - 500) / 500**0.5
    assert np.abs(deviations).max() < 5 and (deviations**2).mean() < 1.6


@pytest.mark.parametrize("size", [1000, 10_000_019, 3 * 10**9])
def test_neighbours_are_independent(size):
    starts = np.random.default_rng(3).integers(0, size - 1, 20_000)
    one, other = (permuted(places, size, key_of(3, 5)) / size for places in (starts, starts + 1))
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.03, "four standard deviations"
    assert abs(np.abs(one - other).mean() - 1 / 3) < 0.007
    again = permuted(starts, size, key_of(3, 6)) / size
    assert abs(np.corrcoef(one, again)[0, 1]) < 0.03, "another key, another permutation"


def test_places_of_several_permutations_are_computed_at_once():
    sizes, keys = np.array([5, 300, 2**40]), key_of(3, np.arange(3))
    together = permuted([4, 5, 2**39], sizes, keys)
    alone = [permuted([p], s, k)[0] for p, s, k in zip([4, 5, 2**39], sizes, keys, strict=True)]
    assert together.dtype == np.int64 and together.tolist() == alone


def test_keys_and_sizes_may_differ_from_place_to_place():
    sizes = np.array([3, 700, 5, 700])
    places, keys = np.array([1, 699, 4, 0]), key_of(1, np.array([4, 4, 9, 2]))
    alone = [permuted([p], s, key)[0] for p, s, key in zip(places, sizes, keys, strict=True)]
    assert permuted(places, sizes, keys).tolist() == alone
