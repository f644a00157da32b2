import keras
import numpy as np
import pytest

from keras_transformer.layers import TokenEmbedding
from keras_transformer.layers.relative_attention import RelativeAttention
from keras_transformer.ops.masks import beam_mask
from tests import reference
from tests.layer_check import check_layer
from tests.reference import array, fill, normal

POLICIES = pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "bfloat16"])


def built(num_heads=3, dim=6, **arguments):
    layer = RelativeAttention(num_heads, **arguments)
    layer(normal(2, 5, dim))
    return fill(layer)


@pytest.mark.parametrize("with_memory", [False, True])
@pytest.mark.parametrize(
    "arguments", [{}, {"key_dim": 11, "use_bias": True}, {"num_heads": 1}], ids=str
)
def test_outputs_and_weights_are_those_of_a_loop_over_targets_and_sources(arguments, with_memory):
    layer, inputs = built(**arguments), normal(2, 5, 6)
    memory = normal(2, 7, 6) if with_memory else None
    outputs, weights = reference.relative_attention(layer, inputs, memory)
    np.testing.assert_allclose(array(layer(inputs, memory)), outputs, atol=1e-5)
    np.testing.assert_allclose(array(layer.attention_scores(inputs, memory)), weights, atol=1e-5)


def test_both_masks_given_allow_what_both_and_causality_allow():
    layer, inputs, memory = built(), normal(2, 5, 6), normal(2, 7, 6)
    real, allowed = np.random.uniform(size=(2, 12)) < 0.7, np.random.uniform(size=(2, 5, 12)) < 0.7
    expected, _ = reference.relative_attention(layer, inputs, memory, real[:, None] & allowed)
    masks = {"padding_mask": keras.ops.array(real), "attention_mask": keras.ops.array(allowed)}
    np.testing.assert_allclose(array(layer(inputs, memory, **masks)), expected, atol=1e-5)


@POLICIES
def test_a_row_with_nothing_to_attend_to_gives_zeros(dtype):
    layer, inputs, memory = built(dtype=dtype), normal(2, 5, 6), normal(2, 7, 6)
    allowed = np.ones((2, 5, 12), bool)
    allowed[0, 3] = allowed[1, 0] = False
    mask = keras.ops.array(allowed)
    outputs = array(layer(inputs, memory, attention_mask=mask))
    nothing = ~allowed.any(axis=-1)
    assert (outputs[nothing] == 0).all() and (outputs[~nothing] != 0).all()
    sums = array(layer.attention_scores(inputs, memory, attention_mask=mask)).sum(axis=-1)
    np.testing.assert_allclose(sums[0, :, 3], 0, atol=0)
    np.testing.assert_allclose(sums[0, :, 2], 1, atol=0.02)


def test_the_implicit_mask_of_keras_is_respected_and_all_of_the_memory_seen():
    layer, memory, ids = built(), normal(2, 7, 6), np.array([[3, 0, 2], [4, 9, 2]], "int32")
    vectors = TokenEmbedding(11, 6)(ids)
    real = np.concatenate([np.ones((2, 7), bool), ids != 0], axis=1)
    for given, mask in ((None, ids != 0), (memory, real)):
        expected, _ = reference.relative_attention(layer, array(vectors), given, mask[:, None])
        np.testing.assert_allclose(array(layer(vectors, given))[0, 2], expected[0, 2], atol=1e-5)
        without = array(layer(array(vectors), given))
        assert np.abs(without - expected)[0, 2].max() > 1e-3, "without a mask it is another"


def test_future_tokens_do_not_change_past_outputs():
    layer, inputs, memory = built(), normal(2, 5, 6), normal(2, 7, 6)
    changed = np.concatenate([inputs[:, :3], normal(2, 2, 6)], axis=1)
    before, after = array(layer(inputs, memory)), array(layer(changed, memory))
    np.testing.assert_allclose(after[:, :3], before[:, :3], atol=1e-6, err_msg="the past")
    assert np.abs(after[:, 3:] - before[:, 3:]).min() > 1e-5, "the future itself"


@pytest.mark.parametrize("past", [0, 1, 4, 9])
def test_where_a_text_is_cut_into_memory_and_query_makes_no_difference(past):
    layer, text = built(), normal(2, 11, 6)
    whole = array(layer(text))
    cut = array(layer(text[:, past:], text[:, :past]))
    np.testing.assert_allclose(cut, whole[:, past:], atol=1e-5)


@POLICIES
def test_steps_with_a_cache_equal_one_pass(dtype):
    layer, inputs = built(dtype=dtype), normal(2, 5, 7, 6)  # (batch, target, beams, dim)
    own = np.tile(np.arange(7), (2, 1))
    cache, mask = layer.empty_cache(2), keras.ops.zeros((2, 7, 0), "bool")
    steps = []
    for position in range(5):
        mask = beam_mask(mask, own)
        vectors = keras.ops.cast(inputs[:, position], layer.compute_dtype)
        outputs, cache = layer.step(vectors, cache, mask)
        steps.append(array(outputs))
    shapes = [tuple(part.shape) for part in cache]
    assert shapes == [(2, 3, 35, 2), (2, 3, 35, 2), (2, 3, 5, 2)], "keys, values, distances"
    for beam in range(7):
        expected = array(layer(inputs[:, :, beam]))
        np.testing.assert_allclose(
            np.stack(steps, axis=1)[:, :, beam], expected, atol=1e-5 if dtype == "float32" else 0.05
        )


def test_one_head_reads_a_long_text():
    """TensorFlow with oneDNN crashed on this product."""
    layer, inputs = built(num_heads=1), normal(4, 257, 6)
    np.testing.assert_allclose(array(layer(inputs))[:, :5], array(layer(inputs[:, :5])), atol=1e-5)


def test_a_single_beam_needs_no_mask():
    layer, inputs = built(), normal(2, 5, 6)
    cache = layer.empty_cache(2)
    for position in range(5):
        outputs, cache = layer.step(keras.ops.array(inputs[:, position, None]), cache, None)
        expected = array(layer(inputs))[:, position]
        np.testing.assert_allclose(array(outputs)[:, 0], expected, atol=1e-5)


def test_dropout_acts_in_training_only():
    layer, inputs = built(dropout=0.5), normal(2, 5, 6)
    np.testing.assert_array_equal(array(layer(inputs)), array(layer(inputs, training=False)))
    assert np.abs(array(layer(inputs)) - array(layer(inputs, training=True))).max() > 1e-3


def test_a_batch_of_zero_rows_works():
    layer = built()
    none = keras.ops.zeros((0, 5, 6))
    assert tuple(layer(none, keras.ops.zeros((0, 7, 6))).shape) == (0, 5, 6)
    outputs, _ = layer.step(none, layer.empty_cache(0), keras.ops.zeros((0, 5, 5), "bool"))
    assert tuple(outputs.shape) == (0, 5, 6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "num_weights", "with_memory"),
    [({"num_heads": 2}, 5, False), ({"num_heads": 5, "key_dim": 3, "use_bias": True}, 7, True)],
)
def test_layer_passes_every_check(arguments, num_weights, with_memory, tmp_path):
    inputs = (normal(2, 5, 6), normal(2, 3, 6))[: 1 + with_memory]
    check_layer(RelativeAttention, arguments, inputs, (2, 5, 6), num_weights, tmp_path)


def test_widths_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"dim must be even.*Received: dim=9"):
        RelativeAttention(3)(normal(2, 5, 9))
    with pytest.raises(ValueError, match=r"hidden_dim=10, num_heads=3"):
        RelativeAttention(3)(normal(2, 5, 10))
