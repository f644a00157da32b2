import keras
import numpy as np
import pytest

from keras_transformer.layers import (
    Encoder,
    MultiHeadAttention,
    TokenEmbedding,
)
from keras_transformer.ops import causal_mask, padding_mask, valid_length_mask
from tests import reference
from tests.reference import array, exact, fill, normal


def built(layer, *inputs):
    layer(*inputs)
    return fill(layer)


def test_self_attention_equals_numpy():
    inputs = normal(2, 5, 6)
    layer = built(MultiHeadAttention(3), inputs)
    outputs, weights = reference.multi_head_attention(layer, inputs)
    np.testing.assert_allclose(array(layer(inputs)), outputs, atol=1e-5)
    np.testing.assert_allclose(array(layer.attention_scores(inputs)), weights, atol=1e-5)


def test_cross_attention_equals_numpy_with_another_width_of_source_and_head():
    query, source = normal(2, 5, 6), normal(2, 7, 11)
    layer = built(MultiHeadAttention(3, key_dim=13), query, source)
    outputs, weights = reference.multi_head_attention(layer, query, source)
    np.testing.assert_allclose(array(layer(query, source)), outputs, atol=1e-5)
    np.testing.assert_allclose(array(layer.attention_scores(query, source)), weights, atol=1e-5)


@pytest.mark.parametrize("lora", [None, {"rank": 2, "alpha": 3.0, "targets": ["key", "value"]}])
def test_a_key_of_its_own_comes_third_as_in_keras(lora):
    query, value, key = normal(2, 5, 6), normal(2, 7, 11), normal(2, 7, 11)
    layer = built(MultiHeadAttention(3, key_dim=13, lora=lora), query, value)
    keys, values = (layer.keys_values(each)[index] for index, each in enumerate((key, value)))
    expected = layer.attend_to(query, keys, values)
    np.testing.assert_allclose(array(layer(query, value, key)), array(expected), atol=1e-5)
    scores = array(layer.attention_scores(query, key))
    np.testing.assert_allclose(array(layer.attention_scores(query, value, key)), scores, atol=1e-6)
    theirs = keras.layers.MultiHeadAttention(3, 13)
    inputs = keras.Input((None, 6)), keras.Input((None, 11)), keras.Input((None, 11))
    assert layer(*inputs).shape == theirs(*inputs).shape
    for wrong in (None, normal(2, 7, 6)), (value, normal(2, 6, 11)):
        with pytest.raises(ValueError, match=r"key must have the shape of value.*Received: "):
            layer(query, *wrong)


def test_a_key_may_have_a_length_that_is_not_known():
    layer = MultiHeadAttention(2)
    inputs = keras.Input((None, 6)), keras.Input((7, 6)), keras.Input((None, 6))
    assert layer(*inputs).shape == (None, None, 6)


def test_masks_are_given_by_name():
    """The third argument is Keras's key."""
    layer, mask = MultiHeadAttention(2), np.ones((2, 5), bool)
    with pytest.raises(ValueError, match=r"key must have the shape of value"):
        layer(normal(2, 5, 6), normal(2, 5, 6), mask)
    with pytest.raises(TypeError, match="positional"):
        layer(normal(2, 5, 6), normal(2, 5, 6), normal(2, 5, 6), mask)


def test_both_masks_given_allow_what_both_allow():
    inputs = normal(2, 5, 6)
    real = np.array([[True] * 3 + [False] * 2, [True] * 5])
    layer = built(MultiHeadAttention(2), inputs)
    computed = layer(inputs, padding_mask=keras.ops.array(real), attention_mask=causal_mask(5))
    mask = real[:, None] & np.tril(np.ones((5, 5), bool))
    expected, _ = reference.multi_head_attention(layer, inputs, mask=mask)
    np.testing.assert_allclose(array(computed), expected, atol=1e-5)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a graph of TensorFlow")
@pytest.mark.parametrize("num_key_value_heads", [None, 1, 2])
def test_a_mask_for_all_targets_is_broadcast_where_lengths_are_unknown(num_key_value_heads):
    import tensorflow as tf

    inputs, mask = normal(2, 4, 8), np.array([[[True] * 3 + [False]], [[False, True] * 2]])
    layer = built(MultiHeadAttention(4, num_key_value_heads=num_key_value_heads), inputs)
    vectors, allowed = keras.Input((None, 8)), keras.Input((None, None), dtype="bool")
    model = keras.Model([vectors, allowed], layer(vectors, attention_mask=allowed))
    expected = array(layer(inputs, attention_mask=keras.ops.array(np.repeat(mask, 4, 1))))
    specs = tf.TensorSpec((None, None, 8)), tf.TensorSpec((None, None, None), "bool")
    compute = tf.function(lambda *inputs: model(inputs), specs, autograph=False)
    for given in (mask, np.repeat(mask, 4, 1)):
        outputs = array(compute(array(inputs), given))
        np.testing.assert_allclose(outputs, expected, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "bfloat16"])
