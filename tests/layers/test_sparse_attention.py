"""A sparse layer is the dense layer under its pattern's mask: outputs, gradients, steps."""

import keras
import numpy as np
import pytest

from keras_transformer.layers import (
    Decoder,
    Encoder,
    MultiHeadAttention,
    PositionEmbedding,
    TokenEmbedding,
)
from keras_transformer.layers.sparse_attention import SparseAttention
from keras_transformer.ops.masks import beam_mask, causal_mask
from tests.layer_check import check_layer
from tests.reference import array, fill, normal, truth

PATTERNS = {
    "local": {"pattern": "local", "block_size": 5},
    "strided": {"pattern": "strided", "block_size": 3},
    "fixed": {"pattern": "fixed", "block_size": 5, "summary_size": 2},
}
EACH_PATTERN = pytest.mark.parametrize("pattern", PATTERNS)
CAUSAL = pytest.mark.parametrize("causal", [False, True], ids=["both sides", "causal"])
LENGTH = 17
REAL = np.arange(LENGTH) < np.array([[11], [LENGTH]])


def pair(pattern, causal, **arguments):
    """A sparse layer, and a dense one with the same weights; the inputs, and the mask."""
    inputs = normal(2, LENGTH, 6)
    layer = SparseAttention(3, **PATTERNS[pattern], causal=causal, **arguments)
    dense = MultiHeadAttention(3, **arguments)
    layer(inputs)
    dense(inputs)
    dense.set_weights(fill(layer).get_weights())
    return layer, dense, inputs, layer.pattern_mask(LENGTH)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "causal"), [("fixed", False), ("strided", True), ("local", False)]
)
def test_layer_passes_every_check(pattern, causal, tmp_path):
    arguments = {"num_heads": 2, "causal": causal, **PATTERNS[pattern]}
    inputs = (normal(2, LENGTH, 6),)
    check_layer(SparseAttention, arguments, inputs, (2, LENGTH, 6), 4, tmp_path)


@EACH_PATTERN
@CAUSAL
def test_outputs_and_scores_are_those_of_the_dense_layer_with_the_same_mask(pattern, causal):
    layer, dense, inputs, mask = pair(pattern, causal)
    masks = {"padding_mask": keras.ops.array(REAL)}
    expected = dense(inputs, **masks, attention_mask=mask)
    np.testing.assert_allclose(array(layer(inputs, **masks)), array(expected), atol=1e-5)
    scores = array(layer.attention_scores(inputs, **masks))
    expected = dense.attention_scores(inputs, **masks, attention_mask=mask)
    np.testing.assert_allclose(scores, array(expected), atol=1e-6, err_msg="scores")
    allowed = (truth(mask) & REAL[:, None])[:, None]
    assert (scores[~np.broadcast_to(allowed, scores.shape)] == 0).all(), "and nothing else"


@EACH_PATTERN
@CAUSAL
def test_gradients_are_those_of_the_dense_layer_with_the_same_mask(pattern, causal):
    layer, dense, inputs, mask = pair(pattern, causal)
    masks = {"padding_mask": keras.ops.array(REAL)}
    slopes = normal(2, LENGTH, 6)
    ours = gradients(layer, inputs, slopes, **masks)
    theirs = gradients(dense, inputs, slopes, **masks, attention_mask=mask)
    assert len(ours) == 5, "the inputs, two kernels and two biases"
    for computed, expected in zip(ours, theirs, strict=True):
        assert np.abs(expected).max() > 0.1, "there is a gradient"
        np.testing.assert_allclose(computed, expected, atol=1e-5)


def gradients(attention, inputs, slopes, **masks):
    """Of sum(slopes * outputs): for the inputs, summed over the rows, then for the weights."""
    added = PositionEmbedding(LENGTH)  # a weight that has the gradient of the inputs
    symbol = keras.Input((LENGTH, 6))
    model = keras.Model(symbol, attention(added(symbol), **masks))
    added.set_weights([np.zeros((LENGTH, 6))])
    weights = [*added.trainable_weights, *attention.trainable_weights]
    before = [array(weight) for weight in weights]
    model.compile(
        keras.optimizers.SGD(1.0),
        lambda slopes, outputs: 2 * keras.ops.sum(slopes * outputs, axis=(1, 2)),  # of 2 rows
        jit_compile=keras.backend.backend() == "jax",
    )
    model.train_on_batch(inputs, slopes)
    found = [old - array(weight) for old, weight in zip(before, weights, strict=True)]
    attention.set_weights(before[1:])
    return found


@EACH_PATTERN
def test_a_call_makes_no_mask_of_length_times_length(pattern):
    layer, _, inputs, _ = pair(pattern, causal=True)
    layer.pattern_mask = None
    assert np.isfinite(array(layer(inputs))).all(), "it is computed without the whole mask"
    with pytest.raises(TypeError):
        layer.attention_scores(inputs)  # which does need it


