"""Pairs for the pretraining of BERT: what they are made of, and that a seed fixes them."""

import itertools

import numpy as np
import pytest

from keras_transformer.data import (
    FewShapes,
    PretrainingBatches,
    split_sentences,
    tokenize_documents,
)
from keras_transformer.tokenizers.word_pieces import WordPieceTokenizer
from tests.data.test_masking import assert_binomial
from train.pretraining import read_documents

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CLASS, SEPARATOR, MASK = 2, 3, 4
MAX_LENGTH, BATCH = 17, 5


def numbered_documents(count=23, longest=7, seed=5):
    """Documents in which every token occurs once, so that each id tells where it comes from."""
    random, number = np.random.default_rng(seed), itertools.count(1000)
    return [
        [" ".join(str(next(number)) for _ in range(random.integers(1, longest)))
         for _ in range(random.integers(2, 13))]
        for _ in range(count)
    ]  # fmt: skip


def tokenizer_of(documents):
    words = " ".join(sentence for document in documents for sentence in document).split()
    return WordPieceTokenizer([*SPECIAL, *words])


def pretraining_batches(documents, tokenizer, *sizes, **settings):
    return PretrainingBatches(
        tokenize_documents(documents, tokenizer), tokenizer, *sizes, **settings
    )


@pytest.fixture(scope="module")
def documents():
    return numbered_documents()


@pytest.fixture(scope="module")
def batches(documents):
    return pretraining_batches(documents, tokenizer_of(documents), BATCH, MAX_LENGTH, seed=3)


def elements(batches, count, start_step=0):
    """Batches as one flat dictionary of arrays each."""
    taken = batches.dataset(start_step).take(count)
    return [{**inputs, **labels} for inputs, labels in taken.as_numpy_iterator()]


def rows_of(batch):
    """The two texts of each row before masking, as lists of ids, and its label."""
    for index, row in enumerate(batch["token_ids"].copy()):
        real = batch["masked_tokens"][index] != 0
        row[batch["masked_positions"][index][real]] = batch["masked_tokens"][index][real]
        length = int((row != 0).sum())
        first_end, second_end = np.flatnonzero(row == SEPARATOR)
        assert row[0] == CLASS and second_end == length - 1, "[CLS] first [SEP] second [SEP]"
        segments = [0] * (first_end + 1) + [1] * (length - first_end - 1)
        padding = [0] * (len(row) - length)
        assert batch["segment_ids"][index].tolist() == [*segments, *padding], "segments"
        first, second = row[1:first_end].tolist(), row[first_end + 1 : second_end].tolist()
        yield first, second, int(batch["next_sentence"][index])


@pytest.mark.slow
def test_the_masking_rate_is_that_asked_for(documents):
    settings = (tokenizer_of(documents), BATCH, MAX_LENGTH, 3, 0.5)
    batches = pretraining_batches(documents, *settings)
    for batch in elements(batches, 4):
        masked = (batch["masked_tokens"] != 0).sum(axis=1)
        ordinary = (batch["token_ids"] != 0).sum(axis=1) - 3  # [CLS], [SEP], [SEP]
        np.testing.assert_array_equal(masked, np.round(0.5 * ordinary))


def test_sentences_end_at_any_kind_of_space():
    text = "Go.\u0085Yes!\u00a0It is 3,5 m… So\u2003what?"
    expected = ["Go.", "Yes!", "It is 3,5 m…", "So what?"]
    assert split_sentences([text, ""])[0] == expected


def test_documents_are_the_files_of_a_folder_or_the_parts_of_a_file(tmp_path):
    (tmp_path / "texts" / "b").mkdir(parents=True)
    (tmp_path / "texts" / "b" / "1.txt").write_text("Two.")
    (tmp_path / "texts" / "a.txt").write_text("One. And?")
    (tmp_path / "texts" / "a.csv").write_text("none")
    assert read_documents(tmp_path / "texts") == ["One. And?", "Two."]
    (tmp_path / "text.txt").write_bytes(b"One.\r\nAnd?\r\n\r\nTwo.\r\n")
    assert read_documents(tmp_path / "text.txt") == ["One.\r\nAnd?\r\n\r\n", "Two.\r\n"]
    (tmp_path / "text.txt").write_bytes(b"One.")
    with pytest.raises(ValueError, match=r"an empty line between them. Received: .* with 1\."):
        read_documents(tmp_path / "text.txt")
    (tmp_path / "text.txt").write_bytes(b"One.\n\n\xff")
    with pytest.raises(ValueError, match="must be UTF-8"):
        read_documents(tmp_path / "text.txt")


def test_documents_with_labels_come_first_and_lists_beside_them_are_none(tmp_path):
    for name in ("unsup/0", "neg/1", "pos/2", "urls_neg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.txt").write_text(name)
    assert read_documents(tmp_path) == ["neg/1", "pos/2", "unsup/0"]


