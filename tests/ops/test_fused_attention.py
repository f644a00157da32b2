"""Attention as one kernel, on JAX; here by XLA's own implementation, which needs no GPU."""

import functools

import keras
import numpy as np
import pytest

from keras_transformer.layers import MultiHeadAttention
from keras_transformer.ops import attention, chunked_attention, fused_attention
from keras_transformer.ops.positions import spread_by_distance
from keras_transformer.ops.softmax import attention_weights

pytestmark = pytest.mark.skipif(keras.backend.backend() != "jax", reason="JAX's")


def check_drawn(number, kernel, lengths, full_mask):
    """Compares a kernel and its gradients, of drawn tensors and mask, with all weights at once."""
    import jax

    draw = np.random.default_rng(number)
    batch, heads, dim = draw.integers(1, 4, 3)
    target, source = draw.integers(*lengths, 2)
    shapes = [(batch, heads, length, dim) for length in (target, source, source)]
    tensors = [draw.normal(size=shape).astype("float32") for shape in shapes]
    sizes = [(batch, 1, target, source), (1, 1, target, source), (batch, 1, 1, source)]
    if full_mask:
        sizes[1:] = [(batch, heads, target, source), (1, 1, 1, source)]
    mask = None if number == 0 else jax.numpy.array(draw.random(sizes[number % 3]) < 0.4)

    def compared(*tensors):
        return kernel(*tensors, mask)

    def ours(queries, keys, values):
        return jax.numpy.matmul(attention_weights(queries, keys, mask), values)

    upstream = draw.normal(size=shapes[0]).astype("float32")
    for function in (lambda f: f(*tensors), lambda f: jax.vjp(f, *tensors)[1](upstream)):
        for one, other in zip(function(compared), function(ours), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("number", range(6))
def test_drawn_attention_and_its_gradients_equal_ours(number):
    fused = functools.partial(fused_attention.attend_fused, implementation="xla")
    check_drawn(number, fused, (1, 20), full_mask=False)


@pytest.mark.parametrize("number", range(6))
def test_attention_in_chunks_and_its_gradients_equal_ours(number, monkeypatch):
    monkeypatch.setattr(chunked_attention, "CHUNK_ROWS", 7)
    check_drawn(number, chunked_attention.attend_in_chunks, (6, 40), full_mask=True)


def test_biases_by_distance_are_the_same_in_chunks(monkeypatch):
    import jax

    monkeypatch.setattr(chunked_attention, "CHUNK_ROWS", 4)
    draw = np.random.default_rng(3)
    shapes = [(2, 3, 9, 4), (2, 3, 7, 4), (2, 3, 7, 5), (1, 3, 16)]
    tensors = [draw.normal(size=shape).astype("float32") for shape in shapes]
    mask = jax.numpy.array(draw.random((2, 1, 9, 7)) < 0.7)

    def in_chunks(queries, keys, values, bias):
        return chunked_attention.attend_in_chunks(
            queries, keys, values, mask, jax.numpy.array(bias), soft_cap=0.7
        )

    def at_once(queries, keys, values, bias):
        bias = spread_by_distance(jax.numpy.array(bias), 9)
        return jax.numpy.matmul(attention_weights(queries, keys, mask, bias, 0.7), values)

    upstream = draw.normal(size=(2, 3, 9, 5)).astype("float32")
    for function in (lambda f: [f(*tensors)], lambda f: jax.vjp(f, *tensors)[1](upstream)):
        for one, other in zip(function(in_chunks), function(at_once), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)


def test_chunks_drop_weights_at_the_rate_and_alike_in_both_passes(monkeypatch):
    import jax

    monkeypatch.setattr(chunked_attention, "CHUNK_ROWS", 7)
    shape, rate = (2, 3, 50, 8), 0.25
    draw = np.random.default_rng(0)
    queries, keys = (draw.normal(size=shape).astype("float32") for _ in range(2))
    values = np.ones(shape, "float32")  # each context is the sum of the kept weights

    def attend(values):
        seed = keras.random.SeedGenerator(3)
        return chunked_attention.attend_in_chunks(queries, keys, values, rate=rate, seed=seed)

    contexts, gradients_of = jax.vjp(attend, values)
    assert abs(float(contexts.mean()) - 1) < 0.02 and float(contexts.std()) > 0.01
    again = attend(values)
    np.testing.assert_allclose(contexts, again, atol=1e-5)  # compiled otherwise
    # What the values get back is the same weights, transposed.
    upstream = draw.normal(size=shape).astype("float32")
    forward = (np.asarray(attend(upstream)) * values).sum()
    backward = (np.asarray(gradients_of(values)[0]) * upstream).sum()
    np.testing.assert_allclose(forward, backward, rtol=1e-4)


def test_a_layer_uses_it_on_a_gpu_in_half_precision_without_dropout_or_scores(monkeypatch):
    calls, fused = [], fused_attention.attend_fused

    def counted(*arguments):
        calls.append(arguments)
        return fused(*arguments, implementation="xla")

    monkeypatch.setattr(attention, "attend_fused", counted)
    layer = MultiHeadAttention(2, dropout=0.5, dtype="mixed_bfloat16")
    inputs = keras.random.normal((3, 6, 16))
    expected = layer(inputs)
    assert not calls, "there is no GPU"
    monkeypatch.setattr(fused_attention, "has_gpu", lambda: True)
    np.testing.assert_allclose(layer(inputs), expected, atol=0.02)
    assert len(calls) == 1
    layer(inputs, training=True)
    layer.attention_scores(inputs)
    layer(inputs[:, :5])  # cuDNN has no kernel for odd lengths with a mask
    MultiHeadAttention(2)(inputs)  # nor for float32
    assert len(calls) == 1
