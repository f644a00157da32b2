import math

import keras
import numpy as np
import pytest

from keras_transformer.ops.attention import merge_heads, split_heads
from keras_transformer.ops.positions import relative_shift
from keras_transformer.ops.softmax import attention_weights
from tests import reference
from tests.reference import array, normal

DTYPES = {"float32": 1e-5, "bfloat16": 0.03}


def test_heads_take_neighbouring_columns_and_come_back_in_the_same_order():
    inputs = normal(2, 3, 10)
    heads = split_heads(keras.ops.array(inputs), num_heads=5)
    assert tuple(heads.shape) == (2, 5, 3, 2), "(batch, heads, length, dim)"
    np.testing.assert_array_equal(array(heads)[1, 3, 2], inputs[1, 2, 6:8], err_msg="head 3")
    np.testing.assert_array_equal(array(merge_heads(heads)), inputs, err_msg="there and back")


def test_a_batch_of_zero_rows_keeps_its_shape():
    heads = split_heads(keras.ops.zeros((0, 3, 10)), num_heads=5)
    assert tuple(heads.shape) == (0, 5, 3, 2), "split"
    assert tuple(merge_heads(heads).shape) == (0, 3, 10), "merged"


def test_weights_are_those_computed_by_hand():
    # Width 4, so scores are halved: 2 ln 3 / 2 = ln 3 against 0, a ratio of 3 to 1.
    queries = keras.ops.array([[[[2.0, 0, 0, 0]]]])
    keys = keras.ops.array([[[[math.log(3), 0, 0, 0], [0.0, 5, 5, 5]]]])
    values = keras.ops.array([[[[4.0, 0.0], [0.0, 8.0]]]])
    weights = attention_weights(queries, keys)
    context = keras.ops.matmul(weights, values)
    np.testing.assert_allclose(array(weights).ravel(), [0.75, 0.25], atol=1e-6)
    np.testing.assert_allclose(array(context).ravel(), [3, 2], atol=1e-5)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_equals_numpy(dtype, masked):
    # Beams stand before the heads, as in decoding; key and value widths differ.
    queries, keys, values = normal(2, 7, 3, 5, 11), normal(2, 7, 3, 13, 11), normal(2, 7, 3, 13, 17)
    mask = np.random.uniform(size=(2, 1, 1, 5, 13)) < 0.6 if masked else None
    weights = attention_weights(
        *(keras.ops.cast(x, dtype) for x in (queries, keys)),
        None if mask is None else keras.ops.array(mask),
    )
    context = keras.ops.matmul(weights, keras.ops.cast(values, dtype))
    expected = reference.attention_weights(queries, keys, mask)
    assert keras.backend.standardize_dtype(weights.dtype) == dtype, "the dtype of the queries"
    np.testing.assert_allclose(array(weights), expected, atol=DTYPES[dtype], err_msg="weights")
    np.testing.assert_allclose(
        array(context), expected @ values, atol=5 * DTYPES[dtype], err_msg="context"
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_target_that_may_attend_to_nothing_takes_nothing(dtype):
    queries, keys, values = (keras.ops.cast(100 * normal(2, 3, 5, 7), dtype) for _ in range(3))
    mask = np.ones((2, 1, 5, 5), bool)
    mask[0, 0, 2] = mask[1] = False
    weights = attention_weights(queries, keys, keras.ops.array(mask))
    context = keras.ops.matmul(weights, values)
    nothing = ~mask.any(axis=-1)[:, 0]
    for name, result in (("weights", weights), ("context", context)):
        rows = np.moveaxis(array(result), 1, 2)  # (batch, target, heads, ...)
        assert np.isfinite(rows).all(), f"{name} are numbers"
        assert (rows[nothing] == 0).all(), f"{name} of a fully masked row are exactly zero"
        assert np.abs(rows[~nothing]).sum(axis=(1, 2)).all(), f"other {name} are not"


def test_forbidden_positions_take_exactly_nothing_however_high_their_scores():
    queries = keras.ops.ones((1, 1, 1, 2))
    keys = keras.ops.array([[[[1e4, 1e4], [-1e4, -1e4]]]])
    weights = attention_weights(queries, keys, keras.ops.array([[[[False, True]]]]))
    assert array(weights).ravel().tolist() == [0.0, 1.0], "all of it goes to what is allowed"


def test_scores_too_large_for_exponentials_stay_numbers():
    queries = keras.ops.ones((1, 1, 1, 2))
    keys = keras.ops.array([[[[3e4, 3e4], [2e4, 2e4]]]])
    assert array(attention_weights(queries, keys)).ravel().tolist() == [1.0, 0.0], "no overflow"


def test_softmax_is_computed_in_float32_under_bfloat16():
    # Width 1 and whole numbers: the scores are exact, so all that is lost is the last rounding.
    keys = np.random.randint(-5, 5, size=(1, 1, 1009, 1)).astype("float32")
    weights = attention_weights(
        keras.ops.ones((1, 1, 1, 1), dtype="bfloat16"), keras.ops.cast(keys, "bfloat16")
    )
    expected = reference.attention_weights(np.ones((1, 1, 1, 1)), keys)
    np.testing.assert_allclose(array(weights), expected, rtol=2**-8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [11, 16])
def test_scaling_before_the_product_equals_scaling_after_it(dim, dtype):
    queries, keys = (keras.ops.cast(normal(2, 3, 5, dim), dtype) for _ in range(2))
    scores = keras.ops.matmul(queries, keras.ops.swapaxes(keys, -1, -2)) / math.sqrt(dim)
    after = array(keras.ops.cast(keras.ops.softmax(keras.ops.cast(scores, "float32")), dtype))
    before = array(attention_weights(queries, keys))
    if dim == 16:  # a power of four: multiplying by 1/4 rounds nothing
        np.testing.assert_array_equal(before, after)
    np.testing.assert_allclose(before, after, atol=DTYPES[dtype])


def test_scaling_before_the_product_spares_float16_an_overflow():
    # 16 products of 100 and 100: 160,000 before scaling, beyond the 65,504 of float16.
    queries = keras.ops.full((1, 1, 1, 16), 100.0, dtype="float16")
    keys = keras.ops.cast([[[[100.0] * 16, [0.0] * 16]]], "float16")
    assert array(attention_weights(queries, keys)).ravel().tolist() == [1.0, 0.0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_bias_is_added_to_the_logits_and_not_scaled(dtype):
    queries, keys, bias = normal(2, 3, 5, 11), normal(2, 3, 7, 11), normal(1, 3, 5, 7)
    weights = attention_weights(
        *(keras.ops.cast(x, dtype) for x in (queries, keys)), bias=keras.ops.cast(bias, dtype)
    )
    scores = queries @ np.swapaxes(keys, -1, -2) / math.sqrt(11) + bias
    expected = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(array(weights), expected, atol=DTYPES[dtype])


@pytest.mark.parametrize(("target", "source"), [(5, 5), (3, 7), (1, 4), (4, 4), (1, 1)])
def test_a_relative_shift_is_the_loop_over_targets_and_sources(target, source):
    scores = normal(2, 3, target, source)
    shifted = array(relative_shift(keras.ops.array(scores)))
    assert shifted.shape == scores.shape
    for i in range(target):
        for j in range(source - target + i + 1):  # the sources that are not after the target
            distance = source - target + i - j
            expected = scores[..., i, source - 1 - distance]
            np.testing.assert_array_equal(shifted[..., i, j], expected, err_msg=f"{i}, {j}")
