"""Token ids of many texts, as ragged tensors in memory."""

import zlib
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_transformer.tokenizers.sentencepiece import END_ID, START_ID

_TEXTS_PER_TOKENIZER_CALL = 1024
LARGEST_ID = 2**31 - 1  # int32


def tokenize(texts: Sequence[str], tokenizer) -> tf.RaggedTensor:
    """Tokenises many texts, a few at a time and on all cores.

    Args:
        texts: strings.
        tokenizer: one of `keras_transformer.tokenizers`.

    Returns:
        The ids of each text, int32 (texts, None), without start and end.

    Examples:
        >>> from keras_transformer.tokenizers import SymbolTokenizer
        >>> tokenize(["ab", "b"], SymbolTokenizer("ab")).to_list()
        [[4, 5], [5]]
    """
    # AutoGraph would rewrite the tokenizer's source for nothing: it has no loops.
    tokenize_chunk = tf.autograph.experimental.do_not_convert(tokenizer.tokenize)
    chunks = (
        tf.data.Dataset.from_tensor_slices(tf.constant(list(texts), tf.string))
        .batch(_TEXTS_PER_TOKENIZER_CALL)
        .map(tokenize_chunk, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    )
    ids, lengths = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
    for chunk in chunks:
        ids.append(chunk.flat_values.numpy())
        lengths.append(chunk.row_lengths().numpy())
    return ragged(np.concatenate(ids), np.concatenate(lengths))


def tokenize_documents(documents: Sequence[Sequence[str]], tokenizer) -> tf.RaggedTensor:
    """Tokenises documents that are split into sentences.

    Args:
        documents: each a sequence of strings.
        tokenizer: one of `keras_transformer.tokenizers`.

    Returns:
        The ids of each sentence of each document, int32 (documents, None, None).
    """
    ids = tokenize([sentence for document in documents for sentence in document], tokenizer)
    return ragged(ids, np.array([len(document) for document in documents], np.int64))


def ragged(values, lengths) -> tf.RaggedTensor:
    """Splits concatenated rows into rows of these lengths, in tokens or inner rows."""
    with tf.device("CPU:0"):  # where tf.data runs
        return tf.RaggedTensor.from_row_lengths(values, lengths)


def checksum_of(*parts) -> int:
    """A number that changes with any part: ragged tensors, arrays or bytes."""
    total = 0
    for part in parts:
        is_ragged = isinstance(part, tf.RaggedTensor)
        for numbers in (part.flat_values, part.row_splits) if is_ragged else (part,):
            total = zlib.crc32(np.asarray(numbers, order="C"), total)
    return total


def checked_ids(ids, name: str, rank: int = 2) -> tf.RaggedTensor:
    """The ids of texts (rank 2), or of documents of sentences (rank 3), as an int32 ragged tensor.

    Raises ValueError, with the argument's `name`, unless `ids` is a ragged tensor or sequences of
    integers without padding, which 0 stands for.
    """
    if not isinstance(ids, tf.RaggedTensor):
        try:
            ids = tf.ragged.constant([list(row) for row in ids], ragged_rank=rank - 1)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{name} must be {'sequences of ' * (rank - 1)}sequences of ids. Received: {error}"
            ) from None
        if not len(ids.flat_values):
            ids = tf.cast(ids, tf.int32)  # without values, the dtype is not known
    if not ids.dtype.is_integer or ids.shape.rank != rank:
        raise ValueError(
            f"{name} must be integer ids of rank {rank}. "
            f"Received: {ids.dtype.name} of rank {ids.shape.rank}."
        )
    if ids.ragged_rank != rank - 1:  # an inner axis is uniform
        ids = tf.ragged.constant(ids.to_list(), ragged_rank=rank - 1)
    values = ids.flat_values.numpy()
    smallest, largest = values.min(initial=1), values.max(initial=1)
    if smallest < 1 or largest > LARGEST_ID:
        raise ValueError(
            f"{name} must be at least 1, because 0 is padding, and at most {LARGEST_ID}. "
            f"Give rows without padding. Received: ids from {smallest} to {largest}."
        )
    with tf.device("CPU:0"):
        return tf.cast(ids, tf.int32)


def check_no_ends(ids: tf.RaggedTensor) -> None:
    """Raises ValueError if a text holds the id of a start or an end, which separate texts."""
    forbidden = np.intersect1d(ids.flat_values.numpy(), [START_ID, END_ID])
    if len(forbidden):
        raise ValueError(
            f"Packed texts must not hold the ids {START_ID} and {END_ID}, which mark where a text "
            f"begins and ends. Received: ids that include {forbidden[0]}."
        )
