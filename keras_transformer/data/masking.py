"""Masks tokens for a model to predict: 80 % become [MASK], 10 % random ones, 10 % stay."""

from typing import TYPE_CHECKING

import numpy as np

from keras_transformer.data.draws import key_of

if TYPE_CHECKING:
    from keras_transformer.tokenizers.word_pieces import WordPieceTokenizer

_MASKED, _REPLACED = 0.8, 0.1  # of the chosen tokens; the others stay unchanged
_OF_CHOICE, _OF_ACTION, _OF_PIECE = range(3)  # what is drawn


def mask_tokens(token_ids, tokenizer: "WordPieceTokenizer", seeds, masking_rate: float = 0.15):
    """Chooses some of the tokens of each row, and replaces most of them.

    In each row exactly the share `masking_rate` is chosen, rounded, and at least one token. Each
    chosen token independently becomes [MASK] with probability 0.8 and a random piece of the
    vocabulary with probability 0.1. Special tokens are neither chosen nor drawn. Equal rows with
    equal seeds are masked alike, whatever the rows beside them.

    Source: Devlin et al. 2018, section 3.1 (https://arxiv.org/abs/1810.04805), which chooses
    15 %; for 40 % see Wettig et al. 2022 (https://arxiv.org/abs/2202.08005).

    Args:
        token_ids: int32 (batch, length), 0 for padding.
        tokenizer: defines the special ids and the size of the vocabulary.
        seeds: an integer for each row, (batch,).
        masking_rate: share of the tokens to choose, in (0, 1].

    Returns:
        Three int32 arrays: the ids with tokens replaced, (batch, length), the chosen positions,
        and the original ids there, both (batch, masked), where masked is that share of the
        length. Shorter rows have fewer, and zeros at the end of both.

    Raises:
        ValueError: if `masking_rate` is outside (0, 1].

    Examples:
        >>> from keras_transformer.tokenizers import WordPieceTokenizer
        >>> special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        >>> tokenizer = WordPieceTokenizer([*special, "a", "b"])
        >>> _, positions, labels = mask_tokens([[2, 5, 3, 0]], tokenizer, seeds=[7])
        >>> positions.tolist(), labels.tolist()
        ([[1]], [[5]])
    """
    check_masking_rate(masking_rate)
    return masked(token_ids, tokenizer, seeds, masking_rate)


def masked(token_ids, tokenizer, seeds, masking_rate):
    """`mask_tokens` without its check: in TensorFlow's threads, the least numbers count as 0."""
    token_ids = np.asarray(token_ids, np.int32)
    keys = key_of(seeds)[:, None]
    ordinary = ~np.isin(token_ids, tokenizer.special_ids)  # (batch, length)
    most = share_of(token_ids.shape[1], masking_rate)
    count = share_of(ordinary.sum(axis=1, keepdims=True), masking_rate)
    ranks = key_of(keys, _OF_CHOICE, np.arange(token_ids.shape[1])) >> 1
    ranks[~ordinary] = 2**63  # behind all others
    positions = np.argsort(ranks, axis=1, kind="stable")[:, :most]  # (batch, masked)
    chosen = (np.arange(most) < count) & np.take_along_axis(ordinary, positions, axis=1)

    current = np.take_along_axis(token_ids, positions, axis=1)
    action, piece = (key_of(keys, purpose, np.arange(most)) for purpose in (_OF_ACTION, _OF_PIECE))
    pieces = np.delete(np.arange(tokenizer.vocabulary_size), tokenizer.special_ids)
    draws = action / 2.0**64
    replaced = np.where(draws < _MASKED + _REPLACED, pieces[piece % len(pieces)], current)
    replaced = np.where(draws < _MASKED, tokenizer.mask_id, replaced)
    masked_ids = token_ids.copy()
    masked_ids[np.nonzero(chosen)[0], positions[chosen]] = replaced[chosen]
    positions = np.where(chosen, positions, 0).astype(np.int32)
    return masked_ids, positions, np.where(chosen, current, np.int32(tokenizer.pad_id))


def check_masking_rate(masking_rate):
    if not 0 < masking_rate <= 1:
        raise ValueError(f"masking_rate must be in (0, 1]. Received: masking_rate={masking_rate}.")


def share_of(count, share):
    """A share of a count, rounded, and at least 1."""
    return np.maximum(np.round(np.float32(share) * np.float32(count)).astype(np.int64), 1)
