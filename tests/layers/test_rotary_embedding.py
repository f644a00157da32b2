"""Rotary positions: against KerasHub, by hand, and what makes them positions."""

import numpy as np
import pytest

from keras_transformer.layers import MultiHeadAttention, RotaryEmbedding
from keras_transformer.ops.positions import rotary_rates
from tests.layer_check import check_layer
from tests.reference import array, fill, normal

LLAMA3 = {"type": "llama3", "factor": 8.0, "low_frequency": 1.0, "high_frequency": 4.0,
          "original_length": 64}  # fmt: skip


def test_layer_passes_every_check(tmp_path):
    arguments = {"max_wavelength": 100, "rotary_dim": 4, "interleaved": True}
    check_layer(RotaryEmbedding, arguments, (normal(2, 5, 6),), (2, 5, 6), 0, tmp_path)


@pytest.mark.parametrize("start", [0, 3])
@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_rotation_equals_keras_hub(start, factor):
    hub = pytest.importorskip("keras_hub").layers
    theirs = hub.RotaryEmbedding(max_wavelength=500, scaling_factor=factor, sequence_axis=2)
    scaling = None if factor == 1 else {"type": "linear", "factor": factor}
    ours = RotaryEmbedding(max_wavelength=500, scaling=scaling)
    heads = normal(2, 3, 7, 8)
    expected = theirs(heads, start_index=start)
    np.testing.assert_allclose(array(ours(heads, start=start)), array(expected), atol=1e-5)


@pytest.mark.parametrize("interleaved", [False, True])
def test_pairs_turn_by_the_position_times_their_rate(interleaved):
    layer = RotaryEmbedding(max_wavelength=100, interleaved=interleaved)
    vectors = normal(2, 5, 4)
    computed = array(layer(vectors))
    pairs = ((0, 1), (2, 3)) if interleaved else ((0, 2), (1, 3))
    for position in range(5):
        for (i, j), rate in zip(pairs, (1.0, 0.1), strict=True):
            turned = (vectors[:, position, i] + 1j * vectors[:, position, j]) * np.exp(
                1j * rate * position
            )
            np.testing.assert_allclose(computed[:, position, i], turned.real, atol=1e-5)
            np.testing.assert_allclose(computed[:, position, j], turned.imag, atol=1e-5)


def test_a_part_of_the_columns_stays_as_it_is():
    vectors = normal(2, 5, 6)
    computed = array(RotaryEmbedding(rotary_dim=4)(vectors))
    np.testing.assert_array_equal(computed[..., 4:], vectors[..., 4:])
    np.testing.assert_allclose(computed[..., :4], array(RotaryEmbedding()(vectors[..., :4])))


def test_products_see_distances_only():
    layer = RotaryEmbedding(max_wavelength=50)
    query, key = normal(1, 1, 6), normal(1, 1, 6)
    products = [
        float(np.sum(array(layer(query, start=start + 3)) * array(layer(key, start=start))))
        for start in (0, 11, 29)
    ]
    np.testing.assert_allclose(products, products[0], atol=1e-4)


def test_a_step_is_the_call_at_its_position():
    layer, vectors = RotaryEmbedding(), normal(2, 7, 4)
    expected = array(layer(vectors))
    for position in range(7):
        beams = np.repeat(vectors[:, position : position + 1], 3, axis=1)
        computed = array(layer.step(beams, position))
        np.testing.assert_allclose(computed, np.repeat(expected[:, position : position + 1], 3, 1),
                                   atol=1e-6)  # fmt: skip


def test_rates_of_scalings():
    plain = np.array(rotary_rates(8, 10000))
    np.testing.assert_allclose(rotary_rates(8, 10000, {"type": "linear", "factor": 4.0}), plain / 4)
    # NTK: the shortest wavelength stays, the longest is `factor` times as long.
    stretched = rotary_rates(8, 10000, {"type": "ntk", "factor": 4.0})
    np.testing.assert_allclose([stretched[0], stretched[-1]], [plain[0], plain[-1] / 4])
    rates = rotary_rates(8, 10000, LLAMA3)
    turns = plain * 64 / (2 * np.pi)  # 10.2, 1.02, 0.1, 0.01
    share = (turns[1] - 1) / 3
    np.testing.assert_allclose(rates, plain * [1, share + (1 - share) / 8, 1 / 8, 1 / 8], rtol=1e-6)


def test_long_positions_stay_exact_in_half_precision():
    vectors = normal(1, 1, 8)
    exact, half = (
        RotaryEmbedding(dtype=dtype)(vectors, start=4097) for dtype in ("float32", "bfloat16")
    )
    np.testing.assert_allclose(array(half), array(exact), atol=0.05)


def test_bad_arguments_are_refused():
    for wrong, message in (
        ({"max_wavelength": 0}, "max_wavelength must be a finite number above 0"),
        ({"rotary_dim": 3}, "dim must be even"),
        ({"rotary_dim": 1}, "rotary_dim must be an integer of at least 2"),
        ({"scaling": {"type": "llama3"}}, "scaling must be None or {'type': 'linear'"),
        ({"scaling": {"type": "dynamic", "factor": 2.0}}, "scaling must be None or {'type': 'lin"),
        ({"scaling": {**LLAMA3, "high_frequency": 1.0}}, "high_frequency of scaling must be above"),
        ({"scaling": {**LLAMA3, "original_length": 0}}, "original_length of scaling must be"),
        ({"scaling": {"type": "linear", "factor": -1.0}}, "factor of scaling must be"),
    ):
        with pytest.raises(ValueError, match=rf"{message}.*Received: "):
            RotaryEmbedding(**wrong)
    with pytest.raises(ValueError, match=r"dim must be even.*Received: dim=5"):
        RotaryEmbedding()(normal(2, 3, 5))
    with pytest.raises(ValueError, match=r"rotary_dim must be at most.*Received: rotary_dim=8"):
        RotaryEmbedding(rotary_dim=8)(normal(2, 3, 6))
    with pytest.raises(ValueError, match=r"dim must be even.*Received: dim=3"):
        MultiHeadAttention(2, rotary={})(normal(2, 3, 6))
    with pytest.raises(ValueError, match=r"one sequence.*Received: a value"):
        MultiHeadAttention(2, rotary={})(normal(2, 3, 8), normal(2, 3, 8))


def test_attention_with_rotary_positions_knows_the_order():
    layer, vectors = MultiHeadAttention(2, rotary={}), normal(1, 5, 8)
    layer(vectors)
    fill(layer)
    backwards = array(layer(vectors[:, ::-1]))[:, ::-1]
    assert np.abs(backwards - array(layer(vectors))).max() > 0.01
    plain = MultiHeadAttention(2)
    plain(vectors)
    plain.set_weights(layer.get_weights())
    backwards = array(plain(vectors[:, ::-1]))[:, ::-1]
    np.testing.assert_allclose(backwards, array(plain(vectors)), atol=1e-5)
