"""Masks against plain Python loops: for every pair of positions, may it attend or not."""

import keras
import numpy as np
import pytest

from keras_transformer.ops.masks import (
    beam_mask,
    causal_mask,
    combine_masks,
    local_mask,
    padding_mask,
    valid_length_mask,
)
from keras_transformer.ops.sparse_attention import SparsePattern
from tests.reference import truth


def loop(rule, batch, target, source):
    """What `rule(row, target position, source position)` says, for all of them."""
    return np.array(
        [[[rule(b, t, s) for s in range(source)] for t in range(target)] for b in range(batch)]
    )


def test_padding_mask_marks_all_ids_but_the_padding():
    ids = keras.ops.array([[7, 0, 5], [0, 0, 0]])
    assert truth(padding_mask(ids)).tolist() == [[True, False, True], [False] * 3], "pad is 0"
    assert truth(padding_mask(ids, pad_id=5)).tolist() == [[True, True, False], [True] * 3], (
        "another id may be the padding"
    )


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_valid_length_of_a_row_allows_its_first_positions(dtype):
    lengths = [0, 3, 5]
    mask = valid_length_mask(keras.ops.array(lengths, dtype=dtype), 5)
    assert tuple(mask.shape) == (3, 1, 5), "one line for all targets"
    expected = loop(lambda b, t, s: s < lengths[b], 3, 1, 5)
    np.testing.assert_array_equal(truth(mask), expected, err_msg="first positions only")


def test_valid_length_of_a_target_position_allows_its_first_positions():
    lengths = [[0, 3], [5, 1], [2, 2]]
    mask = valid_length_mask(keras.ops.array(lengths), 5)
    expected = loop(lambda b, t, s: s < lengths[b][t], 3, 2, 5)
    np.testing.assert_array_equal(truth(mask), expected, err_msg="one length a target")


def test_valid_length_of_three_axes_is_refused():
    with pytest.raises(ValueError, match=r"\(batch,\) or \(batch, target\).*shape \(2, 3, 1\)"):
        valid_length_mask(keras.ops.ones((2, 3, 1), dtype="int32"), 5)


@pytest.mark.parametrize(("target", "source", "start"), [(5, None, 0), (3, None, 2), (2, 7, 3)])
def test_causal_mask_allows_a_position_itself_and_what_came_before(target, source, start):
    mask = causal_mask(target, source, start)
    source = start + target if source is None else source
    expected = loop(lambda b, t, s: s <= start + t, 1, target, source)
    np.testing.assert_array_equal(truth(mask), expected, err_msg="no later position")


@pytest.mark.parametrize("radius", [0, 1, 3, 11])
@pytest.mark.parametrize(("target", "source", "start"), [(5, None, 0), (3, None, 2), (2, 7, 3)])
def test_local_mask_allows_positions_within_the_radius(target, source, start, radius):
    mask = local_mask(target, source, radius, start)
    source = start + target if source is None else source
    expected = loop(lambda b, t, s: abs(s - (start + t)) <= radius, 1, target, source)
    np.testing.assert_array_equal(truth(mask), expected, err_msg="both sides, ends included")


def test_negative_radius_is_refused():
    with pytest.raises(ValueError, match=r"radius must be an integer.*Received: \w+=-1"):
        local_mask(3, radius=-1)


PLACES = pytest.mark.parametrize(
    ("target", "source", "start"), [(23, None, 0), (3, None, 11), (5, 17, 7)]
)


@PLACES
@pytest.mark.parametrize("stride", [1, 3, 5, 29])
def test_strided_mask_allows_what_is_near_and_every_stride_th_position(
    target, source, start, stride
):
    mask = SparsePattern("strided", stride).mask(target, source, start)
    source = start + target if source is None else source

    def rule(b, t, s):
        near = range(start + t - stride, start + t + stride + 1)
        return s in near or (s - start - t) % stride == 0

    expected = loop(rule, 1, target, source)
    np.testing.assert_array_equal(truth(mask), expected, err_msg="both of the paper's sets")


@PLACES
@pytest.mark.parametrize(("block_size", "summary_size"), [(1, 1), (3, 1), (5, 2), (5, 5), (29, 3)])
def test_fixed_mask_allows_the_own_block_and_the_ends_of_all(
    target, source, start, block_size, summary_size
):
    mask = SparsePattern("fixed", block_size, summary_size).mask(target, source, start)
    source = start + target if source is None else source
    blocks = [range(first, first + block_size) for first in range(0, 60, block_size)]

    def rule(b, t, s):
        own = any(s in block and start + t in block for block in blocks)
        return own or any(s in block[-summary_size:] for block in blocks)

    expected = loop(rule, 1, target, source)
    np.testing.assert_array_equal(truth(mask), expected, err_msg="blocks begin at position 0")


