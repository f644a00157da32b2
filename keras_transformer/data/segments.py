"""One text, or a pair of texts, as rows for BERT."""

import tensorflow as tf
import tensorflow_text

from keras_transformer.tokenizers.byte_pairs import BytePairTokenizer
from keras_transformer.tokenizers.word_pieces import WordPieceTokenizer


def pack_segments(
    tokenizer: WordPieceTokenizer | BytePairTokenizer,
    first_ids: tf.RaggedTensor,
    second_ids: tf.RaggedTensor | None = None,
    max_length: int = 512,
) -> dict[str, tf.Tensor]:
    """Makes rows `[CLS] first [SEP]`, or `[CLS] first [SEP] second [SEP]`, and pads them.

    Rows that are too long lose tokens at the end of the longer text, until they fit.

    Source: Devlin et al. 2018, section 3, figure 2 (https://arxiv.org/abs/1810.04805).

    Args:
        tokenizer: defines the special ids; byte pairs start with <s> and end with </s>.
        first_ids: ids from `tokenizer.tokenize`, (batch, None).
        second_ids: likewise, as many rows; None for one text per row.
        max_length: maximum length of a row, in tokens, special ones included.

    Returns:
        A dictionary of `token_ids`, 0 for padding, and `segment_ids`, 1 in the second text
        and its [SEP] and 0 elsewhere, int32 (batch, length), as long as the longest row.

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
    num_special = 1 + len(segments)
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
