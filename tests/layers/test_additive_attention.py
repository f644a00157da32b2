import math

import keras
import numpy as np
import pytest

from keras_transformer.layers.additive_attention import AdditiveAttention
from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.ops import causal_mask, valid_length_mask
from tests.layer_check import check_layer
from tests.reference import array, exact, fill, normal, pair


def built(layer, *inputs):
    layer(*inputs)
    return fill(layer)


def weights_by_loops(queries, keys, directions, mask):
    """Every pair of a target and a source by itself; mask (batch, target, source)."""
    batch, heads, target, _ = queries.shape
    weights = np.zeros((batch, heads, target, keys.shape[2]))
    for b, h, t in np.ndindex(batch, heads, target):
        powers = {
            s: math.exp(sum(directions[h] * np.tanh(queries[b, h, t] + keys[b, h, s])))
            for s in range(keys.shape[2])
            if mask is None or mask[b, t, s]
        }
        for s, power in powers.items():
            weights[b, h, t, s] = power / sum(powers.values())
    return weights


def expected(layer, query, value, mask=None):
    """Outputs and weights of a built layer, from its own weights alone."""
    if value is None:
        value, (kernels, biases) = query, pair(layer.query_key_value)
        kernels, biases = np.split(exact(kernels), 3), np.split(exact(biases), 3)
    else:
        kernels = [exact(layer.query.kernel), *np.split(exact(layer.key_value.kernel), 2)]
        biases = [exact(layer.query.bias), *np.split(exact(layer.key_value.bias), 2)]
    heads = []
    for inputs, kernel, bias in zip((query, value, value), kernels, biases, strict=True):
        columns = np.split(inputs @ kernel.T + bias, layer.num_heads, axis=-1)
        heads.append(np.stack(columns, axis=1))
    weights = weights_by_loops(*heads[:2], exact(layer.directions), mask)
    context = np.concatenate(list(np.moveaxis(weights @ heads[2], 1, 0)), axis=-1)
    return context @ exact(layer.output_projection.kernel).T + exact(
        layer.output_projection.bias
    ), weights


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("cross", [False, True])
def test_attention_equals_two_loops_over_targets_and_sources(cross, masked):
    query, source = normal(2, 5, 6), normal(2, 7, 11) if cross else None
    inputs = (query, source) if cross else (query,)
    layer = built(AdditiveAttention(3, key_dim=13), *inputs)
    mask = np.random.uniform(size=(2, 5, 7 if cross else 5)) < 0.6 if masked else None
    outputs, weights = expected(layer, query, source, mask)
    masks = {"attention_mask": keras.ops.array(mask)} if masked else {}
    np.testing.assert_allclose(array(layer(*inputs, **masks)), outputs, atol=1e-5)
    scores = layer.attention_scores(*inputs, **masks)
    np.testing.assert_allclose(array(scores), weights, atol=1e-5)


def weights_of(queries, keys, directions):
    layer = AdditiveAttention(len(directions))
    layer.directions = directions
    return layer.weights_of(queries, keys)


def test_scores_are_those_of_the_layer_of_keras():
    queries, keys, direction = normal(2, 1, 5, 7), normal(2, 1, 3, 7), normal(1, 7)
    layer = keras.layers.AdditiveAttention()
    layer.build([(2, 5, 7), (2, 3, 7), (2, 3, 7)])
    layer.set_weights([direction[0]])
    inputs = [keras.ops.array(x[:, 0]) for x in (queries, keys, keys)]
    _, weights = layer(inputs, return_attention_scores=True)
    ours = weights_of(*map(keras.ops.array, (queries, keys, direction)))
    np.testing.assert_allclose(array(ours)[:, 0], array(weights), atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "bfloat16"])
@pytest.mark.parametrize("cross", [False, True])
def test_a_row_with_nothing_to_attend_to_gives_zeros(dtype, cross):
    query, source = normal(2, 5, 6), normal(2, 7, 4)
    inputs = (query, source) if cross else (query,)
    layer = built(AdditiveAttention(2, use_bias=False, dtype=dtype), *inputs)
    lengths = keras.ops.array([[0, 3, 1, 0, 2], [5, 5, 5, 5, 0]])
    mask = valid_length_mask(lengths, 7 if cross else 5)
    outputs = array(layer(*inputs, attention_mask=mask))
    sums = array(layer.attention_scores(*inputs, attention_mask=mask)).sum(axis=-1)
    nothing = array(lengths) == 0
    assert (outputs[nothing] == 0).all(), "outputs"
    assert np.abs(outputs[~nothing]).min() > 0, "outputs of other rows"
    sums = sums.transpose(0, 2, 1)  # (batch, target, heads)
    assert (sums[nothing] == 0).all(), "attention scores"
    np.testing.assert_allclose(sums[~nothing], 1, atol=0.02, err_msg="scores of other rows")


