"""Encoder and decoder, block and stack: one formula, seen from several sides."""

import keras
import numpy as np
import pytest

from keras_transformer.layers import (
    Decoder,
    DecoderBlock,
    Encoder,
    EncoderBlock,
    PositionEmbedding,
    SinusoidalEncoding,
    TokenEmbedding,
    TransformerXL,
)
from keras_transformer.layers.residual import Residual
from keras_transformer.ops import causal_mask, local_mask
from keras_transformer.ops.masks import beam_mask
from tests import reference
from tests.reference import array, exact, fill, normal

NORMS = pytest.mark.parametrize("normalize_first", [True, False], ids=["pre-norm", "post-norm"])
POLICIES = pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "bfloat16"])
PAIRS = pytest.mark.parametrize(
    ("normalize_first", "dtype"),
    [(True, "float32"), (False, "float32"), (True, "bfloat16"), (False, "mixed_bfloat16")],
)
REAL = np.array([[True] * 3 + [False] * 2, [True] * 5])
SOURCE_REAL = np.array([[True] * 7, [True] * 2 + [False] * 5])


def encoder(normalize_first=True, **arguments):
    layer = Encoder(
        2, num_heads=3, intermediate_dim=7, normalize_first=normalize_first, **arguments
    )
    layer(normal(2, 5, 6))
    return fill(layer)


def decoder(normalize_first=True, **arguments):
    layer = Decoder(
        2, num_heads=3, intermediate_dim=7, normalize_first=normalize_first, **arguments
    )
    layer(normal(2, 5, 6), normal(2, 7, 11))
    return fill(layer)


@NORMS
def test_encoder_and_its_scores_equal_numpy(normalize_first):
    layer, inputs = encoder(normalize_first), normal(2, 5, 6)
    outputs, weights = reference.stack(layer, reference.encoder_block, inputs, REAL[:, None])
    given = {"padding_mask": keras.ops.array(REAL)}
    np.testing.assert_allclose(array(layer(inputs, **given)), outputs, atol=1e-5)
    scores = layer.attention_scores(keras.ops.array(inputs), **given)
    assert len(scores) == 2, "one tensor a block"
    for computed, expected in zip(scores, weights, strict=True):
        np.testing.assert_allclose(array(computed), expected, atol=1e-5, err_msg="scores")
        np.testing.assert_allclose(array(computed).sum(axis=-1), 1, rtol=1e-5, err_msg="sums")


@NORMS
def test_decoder_and_its_scores_equal_numpy(normalize_first):
    layer, inputs, source = decoder(normalize_first), normal(2, 5, 6), normal(2, 7, 11)
    outputs, weights = reference.stack(
        layer, reference.decoder_block, inputs, source, REAL[:, None], SOURCE_REAL[:, None]
    )
    given = {
        "padding_mask": keras.ops.array(REAL),
        "source_padding_mask": keras.ops.array(SOURCE_REAL),
    }
    np.testing.assert_allclose(array(layer(inputs, source, **given)), outputs, atol=1e-5)
    scores = layer.attention_scores(keras.ops.array(inputs), keras.ops.array(source), **given)
    assert len(scores) == 2, "one pair a block"
    for computed, expected in zip(scores, weights, strict=True):
        for name, ours, theirs in zip(("self", "cross"), computed, expected, strict=True):
            np.testing.assert_allclose(array(ours), theirs, atol=1e-5, err_msg=name)
            np.testing.assert_allclose(array(ours).sum(axis=-1), 1, rtol=1e-5, err_msg=name)


@POLICIES
def test_scores_are_shown_for_whatever_may_be_called(dtype):
    # NumPy, float32 tensors under any policy, and tensors with an implicit mask.
    layer, inputs, source = decoder(dtype=dtype), normal(2, 5, 6), normal(2, 7, 11)
    tensors = keras.ops.array(inputs), keras.ops.array(source)
    for given in ((inputs, source), tensors):
        for _, cross in layer.attention_scores(*given):
            assert keras.backend.standardize_dtype(cross.dtype) == layer.compute_dtype, "dtype"
    ids = np.array([[3, 5, 2, 0, 0]], "int32")
    for scores in encoder(dtype=dtype).attention_scores(TokenEmbedding(11, 6)(ids)):
        assert (array(scores)[..., 3:] == 0).all(), "the implicit mask is respected"


