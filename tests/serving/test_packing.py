import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.serving.packing import Packing

SPECS = {
    "keys": tf.TensorSpec((None, 2, None, 3), tf.float32),
    "cache": [tf.TensorSpec((None, 1, 5, 0, 7), tf.bfloat16)],
    "mask": tf.TensorSpec((None, None), tf.bool),
}


def test_unpacking_reverses_packing():
    random = np.random.default_rng(2)
    structure = {
        "keys": tf.constant(random.normal(size=(11, 2, 13, 3)), tf.float32),
        "cache": [tf.cast(random.normal(size=(11, 1, 5, 13, 7)), tf.bfloat16)],
        "mask": tf.constant(random.normal(size=(11, 13)) > 0),
    }
    packing = Packing(SPECS)
    packed = packing.pack(structure)
    assert packed.dtype == tf.float32
    assert packed.shape == (11, 13, packing.features) == (11, 13, 2 * 3 + 1 * 5 * 7 + 1)
    unpacked = packing.unpack(packed)
    tf.nest.assert_same_structure(structure, unpacked)
    for before, after in zip(tf.nest.flatten(structure), tf.nest.flatten(unpacked), strict=True):
        assert before.dtype == after.dtype
        assert bool(tf.reduce_all(before == after))


def test_a_column_holds_one_position_and_nothing_of_the_others():
    packing = Packing(SPECS["keys"])
    keys = np.random.default_rng(3).normal(size=(5, 2, 7, 3)).astype(np.float32)
    packed = packing.pack(tf.constant(keys)).numpy()
    np.testing.assert_array_equal(packed[:, 4], keys[:, :, 4].reshape(5, 6))


def test_a_tensor_without_one_variable_axis_is_refused():
    for shape in [(None, 3), (None, None, 3, None)]:
        with pytest.raises(ValueError, match=r"exactly one axis of variable .* of shape"):
            Packing([tf.TensorSpec(shape)])
