import keras
import numpy as np
import pytest

from keras_transformer.models.translation import translation
from keras_transformer.serving import with_dtype

SMALL = {"size": "tiny", "num_layers": 1, "hidden_dim": 6, "intermediate_dim": 5, "num_heads": 2}
IDS = {"source_ids": np.array([[5, 7, 3]]), "target_ids": np.array([[2, 11]])}


@pytest.mark.parametrize("target_vocabulary_size", [None, 17])
def test_a_copy_in_float32_is_exact_and_has_its_own_weights(target_vocabulary_size):
    model = translation(13, target_vocabulary_size, **SMALL)
    expected = np.array(model(IDS))
    copy = with_dtype(model, "float32")
    np.testing.assert_array_equal(copy(IDS), expected)
    for weight in copy.weights:
        weight.assign(keras.ops.zeros_like(weight))
    np.testing.assert_array_equal(model(IDS), expected)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_a_bfloat16_copy_rounds_the_weights_and_leaves_the_model(dtype):
    model = translation(13, dtype=dtype, pre_norm=False, **SMALL)
    copy = with_dtype(model, "bfloat16")
    assert {weight.dtype for weight in copy.weights} == {"bfloat16"}
    assert {weight.dtype for weight in model.weights} == {"float32"}
    assert [layer.name for layer in copy.layers] == [layer.name for layer in model.layers]
    assert keras.backend.standardize_dtype(copy(IDS).dtype) == "float32"
    np.testing.assert_allclose(copy(IDS), model(IDS), atol=0.1)


def test_another_dtype_is_refused():
    with pytest.raises(ValueError, match="Received: dtype='int8'"):
        with_dtype(translation(13, **SMALL), "int8")
