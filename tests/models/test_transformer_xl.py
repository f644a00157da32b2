import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.decoding import BeamSearch
from keras_transformer.models.xl_model import SIZES, newest, transformer_xl
from keras_transformer.training import Perplexity, TokenCrossentropy
from keras_transformer.training.checkpoints import Checkpoints
from keras_transformer.training.distribution import Worker
from tests import reference
from tests.reference import array, exact, fill

# On JAX every new shape is compiled, which takes minutes here, and the rest is TensorFlow's.
needs_tensorflow = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="needs the TensorFlow backend"
)

START = 2
TINY = {
    "num_layers": 2,
    "hidden_dim": 6,
    "intermediate_dim": 7,
    "num_heads": 3,
    "memory_length": 5,
    "dropout": 0.0,
}
OPTIONS = {
    "paper": {"normalize_first": False},
    "pre-norm": {},
    "documents": {"start_id": START},
    "mixed_bfloat16": {"dtype": "mixed_bfloat16"},
    "bfloat16": {"dtype": "bfloat16", "normalize_first": False},
}


def model_of(batch_size=3, **options):
    return fill(transformer_xl(11, batch_size, **{**TINY, **options}))


def text(length, rows=3, documents=True):
    ids = np.random.default_rng(5).integers(3, 11, (rows, length)).astype("int32")
    if documents:
        ids[0, 9] = ids[1, 4] = ids[1, 14] = START
    return ids


def segments(ids, length=7):
    """Inputs and labels for `fit`: the next segment of all rows, one after another."""
    count = (ids.shape[1] - 1) // length
    parts = ids[:, : count * length], ids[:, 1 : count * length + 1]
    return [np.concatenate(np.split(part, count, axis=1)) for part in parts]


def tolerance(model):
    return 1e-5 if model.get_layer("recurrence").compute_dtype == "float32" else 0.5


def nats(logits, labels):
    """-ln(probability) of each label."""
    logits = logits.astype("float64")
    normaliser = np.log(np.exp(logits).sum(axis=-1))
    return normaliser - np.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]


@pytest.mark.parametrize("normalize_first", [True, False])
def test_logits_equal_numpy(normalize_first):
    model, ids = model_of(normalize_first=normalize_first, start_id=START), text(17)
    table = exact(model.get_layer("embedding").embeddings)
    documents = np.cumsum(ids == START, axis=1)
    same = documents[:, :, None] == documents[:, None]
    stack = model.get_layer("recurrence").layer
    vectors, _, _ = reference.transformer_xl(stack, table[ids] * np.sqrt(6), mask=same)
    np.testing.assert_allclose(array(model(ids)), vectors @ table.T, atol=2e-5)


@pytest.mark.parametrize("options", OPTIONS)
def test_one_long_pass_equals_segments_with_enough_memory(options):
    model, ids = model_of(**OPTIONS[options]), text(23)
    memory, parts = None, []
    for start in range(0, 23, 7):
        logits, memory = model.read(keras.ops.array(ids[:, start : start + 7]), memory)
        parts.append(array(logits))
    whole = array(model(ids))
    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, atol=tolerance(model))


@pytest.mark.parametrize("options", OPTIONS)
def test_cached_steps_equal_one_pass(options):
    model, ids = model_of(**OPTIONS[options]), text(17)
    beams = np.stack([ids, ids[::-1]], axis=2)  # (batch, target, beams)
    own = np.tile(np.arange(2), (3, 1))
    cache, logits = model.start_cache(3, 2), []
    for position in range(17):
        newest_ids = keras.ops.array(beams[:, position])
        scores, cache = model.step(newest_ids, own, position, cache)
        assert keras.backend.standardize_dtype(scores.dtype) == "float32"
        logits.append(array(scores))
    logits = np.stack(logits, axis=1)
    for beam in range(2):
        expected = array(model(np.ascontiguousarray(beams[:, :, beam])))
        np.testing.assert_allclose(logits[:, :, beam], expected, atol=tolerance(model))