@EACH_PATTERN
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "bfloat16"])
def test_a_row_of_padding_gives_zeros(pattern, dtype):
    # Without a bias of the output: what nothing adds to is the context.
    layer, _, inputs, _ = pair(pattern, causal=False, use_bias=False, dtype=dtype)
    outputs = array(layer(inputs, padding_mask=keras.ops.array(REAL & [[False], [True]])))
    assert (outputs[0] == 0).all(), "nothing to attend to"
    assert np.abs(outputs[1]).min() > 0, "the other row"


@EACH_PATTERN
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "bfloat16"])
def test_steps_with_a_cache_equal_one_causal_pass(pattern, dtype):
    layer, *_ = pair(pattern, causal=True, dtype=dtype)
    beams = keras.ops.cast(normal(2, LENGTH, 5, 6), layer.compute_dtype)
    cache = (keras.ops.zeros((2, 3, 0, 2), layer.compute_dtype),) * 2
    # Every beam goes on from its neighbour: its past is written along a diagonal.
    neighbours = keras.ops.array(np.tile((np.arange(5) + 1) % 5, (2, 1)))
    mask = keras.ops.zeros((2, 5, 0), "bool")
    for position in range(LENGTH):
        mask = beam_mask(mask, neighbours)
        outputs, cache = layer.step(beams[:, position], cache, mask)
    for beam in range(5):
        past = [(beam + LENGTH - 1 - position) % 5 for position in range(LENGTH)]
        sequence = np.stack([array(beams)[:, p, b] for p, b in enumerate(past)], axis=1)
        np.testing.assert_allclose(
            array(outputs)[:, beam],
            array(layer(sequence))[:, -1],
            atol=1e-5 if dtype == "float32" else 0.03,
            err_msg=f"beam {beam}",
        )


@EACH_PATTERN
def test_steps_of_one_beam_need_no_mask(pattern):
    layer, _, inputs, _ = pair(pattern, causal=True)
    expected = array(layer(inputs))
    cache = (keras.ops.zeros((2, 3, 0, 2)),) * 2
    for position in range(LENGTH):
        outputs, cache = layer.step(keras.ops.array(inputs[:, position, None]), cache, None)
        np.testing.assert_allclose(array(outputs)[:, 0], expected[:, position], atol=1e-5)


@EACH_PATTERN
def test_the_implicit_mask_of_keras_is_respected(pattern):
    ids = 2 * REAL.astype("int32")
    vectors = TokenEmbedding(3, 6)(ids)
    layer, *_ = pair(pattern, causal=False)
    explicit = layer(array(vectors), padding_mask=keras.ops.array(REAL))
    np.testing.assert_allclose(array(layer(vectors)), array(explicit), atol=1e-6)
    assert np.abs(array(layer(array(vectors))) - array(explicit)).max() > 1e-3, "it matters"


def test_dropout_acts_in_training_only():
    layer, _, inputs, _ = pair("strided", causal=True, dropout=0.5)
    calm, training = array(layer(inputs)), array(layer(inputs, training=True))
    np.testing.assert_array_equal(calm, array(layer(inputs, training=False)))
    assert np.abs(calm - training).max() > 1e-3, "weights are dropped"


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["fixed"])
def test_an_encoder_with_a_pattern_is_a_dense_one_with_its_mask(pattern, tmp_path):
    arguments = {"num_layers": 2, "num_heads": 3, "intermediate_dim": 7}
    inputs = normal(2, LENGTH, 6)
    sparse = Encoder(**arguments, attention_pattern=PATTERNS[pattern])
    dense = Encoder(**arguments)
    sparse(inputs), dense(inputs)
    dense.set_weights(fill(sparse).get_weights())
    masks = {"padding_mask": keras.ops.array(REAL)}
    mask = sparse.blocks[0].self_attention.pattern_mask(LENGTH)
    expected = dense(inputs, **masks, attention_mask=mask)
    scores = dense.attention_scores(inputs, **masks, attention_mask=mask)
    np.testing.assert_allclose(array(sparse(inputs, **masks)), array(expected), atol=1e-5)
    for ours, theirs in zip(sparse.attention_scores(inputs, **masks), scores, strict=True):
        np.testing.assert_allclose(array(ours), array(theirs), atol=1e-5, err_msg="scores")
    given = {**arguments, "attention_pattern": PATTERNS[pattern]}
    check_layer(Encoder, given, (inputs,), (2, LENGTH, 6), len(dense.weights), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["strided"])
def test_a_decoder_with_a_pattern_is_a_dense_one_with_its_mask(pattern, tmp_path):
    arguments = {"num_layers": 2, "num_heads": 3, "intermediate_dim": 7}
    inputs = normal(2, LENGTH, 6)
    sparse = Decoder(**arguments, attention_pattern=PATTERNS[pattern])
    dense = Decoder(**arguments)
    sparse(inputs), dense(inputs)
    dense.set_weights(fill(sparse).get_weights())
    attention = sparse.blocks[0].self_attention
    assert attention.causal, "as every decoder is"
    expected = array(dense(inputs, attention_mask=attention.pattern_mask(LENGTH)))
    np.testing.assert_allclose(array(sparse(inputs)), expected, atol=1e-5, err_msg="one pass")
    cache = sparse.empty_cache(2)
    for position in range(LENGTH):
        vectors = keras.ops.array(inputs[:, position, None])
        outputs, cache = sparse.step(vectors, sparse.source_keys_values(None), None, cache, None)
        np.testing.assert_allclose(
            array(outputs)[:, 0], expected[:, position], atol=1e-5, err_msg=f"step {position}"
        )
    given = {**arguments, "attention_pattern": PATTERNS[pattern]}
    check_layer(Decoder, given, (inputs,), (2, LENGTH, 6), len(dense.weights), tmp_path)


