"""Texts as rows of ids, in the graph: cut, padded, or with the special tokens of BERT."""

import tensorflow as tf
import tensorflow_text

from keras_transformer.tokenizers.byte_pairs import BytePairTokenizer
from keras_transformer.tokenizers.control_ids import PAD_ID
from keras_transformer.tokenizers.word_pieces import WordPieceTokenizer


def pack_segments(
    tokenizer: WordPieceTokenizer | BytePairTokenizer,
    first_ids: tf.RaggedTensor,
    second_ids: tf.RaggedTensor | None = None,
    max_length: int = 512,
) -> dict[str, tf.Tensor]:
    """Makes rows `[CLS] first [SEP]`, or `[CLS] first [SEP] second [SEP]`, and pads them.

    With byte pairs they are `<s> first </s></s> second </s>`, as of RoBERTa. Rows that are too long
    lose tokens at the end of the longer text, until they fit.

    Source: Devlin et al. 2018, section 3, figure 2 (https://arxiv.org/abs/1810.04805); of RoBERTa's
    pairs, its released tokenizer.

    Args:
        tokenizer: defines the special ids.
        first_ids: ids from `tokenizer.tokenize`, (batch, None).
        second_ids: likewise, as many rows; None for one text per row.
        max_length: maximum length of a row, in tokens, special ones included.

    Returns:
        A dictionary of `token_ids`, 0 for padding, and `segment_ids`, 1 in the second text
        with its [SEP] or </s> and 0 elsewhere, int32 (batch, length), as long as the longest row.

    Raises:
        ValueError: if max_length leaves no room for text.

    Examples:
        >>> special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        >>> tokenizer = WordPieceTokenizer([*special, "a", "b"])
        >>> a, b = tokenizer.tokenize(["a a"]), tokenizer.tokenize(["b"])
        >>> pack_segments(tokenizer, a, b)["token_ids"].numpy().tolist()
        [[2, 5, 5, 3, 6, 3]]
    """
    segments = [first_ids] if second_ids is None else [first_ids, second_ids]
    doubles = second_ids is not None and isinstance(tokenizer, BytePairTokenizer)
    num_special = 1 + len(segments) + doubles
    if max_length <= num_special:
        raise ValueError(
            f"max_length must be more than the {num_special} special tokens of a row. "
            f"Received: max_length={max_length}."
        )
    room = max_length - num_special
    segments = [tf.cast(ids, tf.int32) for ids in segments]
    if second_ids is None:
        segments = [segments[0][:, :room]]
    else:
        segments = tensorflow_text.ShrinkLongestTrimmer(room).trim(segments)
    if doubles:
        ends = tf.fill([segments[1].nrows(), 1], tokenizer.separator_id)
        segments[1] = tf.concat([ends, segments[1]], axis=1)
    token_ids, segment_ids = tensorflow_text.combine_segments(
        segments,
        start_of_sequence_id=tokenizer.class_id,
        end_of_segment_id=tokenizer.separator_id,
    )
    # Even without rows there is a first column, which BERT pools.
    missing = [[0, 0], [0, tf.cast(tf.equal(token_ids.nrows(), 0), tf.int32)]]
    return {
        "token_ids": tf.pad(token_ids.to_tensor(tokenizer.pad_id), missing),
        "segment_ids": tf.pad(tf.cast(segment_ids, tf.int32).to_tensor(0), missing),
    }


def cut_middle(ids: tf.RaggedTensor, max_length: int) -> tf.RaggedTensor:
    """Drops the middle of rows longer than `max_length`, so that a quarter of the rest precedes it.

    What `labelled_batches.cut_middle` does to arrays.

    Examples:
        >>> cut_middle(tf.ragged.constant([[1, 2, 3, 4, 5, 6], [7, 8]]), max_length=4).to_list()
        [[1, 4, 5, 6], [7, 8]]
    """
    before = max_length // 4
    lengths = ids.row_lengths()
    places = tf.ragged.range(lengths).flat_values
    after = tf.repeat(lengths, lengths) - (max_length - before)
    return tf.ragged.boolean_mask(ids, ids.with_flat_values((places < before) | (places >= after)))


def fill_up(ids: tf.RaggedTensor, shape=(None, None)) -> tf.Tensor:
    """Pads rows to equal lengths of at least one column, so that there is something to pool.

    Examples:
        >>> fill_up(tf.ragged.constant([[], []], dtype="int32")).numpy().tolist()
        [[0], [0]]
    """
    filled = ids.to_tensor(PAD_ID, shape=shape)  # (batch, length)
    if filled.shape[1]:
        return filled
    return tf.pad(filled, [[0, 0], [0, tf.maximum(0, 1 - tf.shape(filled)[1])]])
