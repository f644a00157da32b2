"""Batches in few shapes: the least padding, each row once, empty rows that count for nothing."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.data import (
    FewShapes,
    LabelledBatches,
    PackedRows,
    PretrainingBatches,
    TokenBatches,
)
from keras_transformer.data.batch_plans import LENGTH_MULTIPLE, _best_bounds, best_plan
from keras_transformer.training import Perplexity, TokenAccuracy, TokenCrossentropy

SEED = 7


def drawn_lengths(random, count):
    """Lengths like those of news text: a mean of 28 tokens, a tail to 256, sides that differ."""
    both = random.gamma(1.9, 14.5, count)
    sides = [np.round(both * random.lognormal(0, 0.12, count)) + 1 for _ in range(2)]
    return np.clip(sides, 1, 256).astype(int)


def pairs_of_lengths(lengths, random):
    return [[random.integers(4, 90, n).tolist() for n in side] for side in lengths]


@pytest.fixture(scope="module")
def pairs():
    random = np.random.default_rng(SEED)
    return pairs_of_lengths(np.clip(drawn_lengths(random, 611), 1, 60), random)


@pytest.fixture(scope="module")
def batches(pairs):
    return TokenBatches(*pairs, tokens_per_batch=1000, max_length=61, seed=3, shapes=FewShapes(5))


def as_numpy(dataset, count):
    return [[part.numpy() for part in tf.nest.flatten(e)] for e in dataset.take(count)]


@pytest.mark.parametrize("tokens", [4096, 25000])
def test_sixteen_shapes_of_news_text_hold_little_padding(tokens):
    lengths = drawn_lengths(np.random.default_rng(SEED), 100_000)
    plan = best_plan(*counted(lengths.max(axis=0)), FewShapes(16), tokens)
    assert 1 - lengths.sum() / (2 * plan.size) <= 0.19
    assert len(np.unique(plan.shapes, axis=0)) <= 16
    assert not (plan.shapes[:, 0] % 8).any()
    assert plan.shapes[:, :2].prod(axis=1).max() <= tokens


def counted(lengths):
    return np.unique(lengths, return_counts=True)


def padded(lengths, bounds):
    return np.asarray(bounds)[np.searchsorted(bounds, lengths)].sum()


def test_bounds_are_the_best_there_are():
    """Compared with all choices of bounds."""
    random = np.random.default_rng(SEED)
    for _ in range(20):
        lengths = random.integers(1, random.integers(3, 24), random.integers(1, 60))
        ends = np.unique(-(-lengths // LENGTH_MULTIPLE) * LENGTH_MULTIPLE)
        for bounds in _best_bounds(*counted(lengths), 4):
            others = itertools.combinations(ends[:-1], len(bounds) - 1)
            least = min(padded(lengths, [*other, ends[-1]]) for other in others)
            assert padded(lengths, bounds) == least


@pytest.mark.parametrize("row_multiple", [1, 3, 16])
def test_drawn_plans_hold_each_row_once_within_the_budget(row_multiple):
    random = np.random.default_rng(row_multiple)
    for _ in range(30):
        lengths = random.integers(1, random.integers(2, 90), random.integers(1, 500))
        tokens = int(lengths.max() * row_multiple * random.integers(1, 30))
        most = int(random.integers(1, 17))
        plan = best_plan(*counted(lengths), FewShapes(most, row_multiple), tokens)
        ordered = np.sort(lengths)
        assert plan.cuts[0] == 0 and plan.cuts[-1] == len(lengths)
        assert len(np.unique(plan.shapes, axis=0)) <= most
        for (rows, length), start, end in zip(
            plan.shapes, plan.cuts[:-1], plan.cuts[1:], strict=True
        ):
            assert 0 < end - start <= rows and rows * length <= tokens
            assert rows % row_multiple == 0 and ordered[end - 1] <= length


def test_every_epoch_holds_each_pair_once_in_few_shapes(batches, pairs):
    steps = batches.steps_per_epoch
    elements = as_numpy(batches.dataset(), 3 * steps)
    shapes = {source.shape + labels.shape for source, _, labels in elements}
    assert len(shapes) <= 5
    expected = sorted(zip(*pairs, strict=True))
    for epoch in range(3):
        found = []
        for source, _, labels in elements[epoch * steps : (epoch + 1) * steps]:
            for row, label in zip(source, labels, strict=True):
                if row.any():
                    found.append((row[row > 0][:-1].tolist(), label[label > 0][:-1].tolist()))
        assert sorted(found) == expected
    first, second = elements[:steps], elements[steps : 2 * steps]
    assert {s.tobytes() for s, *_ in first} != {s.tobytes() for s, *_ in second}


def test_a_late_start_goes_on_with_the_same_batches(batches):
    whole = as_numpy(batches.dataset(), 2 * batches.steps_per_epoch + 3)
    for start in (1, batches.steps_per_epoch, batches.steps_per_epoch + 5):
        rest = as_numpy(batches.dataset(start), len(whole) - start)
        for one, other in zip(rest, whole[start:], strict=True):
            assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_padding_is_counted_as_it_is(batches):
    elements = as_numpy(batches.epoch(), -1)
    real = sum((s > 0).sum() + (y > 0).sum() for s, _, y in elements)
    held = sum(s.size + y.size for s, _, y in elements)
    assert batches.padding == pytest.approx(1 - real / held)


def logs_of(model, dataset):
    return model.evaluate(dataset, return_dict=True, verbose=0)


def test_empty_rows_of_pairs_count_for_nothing(pairs):
    keras.utils.set_random_seed(SEED)
    sizes = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 8, "num_heads": 2}
    model = kt.translation(90, size="tiny", **sizes)
    model.compile("sgd", TokenCrossentropy(), metrics=[TokenAccuracy(), Perplexity()])
    logs = [
        logs_of(model, TokenBatches(*pairs, 1000, max_length=61, shapes=shapes).epoch())
        for shapes in (None, FewShapes(3, row_multiple=7))
    ]
    assert logs[0] == pytest.approx(logs[1], rel=1e-5)


def test_empty_rows_of_texts_count_for_nothing(pairs):
    """One batch, so that the mean over batches is none."""
    keras.utils.set_random_seed(SEED)
    texts = pairs[0][:21]
    labels = np.eye(3)[np.arange(21) % 3]
    sizes = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 8, "num_heads": 2}
    model = kt.classifier(90, 3, size="small", dropout=0.0, **sizes)
    loss = keras.losses.CategoricalCrossentropy(True, reduction="mean_with_sample_weight")
    start, weights, logs = model.get_weights(), [], []
    for shapes in (None, FewShapes(1, row_multiple=16)):
        batches = LabelledBatches(texts, labels, list("abc"), tokens_per_batch=5000, shapes=shapes)
        model.set_weights(start)
        model.compile(keras.optimizers.SGD(0.5), loss, weighted_metrics=["accuracy"])
        logs.append(logs_of(model, batches.epoch()))
        model.fit(batches.dataset(), steps_per_epoch=1, verbose=0)
        weights.append(model.get_weights())
    element = next(iter(batches.epoch()))
    assert element[0].shape[0] == 32 and float(tf.reduce_sum(element[2])) == 21
    assert logs[0] == pytest.approx(logs[1], rel=1e-5)
    for one, other in zip(*weights, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.slow
def test_empty_rows_of_documents_count_for_nothing():
    from keras_transformer.data import tokenize_documents
    from keras_transformer.tokenizers import train_word_pieces

    random = np.random.default_rng(SEED)
    words = np.array(list("abcdefgh"))
    documents = [[" ".join(random.choice(words, 6)) for _ in range(5)] for _ in range(9)]
    tokenizer = train_word_pieces(list(itertools.chain.from_iterable(documents)), 13)
    ids = tokenize_documents(documents, tokenizer)
    keras.utils.set_random_seed(SEED)
    sizes = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 8, "num_heads": 2}
    model = kt.bert_pretraining(kt.bert(13, size="tiny", max_sequence_length=16, **sizes))
    metrics = [[TokenAccuracy(name="accuracy")], [TokenAccuracy(pad_id=-1, name="accuracy")]]
    model.compile("sgd", kt.training.PretrainingLoss(), metrics=metrics)
    logs = []
    for shapes in (None, FewShapes(1, row_multiple=16)):
        batches = PretrainingBatches(ids, tokenizer, 65, 16, shapes=shapes)
        assert batches.steps_per_epoch == 1
        logs.append(logs_of(model, batches.dataset().take(1)))
    assert logs[0] == pytest.approx(logs[1], rel=1e-5)
    inputs, _, weights = next(iter(batches.dataset()))
    assert tuple(inputs["token_ids"].shape) == tuple(batches.shapes[0]) == (64, 16)
    assert float(tf.reduce_sum(weights)) == batches.num_passages


def test_a_number_of_shapes_that_cannot_be_says_what_was_expected():
    with pytest.raises(ValueError, match=r"^count must be an integer of at least 1\. .*count=0\."):
        FewShapes(0)
    for kind in (PackedRows, lambda row_multiple: FewShapes(1, row_multiple)):
        with pytest.raises(ValueError, match=r"^row_multiple must be .* Received: row_multiple=0"):
            kind(row_multiple=0)


def test_a_budget_that_is_too_small_for_the_replicas_is_refused():
    with pytest.raises(ValueError, match=r"tokens_per_batch=30, row_multiple=4, a row of 9"):
        best_plan(np.array([3, 9]), np.array([1, 1]), FewShapes(16, row_multiple=4), 30)
