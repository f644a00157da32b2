"""Drawn cases: losses, labels, weights, masks and dtypes give Keras's numbers, or are refused."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from .conftest import needs_tensorflow

pytestmark = needs_tensorflow
ROOT = pathlib.Path(__file__).parents[2]
DRAWN, MORE = 8, 16
REFUSALS = (
    "The shape of sample_weight must be that of",
    "The shape of the mask of the outputs must be that of the losses",
    "The loss of a row must not depend on the other rows",
    "The reduction of the loss must be",
    "The loss must return one value per row or token, not a scalar",
    "Labels and predictions must have the same rank",
)


def drawn(program, first, count):
    """The results of drawn cases, computed in a program of its own with two devices."""
    command = [sys.executable, "-m", f"tests.training.{program}", str(first), str(count)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == count
    return results


def difference(results, others):
    """The largest difference of two logs and weights, relative to numbers above 1."""
    assert results["logs"].keys() == others["logs"].keys(), "the names in the logs"
    pairs = [(results["logs"][name], others["logs"][name]) for name in results["logs"]]
    pairs += zip(results["weights"], others["weights"], strict=True)
    largest = 0.0
    for pair in pairs:
        one, other = map(np.array, pair)
        assert (np.isfinite(one) == np.isfinite(other)).all(), pair
        finite = np.isfinite(one)
        gap = np.abs(one - other)[finite] / np.maximum(1, np.abs(one[finite]))
        largest = max(largest, gap.max(initial=0.0))
    return largest


def is_expected(case):
    """Whether a case that Keras can train is one that we refuse."""
    fits = {"n", "n1", "twos", "class"} if not case["sequence"] else {"n1", "nt", "nt1"}
    return (
        case["reduction"] is None
        or case["loss"].lower() == "circle"
        or case["weights"] not in {None, *fits}
        or case["mask"]  # of other axes than the losses
        or (case["loss"] == "Squares" and case["rank"] == "less")
    )


def is_keras_bug(case):
    """Keras cannot add a penalty of another dtype to the loss."""
    other = case["policy"] != "float32" or case["loss_dtype"] is not None
    return case["penalty"] is not None and other


def check(result):
    """Returns what became of a drawn case: "equal", "refused", or "keras fails"."""
    case, theirs, one, two = (result[name] for name in ("case", "keras", "one", "two"))
    assert ("error" in one) == ("error" in two), (case, one.get("error"), two.get("error"))
    if "error" in one:
        if "error" not in theirs:  # both arrangements refuse with the same message
            assert any(message in one["error"] for message in REFUSALS), (case, one["error"])
            assert is_expected(case), (case, one["error"])
            assert one["error"][:60] == two["error"][:60], case
            return "refused"
        return "keras fails"
    half = case["policy"] in ("mixed_bfloat16", "mixed_float16")
    skips = case["policy"] == "mixed_float16"  # in Keras, which scales sums as it does means
    if not skips and not ("error" in theirs and is_keras_bug(case)):
        assert "error" not in theirs, (case, theirs)
        assert difference(theirs, one) < (2e-2 if half else 3e-6), case
        assert one["moved"] == pytest.approx(theirs["moved"], rel=0.1, abs=1e-3), case
    assert difference(one, two) < (2e-2 if half else 3e-6), case
    return "equal"


@pytest.mark.slow
def test_drawn_losses_labels_weights_masks_and_dtypes_give_the_numbers_of_keras():
    results = drawn("drawn_steps", 0, DRAWN)
    outcomes = [check(result) for result in results]
    assert outcomes.count("equal") >= DRAWN // 2, outcomes
    moved = [r["one"]["moved"] for r, o in zip(results, outcomes, strict=True) if o == "equal"]
    assert np.median(moved) > 1e-3, "the steps moved the weights"


@pytest.mark.soak
@pytest.mark.parametrize("part", range(3))
def test_more_drawn_cases_give_the_numbers_of_keras(part):
    outcomes = [check(result) for result in drawn("drawn_steps", 1000 + part * MORE, MORE)]
    assert outcomes.count("equal") >= MORE // 2, outcomes