def test_padding_does_not_change_real_positions():
    query, source = normal(2, 5, 6), normal(2, 7, 4)
    layer = built(AdditiveAttention(2), query, source)
    real = keras.ops.array(np.arange(7) < 3)[None]
    np.testing.assert_allclose(
        array(layer(query, source, padding_mask=real)),
        array(layer(query, source[:, :3])),
        atol=1e-5,
    )


def test_the_softmax_is_computed_in_float32_under_bfloat16():
    # Keys far from zero: every tanh is exactly one or minus one, and no score is rounded.
    signs = np.random.choice([-64.0, 64.0], size=(1, 1, 1009, 2))
    directions = np.array([[1.0, 2.0]])
    weights = weights_of(
        keras.ops.zeros((1, 1, 1, 2), dtype="bfloat16"),
        keras.ops.cast(signs, "bfloat16"),
        keras.ops.array(directions, dtype="float32"),
    )
    assert keras.backend.standardize_dtype(weights.dtype) == "bfloat16"
    exactly = weights_by_loops(np.zeros((1, 1, 1, 2)), signs, directions, None)
    np.testing.assert_allclose(array(weights), exactly, rtol=2**-8)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "bfloat16"])
def test_steps_with_a_cache_equal_one_causal_pass(dtype):
    inputs = normal(2, 5, 6)
    layer = built(AdditiveAttention(3, dtype=dtype), inputs)
    whole = array(layer(inputs, attention_mask=causal_mask(5)))
    inputs = keras.ops.cast(inputs, layer.compute_dtype)
    cache = (keras.ops.zeros((2, 3, 0, 2), layer.compute_dtype),) * 2
    for position in range(5):
        outputs, cache = layer.step(inputs[:, position, None], cache, None)
        np.testing.assert_allclose(
            array(outputs)[:, 0],
            whole[:, position],
            atol=1e-5 if dtype == "float32" else 0.03,
            err_msg=f"position {position}",
        )


def test_attention_to_a_kept_memory_equals_a_call():
    query, source = normal(2, 5, 6), normal(2, 7, 4)
    layer = built(AdditiveAttention(2), query, source)
    mask = np.random.uniform(size=(2, 5, 7)) < 0.6
    keys, values = layer.keys_values(keras.ops.array(source))
    outputs = layer.attend_to(keras.ops.array(query), keys, values, keras.ops.array(mask))
    of_call, _ = expected(layer, query, source, mask)
    np.testing.assert_allclose(array(outputs), of_call, atol=1e-5)


def test_dropout_acts_in_training_only():
    inputs = normal(2, 5, 6)
    layer = built(AdditiveAttention(2, dropout=0.5), inputs)
    calm, training = array(layer(inputs)), array(layer(inputs, training=True))
    np.testing.assert_array_equal(calm, array(layer(inputs, training=False)))
    assert np.abs(calm - training).max() > 1e-3, "weights are dropped"


def test_each_head_has_a_direction_of_its_own_within_the_glorot_limit():
    layer = AdditiveAttention(5, key_dim=53)
    layer(normal(2, 3, 6))
    directions = exact(layer.directions)
    assert directions.shape == (5, 53), "(heads, key_dim)"
    limit = np.sqrt(6 / (53 + 1))
    assert (np.abs(directions).max(axis=1) <= limit).all(), "of one projection to one number"
    assert (np.abs(directions).max(axis=1) > 0.8 * limit).all(), "each head has the whole range"
    assert np.unique(directions).size == directions.size, "each head is drawn by itself"


@pytest.mark.parametrize("cross", [False, True])
def test_it_passes_every_check(cross, tmp_path):
    inputs = (normal(2, 5, 6), normal(2, 3, 4))[: 2 if cross else 1]
    weights = (6 if cross else 4) + 1
    check_layer(AdditiveAttention, {"num_heads": 3}, inputs, (2, 5, 6), weights, tmp_path)


def test_it_has_the_arguments_and_the_methods_of_the_dot_product():
    config = {"num_heads": 3, "key_dim": 7, "dropout": 0.1, "use_bias": False, "name": "same"}
    additive, dot_product = AdditiveAttention(**config), MultiHeadAttention(**config)
    assert additive.get_config() == dot_product.get_config()
    with pytest.raises(ValueError, match=r"divisible by num_heads.*hidden_dim=7, num_heads=2"):
        AdditiveAttention(2)(normal(2, 3, 7))
