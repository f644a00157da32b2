"""Batches by token budget: each pair once, the same order under a seed, resumed anywhere."""

import collections
import gc
import inspect
import pickle
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.data import PairStream, TokenBatches, tokenize
from keras_transformer.data.pipelines import as_dataset, mapped
from keras_transformer.tokenizers import END_ID, START_ID, train_sentencepiece


def token_batches(sources, targets, source_tokenizer, target_tokenizer, *limits, **settings):
    ids = tokenize(sources, source_tokenizer), tokenize(targets, target_tokenizer)
    return TokenBatches(*ids, *limits, **settings)


NUM_PAIRS, BUDGET, LONGEST = 211, 61, 13


@pytest.fixture(scope="module")
def tokenizer():
    """A piece a letter: 260 ids, 26 letters and the space, 26 letters after a space."""
    return train_sentencepiece(["a b c d e f g h i j k l m n o p q r s t u v w x y z"] * 2, 313)


@pytest.fixture(scope="module")
def text():
    """Pairs of letters, one piece each; no two pairs are the same."""
    random = np.random.default_rng(5)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))

    def sentence(length):
        return " ".join(random.choice(letters, length))

    pairs = set()
    while len(pairs) < NUM_PAIRS:
        pairs.add((sentence(random.integers(2, 11)), sentence(random.integers(2, 5))))
    sources, targets = zip(*sorted(pairs), strict=True)
    return list(sources), list(targets)


@pytest.fixture(scope="module")
def batches(text, tokenizer):
    return token_batches(*text, tokenizer, tokenizer, BUDGET, LONGEST, seed=3)


def as_numpy(dataset, count=None):
    dataset = dataset if count is None else dataset.take(count)
    return [(x["source_ids"].numpy(), x["target_ids"].numpy(), y.numpy()) for x, y in dataset]


def pairs_of(elements, tokenizer):
    """The texts in the batches, in the order in which they come."""
    pairs = []
    for source, _, labels in elements:
        texts = (tokenizer.detokenize(ids).numpy().tolist() for ids in (source, labels))
        pairs += [(s.decode(), t.decode()) for s, t in zip(*texts, strict=True)]
    return pairs


def same(some, others):
    return len(some) == len(others) and all(
        np.array_equal(a, b)
        for one, other in zip(some, others, strict=True)
        for a, b in zip(one, other, strict=True)
    )


def test_rows_are_tokens_and_end_and_the_decoder_starts_with_start(tokenizer):
    batches = token_batches(["a b c", "d"], ["e", "f g"], tokenizer, tokenizer, 61, 23)
    [(source, target, labels)] = as_numpy(batches.epoch())
    a, b, c, d, e, f, g = (tokenizer.tokenize([x]).to_list()[0][-1] for x in "abcdefg")
    assert source.tolist() == [[a, b, c, END_ID], [d, END_ID, 0, 0]], "tokens and end"
    assert target.tolist() == [[START_ID, e, 0], [START_ID, f, g]], "start and tokens"
    assert labels.tolist() == [[e, END_ID, 0], [f, g, END_ID]], "tokens and end"
    assert {array.dtype for array in (source, target, labels)} == {np.dtype("int32")}


def test_every_epoch_holds_each_pair_once(batches, text, tokenizer):
    elements = as_numpy(batches.dataset(), 3 * batches.steps_per_epoch)
    expected = collections.Counter(zip(*text, strict=True))
    for epoch in range(3):
        start = epoch * batches.steps_per_epoch
        pairs = pairs_of(elements[start : start + batches.steps_per_epoch], tokenizer)
        assert collections.Counter(pairs) == expected, f"epoch {epoch}"
    assert batches.num_pairs == NUM_PAIRS and batches.num_dropped == 0


def test_no_batch_exceeds_the_budget_on_either_side(batches):
    elements = as_numpy(batches.dataset(), batches.steps_per_epoch)
    assert max(source.size for source, _, _ in elements) <= BUDGET, "source tokens and padding"
    assert max(labels.size for _, _, labels in elements) <= BUDGET, "target tokens and padding"
    assert np.mean([max(s.size, y.size) for s, _, y in elements]) > 0.7 * BUDGET, "well filled"