def test_the_patterns_of_the_sparse_transformer_may_be_causal():
    strided = SparsePattern("strided", 3, causal=True).mask(8)
    assert np.flatnonzero(truth(strided)[0, 6]).tolist() == [0, 3, 4, 5, 6], "strided"
    fixed = SparsePattern("fixed", 3, summary_size=1, causal=True).mask(8)
    assert np.flatnonzero(truth(fixed)[0, 7]).tolist() == [2, 5, 6, 7], "fixed"


def test_a_start_known_only_at_run_time_gives_the_same_masks():
    start = keras.ops.array(2, dtype="int32")
    np.testing.assert_array_equal(
        truth(causal_mask(3, 5, start)), truth(causal_mask(3, 5, 2)), err_msg="causal"
    )
    np.testing.assert_array_equal(
        truth(local_mask(3, 5, 1, start)), truth(local_mask(3, 5, 1, 2)), err_msg="local"
    )
    for pattern in (SparsePattern("strided", 2), SparsePattern("fixed", 2, 1)):
        np.testing.assert_array_equal(
            truth(pattern.mask(3, 5, start)), truth(pattern.mask(3, 5, 2)), err_msg=pattern.kind
        )


def test_combined_masks_allow_what_all_of_them_allow():
    ids = [[7, 5, 3, 0, 0], [2, 0, 9, 9, 9]]
    lengths, per_target = [4, 5], [[5, 1, 3, 5, 5], [2, 5, 5, 0, 5]]
    combined = combine_masks(
        padding_mask(keras.ops.array(ids)),
        None,
        causal_mask(5),
        local_mask(5, radius=2),
        valid_length_mask(keras.ops.array(lengths), 5),
        valid_length_mask(keras.ops.array(per_target), 5),
    )

    def rule(b, t, s):
        in_length = s < lengths[b] and s < per_target[b][t]
        return ids[b][s] != 0 and s <= t and abs(s - t) <= 2 and in_length

    np.testing.assert_array_equal(truth(combined), loop(rule, 2, 5, 5), err_msg="all five")
    assert not truth(combined)[1, 3].any(), "the example holds a row that may attend to nothing"


def test_no_mask_at_all_stays_none():
    assert combine_masks() is None, "nothing given"
    assert combine_masks(None, None) is None, "nothing but None given"


def test_a_mask_of_floats_is_refused_because_they_may_be_meant_to_be_added():
    for dtype in ("float32", "bfloat16", "complex64"):
        with pytest.raises(ValueError, match=f"must be boolean.*Received: dtype {dtype}"):
            combine_masks(keras.ops.ones((2, 3), dtype=dtype))


def test_integers_and_lists_are_masks():
    expected = np.array([[[True, False, True]]])
    for mask in ([[1, 0, 7]], [[True, False, True]], np.array([[-1, 0, 1]], "int8")):
        np.testing.assert_array_equal(truth(combine_masks(mask)), expected)


def test_a_mask_with_an_axis_for_heads_is_refused():
    with pytest.raises(ValueError, match=r"Received: shape \(2, 3, 5, 5\)"):
        combine_masks(keras.ops.ones((2, 3, 5, 5), dtype="bool"))


def test_a_mask_in_numpy_is_as_good_as_a_tensor():
    ids = np.array([[7, 5, 0]])
    combined = combine_masks(ids != 0, causal_mask(3))
    expected = loop(lambda b, t, s: ids[b, s] != 0 and s <= t, 1, 3, 3)
    np.testing.assert_array_equal(truth(combined), expected, err_msg="NumPy booleans")


def test_beams_may_look_at_their_own_past():
    rng = np.random.default_rng(7)
    mask = keras.ops.zeros((2, 3, 0), "bool")
    pasts = [[[] for _ in range(3)] for _ in range(2)]  # cached positions of each row and beam
    for step in range(4):
        parents = rng.integers(0, 3, (2, 3))
        pasts = [
            [[*row[parent], step * 3 + beam] for beam, parent in enumerate(chosen)]
            for row, chosen in zip(pasts, parents, strict=True)
        ]
        mask = beam_mask(mask, keras.ops.array(parents))
        expected = loop(lambda b, t, s: s in pasts[b][t], 2, 3, 3 * step + 3)  # noqa: B023
        np.testing.assert_array_equal(truth(mask), expected, err_msg=f"step {step}")