def test_a_block_alone_shows_the_scores_of_its_call():
    inputs, source = normal(2, 5, 6), normal(2, 7, 11)
    tensors = keras.ops.array(inputs), keras.ops.array(source)
    block = EncoderBlock(num_heads=3, intermediate_dim=7)
    block(inputs)
    _, weights = reference.encoder_block(fill(block), inputs)
    np.testing.assert_allclose(array(block.attention_scores(tensors[0])), weights, atol=1e-5)
    block = DecoderBlock(num_heads=3, intermediate_dim=7)
    block(inputs, source)
    _, weights = reference.decoder_block(fill(block), inputs, source)
    for ours, theirs in zip(block.attention_scores(*tensors), weights, strict=True):
        np.testing.assert_allclose(array(ours), theirs, atol=1e-5)


@NORMS
def test_an_attention_mask_further_limits_the_self_attention(normalize_first):
    mask = np.abs(np.arange(5)[:, None] - np.arange(5)) <= 1
    layer, inputs = encoder(normalize_first), normal(2, 5, 6)
    expected, _ = reference.stack(layer, reference.encoder_block, inputs, mask[None])
    computed = layer(inputs, attention_mask=local_mask(5, radius=1))
    np.testing.assert_allclose(array(computed), expected, atol=1e-5, err_msg="encoder")
    layer, source = decoder(normalize_first), normal(2, 7, 11)
    expected, _ = reference.stack(layer, reference.decoder_block, inputs, source, mask[None])
    computed = layer(inputs, source, attention_mask=local_mask(5, radius=1))
    np.testing.assert_allclose(array(computed), expected, atol=1e-5, err_msg="decoder")


@NORMS
def test_future_tokens_do_not_change_past_outputs(normalize_first):
    layer, inputs, source = decoder(normalize_first), normal(2, 5, 6), normal(2, 7, 11)
    changed = np.concatenate([inputs[:, :3], normal(2, 2, 6)], axis=1)
    before, after = array(layer(inputs, source)), array(layer(changed, source))
    np.testing.assert_allclose(after[:, :3], before[:, :3], atol=1e-6, err_msg="the past")
    assert np.abs(after[:, 3:] - before[:, 3:]).max(axis=2).min() > 1e-4, "the future itself"
    layer = encoder(normalize_first)
    before, after = (array(layer(x, attention_mask=causal_mask(5))) for x in (inputs, changed))
    np.testing.assert_allclose(after[:, :3], before[:, :3], atol=1e-6, err_msg="causal encoder")


@NORMS
def test_padding_does_not_change_real_positions(normalize_first):
    rows, source = normal(2, 5, 6), normal(2, 7, 11)
    given = {"padding_mask": keras.ops.array(REAL)}
    layer = encoder(normalize_first)
    np.testing.assert_allclose(
        array(layer(rows, **given))[0, :3], array(layer(rows[:1, :3]))[0], atol=1e-5
    )
    layer = decoder(normalize_first)
    given["source_padding_mask"] = keras.ops.array(SOURCE_REAL)
    in_batch = array(layer(rows, source, **given))
    np.testing.assert_allclose(
        in_batch[0, :3], array(layer(rows[:1, :3], source[:1]))[0], atol=1e-5
    )
    np.testing.assert_allclose(in_batch[1], array(layer(rows[1:], source[1:, :2]))[0], atol=1e-5)


