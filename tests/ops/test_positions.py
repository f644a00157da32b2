import keras
import numpy as np
import pytest

from keras_transformer.ops import sinusoidal_positions
from tests import reference
from tests.reference import array


def test_positions_are_those_of_the_paper():
    table = array(sinusoidal_positions(101, 22))
    np.testing.assert_allclose(table, reference.positions(101, 22), atol=1e-5)


def test_a_wavelength_may_be_chosen():
    table = array(sinusoidal_positions(7, 6, max_wavelength=50))
    np.testing.assert_allclose(table, reference.positions(7, 6, 50), atol=1e-5)


def test_a_start_gives_the_later_rows_of_the_same_table():
    whole = array(sinusoidal_positions(13, 6))
    for start in (5, keras.ops.array(5, dtype="int32")):
        part = array(sinusoidal_positions(3, 6, start=start))
        np.testing.assert_allclose(part, whole[5:8], atol=1e-6, err_msg="rows 5 to 7")


def test_every_position_is_different_even_when_the_policy_is_bfloat16():
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("bfloat16")
    try:
        table = sinusoidal_positions(2, 4, start=257)
    finally:
        keras.config.set_dtype_policy(before)
    assert keras.backend.standardize_dtype(table.dtype) == "float32", "whatever the policy"
    np.testing.assert_allclose(array(table), reference.positions(259, 4)[257:], atol=1e-4)


def test_an_odd_width_is_refused():
    with pytest.raises(ValueError, match=r"Choose e.g. 6. Received: dim=5"):
        sinusoidal_positions(3, 5)