def same(some, others):
    return len(some) == len(others) and all(
        np.array_equal(one[name], other[name])
        for one, other in zip(some, others, strict=True)
        for name in one
    )


def test_rows_are_two_texts_of_consecutive_tokens(batches, documents):
    tokenizer = tokenizer_of(documents)
    sentences = [
        (place, tokenizer.tokenize([sentence]).to_list()[0])
        for place, document in enumerate(documents)
        for sentence in document
    ]
    document_of = {token: place for place, tokens in sentences for token in tokens}
    starts = {tokens[0] for _, tokens in sentences}
    ends = {tokens[-1] for _, tokens in sentences}
    labels = []
    for batch in elements(batches, 40 * batches.steps_per_epoch):
        for first, second, label in rows_of(batch):
            labels.append(label)
            for text in (first, second):
                assert text and text == [*range(text[0], text[-1] + 1)], "consecutive, not empty"
                assert len({document_of[token] for token in text}) == 1, "of one document"
            assert len(first) + len(second) <= MAX_LENGTH - 3
            assert first[-1] in ends and second[0] in starts, "they meet between sentences"
            related = document_of[first[0]] == document_of[second[0]]
            assert related == (label == 0), "random texts are of another document"
            if label == 0:
                assert second[0] == first[-1] + 1, "the next sentence"
    assert_binomial(sum(labels), len(labels), 0.5, "random next sentences")


def test_every_token_is_read_in_an_epoch_but_what_was_cut(documents):
    # With rows longer than any document a passage is a document.
    tokenizer = tokenizer_of(documents)
    batches = pretraining_batches(documents, tokenizer, BATCH, max_length=127)
    assert batches.num_passages == len(documents)
    seen = set()
    for batch in elements(batches, 30 * batches.steps_per_epoch):
        for first, second, _ in rows_of(batch):
            seen.update(first, second)
    assert seen == set(range(5, tokenizer.vocabulary_size))


def passages_of(batches):
    return batches._passages[: batches.num_passages].tolist()


def test_passages_fill_a_row_and_leave_no_sentence_alone():
    # Sentences of 3, 3, 3, 3, 3 and of 9, 9, 2 tokens; a row has room for 7.
    documents = [["a a a"] * 5, ["b " * 9, "b " * 9, "b b"]]
    batches = pretraining_batches(documents, WordPieceTokenizer([*SPECIAL, "a", "b"]), 2, 10)
    assert passages_of(batches) == [[0, 2, 0], [3, 4, 0], [5, 6, 1], [6, 7, 1]]
    documents = [["a a a"] * 4, ["b", "b"]]
    batches = pretraining_batches(documents, WordPieceTokenizer([*SPECIAL, "a", "b"]), 2, 10)
    assert passages_of(batches) == [[0, 2, 0], [2, 3, 0], [4, 5, 1]], "read twice"


def test_long_pairs_lose_their_outer_ends_the_longer_one_first():
    documents = [
        [" ".join(map(str, range(10, 30))), " ".join(map(str, range(30, 33)))],
        ["1 2 3", "4 5 6"],
    ]
    batches = pretraining_batches(documents, tokenizer_of(documents), 2, 12, seed=1)
    pairs = {
        tuple(map(tuple, (first, second)))
        for batch in elements(batches, 30)
        for first, second, label in rows_of(batch)
        if label == 0 and len(first) > 3
    }
    assert pairs == {(tuple(range(19, 25)), (25, 26, 27))}, "six of twenty tokens, and three"