@PAIRS
def test_a_source_of_nothing_but_padding_adds_nothing(normalize_first, dtype):
    layer = decoder(normalize_first, dtype=dtype)
    for block in layer.blocks:
        block.cross_attention.output_projection.bias.assign(np.zeros(6))
    inputs, source = normal(2, 5, 6), normal(2, 7, 11)
    mask = keras.ops.array(np.array([[False] * 7, [True] * 7]))
    outputs = array(layer(inputs, source, source_padding_mask=mask))
    other = array(layer(inputs, 9 * source, source_padding_mask=mask))
    np.testing.assert_array_equal(other[0], outputs[0], err_msg="the source is not seen")
    assert np.abs(other[1] - outputs[1]).max() > 0.01, "where it is real it is"
    tensors = keras.ops.array(inputs), keras.ops.array(source)
    for _, cross in layer.attention_scores(*tensors, source_padding_mask=mask):
        assert (array(cross)[0] == 0).all(), "scores are zero"
        np.testing.assert_allclose(array(cross)[1].sum(axis=-1), 1, atol=0.02)
    steps = array(_steps(layer, inputs, source, mask))
    tolerance = 1e-5 if dtype == "float32" else 0.15
    np.testing.assert_allclose(steps[:, :, 0], outputs, atol=tolerance, err_msg="cached steps")
    moved = array(_steps(layer, inputs, 9 * source, mask))
    np.testing.assert_array_equal(moved[0], steps[0], err_msg="cached steps see no source")


@PAIRS
def test_cached_steps_equal_one_pass(normalize_first, dtype):
    layer, inputs, source = decoder(normalize_first, dtype=dtype), normal(2, 5, 6), normal(2, 7, 11)
    mask = keras.ops.array(SOURCE_REAL)
    expected = array(layer(inputs, source, source_padding_mask=mask))
    steps = array(_steps(layer, inputs, source, mask, num_beams=3))
    tolerance = 1e-5 if dtype == "float32" else 0.15
    for beam in range(3):
        np.testing.assert_allclose(steps[:, :, beam], expected, atol=tolerance)


def test_beams_permuted_are_outputs_permuted():
    layer, source = decoder(), keras.ops.array(normal(2, 7, 11))
    beams, order = normal(2, 5, 3, 6), np.array([[2, 0, 1], [1, 0, 2]])
    keys_values, mask = layer.source_keys_values(source), keras.ops.array(SOURCE_REAL)
    outputs, _ = _run(layer, beams, keys_values, mask)
    permuted = np.take_along_axis(beams, order[:, None, :, None], axis=2)
    again, _ = _run(layer, permuted, keys_values, mask)
    expected = np.take_along_axis(outputs, order[:, None, :, None], axis=2)
    np.testing.assert_allclose(again, expected, atol=1e-5)


@pytest.mark.parametrize("positions", [SinusoidalEncoding(), PositionEmbedding(5)])
def test_cached_steps_equal_one_pass_with_embedded_and_positioned_tokens(positions):
    embedding, layer, source = TokenEmbedding(11, 6), decoder(), normal(2, 7, 11)
    ids = np.array([[2, 7, 3, 4, 9], [2, 10, 10, 5, 1]], "int32")
    expected = array(layer(positions(embedding(ids)), source))
    keys_values = layer.source_keys_values(keras.ops.array(source))
    cache = layer.empty_cache(2)
    for position in range(5):
        vectors = positions.step(embedding(ids[:, position, None]), position)
        outputs, cache = layer.step(vectors, keys_values, None, cache, None)
        np.testing.assert_allclose(array(outputs)[:, 0], expected[:, position], atol=1e-5)


def test_a_batch_of_zero_rows_takes_a_step():
    layer = decoder()
    keys_values = layer.source_keys_values(keras.ops.zeros((0, 7, 11)))
    outputs, cache = layer.step(
        keras.ops.zeros((0, 3, 6)),
        keys_values,
        keras.ops.zeros((0, 7), dtype="bool"),
        layer.empty_cache(0),
        keras.ops.zeros((0, 3, 3), dtype="bool"),
    )
    assert tuple(outputs.shape) == (0, 3, 6), "outputs"
    assert tuple(cache[0][0].shape) == (0, 3, 3, 2), "cache"
    assert tuple(encoder()(keras.ops.zeros((0, 5, 6))).shape) == (0, 5, 6), "encoder"