@pytest.mark.parametrize("cross", [False, True])
def test_a_row_with_nothing_to_attend_to_gives_zeros(dtype, cross):
    query, source = normal(2, 5, 6), normal(2, 7, 4)
    inputs = (query, source) if cross else (query,)
    # Without a bias of the output: what nothing adds to is the context.
    layer = built(MultiHeadAttention(2, use_bias=False, dtype=dtype), *inputs)
    lengths = keras.ops.array([[0, 3, 1, 0, 2], [5, 5, 5, 5, 0]])
    mask = valid_length_mask(lengths, 7 if cross else 5)
    outputs = array(layer(*inputs, attention_mask=mask))
    scores = array(layer.attention_scores(*inputs, attention_mask=mask))
    nothing = array(lengths) == 0
    assert (outputs[nothing] == 0).all(), "outputs"
    assert np.abs(outputs[~nothing]).min() > 0, "outputs of other rows"
    sums = scores.sum(axis=-1).transpose(0, 2, 1)
    assert (sums[nothing] == 0).all(), "attention scores"
    np.testing.assert_allclose(sums[~nothing], 1, atol=0.02, err_msg="scores of other rows")


def test_a_batch_of_nothing_but_padding_has_gradients_without_nan():
    ids = np.zeros((2, 3), "int32")
    model = keras.Sequential([keras.Input((3,), dtype="int32"), TokenEmbedding(5, 6)])
    model.add(MultiHeadAttention(2))
    model.compile("sgd", loss="mse", jit_compile=False)
    model.fit(ids, normal(2, 3, 6), verbose=0)
    assert all(np.isfinite(array(weight)).all() for weight in model.weights), "finite weights"


@pytest.mark.parametrize("jit", [False, True])
def test_the_implicit_mask_of_keras_is_respected(jit):
    layers = [
        TokenEmbedding(11, 6),
        Encoder(2, num_heads=2, intermediate_dim=7),
        MultiHeadAttention(3),
    ]
    model = keras.Sequential(layers)
    ids = np.array([[3, 5, 2, 0, 0], [4, 4, 4, 9, 2]], "int32")

    def outputs(ids):
        # `predict` compiles: under JAX, masks are then not attributes of tensors.
        return model.predict(ids, verbose=0) if jit else array(model(ids))

    np.testing.assert_allclose(
        outputs(ids)[0, :3], outputs(ids[:1, :3])[0], atol=1e-5, err_msg="padding in a batch"
    )
    explicit = keras.ops.array(np.ones((2, 5), bool))
    vectors = layers[0](ids)
    masked, unmasked = layers[2](vectors), layers[2](vectors, padding_mask=explicit)
    assert np.abs(array(masked) - array(unmasked)).max() > 1e-3, "a given mask comes first"


def test_the_mask_goes_on_to_the_next_layer():
    ids = np.array([[3, 5, 0]], "int32")
    vectors = MultiHeadAttention(2)(TokenEmbedding(11, 6)(ids))
    again = MultiHeadAttention(2)
    np.testing.assert_allclose(
        array(again(vectors)), array(again(vectors, padding_mask=padding_mask(ids))), atol=1e-6
    )
    assert np.abs(array(again(vectors)) - array(again(array(vectors)))).max() > 1e-3, (
        "without a mask the answer is another"
    )


def test_each_projection_has_the_glorot_limit_of_its_own_shape():
    query, source = normal(2, 3, 30), normal(2, 3, 51)
    own, cross = MultiHeadAttention(5), MultiHeadAttention(5, key_dim=11)
    own(query)
    cross(query, source)
    projections = [
        *((part, 30, 30) for part in np.split(exact(own.query_key_value.kernel), 3)),
        (exact(own.output_projection.kernel), 30, 30),
        (exact(cross.query.kernel), 55, 30),
        *((part, 55, 51) for part in np.split(exact(cross.key_value.kernel), 2)),
        (exact(cross.output_projection.kernel), 30, 55),
    ]
    for kernel, rows, columns in projections:
        assert kernel.shape == (rows, columns), "one projection"
        limit = np.sqrt(6 / (rows + columns))
        assert 0.97 * limit < np.abs(kernel).max() <= limit, "uniform up to the Glorot limit"
    query_kernel, key_kernel, value_kernel = (part for part, _, _ in projections[:3])
    assert not np.allclose(query_kernel, key_kernel), "projections are drawn one by one"
    assert not np.allclose(key_kernel, value_kernel), "projections are drawn one by one"


def test_dropout_acts_in_training_only():
    inputs = normal(2, 5, 6)
    layer = built(MultiHeadAttention(2, dropout=0.5), inputs)
    calm, training = array(layer(inputs)), array(layer(inputs, training=True))
    np.testing.assert_array_equal(calm, array(layer(inputs, training=False)))
    assert np.abs(calm - training).max() > 1e-3, "weights are dropped"


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "bfloat16"])
def test_steps_with_a_cache_equal_one_causal_pass(dtype):
    inputs = normal(2, 5, 6)
    layer = built(MultiHeadAttention(3, dtype=dtype), inputs)
    expected = array(layer(inputs, attention_mask=causal_mask(5)))
    inputs = keras.ops.cast(inputs, layer.compute_dtype)
    cache = (keras.ops.zeros((2, 3, 0, 2), layer.compute_dtype),) * 2
    for position in range(5):
        outputs, cache = layer.step(inputs[:, position, None], cache, None)
        np.testing.assert_allclose(
            array(outputs)[:, 0],
            expected[:, position],
            atol=1e-5 if dtype == "float32" else 0.03,
            err_msg=f"position {position}",
        )
    assert tuple(cache[0].shape) == (2, 3, 5, 2), "the cache holds every position"


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"divisible by num_heads.*hidden_dim=7, num_heads=2"):
        MultiHeadAttention(2)(normal(2, 3, 7))
