"""What is done to each block of a text: rows are filtered, hashed and tokenised.

The functions run in any process, and import TensorFlow only for a tokenizer that needs it.
"""

import functools
import hashlib
import itertools
import pathlib
import tempfile
from typing import NamedTuple

import numpy as np

from keras_transformer.data.documents import split_sentences
from keras_transformer.data.text_files import with_line_feeds
from keras_transformer.data.token_ids import IdRows, tokenize

# Why a row is left out; the place of a reason is its number in arrays, 0 for a row that is kept.
REASONS = (
    "rows", "empty", "copies", "characters", "ratio", "duplicates", "held_out", "tokens",
)  # fmt: skip
KEPT, EMPTY, COPY, LONG, UNEVEN, DUPLICATE, RESERVED, MANY_TOKENS = range(len(REASONS))


class Filters(NamedTuple):
    """Why a row is left out by itself, in the order in which reasons are tried."""

    max_ratio: float
    max_characters: int
    drop_copies: bool

    def __call__(self, columns):
        """The number of a reason for each row of these columns, uint8."""
        return np.fromiter(itertools.starmap(self._reason, zip(*columns, strict=True)), np.uint8)

    def _reason(self, *texts):
        stripped = list(map(str.strip, texts))
        if "" in stripped:
            return EMPTY
        if self.drop_copies and len(set(stripped)) < len(stripped):
            return COPY
        if self.max_characters and max(map(len, texts)) > self.max_characters:
            return LONG
        if self.max_ratio:
            words = [len(text.split()) for text in texts]
            if max(words) > self.max_ratio * min(words):
                return UNEVEN
        return KEPT


def read_block(filters, key, block, largest):
    """The first reading of a block.

    Args:
        filters: `Filters`.
        key: key of the hashes, 8 bytes.
        block: `Block`.
        largest: rows with larger hashes are not returned.

    Returns:
        The reasons of all rows; of those that are kept, the hashes of their texts and of their
        labels, uint64; and a list of (hash, row, texts and labels) of those of small hashes.
    """
    columns = block.columns()
    fates = filters(columns)
    kept, rows = np.flatnonzero(fates == KEPT), list(zip(*columns, strict=True))
    # Documents may be followed by more or fewer empty lines, and are the same.
    texts = (with_line_feeds("\0".join(rows[row])).rstrip("\n") for row in kept.tolist())
    hashes = _hashes(texts, key)
    of_labels = np.zeros_like(hashes)
    small = np.flatnonzero(hashes <= np.uint64(largest))
    if block.labels is not None:
        lines = [", ".join(map(str, labels)) for labels in block.labels.labels]
        # Otherwise than texts, so that a text that is its own label is told from others.
        of_labels = _hashes((f"\0{lines[row]}" for row in kept.tolist()), key)
        rows = list(zip(*columns, lines, strict=True))
    places = zip(hashes[small].tolist(), kept[small].tolist(), strict=True)
    return fates, hashes, of_labels, [(number, row, rows[row]) for number, row in places]


def _hashes(texts, key):
    digests = (hashlib.blake2b(text.encode(), digest_size=8, key=key).digest() for text in texts)
    return np.frombuffer(b"".join(digests), "<u8")


def tokenise_block(filters, tokenizer, max_tokens, block, fates):
    """The second reading of a block, or the only one.

    Args:
        filters: `Filters`.
        tokenizer: what `portable` returns.
        max_tokens: rows with more ids in a column are left out; 0 for none.
        block: `Block`.
        fates: the reasons of its rows, or None if there was no first reading.

    Returns:
        The ids of the rows that are kept, an `IdRows` for each column; arrays, {name: array};
        and how many rows have each of the `REASONS`.
    """
    columns = block.columns()
    fates = filters(columns) if fates is None else fates.copy()  # Ray's may not be written
    kept = np.flatnonzero(fates == KEPT)
    ids = [_encoded(tokenizer, [column[row] for row in kept.tolist()]) for column in columns]
    lengths = np.stack([rows.lengths for rows in ids])
    # Some texts have no tokens: of characters that the tokenizer drops.
    fates[kept[lengths.min(axis=0) == 0]] = EMPTY
    if max_tokens:
        fates[kept[lengths.max(axis=0) > max_tokens]] = MANY_TOKENS
    some = np.flatnonzero(fates[kept] == KEPT)
    counts = np.bincount(fates, minlength=len(REASONS))
    arrays = {} if block.labels is None else {"labels": block.labels.matrix()[kept[some]]}
    return ids if len(some) == len(kept) else [rows.take(some) for rows in ids], arrays, counts


def tokenise_sentences(filters, tokenizer, max_tokens, block, fates):
    """`tokenise_block` for documents, of which each sentence becomes a row.

    The array "documents" holds the number of the document of each, from 0 on in a block.
    """
    [texts] = columns = block.columns()
    fates = filters(columns) if fates is None else fates
    documents = split_sentences([texts[row] for row in np.flatnonzero(fates == KEPT)])
    ids = _encoded(tokenizer, list(itertools.chain.from_iterable(documents)))
    numbers = np.repeat(np.arange(len(documents), dtype=np.uint32), list(map(len, documents)))
    counts = np.bincount(fates, minlength=len(REASONS))
    if max_tokens:
        short = np.flatnonzero(ids.lengths <= max_tokens)
        counts[MANY_TOKENS] += len(numbers) - len(short)
        ids, numbers = ids.take(short), numbers[short]
    return [ids], {"documents": numbers}, counts


def portable(tokenizer):
    """A tokenizer for `tokenise_block`: without TensorFlow if it is of pieces alone."""
    processor = getattr(tokenizer, "processor", None)
    if processor is not None:
        return processor
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "tokenizer")
        tokenizer.save(path)
        return path.read_bytes()


def _encoded(tokenizer, texts):
    if isinstance(tokenizer, bytes):
        ids = tokenize(texts, _loaded(tokenizer))
        return IdRows(ids.flat_values.numpy(), ids.row_lengths().numpy())
    rows = tokenizer.encode(texts, num_threads=1)
    ids = np.fromiter(itertools.chain.from_iterable(rows), np.int32)
    return IdRows(ids, np.fromiter(map(len, rows), np.int64))


@functools.lru_cache(maxsize=1)
def _loaded(content):
    from keras_transformer.tokenizers import load_tokenizer

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "tokenizer")
        path.write_bytes(content)
        return load_tokenizer(path)
