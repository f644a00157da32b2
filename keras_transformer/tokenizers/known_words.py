"""The ids of words that are known, in a graph and without a resource of it."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

_BUCKETS = 2**63 - 1  # of the hash of a word


class KnownWords:
    """Finds words among those that are known, by a search in their sorted hashes.

    A table of strings would be a resource.

    Args:
        ids: {word: id}, at least one.

    Raises:
        ValueError: if two words have the same hash.

    Examples:
        >>> KnownWords({"a": 5, "b": 7}).ids(tf.constant(["b", "c"]), 1).numpy().tolist()
        [7, 1]
    """

    def __init__(self, ids: Mapping[str, int]):
        hashes = _hashes(tf.constant([*ids], tf.string)).numpy()
        order = np.argsort(hashes)
        self._hashes = hashes[order]
        if len(set(hashes.tolist())) < len(ids):
            raise ValueError("Two of the tokens have the same hash. Rename one of them.")
        # As tuples: a tf.Module would wrap lists.
        self._words = tuple(np.array([*ids], object)[order])
        self._ids = tuple(np.array([*ids.values()], int)[order].tolist())

    def ids(self, words: tf.Tensor, unknown: tf.Tensor | int) -> tf.Tensor:
        """The int32 id of each word, (words,); that in `unknown` if it is not known."""
        places = tf.searchsorted(self._hashes, _hashes(words))
        places = tf.minimum(places, len(self._words) - 1)
        is_known = tf.gather(tf.constant(self._words), places) == words
        return tf.where(is_known, tf.gather(tf.constant(self._ids, tf.int32), places), unknown)


def _hashes(words):
    return tf.strings.to_hash_bucket_fast(words, _BUCKETS)
