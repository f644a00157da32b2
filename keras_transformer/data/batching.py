"""Cuts parallel text into batches that hold about the same number of tokens.

The index plan is a pure function of (seed, epoch), so an interrupted training
goes on at any step without reading what came before.
"""

import functools
import logging
import zlib
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_transformer.data.length_plan import LengthPlan, batched
from keras_transformer.files import load_arrays, save_arrays
from keras_transformer.tokenizers.sentencepiece import (
    END_ID,
    PAD_ID,
    START_ID,
    SentencePieceTokenizer,
)

_TEXTS_PER_TOKENIZER_CALL = 1024


class TokenBatches:
    """Batches of token ids for training a translation model.

    Tokenises the text once, with tensorflow-text inside a tf.data pipeline, and
    keeps the ids in memory, about four bytes a token. Pairs of similar lengths
    share a batch, so that little of it is padding: pairs are sorted by length
    and cut so that rows times longest sentence stays within a budget of tokens on
    either side. Every epoch holds each pair once, in batches of the same
    shapes; which pairs of equal lengths meet in a batch, and the order of the
    batches, change from epoch to epoch.

    A source row is its tokens and end; the decoder's input is start and the
    tokens; the labels are the tokens and end. Pairs of which either side with
    its end is longer than `max_length` are dropped and reported.

    Args:
        sources: sentences to translate.
        targets: their translations, as many.
        source_tokenizer: a `SentencePieceTokenizer`.
        target_tokenizer: a `SentencePieceTokenizer`, often the same object.
        tokens_per_batch: most tokens of a batch, padding included, on either
            side. At least `max_length`.
        max_length: longest sentence kept, in tokens with its end.
        seed: integer that fixes the order of every epoch.

    Attributes:
        num_pairs: pairs kept, the number of an epoch.
        num_dropped: pairs longer than `max_length`.
        num_target_tokens: labels of an epoch, ends included, padding not.
        steps_per_epoch: batches of an epoch, the same for every epoch.

    Raises:
        ValueError: if there are not as many sources as targets, no pair is
            left, or the budget is smaller than the longest sentence allowed.

    Example:
        >>> from keras_transformer.tokenizers import train_sentencepiece
        >>> tokenizer = train_sentencepiece(["a b", "b a"], vocabulary_size=264)
        >>> batches = TokenBatches(["a b", "b"], ["b a", "a"], tokenizer, tokenizer)
        >>> inputs, labels = next(iter(batches.dataset()))
        >>> sorted(inputs), labels.shape[0]
        (['source_ids', 'target_ids'], 2)
    """

    def __init__(
        self,
        sources: Sequence[str],
        targets: Sequence[str],
        source_tokenizer: SentencePieceTokenizer,
        target_tokenizer: SentencePieceTokenizer,
        tokens_per_batch: int = 4096,
        max_length: int = 256,
        seed: int = 0,
    ):
        if len(sources) != len(targets):
            raise ValueError(
                "Each source needs one target. "
                f"Received: {len(sources)} sources, {len(targets)} targets."
            )
        _check_limits(tokens_per_batch, max_length)
        self._sources = tokenize_all(sources, source_tokenizer, _with_end)
        self._targets = tokenize_all(targets, target_tokenizer, _with_end)
        self._arrange(tokens_per_batch, max_length, seed)

    def save(self, path) -> None:
        """Writes the tokenised text to a file of NumPy's format npz, whole or not at all."""
        sides = {"source": self._sources, "target": self._targets}
        arrays = {f"{side}_ids": ids.flat_values.numpy() for side, ids in sides.items()}
        arrays |= {f"{side}_lengths": ids.row_lengths().numpy() for side, ids in sides.items()}
        save_arrays(path, arrays.items())

    @classmethod
    def load(cls, path, tokens_per_batch: int = 4096, max_length: int = 256, seed: int = 0):
        """The batches of a text that `save` has written, without reading or tokenising it again.

        With the same limits and seed they are the same batches.
        """
        _check_limits(tokens_per_batch, max_length)
        batches = cls.__new__(cls)
        sides = load_arrays(path)
        batches._sources = ragged(sides["source_ids"], sides["source_lengths"])
        batches._targets = ragged(sides["target_ids"], sides["target_lengths"])
        batches._arrange(tokens_per_batch, max_length, seed)
        return batches

    def _arrange(self, tokens_per_batch, max_length, seed):
        """Leaves out long pairs and decides which rows a batch has."""
        num_texts = self._sources.nrows().numpy()
        self._source_lengths = self._sources.row_lengths().numpy()
        self._target_lengths = self._targets.row_lengths().numpy()
        longest = np.maximum(self._source_lengths, self._target_lengths)
        self._kept = np.flatnonzero(longest <= max_length)
        self.num_pairs = len(self._kept)
        self.num_dropped = int(num_texts) - self.num_pairs
        if self.num_pairs == 0:
            raise ValueError(
                "No pair is left to train on. Give more text or a larger max_length. Received: "
                f"{num_texts} pairs, {self.num_dropped} of them longer than {max_length} tokens."
            )
        if self.num_dropped:
            logging.getLogger(__name__).warning(
                "Dropped %d of %d pairs longer than max_length=%d tokens.",
                self.num_dropped, num_texts, max_length,
            )  # fmt: skip
        self.num_target_tokens = int(self._target_lengths[self._kept].sum())
        lengths = self._source_lengths, self._target_lengths
        self._plan = LengthPlan(self._kept, *lengths, tokens_per_batch, seed)
        self.steps_per_epoch = self._plan.steps_per_epoch

    def dataset(self, start_step: int = 0) -> tf.data.Dataset:
        """Training batches without end, from step `start_step` on.

        Element k is a pure function of the text, the seed and `start_step + k`.
        Starting late costs nothing: skipped batches are never made.

        Returns:
            Elements `({"source_ids": (batch, source), "target_ids": (batch,
            target)}, labels (batch, target))`, int32, padded with 0.
        """
        return batched(self._plan.epochs(start_step), self._batch)

    def epoch(self) -> tf.data.Dataset:
        """Each pair once, in the order of the text: for validation.

        The elements are those of `dataset`; batches keep to the same budget.
        """
        return batched(self._plan.in_order(), self._batch)

    def checksum(self) -> int:
        """A number that differs as soon as any token of the text does."""
        parts = [*_parts(self._sources), *_parts(self._targets)]
        return functools.reduce(lambda total, part: zlib.crc32(part, total), parts, 0)

    def _batch(self, pairs):
        source_ids = tf.gather(self._sources, pairs).to_tensor(PAD_ID)  # (batch, source)
        labels = tf.gather(self._targets, pairs).to_tensor(PAD_ID)  # (batch, target)
        shifted = tf.pad(labels[:, :-1], [[0, 0], [1, 0]], constant_values=START_ID)
        # Where the label is padding, the shifted row holds the end of a shorter sentence.
        target_ids = tf.where(labels == PAD_ID, PAD_ID, shifted)
        return {"source_ids": source_ids, "target_ids": target_ids}, labels