def test_shapes_are_those_of_every_epoch(batches):
    steps = batches.steps_per_epoch
    elements = as_numpy(batches.dataset(), 2 * steps)
    shapes = [(source.shape, labels.shape) for source, _, labels in elements]
    first, second = shapes[:steps], shapes[steps:]
    assert sorted(first) == sorted(second), "a graph that has seen one epoch has seen them all"
    assert first != second, "in another order"


def test_epochs_differ_in_which_pairs_meet(batches, tokenizer):
    steps = batches.steps_per_epoch
    elements = as_numpy(batches.dataset(), 2 * steps)
    groups = [frozenset(pairs_of([element], tokenizer)) for element in elements]
    assert len(set(groups[:steps]) - set(groups[steps:])) > steps // 5, "ties are permuted"


def test_training_resumes_at_any_step(batches):
    steps = batches.steps_per_epoch
    whole = as_numpy(batches.dataset(), 2 * steps + 5)
    for start in (1, steps - 1, steps, steps + 7):
        rest = as_numpy(batches.dataset(start), 2 * steps + 5 - start)
        assert same(rest, whole[start:]), f"from step {start} on"


def test_late_start_makes_no_skipped_batch(text, tokenizer, monkeypatch):
    batches = token_batches(*text, tokenizer, tokenizer, BUDGET, LONGEST, seed=3)
    made = []
    original = batches._batch

    def counted(*rows_and_shape):
        tf.py_function(lambda: made.append(1), [], [])
        return original(*rows_and_shape)

    monkeypatch.setattr(batches, "_batch", counted)
    as_numpy(batches.dataset(10**6 * batches.steps_per_epoch + 7), 1)
    assert 1 <= len(made) <= 64, "a few ahead for the prefetch, not the ten million before"


def test_order_is_a_function_of_the_seed(batches, text, tokenizer):
    first = as_numpy(batches.dataset(), 7)
    again = token_batches(*text, tokenizer, tokenizer, BUDGET, LONGEST, seed=3)
    assert same(as_numpy(again.dataset(), 7), first), "the same seed, the same batches"
    other = token_batches(*text, tokenizer, tokenizer, BUDGET, LONGEST, seed=5)
    assert not same(as_numpy(other.dataset(), 7), first), "another seed, other batches"
    assert same(as_numpy(batches.dataset(), 7), first), "iterating leaves no trace"


def test_global_random_seed_changes_nothing(batches):
    first = as_numpy(batches.dataset(), 5)
    tf.random.set_seed(12345)
    assert same(as_numpy(batches.dataset(), 5), first), "only the own seed counts"


def test_validation_holds_each_pair_once_in_order(batches, text, tokenizer):
    elements = as_numpy(batches.epoch())
    assert pairs_of(elements, tokenizer) == list(zip(*text, strict=True)), "as in the text"
    assert max(max(s.size, y.size) for s, _, y in elements) <= BUDGET, "within the budget"


def test_long_pairs_are_dropped_counted_and_reported(tokenizer, caplog):
    sources = ["a b c d", "a b c d e", "a", "b"]  # pieces: 4, 5, 1, 1
    targets = ["e", "f", "a b c d e f", "g"]
    batches = token_batches(sources, targets, tokenizer, tokenizer, 31, max_length=5)
    assert (batches.num_pairs, batches.num_dropped) == (2, 2), "their end counts as a token"
    pairs = pairs_of(as_numpy(batches.epoch()), tokenizer)
    assert pairs == [("a b c d", "e"), ("b", "g")], "either side may be too long"
    assert "Dropped 2 of 4 pairs longer than max_length=5 tokens" in caplog.text


def test_target_tokens_count_ends_but_no_padding(batches):
    elements = as_numpy(batches.dataset(), batches.steps_per_epoch)
    labels = sum(int((y != 0).sum()) for _, _, y in elements)
    assert batches.num_target_tokens == labels, "what a loss per token divides by"


def test_either_language_may_have_its_own_tokenizer(tokenizer):
    other = train_sentencepiece(["b a b a"], 263)
    batches = token_batches(["a b"], ["a b"], tokenizer, other, 61, 23)
    [(source, _, labels)] = as_numpy(batches.epoch())
    assert tokenizer.detokenize(source).numpy() == [b"a b"], "sources by the source tokenizer"
    assert other.detokenize(labels).numpy() == [b"a b"], "targets by the target tokenizer"
    assert source.tolist() != labels.tolist(), "whose ids are others"


