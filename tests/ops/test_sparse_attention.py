"""Blocks that are computed against all blocks under the mask of the same name."""

import keras
import numpy as np
import pytest

from keras_transformer.ops import combine_masks
from keras_transformer.ops.softmax import attention_weights
from keras_transformer.ops.sparse_attention import SparsePattern
from tests import reference
from tests.reference import array, normal, truth

PATTERNS = {
    "local": ("local", 5),
    "local, neighbours": ("local", 1),
    "strided": ("strided", 3),
    "strided, every position": ("strided", 1),
    "fixed": ("fixed", 5, 2),
    "fixed, whole blocks": ("fixed", 3, 3),
}
EACH_PATTERN = pytest.mark.parametrize("pattern", PATTERNS)
CAUSAL = pytest.mark.parametrize("causal", [False, True], ids=["both sides", "causal"])


def heads(length, key_dim=7, value_dim=11):
    """Queries, keys and values of 2 rows and 3 heads."""
    return (
        normal(2, 3, length, key_dim),
        normal(2, 3, length, key_dim),
        normal(2, 3, length, value_dim),
    )


def pattern_mask(pattern, length, causal):
    return SparsePattern(*PATTERNS[pattern], causal=causal).mask(length)


def sparse(pattern, inputs, causal=False, **arguments):
    inputs = [keras.ops.array(x) for x in inputs]
    return SparsePattern(*PATTERNS[pattern], causal=causal).attend(*inputs, **arguments)


@EACH_PATTERN
@CAUSAL
# Shorter than a block, whole blocks, and blocks that are left unfinished.
@pytest.mark.parametrize("length", [1, 2, 15, 23])
def test_sparse_attention_equals_numpy_under_the_mask_of_its_name(pattern, causal, length):
    queries, keys, values = heads(length)
    mask = truth(pattern_mask(pattern, length, causal))
    expected = reference.attention_weights(queries, keys, mask) @ values
    computed = sparse(pattern, (queries, keys, values), causal=causal)
    assert tuple(computed.shape) == (2, 3, length, 11), "the width of the values"
    np.testing.assert_allclose(array(computed), expected, atol=1e-5)


@EACH_PATTERN
@CAUSAL
def test_padding_is_not_seen_and_a_position_without_others_gives_zeros(pattern, causal):
    queries, keys, values = heads(23)
    real = np.random.uniform(size=(2, 23)) < 0.5
    real[1] = np.arange(23) == 11
    mask = truth(pattern_mask(pattern, 23, causal)) & real[:, None]
    nothing = ~mask.any(axis=-1)
    assert nothing.any() or not causal, "the first positions of row 1 see only padding"
    expected = reference.attention_weights(queries, keys, mask[:, None]) @ values
    computed = sparse(
        pattern, (queries, keys, values), causal=causal, padding_mask=keras.ops.array(real)
    )
    np.testing.assert_allclose(array(computed), expected, atol=1e-5)
    assert (np.moveaxis(array(computed), 1, 2)[nothing] == 0).all(), "exactly zero"


@EACH_PATTERN
def test_scores_too_large_for_exponentials_stay_numbers(pattern):
    queries, keys, values = heads(23)
    inputs = [keras.ops.array(x) for x in (300 * queries, keys, values)]
    mask = pattern_mask(pattern, 23, causal=True)
    expected = keras.ops.matmul(attention_weights(*inputs[:2], mask[:, None]), inputs[2])
    computed = sparse(pattern, inputs, causal=True)
    np.testing.assert_allclose(array(computed), array(expected), atol=1e-3)


@EACH_PATTERN
def test_under_bfloat16_only_the_last_digits_differ(pattern):
    inputs = [keras.ops.cast(x, "bfloat16") for x in heads(23)]
    real = np.arange(23) < np.array([[23], [0]])
    mask = combine_masks(keras.ops.array(real), pattern_mask(pattern, 23, causal=True))
    queries, keys, values = (keras.ops.cast(x, "float32") for x in inputs)
    expected = keras.ops.matmul(attention_weights(queries, keys, mask[:, None]), values)
    computed = sparse(pattern, inputs, causal=True, padding_mask=keras.ops.array(real))
    assert keras.backend.standardize_dtype(computed.dtype) == "bfloat16", "dtype of the values"
    np.testing.assert_allclose(array(computed), array(expected), atol=0.04)
    assert (array(computed)[1] == 0).all(), "a row of padding"


@EACH_PATTERN
def test_no_tensor_has_as_many_numbers_as_the_dense_weights(pattern):
    sizes = []

    def watch(weights):
        sizes.append(int(np.prod(weights.shape)))
        return weights

    length = 121
    sparse(pattern, heads(length), dropout=watch)
    per_position = sum(sizes) / (2 * 3 * length)
    if pattern == "strided, every position" or pattern == "fixed, whole blocks":
        assert per_position < length + 13, "a pattern that allows all has nothing to save"
    else:
        assert per_position < length / 2, "blocks that allow nothing are not computed"


@EACH_PATTERN
def test_dropped_weights_are_not_made_up_for(pattern):
    inputs = heads(23)
    halved = sparse(pattern, inputs, dropout=lambda weights: 0.5 * weights)
    whole = sparse(pattern, inputs)
    np.testing.assert_allclose(array(halved), 0.5 * array(whole), atol=1e-5)


def test_sizes_out_of_their_range_are_refused():
    with pytest.raises(ValueError, match=r"at least 1. Received: block_size=0"):
        SparsePattern("local", 0)
    with pytest.raises(ValueError, match=r"at least 1. Received: summary_size=0"):
        SparsePattern("fixed", 2, 0)
    with pytest.raises(ValueError, match=r"at most block_size.*block_size=2, summary_size=3"):
        SparsePattern("fixed", 2, 3)