def tokenize_all(
    texts: Sequence[str], tokenizer: SentencePieceTokenizer, finish=None
) -> tf.RaggedTensor:
    """The ids of each text, (texts, None), after the function `finish` of some of them."""

    def tokens_of(chunk):
        ids = tokenizer.tokenize(chunk)
        return ids if finish is None else finish(ids)

    chunks = (
        tf.data.Dataset.from_tensor_slices(tf.constant(list(texts), tf.string))
        .batch(_TEXTS_PER_TOKENIZER_CALL)
        .map(tokens_of, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    )
    ids, lengths = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
    for chunk in chunks:
        ids.append(chunk.flat_values.numpy())
        lengths.append(chunk.row_lengths().numpy())
    return ragged(np.concatenate(ids), np.concatenate(lengths))


def ragged(ids: np.ndarray, lengths: np.ndarray) -> tf.RaggedTensor:
    with tf.device("CPU:0"):  # tf.data runs there
        return tf.RaggedTensor.from_row_lengths(ids, lengths)


def _with_end(ids):
    return tf.concat([ids, tf.fill([ids.nrows(), 1], END_ID)], axis=1)


def _check_limits(tokens_per_batch: int, max_length: int) -> None:
    if tokens_per_batch < max_length:
        raise ValueError(
            "tokens_per_batch must be at least max_length, so that any sentence fits into a "
            f"batch. Received: tokens_per_batch={tokens_per_batch}, max_length={max_length}."
        )


def _parts(ids: tf.RaggedTensor) -> list[np.ndarray]:
    return [ids.flat_values.numpy(), ids.row_splits.numpy()]