@pytest.mark.slow
@pytest.mark.parametrize("max_length", [9, 99])  # a few sentences, more than a document
def test_length_does_not_tell_a_random_sentence(documents, max_length):
    batches = pretraining_batches(documents, tokenizer_of(documents), 7, max_length, seed=3)
    lengths, labels = [], []
    for batch in elements(batches, 2000 // batches.steps_per_epoch * batches.steps_per_epoch):
        second = batch["segment_ids"].sum(axis=1) - 1  # without its [SEP]
        first = (batch["token_ids"] != 0).sum(axis=1) - second - 3
        lengths.append(np.stack([first, second], axis=1))
        labels.append(batch["next_sentence"])
    lengths, labels = np.concatenate(lengths), np.concatenate(labels)
    following, random = (lengths[labels == label] for label in (0, 1))
    errors = np.hypot(*(part.std(axis=0) / len(part) ** 0.5 for part in (following, random)))
    assert (np.abs(following.mean(axis=0) - random.mean(axis=0)) < 4 * errors).all()


def test_shapes_are_fixed_and_weights_sum_to_the_rows(batches):
    for batch in elements(batches, 2 * batches.steps_per_epoch):
        rows = len(batch["token_ids"])
        assert batch["token_ids"].shape == batch["segment_ids"].shape == (rows, MAX_LENGTH)
        assert batch["masked_positions"].shape == batch["masked_tokens"].shape == (rows, 3)
        weights, real = batch["masked_weights"], batch["masked_tokens"] != 0
        np.testing.assert_allclose(weights, real * rows / real.sum(), rtol=1e-6)
        kinds = {name: array.dtype.name for name, array in batch.items()}
        assert kinds.pop("masked_weights") == "float32" and set(kinds.values()) == {"int32"}


def test_every_row_is_masked_as_by_mask_tokens(batches):
    shown = []
    for batch in elements(batches, 9 * batches.steps_per_epoch):
        real = batch["masked_tokens"] != 0
        assert real.any(axis=1).all(), "at least one a row"
        tokens = np.take_along_axis(batch["token_ids"], batch["masked_positions"], axis=1)
        shown += tokens[real].tolist()
    assert_binomial(shown.count(MASK), len(shown), 0.8, "[MASK]")


def test_every_epoch_reads_each_passage_once_in_another_order(batches):
    epochs = []
    for epoch in range(3):
        steps = epoch * batches.steps_per_epoch + np.arange(batches.steps_per_epoch)
        order = np.concatenate([batches._rows_of(int(step))[0] for step in steps])
        assert sorted(order) == list(range(batches.num_passages))
        epochs.append(order.tolist())
    assert epochs[0] != epochs[1] != epochs[2]
    rows = [len(batch["token_ids"]) for batch in elements(batches, 2 * batches.steps_per_epoch)]
    rest = batches.num_passages % BATCH or BATCH
    assert rows == ([BATCH] * (batches.steps_per_epoch - 1) + [rest]) * 2


def test_every_token_is_counted(documents):
    tokenizer = tokenizer_of(documents)
    batches = pretraining_batches([*documents, documents[0]], tokenizer, BATCH, MAX_LENGTH)
    twice = tokenizer.tokenize([" ".join(documents[0])]).flat_values.numpy()
    expected = np.append(np.zeros(len(SPECIAL)), np.ones(batches.num_tokens - len(twice)))
    expected[twice] = 2
    np.testing.assert_array_equal(batches.token_counts(), expected)


def test_masks_and_pairs_differ_from_epoch_to_epoch(documents):
    batches = pretraining_batches(documents[:2], tokenizer_of(documents), 97, MAX_LENGTH)
    assert batches.steps_per_epoch == 1
    first, second = elements(batches, 2)
    assert not np.array_equal(np.sort(first["token_ids"]), np.sort(second["token_ids"]))


@pytest.mark.slow
def test_training_resumes_at_any_step(batches):
    steps = batches.steps_per_epoch
    whole = elements(batches, 2 * steps + 3)
    for start in (1, steps - 1, steps, steps + 2):
        rest = elements(batches, 2 * steps + 3 - start, start)
        assert same(rest, whole[start:]), f"from step {start} on"


@pytest.mark.slow
def test_batches_are_a_function_of_the_seed(batches, documents):
    first = elements(batches, 4)
    again = pretraining_batches(documents, tokenizer_of(documents), BATCH, MAX_LENGTH, seed=3)
    assert same(elements(again, 4), first), "the same seed, the same batches"
    other = pretraining_batches(documents, tokenizer_of(documents), BATCH, MAX_LENGTH, seed=4)
    assert not same(elements(other, 4), first), "another seed, other batches"


def test_short_documents_and_empty_sentences_are_dropped_and_reported(caplog):
    tokenizer = WordPieceTokenizer([*SPECIAL, *"abcde"])
    documents = [["a", "", "b"], ["c"], [], ["", "d", "\u200b"], ["d", "e"]]
    batches = pretraining_batches(documents, tokenizer, 2, 9)
    assert (batches.num_dropped, batches.num_passages) == (3, 2)
    assert "Dropped 3 of 5 documents" in caplog.text
    assert np.flatnonzero(batches.token_counts()).tolist() == [5, 6, 8, 9], "what is left"


def test_texts_and_settings_that_cannot_work_are_refused():
    tokenizer = WordPieceTokenizer([*SPECIAL, "a"])
    for documents in ([], [["a", "a"]], [["a", "a"], ["a"]]):
        with pytest.raises(ValueError, match=r"at least two documents.*Received: \d documents"):
            pretraining_batches(documents, tokenizer)
    with pytest.raises(ValueError, match=r"max_length must be .* at least 5\..*max_length=4"):
        pretraining_batches([["a", "a"]] * 2, tokenizer, max_length=4)
    with pytest.raises(ValueError, match=r"batch_size=0"):
        pretraining_batches([["a", "a"]] * 2, tokenizer, batch_size=0)
    with pytest.raises(ValueError, match=r"batch_size must be .* at least 3\..*batch_size=2"):
        pretraining_batches([["a", "a"]] * 2, tokenizer, batch_size=2, shapes=FewShapes(1, 3))
    with pytest.raises(ValueError, match=r"masking_rate=1.5"):
        pretraining_batches([["a", "a"]] * 2, tokenizer, masking_rate=1.5)
