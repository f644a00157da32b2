"""Masks tokens for a model to predict: 80 % become [MASK], 10 % random ones, 10 % stay."""

import tensorflow as tf

from keras_transformer.tokenizers.word_pieces import WordPieceTokenizer

_MASKED, _REPLACED = 0.8, 0.1  # of the chosen tokens; the others stay unchanged


def mask_tokens(token_ids, tokenizer: WordPieceTokenizer, seed, masking_rate: float = 0.15):
    """Chooses some of the tokens of each row, and replaces most of them.

    In each row exactly the share `masking_rate` is chosen, rounded, and at least one token. Each
    chosen token independently becomes [MASK] with probability 0.8 and a random piece of the
    vocabulary with probability 0.1. Special tokens are neither chosen nor drawn. The same seed
    gives the same choice on every kind of processor.

    Source: Devlin et al. 2018, section 3.1 (https://arxiv.org/abs/1810.04805), which chooses
    15 %; for 40 % see Wettig et al. 2022 (https://arxiv.org/abs/2202.08005).

    Args:
        token_ids: int32 (batch, length), 0 for padding.
        tokenizer: defines the special ids and the size of the vocabulary.
        seed: two integers, (2,).
        masking_rate: share of the tokens to choose, in (0, 1].

    Returns:
        Three int32 tensors: the ids with tokens replaced, (batch, length), the chosen positions,
        and the original ids there, both (batch, masked), where masked is that share of the
        length. Shorter rows have fewer, and zeros at the end of both.

    Raises:
        ValueError: if `masking_rate` is outside (0, 1].

    Examples:
        >>> special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        >>> tokenizer = WordPieceTokenizer([*special, "a", "b"])
        >>> _, positions, labels = mask_tokens([[2, 5, 3, 0]], tokenizer, [3, 5])
        >>> positions.numpy().tolist(), labels.numpy().tolist()
        ([[1]], [[5]])
    """
    check_masking_rate(masking_rate)
    token_ids = tf.convert_to_tensor(token_ids, tf.int32)
    choice, action, piece = tf.unstack(tf.random.split(seed, 3, alg="philox"))

    special_ids = tf.constant(tokenizer.special_ids)
    ordinary = tf.reduce_all(token_ids[..., None] != special_ids, axis=-1)  # (batch, length)
    most = _share_of(tf.shape(token_ids)[1], masking_rate)
    count = tf.reduce_sum(tf.cast(ordinary, tf.int32), axis=1, keepdims=True)
    count = _share_of(count, masking_rate)
    ranks = tf.random.stateless_uniform(tf.shape(token_ids), choice, alg="philox")
    ranks, positions = tf.math.top_k(tf.where(ordinary, ranks, -1.0), most)  # (batch, masked)
    chosen = (tf.range(most) < count) & (ranks >= 0)

    positions = tf.where(chosen, positions, 0)
    current = tf.gather(token_ids, positions, batch_dims=1)
    draws = tf.random.stateless_uniform(tf.shape(positions), action, alg="philox")
    replaced = tf.where(
        draws < _MASKED + _REPLACED, _random_ids(current, tokenizer, piece), current
    )
    replaced = tf.where(draws < _MASKED, tokenizer.mask_id, replaced)
    # Unused places write the first chosen token once more or, if none is chosen, its own id.
    replaced = tf.where(chosen[:, :1], replaced, current)
    replaced = tf.where(chosen, replaced, replaced[:, :1])
    at = tf.where(chosen, positions, positions[:, :1])
    rows = tf.broadcast_to(tf.range(tf.shape(token_ids)[0])[:, None], tf.shape(at))
    masked_ids = tf.tensor_scatter_nd_update(token_ids, tf.stack([rows, at], axis=-1), replaced)
    return masked_ids, positions, tf.where(chosen, current, tokenizer.pad_id)


def check_masking_rate(masking_rate):
    if not 0 < masking_rate <= 1:
        raise ValueError(f"masking_rate must be in (0, 1]. Received: masking_rate={masking_rate}.")


def _share_of(count, share):
    share = tf.cast(tf.round(share * tf.cast(count, tf.float32)), tf.int32)
    return tf.maximum(share, 1)


def _random_ids(like, tokenizer, seed):
    """Uniformly drawn ids of the vocabulary, without special ones, in the shape of `like`."""
    special = set(tokenizer.special_ids)
    ordinary = tf.constant([i for i in range(tokenizer.vocabulary_size) if i not in special])
    places = tf.random.stateless_uniform(
        tf.shape(like), seed, maxval=tf.size(ordinary), dtype=tf.int32, alg="philox"
    )
    return tf.gather(ordinary, places)