def test_a_pattern_of_the_target_leaves_the_attention_to_the_source_dense():
    inputs, source = normal(2, LENGTH, 6), normal(2, 7, 11)
    decoder = Decoder(1, num_heads=3, intermediate_dim=7, attention_pattern=PATTERNS["local"])
    with pytest.raises(ValueError, match="Call the layer before you ask for its attention"):
        decoder.attention_scores(inputs, source)
    decoder(inputs, source)
    [(own, cross)] = decoder.attention_scores(inputs, source)
    assert (array(own)[:, :, 16, :11] == 0).all(), "the target looks 5 tokens back"
    assert (array(cross) > 0).all(), "and at the whole source"


def test_any_other_pattern_is_a_mask_of_the_dense_layer():
    edges = np.random.uniform(size=(LENGTH, LENGTH)) < 0.2
    inputs = normal(1, LENGTH, 6)
    layer = MultiHeadAttention(3, use_bias=False)
    before = array(layer(inputs, attention_mask=keras.ops.array(edges[None])))
    assert (before[0, ~edges.any(axis=1)] == 0).all(), "nodes without a neighbour"
    for node in range(LENGTH):
        changed = inputs.copy()
        changed[0, node] = normal(6)
        after = array(layer(changed, attention_mask=keras.ops.array(edges[None])))
        reached = np.abs(after - before)[0].max(axis=-1) > 1e-6
        # Its own query is new, too, if it looks at more than one node.
        expected = edges[:, node] | ((np.arange(LENGTH) == node) & (edges.sum(axis=1) > 1))
        np.testing.assert_array_equal(reached, expected, err_msg=f"who sees node {node}")


def test_arguments_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"'strided', 'fixed' or 'local'. Received: pattern='a'"):
        SparseAttention(2, "a", 3)
    for pattern in PATTERNS:
        with pytest.raises(ValueError, match=r"at least 1. Received: block_size=0"):
            SparseAttention(2, pattern, 0)
    with pytest.raises(ValueError, match=r"at most block_size.*block_size=5, summary_size=8"):
        SparseAttention(2, "fixed", 5)
    layer, inputs = SparseAttention(2, "local", 3), normal(2, 5, 6)
    with pytest.raises(ValueError, match=r"key of shape None, attention_mask of shape \(1, 5, 5"):
        layer(inputs, attention_mask=causal_mask(5))
    with pytest.raises(ValueError, match=r"within one sequence.*value of shape \(2, 5, 6\)"):
        layer.attention_scores(inputs, inputs)
    decoder = Decoder(1, num_heads=2, intermediate_dim=7, attention_pattern=PATTERNS["local"])
    with pytest.raises(ValueError, match=r"Use MultiHeadAttention for .* an attention_mask"):
        decoder(inputs, attention_mask=causal_mask(5))


@pytest.mark.parametrize(
    ("block", "pattern", "said"),
    [
        ({}, {"dropout": 0.5}, "Leave dropout out"),
        ({}, {"key_dim": 4}, "Leave key_dim out"),
        ({}, {"dtype": "bfloat16", "trainable": False}, "Leave dtype, trainable out"),
        ({}, {"num_heads": 3}, "Leave num_heads out"),
        ({"use_bias": False}, {"use_bias": True}, "Leave use_bias out"),
        ({"attention_arguments": {"rotary": {}}}, {"rotary": None}, "Leave rotary out"),
        ({}, {"causal": True}, "Leave causal out.*for EncoderBlock"),
    ],
)
def test_a_pattern_cannot_have_what_its_block_sets(block, pattern, said):
    pattern = {**PATTERNS["local"], **pattern}
    with pytest.raises(ValueError, match=said):
        Encoder(1, num_heads=3, intermediate_dim=7, attention_pattern=pattern, **block)


@pytest.mark.parametrize("stack", [Encoder, Decoder])
def test_a_pattern_may_say_whether_its_block_is_causal(stack):
    causal = stack is Decoder
    pattern = {**PATTERNS["local"], "causal": causal, "use_bias": False}
    made = stack(1, num_heads=3, intermediate_dim=7, attention_pattern=pattern)
    attention = made.blocks[0].self_attention
    assert attention.causal == causal and not attention.use_bias
    pattern = {**pattern, "causal": not causal}
    with pytest.raises(ValueError, match=r"Leave causal out"):
        stack(1, num_heads=3, intermediate_dim=7, attention_pattern=pattern)
    with pytest.raises(ValueError, match=r"attention_pattern must be a dictionary"):
        stack(1, num_heads=3, intermediate_dim=7, attention_pattern="local")