def test_a_cache_of_full_size_gives_the_logits_of_one_that_grows():
    model, generator = model_of(start_id=START), np.random.default_rng(3)
    growing, full = model.start_cache(2, 3), model.start_cache(2, 3, length=7)
    for position in range(5):
        parents, ids = generator.integers(0, 3, (2, 3)), generator.integers(START, 6, (2, 3))
        ids = keras.ops.array(ids, "int32")
        expected, growing = model.step(ids, parents, position, growing)
        logits, full = model.step(ids, parents, position, full)
        np.testing.assert_allclose(array(logits), array(expected), atol=1e-5, err_msg=f"{position}")


def test_a_beam_that_goes_on_from_another_sees_the_past_of_that_one():
    model, generator = model_of(start_id=START), np.random.default_rng(3)
    cache = model.start_cache(2, 3)
    history = np.zeros((2, 0, 3), "int32")  # (batch, position, beams), as each beam knows it
    for position in range(7):
        parents, ids = generator.integers(0, 3, (2, 3)), generator.integers(2, 11, (2, 3))
        past = np.take_along_axis(history, parents[:, None], axis=2)
        history = np.concatenate([past, ids[:, None]], axis=1)
        logits, cache = model.step(keras.ops.array(ids), parents, position, cache)
        for beam in range(3):
            expected = array(model(history[:, :, beam].astype("int32")))[:, -1]
            np.testing.assert_allclose(array(logits)[:, beam], expected, atol=1e-5)


@needs_tensorflow
def test_a_search_finds_what_repeated_passes_find():
    model = model_of(start_id=START)

    def call(*arguments):
        return model.step(*arguments)

    cache = model.start_cache(2, 1)
    found = BeamSearch(1)(call, cache, limits=[9, 9], start_id=START, end_id=1)
    ids = np.full((2, 1), START, "int32")
    for _ in range(found.token_ids.shape[2]):
        best = array(model(ids))[:, -1].argmax(axis=-1)
        ids = np.concatenate([ids, best[:, None].astype("int32")], axis=1)
    # The last place is kept for the end.
    np.testing.assert_array_equal(found.token_ids.numpy()[:, 0, :-1], ids[:, 1:-1])


@pytest.mark.slow
@needs_tensorflow
@pytest.mark.parametrize(
    ("segment_length", "memory_length"),
    [(1, 9), (1, 100), *((7, length) for length in (0, 3, 5, 9, 100)), (100, 5), (100, 100)],
)
def test_a_score_is_the_sum_of_nats_with_the_memory_asked_for(segment_length, memory_length):
    """Also with a longer memory than in training, which is 5."""
    model, ids = model_of(start_id=START), text(23)
    ids[2, 19:] = 0
    expected, memory = 0.0, None
    for start in range(0, 22, segment_length):
        end = min(start + segment_length, 22)
        logits, memory = model.read(keras.ops.array(ids[:, start:end]), memory)
        labels = ids[:, start + 1 : end + 1]
        expected += (nats(array(logits), labels) * (labels != 0)).sum()
        memories, seen = memory
        first = max(0, seen.shape[1] - memory_length)
        memory = [m[:, first:] for m in memories], seen[:, first:]
    total, count = model.score(ids, segment_length, memory_length)
    assert count == 3 * 22 - 4, "every token but the first of each row and padding"
    np.testing.assert_allclose(total, expected, rtol=1e-5)
    if memory_length == 100 or segment_length == 100:
        labels = ids[:, 1:]
        whole = (nats(array(model(ids))[:, :-1], labels) * (labels != 0)).sum()
        np.testing.assert_allclose(total, whole, rtol=1e-5, err_msg="all of the past is seen")


def test_a_memory_keeps_its_newest_tokens():
    model, ids = model_of(), text(9, documents=False)
    _, memory = model.read(keras.ops.array(ids))
    for length, kept in ((0, 0), (4, 4), (9, 9), (50, 9)):
        memories, seen = newest(memory, length)
        assert {m.shape[1] for m in memories} == {kept} and seen.shape[1] == kept
        np.testing.assert_array_equal(array(memories[1]), array(memory[0][1])[:, 9 - kept :])


