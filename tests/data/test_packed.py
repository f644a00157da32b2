"""Several texts in a row: each once an epoch, little padding, and the numbers of each alone."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.data import (
    FewShapes,
    LabelledBatches,
    PackedDocuments,
    PackedRows,
    TokenBatches,
)
from keras_transformer.data.batch_plans import PackedPlan, TextLengths
from keras_transformer.training import Perplexity, TokenAccuracy, TokenCrossentropy

from .test_few_shapes import as_numpy, drawn_lengths, pairs_of_lengths

SEED, VOCABULARY = 7, 90
SIZES = {"num_layers": 2, "hidden_dim": 6, "intermediate_dim": 10, "num_heads": 2, "dropout": 0.0}


@pytest.fixture(scope="module")
def pairs():
    random = np.random.default_rng(SEED)
    return pairs_of_lengths(np.clip(drawn_lengths(random, 611), 1, 60), random)


@pytest.fixture(scope="module")
def batches(pairs):
    return TokenBatches(*pairs, tokens_per_batch=2000, max_length=61, seed=3, shapes=PackedRows())


@pytest.fixture(scope="module")
def documents():
    random = np.random.default_rng(SEED)
    lengths = [*random.integers(1, 90, 40), 22, 23, 24, 46]  # about rows of 23: whole, with end
    return [random.integers(4, VOCABULARY, length).tolist() for length in lengths]


@pytest.mark.parametrize("tokens", [4096, 25000])
def test_packed_news_text_holds_little_padding(tokens):
    lengths = drawn_lengths(np.random.default_rng(SEED), 30_000)
    texts = TextLengths(30_000, lambda some: lengths[:, some], 256)
    plan = PackedPlan(texts, 256, tokens // 256)
    assert plan.padding <= 0.06
    assert len(np.unique(plan.shapes, axis=0)) == 1


def texts_of(rows, end_id=3):
    """The texts of rows of ids, each with its end."""
    texts = []
    for row in rows.tolist():
        cuts = [0, *(place + 1 for place, token in enumerate(row) if token == end_id)]
        texts += [tuple(row[a:b]) for a, b in itertools.pairwise(cuts)]
    return texts


def number_of_text(rows, end_id=3):
    """For each id of some rows how many ends are before it, (rows, length)."""
    return [[row[:place].count(end_id) for place in range(len(row))] for row in rows.tolist()]


def test_each_pair_is_in_each_epoch_once(pairs, batches):
    expected = sorted((*source, 3, *target, 3) for source, target in zip(*pairs, strict=True))
    two = as_numpy(batches.dataset(), 2 * batches.steps_per_epoch)
    epochs = two[: batches.steps_per_epoch], two[batches.steps_per_epoch :]
    ordered = as_numpy(batches.epoch(), batches.steps_per_epoch)
    assert any((a[2] != b[2]).any() for a, b in zip(*epochs, strict=True))
    for epoch in (*epochs, ordered):
        found = []
        for sources, source_segments, targets, target_segments, labels in epoch:
            sides = texts_of(sources), texts_of(labels)
            found += [source + target for source, target in zip(*sides, strict=True)]
            assert (targets[:, 0] == np.where(labels[:, 0] > 0, 2, 0)).all()
            assert ((targets == 0) == (labels == 0)).all()
            for ids, segments in (sources, source_segments), (labels, target_segments):
                np.testing.assert_array_equal(segments, number_of_text(ids))
        assert sorted(found) == expected


def test_batches_have_one_shape_and_resume_in_the_middle_of_an_epoch(batches):
    whole = as_numpy(batches.dataset(), batches.steps_per_epoch + 5)
    assert {part.shape for batch in whole for part in batch} == {tuple(batches.shapes[0, :2])}
    late = as_numpy(batches.dataset(start_step=4), batches.steps_per_epoch + 1)
    for batch, expected in zip(late, whole[4:], strict=True):
        for part, other in zip(batch, expected, strict=True):
            np.testing.assert_array_equal(part, other)


def test_the_share_of_padding_is_that_of_the_batches(batches):
    epoch = as_numpy(batches.epoch(), batches.steps_per_epoch)
    ids = np.stack([(batch[0], batch[-1]) for batch in epoch])
    assert batches.padding == pytest.approx((ids == 0).mean())
    assert batches.padding < 0.1


def test_rows_are_a_multiple_for_the_replicas(pairs):
    batches = TokenBatches(*pairs, 1000, 61, shapes=PackedRows(row_multiple=3))
    assert (batches.shapes[:, 0] % 3 == 0).all()


def loss_and_gradients(model, batches):
    """The summed loss of all tokens, and its gradients."""
    loss, total = TokenCrossentropy(0.1), 0.0
    with tf.GradientTape() as tape:
        for inputs, labels in batches:
            total += tf.reduce_sum(loss.call(labels, model(inputs)) * loss.weights(labels))
    return total, tape.gradient(total, model.trainable_weights)


def assert_same(results):
    (loss, gradients), (other_loss, others) = results
    np.testing.assert_allclose(loss, other_loss, rtol=1e-6)
    largest = max(np.abs(tf.convert_to_tensor(gradient)).max() for gradient in gradients)
    for gradient, other in zip(gradients, others, strict=True):
        gradient, other = tf.convert_to_tensor(gradient), tf.convert_to_tensor(other)
        np.testing.assert_allclose(gradient, other, atol=1e-6 * largest)


@pytest.mark.parametrize(
    "arguments",
    [{}, pytest.param({"remat": True, "normalize_first": False}, marks=pytest.mark.slow)],
)
def test_packed_pairs_have_the_loss_and_gradients_of_pairs_alone(pairs, arguments):
    some = [side[:6] for side in pairs]
    packed = TokenBatches(*some, 61 * 3, max_length=61, shapes=PackedRows()).epoch()
    alone = [
        TokenBatches([source], [target], 61, 61).epoch()
        for source, target in zip(*some, strict=True)
    ]
    keras.utils.set_random_seed(SEED)
    model = kt.translation(VOCABULARY, **SIZES, **arguments)
    one_by_one = (batch for batches in alone for batch in batches)
    assert_same([loss_and_gradients(model, one_by_one), loss_and_gradients(model, packed)])


@pytest.mark.parametrize("learned", [None, pytest.param(29, marks=pytest.mark.slow)])
def test_packed_documents_have_the_loss_and_gradients_of_documents_alone(documents, learned):
    few = [document[:22] for document in documents[:5]]
    packed = PackedDocuments(few, length=29, batch_size=4)
    alone = [PackedDocuments([document], 29, 1) for document in few]
    keras.utils.set_random_seed(SEED)
    model = kt.language_model(VOCABULARY, **SIZES, max_sequence_length=learned)
    one_by_one = (batch for batches in alone for batch in batches.epoch())
    assert_same([loss_and_gradients(model, one_by_one), loss_and_gradients(model, packed.epoch())])


def test_a_reloaded_copied_or_composed_model_reads_packed_rows(pairs, tmp_path):
    keras.utils.set_random_seed(SEED)
    model = kt.translation(VOCABULARY, **SIZES)
    model.save(tmp_path / "model.keras")
    others = {
        "loaded": keras.saving.load_model(tmp_path / "model.keras"),
        "copied": kt.models.copies.copy_with(model, dropout=0.5),
        "composed": kt.Model(model.input, keras.layers.Identity()(model.output)),
    }
    some = [side[:6] for side in pairs]
    inputs, _ = next(iter(TokenBatches(*some, 500, 61, shapes=PackedRows()).epoch()))
    expected = model(inputs)
    assert np.abs(expected - model({name: inputs[name] for name in model.input})).max() > 1e-3
    for name, other in others.items():
        np.testing.assert_array_equal(other(inputs), expected, err_msg=name)
    np.testing.assert_allclose(model.predict(inputs, verbose=0), expected, atol=1e-5)


@pytest.mark.slow
def test_compiled_training_on_packed_pairs_gives_the_weights_of_pairs_alone(pairs):
    some = [side[:40] for side in pairs]
    sizes = {**SIZES, "num_layers": 1}
    results = []
    for packed in (False, True):
        keras.utils.set_random_seed(SEED)  # of equal weights
        model = kt.translation(VOCABULARY, **sizes)
        loss = TokenCrossentropy(0.1)
        metrics = [TokenAccuracy(), Perplexity()]
        how = {"jit_compile": packed, "clip_norm": 1.0}
        model.compile(keras.optimizers.SGD(0.1), loss, metrics=metrics, **how)
        batches = TokenBatches(*some, 5000, 61, shapes=PackedRows() if packed else None)
        assert batches.steps_per_epoch == 1
        logs = model.fit(batches.dataset(), steps_per_epoch=1, epochs=3, verbose=0).history
        results.append((logs, model.get_weights()))
    (logs, weights), (packed_logs, packed_weights) = results
    for name, values in logs.items():
        np.testing.assert_allclose(packed_logs[name], values, rtol=1e-5)
    for one, other in zip(weights, packed_weights, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)


def test_each_label_of_the_documents_is_in_each_epoch_once(documents):
    batches = PackedDocuments(documents, length=23, batch_size=5, seed=2)
    expected = sorted(token for document in documents for token in [*document[1:], 3])
    assert batches.num_labels == len(expected)
    two = as_numpy(batches.dataset(), 2 * batches.steps_per_epoch)
    for epoch in (two[: batches.steps_per_epoch], two[batches.steps_per_epoch :]):
        labels = np.concatenate([labels.ravel() for _, _, labels in epoch])
        assert sorted(labels[labels > 0].tolist()) == expected
        for segments, inputs, labels in epoch:
            np.testing.assert_array_equal(segments, number_of_text(inputs))
            is_next = (labels[:, :-1] == inputs[:, 1:]) | (labels[:, :-1] == 0)
            assert is_next.all()
            assert (labels[inputs == 3] == 0).all()
    late = as_numpy(batches.dataset(3), 2)
    for batch, other in zip(late, two[3:5], strict=True):
        np.testing.assert_array_equal(batch, other)


def test_what_cannot_be_packed_is_refused():
    few, packed = "a FewShapes or ", "a PackedRows or "
    with pytest.raises(ValueError, match=rf"must be {few}None\. Received: shapes=Packed"):
        LabelledBatches([[4], [5]], np.eye(2), ["a", "b"], shapes=PackedRows())
    with pytest.raises(ValueError, match=rf"must be {few}{packed}None\. Received: shapes=3"):
        TokenBatches([[4]], [[5]], shapes=3)
    with pytest.raises(ValueError, match=rf"must be {packed}None\. Received: shapes=FewShapes"):
        PackedDocuments([[4]], 5, 2, shapes=FewShapes(2))
    with pytest.raises(ValueError, match=r"room for 2 rows of 5 tokens, row_multiple=3"):
        PackedDocuments([[4]], 5, 2, shapes=PackedRows(3))
    message = r"must not hold the ids 2 and 3, which mark .* Received: ids that include 3"
    with pytest.raises(ValueError, match=message):
        TokenBatches([[4]], [[5, 3]], shapes=PackedRows())
    with pytest.raises(ValueError, match=r"room for 2 rows of 61 tokens, row_multiple=3"):
        TokenBatches([[4]], [[5]], 150, 61, shapes=PackedRows(row_multiple=3))
    with pytest.raises(ValueError, match=r"at least one token.* Received: none"):
        PackedDocuments([[], []], 5, 2)


def test_batches_of_one_shape_say_so_before_a_step_runs(batches, documents):
    inputs, labels = batches.dataset().element_spec
    assert inputs["source_ids"].shape == inputs["target_ids"].shape == labels.shape == (30, 61)
    rows = PackedDocuments(documents, length=23, batch_size=7)
    specs = tf.nest.flatten(rows.epoch().element_spec)
    assert [spec.shape for spec in specs] == [rows.shapes[0].tolist()] * 3
