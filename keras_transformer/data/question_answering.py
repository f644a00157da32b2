"""Questions whose answers are parts of a passage: files, rows for BERT, scores."""

import collections
import json
import re
import string
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.arguments import check_integer, read_texts
from keras_transformer.data.corpora import opened
from keras_transformer.data.labelled_batches import LabelledBatches
from keras_transformer.data.segments import pack_segments
from keras_transformer.data.token_ids import IdRows
from keras_transformer.tokenizers.word_pieces import (
    WordPieceTokenizer,
    split_words,
    word_spans,
)

NUM_SPECIAL_TOKENS = 3  # [CLS], and [SEP] behind the question and behind the passage
_QUESTIONS_AT_A_TIME = 1024


class Questions(NamedTuple):
    """Questions about passages: `answers[i]` answer `questions[i]` about `contexts[i]`.

    An answer is the pair of its text and the place of its first character in the passage. A
    question without answers cannot be answered from its passage.
    """

    questions: list[str]
    contexts: list[str]
    answers: list[tuple[tuple[str, int], ...]]


def read_squad(path) -> Questions:
    """Reads a JSON file in the format of SQuAD 1.1 or 2.0; `.gz` is unpacked.

    Source: Rajpurkar et al. 2018 (https://arxiv.org/abs/1806.03822).

    Raises:
        OSError: if the file is missing or cannot be read.
        ValueError: if it has another format, holds no question, or an answer is not at its place
            in the passage.
    """
    questions = Questions([], [], [])
    with opened(path) as file:
        content = file.read()
    try:
        for article in json.loads(content)["data"]:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    answers = [(a["text"], a["answer_start"]) for a in question["answers"]]
                    questions.questions.append(question["question"])
                    questions.contexts.append(paragraph["context"])
                    questions.answers.append(tuple(answers))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"Expected a JSON file in the format of SQuAD. Received: {path}: {error!r:.100}."
        ) from None
    try:
        return checked_questions(*questions)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def checked_questions(questions, contexts, answers) -> Questions:
    """Checks that each answer is in its passage, at the place that it gives.

    Args:
        questions: a list of strings.
        contexts: the passage of each question.
        answers: for each question a tuple of pairs, (text, place of its first character).

    Raises:
        ValueError: if there is no question, the lists differ in length, a question or passage
            is not text, or an answer is not at its place in the passage.
    """
    questions = list(read_texts(questions, "questions"))
    contexts = list(read_texts(contexts, "contexts"))
    if not len(questions) == len(contexts) == len(answers) > 0:
        raise ValueError(
            "Each question needs a passage and a tuple of answers. Received: "
            f"{len(questions)} questions, {len(contexts)} passages, answers to {len(answers)}."
        )
    for question, context, accepted in zip(questions, contexts, answers, strict=True):
        for answer in accepted:
            text, start = answer
            is_there = isinstance(text, str) and isinstance(start, int) and text and start >= 0
            if not is_there or context[start : start + len(text)] != text:
                raise ValueError(
                    "Each answer must be the text that starts at its place in the passage, counted "
                    f"in characters. Received: {answer!r:.80} to {question!r:.80}."
                )
    return Questions(questions, contexts, list(answers))


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
    tokenizer, questions, contexts, max_length=384, stride=128, max_question_length=64
) -> PassageWindows:
    """Splits passages into parts that overlap, each with its question before it.

    Works in graphs, too. A question loses what is longer than `max_question_length`.

    Source: Devlin et al. 2018 (https://github.com/google-research/bert, run_squad.py), which has
    the same defaults.

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


def answer_batches(
    tokenizer,
    text: Questions,
    tokens_per_batch=8192,
    seed=0,
    shapes=None,
    max_length=384,
    stride=128,
    max_question_length=64,
) -> LabelledBatches:
    """Batches for training a model of `bert_question_answering`.

    The label of a row is the pair of positions of the first and the last token of the first
    answer; both are 0, that of [CLS], where the row does not hold all of it.

    Args:
        tokenizer: a `WordPieceTokenizer`.
        text: of `read_squad` or `checked_questions`.
        tokens_per_batch: maximum tokens in a batch, padding included.
        seed: as for `LabelledBatches`.
        shapes: as for `LabelledBatches`.
        max_length: as for `passage_windows`; so are `stride` and `max_question_length`.
        stride: tokens between the beginnings of two parts of a passage.
        max_question_length: maximum tokens of a question.

    Returns:
        `LabelledBatches` of the inputs of BERT and of labels, float32 (batch, 2).

    Raises:
        ValueError: if the tokenizer has no words, or `stride` would leave out a part.
    """
    check_windows(tokenizer, max_length, stride, max_question_length)
    ids, lengths, labels = [], [], []
    for first in range(0, len(text.questions), _QUESTIONS_AT_A_TIME):
        some = slice(first, first + _QUESTIONS_AT_A_TIME)
        windows = passage_windows(
            tokenizer, text.questions[some], text.contexts[some], max_length, stride,
            max_question_length,
        )  # fmt: skip
        ids.append(windows.token_ids.flat_values.numpy())
        lengths.append(windows.token_ids.row_lengths().numpy())
        labels.append(_positions(windows, text.answers[some]))
    rows = IdRows(np.concatenate(ids), np.concatenate(lengths))

    def inputs(token_ids):
        return {"token_ids": token_ids, "segment_ids": segments_of(token_ids, tokenizer)}

    settings = tokens_per_batch, None, seed, inputs, shapes
    return LabelledBatches(rows, np.concatenate(labels), [], *settings)


def segments_of(token_ids, tokenizer):
    """1 in the passage and its [SEP], 0 elsewhere; for rows, (batch, length), padded with 0."""
    separators = tf.cast(token_ids == tokenizer.separator_id, tf.int32)
    is_second = tf.cumsum(separators, axis=1, exclusive=True) > 0
    return tf.cast(is_second & (token_ids != tokenizer.pad_id), tf.int32)


def _positions(windows, answers):
    """The positions of the first answers in the rows, (rows, 2); 0 where they are not whole."""
    spans = np.full((len(answers), 2), -1)  # in tokens of the passage
    splits = windows.starts.row_splits.numpy()
    starts, ends = (places.flat_values.numpy() for places in (windows.starts, windows.ends))
    for row, accepted in enumerate(answers):
        if accepted:
            text, start = accepted[0]
            tokens = slice(splits[row], splits[row + 1])
            inside = (ends[tokens] > start) & (starts[tokens] < start + len(text))
            if inside.any():
                spans[row] = np.flatnonzero(inside)[[0, -1]]
    columns, firsts = windows.first_columns.numpy(), windows.first_tokens.numpy()
    lengths = windows.token_ids.row_lengths().numpy() - columns - 1  # without the last [SEP]
    spans = spans[windows.questions.numpy()]
    positions = spans - firsts[:, None]
    is_whole = (spans[:, 0] >= 0) & (positions[:, 0] >= 0) & (positions[:, 1] < lengths)
    return np.where(is_whole[:, None], positions + columns[:, None], 0)


def score_answers(answers, text: Questions) -> dict[str, float]:
    """Exact match and F1 of answers, as SQuAD measures them, both in [0, 1].

    Case, punctuation, white space and the articles a, an, the do not count. F1 is that of the words
    of an answer, beside the accepted answer that is closest. Where a question has no answer, the
    empty text is right.

    Source: Rajpurkar et al. 2016, section 6.1 (https://arxiv.org/abs/1606.05250).

    Args:
        answers: for each question the text of its answer.
        text: the questions with all accepted answers.

    Returns:
        A dictionary of `exact_match` and `f1`, means over all questions.

    Raises:
        ValueError: if there is not one answer for each question.

    Examples:
        >>> text = checked_questions(["Who?"], ["It was the old king."], [(("the old king", 7),)])
        >>> score_answers(["king!"], text)  # precision 1, recall 1/2
        {'exact_match': 0.0, 'f1': 0.6666666666666666}
    """
    answers = list(read_texts(answers, "answers"))
    if len(answers) != len(text.answers):
        raise ValueError(
            "Each question needs an answer, which may be empty. "
            f"Received: {len(answers)} answers to {len(text.answers)} questions."
        )
    exact, f1 = [], []
    for answer, accepted in zip(answers, text.answers, strict=True):
        words = answer_words(answer)
        choices = [answer_words(text) for text, _ in accepted] or [[]]
        exact.append(max(words == choice for choice in choices))
        f1.append(max(_f1(words, choice) for choice in choices))
    return {"exact_match": float(np.mean(exact)), "f1": float(np.mean(f1))}


def answer_words(answer):
    """The words by which SQuAD compares answers: lower-cased, no punctuation, no a, an, the."""
    plain = "".join(c for c in answer.lower() if c not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()


def _f1(words, others):
    if not words or not others:
        return float(words == others)
    shared = (collections.Counter(words) & collections.Counter(others)).total()
    return 2 * shared / (len(words) + len(others))