def compiled(rate=0.5, **options):
    model = model_of(**{"start_id": START, **options})
    model.compile(keras.optimizers.SGD(rate), TokenCrossentropy(), metrics=[Perplexity()])
    return model


@needs_tensorflow
def test_fit_trains_as_carrying_the_memory_by_hand_does():
    ids = text(29)
    model, by_hand = compiled(), compiled()
    by_hand.set_weights(model.get_weights())
    inputs, labels = segments(ids)
    model.fit(inputs, labels, batch_size=3, shuffle=False, verbose=0)
    recurrence, embedding = by_hand.get_layer("recurrence"), by_hand.get_layer("embedding")
    memory, weights = None, by_hand.trainable_variables
    for start in range(0, 28, 7):
        with tf.GradientTape() as tape:
            segment = tf.constant(ids[:, start : start + 7])
            vectors, memory = recurrence.advance(embedding(segment), segment, memory)
            logits = embedding(vectors, reverse=True)
            values = keras.losses.sparse_categorical_crossentropy(
                ids[:, start + 1 : start + 8], logits, from_logits=True
            )
            loss = tf.reduce_mean(values)
        for weight, slope in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(0.5 * tf.convert_to_tensor(slope))
        memory = newest(memory, TINY["memory_length"])
    for ours, theirs in zip(model.trainable_variables, weights, strict=True):
        np.testing.assert_allclose(array(ours), array(theirs), atol=1e-5, err_msg=ours.path)


def losses(model, ids, **arguments):
    """The loss of each training batch of three rows, one call of `fit` each."""
    inputs, labels = segments(ids)
    for start in range(0, len(inputs), 3):
        batch = inputs[start : start + 3], labels[start : start + 3]
        history = model.fit(*batch, batch_size=3, shuffle=False, verbose=0, **arguments)
        yield history.history["loss"][0]


@pytest.mark.slow
@needs_tensorflow
def test_validation_between_two_epochs_leaves_the_memory_alone():
    ids = text(29)
    validation = segments(text(15, rows=7, documents=False))
    model = compiled(rate=0.0)
    alone = list(losses(model, ids))
    model.forget()
    validated = list(losses(model, ids, validation_data=validation))
    np.testing.assert_allclose(validated, alone, rtol=1e-6)
    again = list(losses(model, ids))
    assert abs(again[0] - alone[0]) > 1e-4, "without forgetting, the end is before the beginning"


def test_attention_scores_look_back_within_the_document():
    scores = model_of(start_id=START).attention_scores(text(17))["decoder"]
    assert [tuple(layer.shape) for layer in scores] == [(3, 3, 17, 17)] * 2
    for layer in map(array, scores):
        np.testing.assert_allclose(layer.sum(-1), 1, atol=1e-5)
        np.testing.assert_array_equal(np.triu(layer, 1), 0)
        assert (layer[0, :, 9:, :9] == 0).all(), "a document begins at token 9 of row 0"
        assert (layer[2, :, 9:, :9] > 0).all()


def test_dropout_acts_in_training_only():
    model, ids = model_of(dropout=0.5), text(7, documents=False)
    np.testing.assert_array_equal(array(model(ids)), array(model(ids, training=False)))
    assert np.abs(array(model(ids, training=True)) - array(model(ids))).max() > 1e-3


@pytest.mark.slow
@needs_tensorflow
def test_a_training_goes_on_from_its_checkpoint_to_the_same_bits(tmp_path):
    def started():
        keras.utils.set_random_seed(3)
        return compiled(dropout=0.25)

    inputs, labels = segments(text(43))
    whole = started()
    whole.fit(inputs, labels, batch_size=3, shuffle=False, verbose=0)
    first = started()
    first.fit(inputs[:9], labels[:9], batch_size=3, shuffle=False, verbose=0)
    Checkpoints(tmp_path, first).save()
    resumed = compiled(dropout=0.25)
    assert Checkpoints(tmp_path, resumed).restore() == 3
    resumed.fit(inputs[9:], labels[9:], batch_size=3, shuffle=False, verbose=0)
    for ours, theirs in zip(resumed.variables, whole.variables, strict=True):
        np.testing.assert_array_equal(array(ours), array(theirs), err_msg=ours.path)


