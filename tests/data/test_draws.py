"""NumPy draws what TensorFlow draws, bit for bit: an old run goes on with the same batches."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.data.draws import integers, split, uniform


@pytest.mark.parametrize("seed", [(0, 0), (3, 5), (-3, 2**33), (2**40 + 1, -1), (-(2**63), 7)])
def test_draws_are_those_of_tensorflow(seed):
    theirs = tf.constant(seed, tf.int64)
    assert split(seed) == [tuple(s) for s in tf.random.split(theirs, 2, alg="philox").numpy()]
    for count in (0, 1, 2, 7, 2**16 + 5):  # within, at and beyond a block of four words, and a part
        for dtype in (np.float32, np.float64):
            drawn = uniform(seed, count, dtype)
            expected = tf.random.stateless_uniform([count], theirs, dtype=dtype, alg="philox")
            assert drawn.dtype == dtype
            np.testing.assert_array_equal(drawn, expected)
        for limit in (1, 7, 2**31 - 1):
            drawn = integers(seed, count, limit)
            expected = tf.random.stateless_uniform([count], theirs, 0, limit, tf.int32, "philox")
            assert drawn.dtype == np.int32
            np.testing.assert_array_equal(drawn, expected)
