"""Batches for pretraining BERT, with new masks in every epoch.

Batch k is a pure function of (text, seed, k), so an interrupted run resumes at any step without
reading earlier batches.
"""

import itertools
import logging

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.arguments import check_integer
from keras_transformer.data.batch_plans import FewShapes, check_shapes
from keras_transformer.data.draws import key_of, permuted
from keras_transformer.data.masking import check_masking_rate, mask_tokens
from keras_transformer.data.pipelines import as_dataset, mapped, prefetched
from keras_transformer.data.segments import pack_segments
from keras_transformer.data.token_ids import IdRows, checked_ids, checksum_of
from keras_transformer.files import load_arrays, save_arrays
from keras_transformer.tokenizers.word_pieces import WordPieceTokenizer

_NUM_SPECIAL = 3  # [CLS] first [SEP] second [SEP]


class PretrainingBatches:
    """Pairs of texts with masked tokens; in half of the pairs the texts do not belong together.

    Keeps the ids in memory, about four bytes per token. Each document is split into passages of
    whole sentences that just fill a row or, with their last sentence, exceed it. Each time a
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
            tensor, as `tokenize_documents` returns it, or sequences of sequences of integers.
            Documents with fewer than two sentences that have tokens are dropped and reported.
        tokenizer: the `WordPieceTokenizer` of these ids.
        batch_size: maximum rows in a batch.
        max_length: length of a row, in tokens, special ones included.
        seed: integer that fixes the pairs, the masks and the order of every epoch.
        masking_rate: share of a row's tokens to predict, in (0, 1].
        shapes: None if the last batch of an epoch may have fewer rows; `FewShapes` for a step that
            is compiled once: all batches then have one shape, of as many rows as `batch_size` and
            `row_multiple` allow, and empty rows fill up the last one.

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
        tokenizer: WordPieceTokenizer,
        batch_size: int = 32,
        max_length: int = 128,
        seed: int = 0,
        masking_rate: float = 0.15,
        shapes: FewShapes | None = None,
    ):
        check_shapes(shapes, FewShapes)
        row_multiple = shapes.row_multiple if shapes else 1
        check_integer("batch_size", batch_size, row_multiple)
        batch_size -= batch_size % row_multiple
        reason = f" A row has {_NUM_SPECIAL} special tokens and one or more of each text."
        check_integer("max_length", max_length, _NUM_SPECIAL + 2, reason=reason)
        check_masking_rate(masking_rate)
        documents = checked_ids(documents, "documents", rank=3)
        largest = documents.values.values.max(initial=0)
        if largest >= tokenizer.vocabulary_size:
            raise ValueError(
                f"documents must hold ids of the tokenizer, below {tokenizer.vocabulary_size}. "
                f"Received: an id {largest}."
            )
        self._tokenizer, self._batch_size, self._seed = tokenizer, batch_size, seed
        self._masking_rate, self._has_weights = masking_rate, bool(shapes)
        self._max_length, self._room = max_length, max_length - _NUM_SPECIAL
        arrays = self._keep(documents)
        ids, starts, first_sentences = arrays
        self.num_tokens = len(ids)
        passages = [
            [first, last, document]
            for document, (first, end) in enumerate(itertools.pairwise(first_sentences.tolist()))
            for first, last in _passages_of(first, end, starts, self._room)
        ]
        self.num_passages = len(passages)
        self.steps_per_epoch = -(-self.num_passages // batch_size)
        self.shapes = np.tile([batch_size if shapes else -1, max_length], (self.steps_per_epoch, 1))
        self._passages = np.array(passages, np.int64)
        with tf.device("CPU:0"):  # tf.data reads tensors in place, without copies
            self._ids, self._starts, self._first_sentences = map(tf.constant, arrays)

    def dataset(self, start_step: int = 0) -> tf.data.Dataset:
        """Endless batches, from step `start_step` on.

        Element k is a pure function of the text, the seed and `start_step + k`. Starting
        late costs nothing: skipped batches are never made. For validation, use the first
        `steps_per_epoch` batches of another text.

        Returns:
            Elements `(inputs, labels)` for `bert_pretraining` and `PretrainingLoss`; int32,
            padded with 0, except the weights, which are float32. With `shapes` also sample
            weights, float32 (batch,), 0 for empty rows, whose `next_sentence` is -1.
        """

        specs = (
            keras.InputSpec(dtype="int64", shape=()),
            keras.InputSpec(dtype="int64", shape=(None, 3)),
        )
        passages = as_dataset(lambda number: self._passages_of(start_step + number), specs)
        return prefetched(mapped(passages, self._batch))

    def token_counts(self) -> np.ndarray:
        """How often each id of the vocabulary occurs in the documents, (vocabulary_size,)."""
        return np.bincount(self._ids.numpy(), minlength=self._tokenizer.vocabulary_size)

    def save(self, path) -> None:
        """Writes the tokenised documents to a NumPy .npz file, atomically."""
        arrays = {
            "ids": self._ids.numpy(),
            "starts": self._starts.numpy(),
            "first_sentences": self._first_sentences.numpy(),
            "num_dropped": self.num_dropped,
        }
        save_arrays(path, arrays.items())

    @classmethod
    def load(
        cls,
        path,
        tokenizer,
        batch_size=32,
        max_length=128,
        seed=0,
        masking_rate=0.15,
        shapes: FewShapes | None = None,
    ) -> "PretrainingBatches":
        """The batches of documents that `save` wrote, without tokenising them again."""
        kept = load_arrays(path)
        sentences = IdRows(kept["ids"], np.diff(kept["starts"]))
        documents = IdRows(sentences, np.diff(kept["first_sentences"]))
        sizes = (batch_size, max_length, seed, masking_rate)
        batches = cls(documents, tokenizer, *sizes, shapes)
        batches.num_dropped = int(kept["num_dropped"])
        return batches

    def checksum(self) -> int:
        """A number that changes with any token, sentence or document."""
        return checksum_of(*(n.numpy() for n in (self._ids, self._starts, self._first_sentences)))

    def _keep(self, documents):
        """Drops sentences without tokens, and documents with fewer than two other sentences.

        Returns:
            All ids; where each sentence starts, in tokens; where each document starts, in
            sentences; the last entries are the ends.
        """
        ids, lengths = documents.values.values, documents.values.lengths
        document_lengths = documents.lengths
        document_of = np.repeat(np.arange(len(document_lengths)), document_lengths)
        counts = np.bincount(document_of[lengths > 0], minlength=len(document_lengths))
        kept = (lengths > 0) & (counts[document_of] >= 2)
        self.num_dropped = int((counts < 2).sum())
        counts = counts[counts >= 2]
        if len(counts) < 2:
            raise ValueError(
                "There must be at least two documents of two sentences, because random sentences "
                f"come from another document. Received: {len(document_lengths)} documents, "
                f"{self.num_dropped} of them shorter."
            )
        if self.num_dropped:
            logging.getLogger(__name__).warning(
                "Dropped %d of %d documents of fewer than two sentences.",
                self.num_dropped, len(document_lengths),
            )  # fmt: skip
        starts, first_sentences = (np.append(0, np.cumsum(n)) for n in (lengths[kept], counts))
        return ids[np.repeat(kept, lengths)], starts, first_sentences

    def _passages_of(self, step):
        """The number of a step, counted from the beginning, and what its rows read, (rows, 3)."""
        epoch, place = divmod(step, self.steps_per_epoch)
        first = place * self._batch_size
        places = np.arange(first, min(first + self._batch_size, self.num_passages))
        return step, self._passages[permuted(places, self.num_passages, key_of(self._seed, epoch))]

    def _batch(self, step, passages):
        seed = tf.stack([tf.constant(2 * self._seed + 1, tf.int64), step])
        for_pairs, for_masks = tf.unstack(tf.random.split(seed, 2, alg="philox"))
        first_ids, second_ids, is_random = self._pairs(passages, for_pairs)
        inputs = pack_segments(self._tokenizer, first_ids, second_ids, self._max_length)
        inputs = {name: self._pad(ids) for name, ids in inputs.items()}
        inputs["token_ids"], positions, labels = mask_tokens(
            inputs["token_ids"], self._tokenizer, for_masks, self._masking_rate
        )
        inputs["masked_positions"] = positions
        is_masked = tf.cast(labels != self._tokenizer.pad_id, tf.float32)
        rows = tf.cast(tf.shape(labels)[0], tf.float32)
        labels = {
            "masked_tokens": labels,
            "masked_weights": is_masked * rows / tf.maximum(tf.reduce_sum(is_masked), 1.0),
            "next_sentence": tf.cast(is_random, tf.int32),
        }
        if not self._has_weights:
            return inputs, labels
        real = tf.ones_like(labels["next_sentence"], tf.float32)
        inputs, labels, weights = tf.nest.map_structure(self._fill_up, (inputs, labels, real))
        labels["next_sentence"] -= tf.cast(weights == 0, tf.int32)
        return inputs, labels, weights

    def _pairs(self, passages, seed):
        """First and second ids, (batch, None), and whether the second is random, (batch,)."""
        first, last, document = tf.unstack(passages, axis=1)
        draws = tf.random.stateless_uniform(
            [3, tf.shape(passages)[0]], seed, dtype=tf.float64, alg="philox"
        )

        def random_below(limit, draw):
            return tf.cast(draw * tf.cast(limit, tf.float64), tf.int64)  # in [0, limit)

        middle = first + 1 + random_below(last - first, draws[0])
        start, cut, end = (tf.gather(self._starts, i) for i in (first, middle, last + 1))
        first_length, second_length = self._cut_to_room(cut - start, end - cut)

        # Any sentence outside this document, up to the end of its own document.
        own, own_end = (tf.gather(self._first_sentences, i) for i in (document, document + 1))
        others = self._first_sentences[-1] - (own_end - own)
        sentence = random_below(others, draws[1])
        sentence += tf.where(sentence >= own, own_end - own, 0)
        next_document = tf.searchsorted(self._first_sentences, sentence, side="right")
        begin = tf.gather(self._starts, sentence)
        stop = tf.gather(self._starts, tf.gather(self._first_sentences, next_document))

        is_random = draws[2] < 0.5
        second_start = tf.where(is_random, begin, cut)
        # The continuation is as short as its possible replacement: length reveals nothing.
        second_length = tf.minimum(second_length, stop - begin)
        first_ids = self._tokens(cut - first_length, first_length)
        return first_ids, self._tokens(second_start, second_length), is_random

    def _cut_to_room(self, first, second):
        """Lengths that fit into a row; the longer one is shortened first."""
        half = tf.constant(-(-self._room // 2), tf.int64)
        first = tf.minimum(first, tf.maximum(half, self._room - second))
        return first, tf.minimum(second, self._room - first)

    def _tokens(self, starts, lengths):
        places = tf.ragged.range(starts, starts + lengths)
        return places.with_flat_values(tf.gather(self._ids, places.flat_values))

    def _fill_up(self, rows):
        """Appends rows of zeros up to the batch size."""
        missing = [[0, self._batch_size - tf.shape(rows)[0]]]
        filled = tf.pad(rows, missing + [[0, 0]] * (rows.shape.rank - 1))
        return tf.ensure_shape(filled, [self._batch_size, *rows.shape[1:]])

    def _pad(self, ids):
        padded = tf.pad(ids, [[0, 0], [0, self._max_length - tf.shape(ids)[1]]])
        return tf.ensure_shape(padded, [None, self._max_length])


def _passages_of(first, end, starts, room):
    """Pairs of first and last sentence of [first, end): as few as fill a row, at least two."""
    last = first
    while last < end - 1:
        full = starts[first] + room
        last = max(first + 1, int(np.searchsorted(starts, full)) - 1)
        # A last single sentence joins the one before it.
        last = min(last, end - 1)
        yield first, last
        first = min(last + 1, end - 2)
