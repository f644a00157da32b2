import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.decoding.draws import fold_in, uniform


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("jit_compile", [False, True])
def test_the_same_bits_as_tensorflow_draws_for_each_seed(dtype, jit_compile):
    range_ = np.iinfo(dtype)
    seeds = np.random.default_rng(1).integers(range_.min, range_.max, (7, 2), dtype)
    seeds[:2] = [[0, 0], [-1, 5]]

    @tf.function(jit_compile=jit_compile, autograph=False)
    def draw(seeds, number):
        folded = fold_in(seeds, number)
        return folded, uniform(folded, 5), uniform(seeds, 4)

    folded, drawn, unfolded = draw(tf.constant(seeds), tf.constant(11))
    for row, seed in enumerate(tf.unstack(tf.constant(seeds))):
        expected = tf.random.experimental.stateless_fold_in(seed, 11)
        np.testing.assert_array_equal(folded[row], expected)
        np.testing.assert_array_equal(drawn[row], tf.random.stateless_uniform([5], expected))
        np.testing.assert_array_equal(unfolded[row], tf.random.stateless_uniform([4], seed))
