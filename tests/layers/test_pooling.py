import keras
import numpy as np
import pytest

from keras_transformer.layers.pooling import SequencePooling
from tests.layer_check import check_layer
from tests.reference import array, normal

REAL = np.array([[True, True, True, False, True], [False] * 5, [True, False, False, False, False]])


@pytest.mark.parametrize("pooling", ["mean", "max", "first"])
def test_layer(pooling, tmp_path):
    check_layer(SequencePooling, {"pooling": pooling}, (normal(3, 5, 7),), (3, 7), 0, tmp_path)


def by_hand(pooling, vectors, real):
    pooled = np.zeros((len(vectors), vectors.shape[-1]))
    for row, (values, is_real) in enumerate(zip(vectors, real, strict=True)):
        kept = [value for value, counts in zip(values, is_real, strict=True) if counts]
        if pooling == "first":
            pooled[row] = values[0] if is_real[0] else 0
        elif kept:
            pooled[row] = np.mean(kept, axis=0) if pooling == "mean" else np.max(kept, axis=0)
    return pooled


@pytest.mark.parametrize("pooling", ["mean", "max", "first"])
def test_padding_does_not_count(pooling):
    vectors = normal(3, 5, 7) - 3  # all below zero: a maximum over zeros would show
    expected = by_hand(pooling, vectors, REAL)
    pooled = SequencePooling(pooling)(vectors, padding_mask=keras.ops.array(REAL))
    np.testing.assert_allclose(array(pooled), expected, atol=1e-5)


def test_the_mask_of_an_embedding_is_used_and_not_handed_on():
    ids = keras.Input((None,), dtype="int32")
    vectors = keras.layers.Embedding(11, 3, mask_zero=True)(ids)
    model = keras.Model(ids, SequencePooling()(vectors))
    short, padded = np.array([[4, 5]]), np.array([[4, 5, 0, 0, 0]])
    np.testing.assert_allclose(array(model(short)), array(model(padded)), atol=1e-6)
    assert getattr(model.output, "_keras_mask", None) is None


def test_the_mean_of_many_in_bfloat16_is_exact():
    pooled = SequencePooling(dtype="bfloat16")(np.ones((1, 1031, 2), "float32"))
    np.testing.assert_array_equal(array(pooled), 1)