@needs_tensorflow
def test_checkpoints_of_several_workers_are_refused(tmp_path, monkeypatch):
    model, checkpoints = compiled(), "keras_transformer.training.checkpoints"
    monkeypatch.setattr(f"{checkpoints}.has_workers", lambda strategy: True)
    monkeypatch.setattr(f"{checkpoints}.this_worker", lambda strategy: Worker(0, 2))
    with pytest.raises(ValueError, match=r"saved with several workers.*Received: 2 workers\.$"):
        Checkpoints(tmp_path, model)


@needs_tensorflow
def test_a_checkpoint_of_another_memory_is_refused(tmp_path):
    Checkpoints(tmp_path, compiled()).save()
    with pytest.raises(ValueError, match=r"carried/0 has the shape \[3, 5, 6\] there, \[3, 7, 6\]"):
        Checkpoints(tmp_path, compiled(memory_length=7)).restore()


@pytest.mark.parametrize("options", OPTIONS)
def test_a_saved_model_is_the_same_after_reloading(options, tmp_path):
    model, ids = model_of(**OPTIONS[options]), text(17)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded) is type(model), "with its own train step"
    np.testing.assert_array_equal(array(loaded(ids)), array(model(ids)))
    assert loaded.score(ids, 7, 9) == model.score(ids, 7, 9)


def test_the_weights_fit_a_model_with_another_memory_and_batch():
    model, ids = model_of(), text(17)
    other = transformer_xl(11, 7, **{**TINY, "memory_length": 13})
    other.set_weights(model.get_weights())
    np.testing.assert_array_equal(array(other(ids)), array(model(ids)))


@needs_tensorflow
def test_parts_of_a_batch_are_refused():
    model = model_of()
    with pytest.raises(ValueError, match=r"carries a memory.*Received: accumulation_steps=2"):
        model.compile("sgd", TokenCrossentropy(), accumulation_steps=2)


def number_of_weights(size, vocabulary_size):
    """By the paper's formulas, nothing allocated; the biases u and v are one pair a layer."""
    hidden, intermediate = size["hidden_dim"], size["intermediate_dim"]
    attention = 5 * hidden * hidden + 2 * hidden
    feed_forward = 2 * hidden * intermediate + intermediate + hidden
    block = attention + feed_forward + 2 * 2 * hidden
    return size["num_layers"] * block + vocabulary_size * hidden


def test_a_model_has_the_weights_of_the_formula():
    model = model_of(normalize_first=False)
    assert model.count_params() == number_of_weights(TINY, 11)


@pytest.mark.parametrize(
    ("size", "vocabulary_size", "published"),
    # Dai et al. 2019, tables 1 and 2; enwik8 has 205 different bytes, WikiText-103 267735 words.
    # The large model is published with an adaptive softmax, which has far fewer weights.
    [("enwik8", 205, 41e6), ("wikitext103", 267735, 151e6)],
)
def test_sizes_have_about_the_published_number_of_weights(size, vocabulary_size, published):
    counted = number_of_weights(SIZES[size], vocabulary_size)
    np.testing.assert_allclose(counted, published, rtol=0.01)


def test_what_is_unknown_or_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"size must be one of small, .*Received: size='huge'"):
        transformer_xl(11, 3, size="huge")
    pattern = {"pattern": "local", "block_size": 3}
    with pytest.raises(ValueError, match=r"no attention_pattern. Received: attention_pattern={"):
        transformer_xl(11, 3, **TINY, attention_pattern=pattern)
    with pytest.raises(ValueError, match="depth"):
        transformer_xl(11, 3, **TINY, depth=3)
    for lengths in (0, 5), (3, -1):
        with pytest.raises(ValueError, match=r"(segment|memory)_length must be .*Received: "):
            model_of().score(text(7, documents=False), *lengths)
