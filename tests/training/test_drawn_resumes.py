"""Drawn files between two epochs: the optimizer's state in them is Keras's, and nothing is lost."""

import numpy as np
import pytest

from .conftest import needs_tensorflow
from .test_drawn_steps import drawn

pytestmark = needs_tensorflow


def assert_close(one, other, tolerance, case):
    assert len(one) == len(other), case
    for pair in zip(one, other, strict=True):
        np.testing.assert_allclose(*pair, rtol=tolerance, atol=tolerance, err_msg=str(case))


def check(result):
    """A file changes nothing; weights, the optimizer's variables and warnings are Keras's."""
    case, ours, theirs = result["case"], result["ours"], result.get("keras")
    assert "error" not in ours, (case, ours)
    for name, numbers in ours["whole"].items():
        assert_close(ours["resumed"][name], numbers, 0, case)
    assert any(np.ptp(numbers) for numbers in ours["resumed"]["optimizer"] if numbers), case
    if theirs is None:
        return
    assert "error" not in theirs, (case, theirs)
    assert ours["said"] == theirs["said"], case
    for name in ("weights", "optimizer"):
        assert len(ours["resumed"][name]) == len(theirs["resumed"][name]), case
        if case["policy"] != "mixed_float16":  # in which Keras skips other steps for an overflow
            tolerance = 2e-2 if case["policy"] == "mixed_bfloat16" else 1e-5
            assert_close(ours["resumed"][name], theirs["resumed"][name], tolerance, case)


@pytest.mark.slow
def test_drawn_files_keep_the_state_of_the_optimizer_as_in_keras():
    for result in drawn("drawn_resumes", 0, 4):
        check(result)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(3))
def test_more_drawn_files_keep_the_state_of_the_optimizer_as_in_keras(part):
    for result in drawn("drawn_resumes", 1000 + 9 * part, 9):
        check(result)
