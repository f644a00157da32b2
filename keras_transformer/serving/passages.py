"""Passages with their questions as rows for BERT, several for a long passage."""

from typing import NamedTuple

import tensorflow as tf

from keras_transformer.arguments import check_integer
from keras_transformer.data.segments import pack_segments
from keras_transformer.tokenizers.word_pieces import WordPieceTokenizer, split_words, word_spans

NUM_SPECIAL_TOKENS = 3  # [CLS], and [SEP] behind the question and behind the passage


class PassageWindows(NamedTuple):
    """Rows `[CLS] question [SEP] part of the passage [SEP]`, several for a long passage.

    Attributes:
        token_ids: int32 (rows, None), ragged.
        questions: which question each row asks, (rows,).
        first_columns: where the part of the passage begins in its row, (rows,).
        first_tokens: the first token of that part, counted in the passage, (rows,).
        starts: the first character of each token's word in the passage, (batch, None), ragged.
        ends: the character behind it.
    """

    token_ids: tf.RaggedTensor
    questions: tf.Tensor
    first_columns: tf.Tensor
    first_tokens: tf.Tensor
    starts: tf.RaggedTensor
    ends: tf.RaggedTensor


def check_windows(tokenizer, max_length, stride, max_question_length):
    """Raises ValueError unless all of a passage can be read by a tokenizer that has words."""
    if not isinstance(tokenizer, WordPieceTokenizer):
        raise ValueError(
            "Answers are found in words, which need a WordPieceTokenizer. "
            f"Received: a {type(tokenizer).__name__}."
        )
    check_integer("max_length", max_length)
    check_integer("stride", stride)
    check_integer("max_question_length", max_question_length)
    if stride > max_length - NUM_SPECIAL_TOKENS - max_question_length:
        raise ValueError(
            "stride must be at most max_length - max_question_length - 3, so that "
            f"no part of a passage is left out. Received: stride={stride}, max_length={max_length}"
            f", max_question_length={max_question_length}."
        )


def passage_windows(
    tokenizer, questions, contexts, max_length, stride, max_question_length
) -> PassageWindows:
    """Splits passages into parts that overlap, each with its question before it.

    Works in graphs, too. A question loses what is longer than `max_question_length`.

    Source: Devlin et al. 2018 (https://github.com/google-research/bert, run_squad.py).

    Args:
        tokenizer: a `WordPieceTokenizer`.
        questions: strings, (batch,).
        contexts: strings, (batch,).
        max_length: maximum tokens of a row.
        stride: tokens between the beginnings of two parts.
        max_question_length: maximum tokens of a question.

    Returns:
        `PassageWindows`; at least one row for each question.
    """
    asked = tokenizer.tokenize(questions)[:, :max_question_length]
    contexts = tf.convert_to_tensor(contexts, tf.string)
    words = tokenizer.tokenize_words(split_words(contexts, tokenizer.lowercase))
    pieces, word_of_piece = words.merge_dims(1, 2), words.values.value_rowids()
    starts, ends = (
        pieces.with_flat_values(tf.gather(places.flat_values, word_of_piece))
        for places in word_spans(contexts, tokenizer.lowercase)
    )
    lengths, begins = pieces.row_lengths(), pieces.row_starts()
    room = max_length - NUM_SPECIAL_TOKENS - asked.row_lengths()  # (batch,)
    # As many as the tokens beyond the first part need, rounded up.
    counts = 1 + tf.nn.relu(-((room - lengths) // stride))
    rows = tf.repeat(tf.range(tf.size(counts)), tf.cast(counts, tf.int32))
    firsts = tf.ragged.range(counts).flat_values * stride
    lasts = tf.minimum(firsts + tf.gather(room, rows), tf.gather(lengths, rows))
    base = tf.gather(begins, rows)
    parts = tf.ragged.range(base + firsts, base + lasts)
    parts = parts.with_flat_values(tf.gather(pieces.flat_values, parts.flat_values))
    asked = tf.gather(asked, rows)
    packed = pack_segments(tokenizer, asked, parts, max_length)["token_ids"]
    columns = asked.row_lengths() + 2
    row_lengths = columns + parts.row_lengths() + 1
    token_ids = tf.RaggedTensor.from_tensor(packed, row_lengths)
    return PassageWindows(token_ids, rows, columns, firsts, starts, ends)


def segments_of(token_ids, tokenizer):
    """1 in the passage and its [SEP], 0 elsewhere; for rows, (batch, length), padded with 0."""
    separators = tf.cast(token_ids == tokenizer.separator_id, tf.int32)
    is_second = tf.cumsum(separators, axis=1, exclusive=True) > 0
    return tf.cast(is_second & (token_ids != tokenizer.pad_id), tf.int32)
