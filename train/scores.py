"""Scores of predictions, over all texts at once: a mean over batches would be another number."""

import math

import numpy as np


def micro_f1(predicted, expected):
    """F1 over all pairs of a text and a label, in [0, 1]; 1 if there are none at all.

    Args:
        predicted: whether each text is said to have each label, (texts, labels).
        expected: whether it has the label.
    """
    predicted, expected = np.asarray(predicted, bool), np.asarray(expected, bool)
    total = predicted.sum() + expected.sum()
    return float(2 * (predicted & expected).sum() / total) if total else 1.0


def pearson(first, second):
    """Pearson's correlation of two columns of numbers, in [-1, 1]; NaN if one is constant."""
    first, second = (np.asarray(values, float) - np.mean(values) for values in (first, second))
    norm = math.sqrt((first**2).sum() * (second**2).sum())
    return float((first * second).sum() / norm) if norm else math.nan


def spearman(first, second):
    """Spearman's correlation: Pearson's of the ranks; equal numbers share their mean rank."""
    return pearson(_ranks(first), _ranks(second))


def _ranks(values):
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[places]
