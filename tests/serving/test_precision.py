import keras
import numpy as np
import pytest

from keras_transformer.models import with_dtype
from keras_transformer.models.bert_models import bert, bert_classifier
from keras_transformer.models.encoder_decoder import translation
from keras_transformer.models.xl_model import transformer_xl

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
    model = translation(13, dtype=dtype, normalize_first=False, **SMALL)
    copy = with_dtype(model, "bfloat16")
    assert {weight.dtype for weight in copy.weights} == {"bfloat16"}
    assert {weight.dtype for weight in model.weights} == {"float32"}
    assert [layer.name for layer in copy.layers] == [layer.name for layer in model.layers]
    assert keras.backend.standardize_dtype(copy(IDS).dtype) == "float32"
    np.testing.assert_allclose(copy(IDS), model(IDS), atol=0.1)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("served", ["float32", "bfloat16"])
def test_a_copy_of_a_transformer_xl_writes_in_its_dtype(dtype, served):
    sizes = {name: value for name, value in SMALL.items() if name != "size"}
    model = transformer_xl(13, 1, memory_length=3, dtype=dtype, start_id=2, **sizes)
    copy = with_dtype(model, served)
    assert {weight.dtype for weight in copy.weights} == {served}
    ids, cache, logits = np.array([[2, 5, 7, 11]]), copy.start_cache(1), []
    for position in range(4):
        scores, cache = copy.step(ids[:, position, None], np.array([[0]]), position, cache)
        logits.append(scores[:, 0])
    expected = np.array(copy(ids))
    atol = 1e-5 if served == "float32" else 0.1
    np.testing.assert_allclose(np.stack(logits, axis=1), expected, atol=atol)
    np.testing.assert_allclose(expected, model(ids), atol=0.1)


def test_a_bfloat16_copy_of_a_model_with_operations_between_its_layers():
    model = bert_classifier(bert(13, **SMALL), num_labels=3, pooling="mean")
    operations = {type(operation).__name__ for operation in model.operations}
    assert "NotEqual" in operations, "which takes no dtype"
    copy = with_dtype(model, "bfloat16")
    dtypes = {weight.dtype for layer in copy.layers for weight in layer.weights}
    assert dtypes == {"bfloat16", "float32"}, "the latter of the head"
    inputs = {"token_ids": np.array([[2, 5, 3, 0]]), "segment_ids": np.zeros((1, 4), "int32")}
    np.testing.assert_allclose(copy(inputs), model(inputs), atol=0.1)


def test_another_dtype_is_refused():
    with pytest.raises(ValueError, match="Received: dtype='int8'"):
        with_dtype(translation(13, **SMALL), "int8")
