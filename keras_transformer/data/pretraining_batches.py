"""Batches for pretraining BERT, with new masks in every epoch.

Batch k is a pure function of (text, seed, k), so an interrupted run resumes at any step without
reading earlier batches.
"""

import bisect
import functools
import logging
from typing import TYPE_CHECKING

import keras
import numpy as np

from keras_transformer.arguments import check_integer
from keras_transformer.data.batch_plans import FewShapes, check_shapes
from keras_transformer.data.draws import key_of, permuted
from keras_transformer.data.masking import check_masking_rate, masked, share_of
from keras_transformer.data.pipelines import as_data, rounded_up
from keras_transformer.data.plan_arrays import plan_arrays
from keras_transformer.data.token_ids import IdRows, checked_ids, parts, ranges

if TYPE_CHECKING:
    from keras_transformer.tokenizers.word_pieces import WordPieceTokenizer

_DOCUMENTS_AT_A_TIME = 2**12
# What is drawn: the order of an epoch and, for each row, where it is split and what it becomes.
_OF_ORDER, _OF_ROWS, _OF_MIDDLE, _OF_SENTENCE, _OF_NEXT, _OF_MASKS = range(6)
_NUM_SPECIAL = 3  # [CLS] first [SEP] second [SEP]


class PretrainingBatches:
    """Pairs of texts with masked tokens; in half of the pairs the texts do not belong together.

    Ids of a prepared folder are read as they are needed; others stay in memory, about four bytes
    per token. Each document is split into passages of whole sentences that just fill a row or, with
    their last sentence, exceed it. Each time a
    passage is read, it is split after a random sentence, and a random sentence of another document
    is drawn. The second part of the passage is truncated to the length of the other document from
    that sentence on, and in half of the cases replaced by it, so that length reveals nothing.
    A pair too long for a row loses the beginning of its first and the end of its second text, the
    longer one first: the first text still ends where the second begins.

    Every epoch reads each passage once, in a different order. Rows have a fixed length.

    Source: Devlin et al. 2018, section 3.1 and appendix A.2
    (https://arxiv.org/abs/1810.04805). Masks and pairs are drawn for every epoch, as Liu et
    al. 2019 do with masks (https://arxiv.org/abs/1907.11692), not ten times beforehand.

    Args:
        documents: ids of the sentences of each document, (documents, None, None): a ragged
            tensor, as `tokenize_documents` returns it, `IdRows` of sentences, which may be a column
            of a prepared folder, or sequences of sequences of integers. Documents with fewer than
            two sentences that have tokens are dropped and reported.
        tokenizer: the `WordPieceTokenizer` of these ids.
        batch_size: maximum rows in a batch.
        max_length: length of a row, in tokens, special ones included.
        seed: integer that fixes the pairs, the masks and the order of every epoch.
        masking_rate: share of a row's tokens to predict, in (0, 1].
        shapes: None if the last batch of an epoch may have fewer rows; `FewShapes` for a step that
            is compiled once: all batches then have one shape, of as many rows as `batch_size` and
            `row_multiple` allow, and empty rows fill up the last one.
        plan_folder: path of a folder for what the order of the batches is read from, about 24 bytes
            per sentence; processes that name the same one share it. None keeps it in memory.

    Attributes:
        num_tokens: tokens in all documents.
        num_passages: passages of the text, the rows of an epoch.
        num_dropped: documents that were dropped.
        steps_per_epoch: batches in an epoch.
        shapes: rows and length of each batch, (steps, 2); the rows are -1 without `FewShapes`.

    Raises:
        ValueError: if an id is below 1, fewer than two documents are left, `batch_size` is below 1
            or `row_multiple`, `max_length` leaves no room for two texts, `masking_rate` is outside
            (0, 1], or `shapes` is anything else.

    Examples:
        >>> from keras_transformer.data import tokenize_documents
        >>> from keras_transformer.tokenizers import train_word_pieces
        >>> documents = [["a b c", "c b"], ["b", "a a"]]
        >>> tokenizer = train_word_pieces(sum(documents, []), vocabulary_size=8)
        >>> ids = tokenize_documents(documents, tokenizer)
        >>> batches = PretrainingBatches(ids, tokenizer, batch_size=2, max_length=7)
        >>> inputs, labels = next(iter(batches.dataset()))
        >>> sorted(inputs), sorted(labels), inputs["token_ids"].shape
        (['masked_positions', 'segment_ids', 'token_ids'],
         ['masked_tokens', 'masked_weights', 'next_sentence'], TensorShape([2, 7]))
    """

    def __init__(
        self,
        documents,
        tokenizer: "WordPieceTokenizer",
        batch_size: int = 32,
        max_length: int = 128,
        seed: int = 0,
        masking_rate: float = 0.15,
        shapes: FewShapes | None = None,
        plan_folder=None,
    ):
        check_shapes(shapes, FewShapes)
        row_multiple = shapes.row_multiple if shapes else 1
        check_integer("batch_size", batch_size, row_multiple)
        batch_size -= batch_size % row_multiple
        reason = f" A row has {_NUM_SPECIAL} special tokens and one or more of each text."
        check_integer("max_length", max_length, _NUM_SPECIAL + 2, reason=reason)
        check_masking_rate(masking_rate)
        documents = checked_ids(documents, "documents", rank=3)
        ids = documents.values
        largest = ids.values.max(initial=0) if isinstance(ids, IdRows) else 0
        if largest >= tokenizer.vocabulary_size:
            raise ValueError(
                f"documents must hold ids of the tokenizer, below {tokenizer.vocabulary_size}. "
                f"Received: an id {largest}."
            )
        self._documents, self._tokenizer, self._seed = documents, tokenizer, seed
        self._batch_size, self._masking_rate, self._has_weights = (
            batch_size, masking_rate, bool(shapes)
        )  # fmt: skip
        self._max_length, self._room = max_length, max_length - _NUM_SPECIAL
        facts, arrays = plan_arrays(
            functools.partial(_plan, documents, self._room),
            plan_folder,
            lambda: {"ids": documents.checksum(), "max_length": max_length},
        )
        num_documents, self._num_sentences = facts["num_documents"], facts["num_sentences"]
        self._passages, self._spans = arrays["passages"], arrays["spans"]
        self._first_sentences = arrays["first_sentences"][: num_documents + 1]
        self.num_tokens, self.num_passages = facts["num_tokens"], facts["num_passages"]
        self.num_dropped = len(documents) - num_documents
        if self.num_dropped:
            logging.getLogger(__name__).warning(
                "Dropped %d of %d documents of fewer than two sentences.",
                self.num_dropped, len(documents),
            )  # fmt: skip
        self.steps_per_epoch = -(-self.num_passages // batch_size)
        shape = np.array([batch_size if shapes else -1, max_length])
        self.shapes = np.broadcast_to(shape, (self.steps_per_epoch, 2))

    def dataset(self, start_step: int = 0, replicas: int = 1):
        """Endless batches, from step `start_step` on.

        Element k is a pure function of the text, the seed and `start_step + k`. Starting
        late costs nothing: skipped batches are never made.

        Args:
            start_step: number of the first batch.
            replicas: with `shapes`, batches end with as many empty rows as they lack to a multiple
                of this, so that any number of replicas can share them.

        Returns:
            On TensorFlow a `tf.data.Dataset`, elsewhere a `keras.utils.PyDataset` of NumPy arrays:
            `(inputs, labels)` for `bert_pretraining` and `PretrainingLoss`; int32, padded with 0,
            except the weights, which are float32. With `shapes` also sample
            weights, float32 (batch,), 0 for empty rows, whose `next_sentence` is -1.
        """
        rows = rounded_up(self._batch_size, replicas)
        return as_data(lambda number: self._batch(start_step + number, rows), self._specs(rows))

    def epoch(self, replicas: int = 1):
        """The batches of the first epoch, for validation."""
        rows = rounded_up(self._batch_size, replicas)
        return as_data(
            lambda number: self._batch(number, rows), self._specs(rows), self.steps_per_epoch
        )

    def token_counts(self) -> np.ndarray:
        """How often each id of the vocabulary occurs in the documents, (vocabulary_size,)."""
        counts = np.zeros(self._tokenizer.vocabulary_size, np.int64)
        for some in parts(self._num_sentences):
            starts, ends = self._spans[some].T
            ids = self._documents.values.read(starts, ends - starts).values
            counts += np.bincount(ids, minlength=len(counts))
        return counts

    def checksum(self) -> int:
        """A number that changes with any token, sentence or document."""
        return self._documents.checksum()

    def _specs(self, rows):
        rows = rows if self._has_weights else None
        ids, masked, one = (
            keras.InputSpec(dtype="int32", shape=(rows, *rest))
            for rest in ((self._max_length,), (share_of(self._max_length, self._masking_rate),), ())
        )
        inputs = {"token_ids": ids, "segment_ids": ids, "masked_positions": masked}
        weights = keras.InputSpec(dtype="float32", shape=masked.shape)
        labels = {"masked_tokens": masked, "masked_weights": weights, "next_sentence": one}
        real = keras.InputSpec(dtype="float32", shape=(rows,))
        return (inputs, labels, real) if self._has_weights else (inputs, labels)

    def _batch(self, step, rows):
        """A batch; with weights, filled up to a number of rows."""
        passages, keys = self._rows_of(step)
        first_ids, second_ids, is_random = self._pairs(self._passages[passages], keys)
        token_ids, segment_ids = self._pack(first_ids, second_ids)
        token_ids, positions, masked_tokens = masked(
            token_ids, self._tokenizer, key_of(keys, _OF_MASKS), self._masking_rate
        )
        inputs = {
            "token_ids": token_ids, "segment_ids": segment_ids, "masked_positions": positions
        }  # fmt: skip
        is_masked = np.float32(masked_tokens != self._tokenizer.pad_id)
        labels = {
            "masked_tokens": masked_tokens,
            "masked_weights": is_masked * np.float32(len(passages) / max(is_masked.sum(), 1)),
            "next_sentence": is_random.astype(np.int32),
        }
        if not self._has_weights:
            return inputs, labels
        real = np.ones(len(passages), np.float32)

        def filled_up(array):
            return np.pad(array, [(0, rows - len(array)), *[(0, 0)] * (array.ndim - 1)])

        inputs, labels, weights = keras.tree.map_structure(filled_up, (inputs, labels, real))
        labels["next_sentence"] -= weights == 0
        return inputs, labels, weights

    def _rows_of(self, step):
        """The passages of a batch, and a key for what is drawn for each of them."""
        epoch, place = divmod(step, self.steps_per_epoch)
        first = place * self._batch_size
        places = np.arange(first, min(first + self._batch_size, self.num_passages))
        key = key_of(self._seed, epoch, _OF_ORDER)
        passages = permuted(places, self.num_passages, key)
        return passages, key_of(self._seed, epoch, _OF_ROWS, passages)

    def _pairs(self, passages, keys):
        """First and second ids, `IdRows`, and whether the second is random, (batch,)."""
        first, last, document = passages.T

        def random_below(limit, purpose):
            return (key_of(keys, purpose) % limit.astype(np.uint64)).astype(np.int64)

        middle = first + 1 + random_below(last - first, _OF_MIDDLE)
        start, cut, end = self._spans[first, 0], self._spans[middle, 0], self._spans[last, 1]
        first_length, second_length = self._cut_to_room(cut - start, end - cut)

        # Any sentence outside this document, up to the end of its own document.
        own, own_end = self._first_sentences[document], self._first_sentences[document + 1]
        sentence = random_below(self._num_sentences - (own_end - own), _OF_SENTENCE)
        sentence += np.where(sentence >= own, own_end - own, 0)
        next_document = np.searchsorted(self._first_sentences, sentence, side="right")
        begin = self._spans[sentence, 0]
        stop = self._spans[self._first_sentences[next_document] - 1, 1]

        is_random = key_of(keys, _OF_NEXT) < 2**63
        second_start = np.where(is_random, begin, cut)
        # The continuation is as short as its possible replacement: length reveals nothing.
        second_length = np.minimum(second_length, stop - begin)
        read = self._documents.values.read
        first_ids = read(cut - first_length, first_length)
        return first_ids, read(second_start, second_length), is_random

    def _cut_to_room(self, first, second):
        """Lengths that fit into a row; the longer one is shortened first."""
        first = np.minimum(first, np.maximum(-(-self._room // 2), self._room - second))
        return first, np.minimum(second, self._room - first)

    def _pack(self, first_ids, second_ids):
        """Rows `[CLS] first [SEP] second [SEP]`, and 1 for what is behind the first [SEP]."""
        rows, length = len(first_ids), self._max_length
        token_ids = np.full(rows * length, self._tokenizer.pad_id, np.int32)
        starts = length * np.arange(rows)
        token_ids[starts] = self._tokenizer.class_id
        ends = starts + 1
        for ids in (first_ids, second_ids):
            token_ids[ranges(ends, ids.lengths)] = ids.values
            ends = ends + ids.lengths + 1
            token_ids[ends - 1] = self._tokenizer.separator_id
        second, end = (first_ids.lengths + 2)[:, None], (ends - starts)[:, None]
        places = np.arange(length)
        segment_ids = ((places >= second) & (places < end)).astype(np.int32)
        return token_ids.reshape(rows, length), segment_ids


def _plan(documents, room, new):
    """Writes what batches are read from, and returns how much there is of it.

    Drops sentences without tokens, and documents with fewer than two other sentences. "spans" holds
    where each sentence starts and ends, in tokens, (sentences, 2); "first_sentences" the first
    sentence of each document, and the end; "passages" first sentence, last sentence and document,
    (passages, 3). Each may be longer than what is written.
    """
    count = documents.num_ids
    spans, passages = new("spans", (count, 2), np.int64), new("passages", (count, 3), np.int64)
    first_sentences = new("first_sentences", (len(documents) + 1,), np.int64)
    first_sentences[0] = num_documents = num_sentences = num_passages = num_tokens = start = 0
    for some in parts(len(documents), _DOCUMENTS_AT_A_TIME):
        of_documents = documents.lengths[some]
        first = documents.starts[some.start]
        lengths = documents.values.lengths[first : documents.starts[some.stop]].astype(np.int64)
        document_of = np.repeat(np.arange(len(of_documents)), of_documents)
        counts = np.bincount(document_of[lengths > 0], minlength=len(of_documents))
        kept = (lengths > 0) & (counts[document_of] >= 2)
        ends = start + np.cumsum(lengths)
        start += int(lengths.sum())
        starts, ends = (ends - lengths)[kept], ends[kept]
        num_tokens += int((ends - starts).sum())
        spans[num_sentences : num_sentences + len(starts)] = np.stack([starts, ends], axis=1)
        found, first, starts = [], 0, starts.tolist()
        for number, size in enumerate(counts[counts >= 2].tolist(), num_documents):
            for begin, last in _passages_of(first, first + size, starts, room):
                found.append((num_sentences + begin, num_sentences + last, number))
            first += size
            first_sentences[number + 1] = num_sentences + first
        passages[num_passages : num_passages + len(found)] = np.reshape(found, (-1, 3))
        num_documents += int((counts >= 2).sum())
        num_sentences, num_passages = num_sentences + first, num_passages + len(found)
    if num_documents < 2:
        raise ValueError(
            "There must be at least two documents of two sentences, because random sentences "
            f"come from another document. Received: {len(documents)} documents, "
            f"{len(documents) - num_documents} of them shorter."
        )
    return {
        "num_documents": num_documents, "num_sentences": num_sentences,
        "num_passages": num_passages, "num_tokens": num_tokens,
    }  # fmt: skip


def _passages_of(first, end, starts, room):
    """Pairs of first and last sentence of [first, end): as few as fill a row, at least two."""
    last = first
    while last < end - 1:
        full = starts[first] + room
        last = max(first + 1, bisect.bisect_left(starts, full) - 1)
        # A last single sentence joins the one before it.
        last = min(last, end - 1)
        yield first, last
        first = min(last + 1, end - 2)
