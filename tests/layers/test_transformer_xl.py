import keras
import numpy as np
import pytest

from keras_transformer.layers import TokenEmbedding
from keras_transformer.layers.transformer_xl import TransformerXL, TransformerXLBlock
from tests import reference
from tests.layer_check import check_layer
from tests.reference import array, fill, normal

NORMS = pytest.mark.parametrize("normalize_first", [True, False], ids=["pre-norm", "post-norm"])
# Query-key-value, output, distances, u and v; two projections with biases; two norms.
BLOCK_WEIGHTS = 5 + 4 + 4


def built(normalize_first=True, **arguments):
    layer = TransformerXL(
        3, num_heads=2, intermediate_dim=7, normalize_first=normalize_first, **arguments
    )
    layer(normal(2, 5, 6))
    return fill(layer)


@NORMS
def test_outputs_memories_and_scores_equal_numpy(normalize_first):
    layer, inputs, memories = (
        built(normalize_first),
        normal(2, 5, 6),
        [normal(2, 7, 6) for _ in range(3)],
    )
    mask = np.random.uniform(size=(2, 5, 12)) < 0.8
    for given in (None, memories):
        allowed = mask if given else mask[:, :, :5]
        outputs, longer, weights = reference.transformer_xl(layer, inputs, given, allowed)
        masked = {"attention_mask": keras.ops.array(allowed)}
        computed, kept = layer(inputs, given, **masked)
        np.testing.assert_allclose(array(computed), outputs, atol=1e-5, err_msg="outputs")
        scores = layer.attention_scores(inputs, given, **masked)
        for ours, theirs in ((kept, longer), (scores, weights)):
            assert len(ours) == 3, "one a block"
            for tensor, expected in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(array(tensor), expected, atol=1e-5)


def test_a_block_alone_equals_numpy():
    block, inputs, memory = (
        TransformerXLBlock(num_heads=3, intermediate_dim=7),
        normal(2, 5, 6),
        normal(2, 7, 6),
    )
    block(inputs)
    outputs, weights = reference.transformer_xl_block(fill(block), inputs, memory)
    np.testing.assert_allclose(array(block(inputs, memory)), outputs, atol=1e-5)
    np.testing.assert_allclose(array(block.attention_scores(inputs, memory)), weights, atol=1e-5)


@NORMS
def test_one_long_pass_equals_segments_with_enough_memory(normalize_first):
    layer, text = built(normalize_first), normal(2, 13, 6)
    whole, _ = layer(text)
    memories, parts = None, []
    for segment in (text[:, :5], text[:, 5:6], text[:, 6:13]):
        outputs, memories = layer(segment, memories)
        parts.append(array(outputs))
    np.testing.assert_allclose(np.concatenate(parts, axis=1), array(whole), atol=1e-5)


def test_a_memory_reaches_one_segment_further_back_with_every_block():
    """Dai et al. 2019, figure 2: the past is seen through one block more each segment."""
    layer, text = built(), normal(2, 9, 6)
    changed = np.concatenate([normal(2, 1, 6), text[:, 1:]], axis=1)

    def last_outputs(text):
        memories = None
        for start in range(0, 9, 1):
            outputs, memories = layer(text[:, start : start + 1], memories)
            memories = [memory[:, -1:] for memory in memories]
            yield array(outputs)

    differences = [
        np.abs(a - b).max() for a, b in zip(last_outputs(text), last_outputs(changed), strict=True)
    ]
    assert min(differences[:4]) > 1e-6, "three blocks look back three segments of one token"
    assert max(differences[4:]) == 0, "and not one further"


@pytest.mark.parametrize("stopped", [True, False], ids=["stack", "block"])
def test_no_gradient_goes_into_the_memory_of_a_stack(stopped):
    inputs, earlier = keras.Input((None, 6)), keras.Input((None, 6))
    before = keras.layers.Dense(6)
    memory = before(earlier)
    if stopped:
        outputs, _ = built()(inputs, [memory] * 3)
    else:  # which shows that there is one to stop
        outputs = TransformerXLBlock(num_heads=2, intermediate_dim=7)(inputs, memory)
    model = keras.Model([inputs, earlier], outputs)
    kernel, others = array(before.kernel), [array(w) for w in model.weights]
    model.compile("sgd", loss="mse", jit_compile=False)
    model.fit([normal(2, 5, 6), normal(2, 7, 6)], normal(2, 5, 6), verbose=0)
    assert (array(before.kernel) == kernel).all() == stopped
    assert any((array(w) != old).any() for w, old in zip(model.weights, others, strict=True))


def test_the_implicit_mask_of_keras_is_respected():
    layer, ids = built(), np.array([[0, 0, 3, 5, 2], [4, 9, 2, 4, 7]], "int32")
    vectors = TokenEmbedding(11, 6)(ids)
    mask = (ids != 0)[:, None]
    expected, _, _ = reference.transformer_xl(layer, array(vectors), mask=mask)
    np.testing.assert_allclose(array(layer(vectors)[0]), expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["dropout", "attention_dropout", "activation_dropout"])
def test_each_dropout_acts_in_training_only(kind):
    layer, inputs = built(**{kind: 0.5}), normal(2, 5, 6)
    calm, training = array(layer(inputs)[0]), array(layer(inputs, training=True)[0])
    np.testing.assert_array_equal(array(layer(inputs)[0]), calm, err_msg="no chance at rest")
    assert np.abs(training - calm).max() > 1e-3, f"{kind} acts"


@NORMS
def test_a_block_passes_every_check(normalize_first, tmp_path):
    arguments = {"num_heads": 2, "intermediate_dim": 7, "normalize_first": normalize_first}
    inputs = (normal(2, 5, 6), normal(2, 3, 6))
    check_layer(TransformerXLBlock, arguments, inputs, (2, 5, 6), BLOCK_WEIGHTS, tmp_path)


@NORMS
def test_a_stack_in_a_functional_model_survives_a_file(normalize_first, tmp_path):
    inputs, memories = keras.Input((None, 6)), [keras.Input((None, 6)) for _ in range(3)]
    stack = TransformerXL(
        3, num_heads=2, intermediate_dim=7, normalize_first=normalize_first, activation="gelu"
    )
    outputs, longer = stack(inputs, memories)
    assert outputs.shape == (None, None, 6) and longer[2].shape == (None, None, 6)
    assert len(stack.weights) == 3 * BLOCK_WEIGHTS + 2 * normalize_first
    model = keras.Model([inputs, memories], [outputs, longer])
    given = [normal(2, 5, 6), [normal(2, 7, 6) for _ in range(3)]]
    model.save(tmp_path / "stack.keras")
    loaded = keras.saving.load_model(tmp_path / "stack.keras")
    for ours, theirs in zip(
        keras.tree.flatten(loaded(given)), keras.tree.flatten(stack(*given)), strict=True
    ):
        np.testing.assert_array_equal(array(ours), array(theirs))


def test_known_lengths_are_known_of_the_memories():
    stack = TransformerXL(3, num_heads=2, intermediate_dim=7)
    _, memories = stack(keras.Input((5, 6)), [keras.Input((7, 6)) for _ in range(3)])
    assert memories[0].shape == (None, 12, 6)


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"must be an integer of at least 1\. Received: \w+=0"):
        TransformerXL(0, num_heads=2, intermediate_dim=7)