def test_every_sentence_reaches_one_of_two_replicas(text, tokenizer):
    batches = token_batches(*text, tokenizer, tokenizer, BUDGET, LONGEST, seed=3)
    policy = batches.dataset().options().experimental_distribute.auto_shard_policy
    assert policy == tf.data.experimental.AutoShardPolicy.DATA, "workers share the elements out"
    context = tf.distribute.InputContext(num_input_pipelines=2, input_pipeline_id=1)
    shard = batches.epoch().shard(context.num_input_pipelines, context.input_pipeline_id)
    every = as_numpy(batches.epoch())
    assert same(as_numpy(shard), every[1::2]), "an element belongs to one worker"


def test_little_of_a_corpus_is_padding(data):
    folder = data / "multi30k"
    sentences = PairStream(folder / "train.en.gz", folder / "train.de.gz").read()
    tokenizer = train_sentencepiece(sentences.sources + sentences.targets, 2003)
    batches = token_batches(*sentences, tokenizer, tokenizer, 1024, 101)
    elements = as_numpy(batches.dataset(), batches.steps_per_epoch)
    for side, name, most in ((0, "source", 0.1), (2, "target", 0.02)):
        sizes = sum(element[side].size for element in elements)
        padding = sum(int((element[side] == 0).sum()) for element in elements)
        assert padding / sizes < most, f"share of padding in the {name} ids"


def test_unequal_numbers_of_sentences_are_refused(tokenizer):
    with pytest.raises(ValueError, match=r"one target.*3 sources, 2 targets"):
        token_batches(["a", "b", "c"], ["a", "b"], tokenizer, tokenizer)


def test_text_without_a_pair_short_enough_is_refused(tokenizer):
    with pytest.raises(ValueError, match=r"No text is left.*2 texts, of which 0 have at most 2"):
        token_batches(["a b", "c d"], ["e", "f"], tokenizer, tokenizer, 61, max_length=2)
    with pytest.raises(ValueError, match=r"No text is left.*Received: 0 texts"):
        token_batches([], [], tokenizer, tokenizer)


def test_budget_below_the_longest_sentence_is_refused(tokenizer):
    with pytest.raises(ValueError, match=r"at least 11.*max_length=11 tokens.*tokens_per_batch=7"):
        token_batches(["a"], ["b"], tokenizer, tokenizer, tokens_per_batch=7, max_length=11)


def test_the_checksum_sees_one_other_token(text, batches, tokenizer):
    sources, targets = text
    other = token_batches(sources, [*targets[:-1], "q"], tokenizer, tokenizer, BUDGET, LONGEST)
    assert other.checksum() != batches.checksum()


def test_autograph_rewrites_nothing_that_makes_a_batch():
    """It would take seconds of every start."""
    files = set()

    def note_file(number):
        files.add(inspect.currentframe().f_code.co_filename)  # another one of rewritten code
        return number

    class Tokenizer:
        def tokenize(self, texts):
            return tf.ragged.stack([[note_file(3)]])

    batches = as_dataset(note_file, keras.InputSpec(dtype="int64", shape=()), count=1)
    assert list(mapped(batches, note_file).as_numpy_iterator()) == [0]
    assert tokenize(["a"], Tokenizer()).to_list() == [[3]]
    assert files == {__file__}


def test_a_dataset_keeps_its_text_and_nothing_else_does():
    """TensorFlow keeps what Python makes a batch for as long as the process."""
    batches = TokenBatches([[5, 6]] * 9, [[7]] * 9, 64, 8)
    text, iterator = weakref.ref(batches), iter(batches.epoch().take(3))
    del batches
    gc.collect()
    assert len(next(iterator)) == 2, "the iterator still reads it"
    del iterator
    gc.collect()
    assert text() is None


def test_a_dataset_is_made_within_another_dataset_and_batches_are_pickled():
    batches = pickle.loads(pickle.dumps(TokenBatches([[5, 6]] * 9, [[7]] * 9, 64, 8)))
    nested = tf.data.Dataset.range(2).flat_map(lambda _: batches.epoch())
    assert sum(len(labels) for _, labels in nested) == 18