@pytest.mark.parametrize("kind", ["dropout", "attention_dropout", "activation_dropout"])
def test_each_dropout_acts_in_training_only(kind):
    inputs, source = normal(2, 5, 6), normal(2, 7, 11)
    for layer, given in (
        (encoder(**{kind: 0.5}), (inputs,)),
        (decoder(**{kind: 0.5}), (inputs, source)),
    ):
        calm, training = array(layer(*given)), array(layer(*given, training=True))
        np.testing.assert_array_equal(array(layer(*given)), calm, err_msg="no chance at rest")
        assert np.abs(training - calm).max() > 1e-3, f"{kind} acts"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stack", "options", "dtype"),
    [
        (Encoder, {}, "float32"),
        (Decoder, {}, "mixed_bfloat16"),
        (TransformerXL, {}, "float32"),
        (Decoder, {"attention_pattern": {"pattern": "strided", "block_size": 2}}, "float32"),
    ],
)
def test_training_with_rematerialisation_is_training_without(stack, options, dtype):
    """In every weight and random state, with dropout wherever there can be any."""
    tolerance = 1e-5 if dtype == "float32" else 1e-2
    weights, states = trained(stack, False, dtype, **options)
    same_weights, same_states = trained(stack, True, dtype, **options)
    for ours, expected in zip(same_weights, weights, strict=True):
        np.testing.assert_allclose(ours, expected, atol=tolerance, err_msg="weights")
    assert states, "dropout has drawn"
    np.testing.assert_array_equal(same_states, states, err_msg="random states")
    if dtype == "float32":
        calm, _ = trained(stack, False, dtype, dropout=0.0, **options)
        changes = [np.abs(x - y).max() for x, y in zip(weights, calm, strict=True)]
        assert max(changes) > 3e-2, "dropout makes a difference"


def trained(stack, remat, dtype, dropout=0.3, **options):
    """The weights of a model of one block after two steps of training, and its random states."""
    keras.utils.set_random_seed(7)
    of_blocks = {"activation_dropout": dropout, "attention_dropout": dropout, "remat": remat}
    symbols = [keras.Input((None, 6), name=name) for name in ("inputs", "others")]
    # Kernels before the stack, so that gradients for both of its inputs are seen.
    given = [
        keras.layers.Dense(6, dtype=dtype, name=f"before_{index}")(tensor)
        for index, tensor in enumerate(symbols)
    ]
    sizes = {"num_heads": 3, "intermediate_dim": 7, "dropout": dropout}
    layer = stack(1, **sizes, **of_blocks, **options, dtype=dtype, name="stack")
    if stack is Decoder:
        outputs = layer(*given)
    elif stack is TransformerXL:
        outputs = layer(given[0], [given[1]])[0]
    else:
        outputs = keras.layers.Add(dtype=dtype, name="add")([layer(given[0]), given[1]])
    model = keras.Model(symbols, outputs)
    model.compile("sgd", "mse", jit_compile=keras.backend.backend() == "jax")
    rng = np.random.default_rng(3)
    for _ in range(2):
        inputs, others, targets = rng.normal(size=(3, 2, 5, 6)).astype("float32")
        model.train_on_batch([inputs, others], targets)
    held = model.trainable_variables, model.non_trainable_variables
    return tuple([exact(variable) for variable in variables] for variables in held)


@NORMS
def test_a_residual_connection_survives_its_config(normalize_first):
    config = Residual(dropout=0.25, normalize_first=normalize_first).get_config()
    again = Residual.from_config(config)
    assert (again.dropout, again.normalize_first) == (0.25, normalize_first), "both arguments"


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="hidden_dim=7, num_heads=2"):
        EncoderBlock(num_heads=2, intermediate_dim=5)(normal(2, 3, 7))


def _steps(layer, inputs, source, mask, num_beams=1):
    """Outputs (batch, target, beams, dim) of cached steps with the same token in all beams."""
    beams = np.repeat(inputs[:, :, None], num_beams, axis=2)
    keys_values = layer.source_keys_values(keras.ops.cast(source, layer.compute_dtype))
    return _run(layer, beams, keys_values, mask)[0]


def _run(layer, beams, keys_values, mask):
    batch_size, _, num_beams = beams.shape[:3]
    own = np.tile(np.arange(num_beams), (batch_size, 1))
    cache, outputs = layer.empty_cache(batch_size), []
    own_past = keras.ops.zeros((batch_size, num_beams, 0), "bool")
    for position in range(beams.shape[1]):
        vectors = keras.ops.cast(beams[:, position], layer.compute_dtype)
        own_past = beam_mask(own_past, own)
        newest, cache = layer.step(vectors, keys_values, mask, cache, own_past)
        outputs.append(array(newest))
    return np.stack(outputs, axis=1), cache
