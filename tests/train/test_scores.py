import numpy as np
import pytest

from train.scores import micro_f1, pearson, spearman


def test_correlations_are_those_of_scipy_with_ties():
    stats = pytest.importorskip("scipy.stats")
    draw = np.random.default_rng(3)
    for _ in range(5):
        first = draw.integers(0, 7, 41)  # many equal numbers
        second = first + draw.normal(size=41) * 3
        assert pearson(first, second) == pytest.approx(stats.pearsonr(first, second).statistic)
        assert spearman(first, second) == pytest.approx(stats.spearmanr(first, second).statistic)


def test_the_correlation_with_a_constant_is_undefined():
    assert np.isnan(pearson([1, 1, 1], [1, 2, 3])) and np.isnan(spearman([1, 2, 3], [5, 5, 5]))


def test_micro_f1_counts_all_pairs_of_a_text_and_a_label():
    expected = np.array([[1, 0, 1], [0, 1, 0], [0, 0, 0]])
    found = np.array([[1, 1, 0], [0, 1, 0], [0, 0, 1]])
    # 2 right, 2 too many, 1 missed: precision 2/4, recall 2/3
    assert micro_f1(found, expected) == pytest.approx(2 * (2 / 4) * (2 / 3) / (2 / 4 + 2 / 3))
    assert micro_f1(expected, expected) == 1.0
    assert micro_f1(np.zeros((2, 3)), np.zeros((2, 3))) == 1.0
    assert micro_f1(np.zeros((2, 3)), np.ones((2, 3))) == 0.0
