"""Answers questions with words of a passage, from Python or as a SavedModel."""

from typing import NamedTuple

import tensorflow as tf

from keras_transformer.arguments import check_integer, read_texts
from keras_transformer.data.segments import fill_up
from keras_transformer.models.bert_models import BertQuestionAnsweringModel
from keras_transformer.models.text_model import check_kind
from keras_transformer.serving.passages import check_windows, passage_windows, segments_of
from keras_transformer.serving.served_model import (
    TEXT,
    ServedModel,
    Signature,
    check_rows,
    check_vocabulary,
)
from keras_transformer.tokenizers.word_pieces import valid_utf8

LOWEST = -1e9
WINDOWS_AT_A_TIME = 32  # parts of passages; one long passage must not exhaust the memory


class Answer(NamedTuple):
    """An answer to a question.

    Attributes:
        text: the words of the passage; empty if it has none.
        score: the probability that the answer starts and ends there, in [0, 1].
        start: its first character, counted in the passage.
        end: the character behind it.
        no_answer: the probability that the passage does not answer the question, in [0, 1].
    """

    text: str
    score: float
    start: int
    end: int
    no_answer: float


class Answerer(ServedModel):
    """Answers questions with words of a passage.

    A long passage is read in parts that overlap. The answer is that of the part where its start and
    end are most probable, and never spans two parts. `no_answer` is the probability of [CLS] in the
    part where it is lowest: a model that has learned from questions without answers, as those of
    SQuAD 2.0, has none where `no_answer` exceeds the score.

    Its only signature is `serving_default`.

    Args:
        model: of `kt.bert_question_answering`, as built or reloaded; or another one with its
            method `logits`.
        tokenizer: a `WordPieceTokenizer`.
        max_length: maximum tokens of a question with a part of the passage.
        stride: tokens between the beginnings of two parts.
        max_question_length: maximum tokens of a question; a longer one loses its end.
        max_answer_length: maximum tokens of an answer.

    Raises:
        ValueError: if the model is of another kind, has fewer positions than `max_length` or fewer
            ids than the tokenizer, the tokenizer is another one, or a number is out of range.

    Examples:
        >>> import keras_transformer as kt
        >>> tokenizer = kt.tokenizers.train_word_pieces(["who is here the king is here"], 30)
        >>> backbone = kt.bert(tokenizer.vocabulary_size, size="tiny", num_layers=1)
        >>> model = kt.bert_question_answering(backbone)
        >>> answerer = Answerer(model, tokenizer, max_length=40, stride=9, max_question_length=20)
        >>> [answer] = answerer(["Who is here?"], ["The king is here."])
        >>> answer.text == "The king is here."[answer.start : answer.end]
        True
    """

    def __init__(
        self,
        model,
        tokenizer,
        max_length=384,
        stride=128,
        max_question_length=64,
        max_answer_length=30,
    ):
        builders = "bert_question_answering()"
        check_kind(model, BertQuestionAnsweringModel, ("logits",), builders)
        check_integer("max_answer_length", max_answer_length)
        check_windows(tokenizer, max_length, stride, max_question_length)
        if isinstance(model, BertQuestionAnsweringModel):
            check_vocabulary(model.token_embedding.vocabulary_size, tokenizer)
            num_positions = model.positions.max_sequence_length
            if max_length > num_positions:
                raise ValueError(
                    f"max_length must be at most the {num_positions} positions of the model. "
                    f"Received: max_length={max_length}."
                )
        self._sizes = max_length, stride, max_question_length
        self.max_answer_length = max_answer_length
        super().__init__(model, tokenizer)

    def __call__(self, questions, contexts):
        """Answers questions.

        Args:
            questions: a list of strings.
            contexts: the passage of each question, a list of strings.

        Returns:
            A list of `Answer`.

        Raises:
            ValueError: if either is not a list of strings, or there are not as many of both.
        """
        questions = list(read_texts(questions, "questions"))
        contexts = list(read_texts(contexts, "contexts"))
        if len(questions) != len(contexts):
            raise ValueError(
                "Each question needs its passage. "
                f"Received: {len(questions)} questions, {len(contexts)} contexts."
            )
        answers = self.answer(questions, context=contexts)
        texts = [text.decode() for text in answers["answer"]]
        others = (answers[name].tolist() for name in ("score", "start", "end", "no_answer"))
        return [Answer(*row) for row in zip(texts, *others, strict=True)]

    def warm_up_requests(self, texts):
        return [
            ("serving_default", {"question": some, "context": some}) for some in (texts[:1], texts)
        ]

    def _signatures(self):
        outputs = ("answer", "score", "start", "end", "no_answer")
        return {
            "serving_default": Signature(
                self._answer, {"question": TEXT, "context": TEXT}, dict.fromkeys(outputs, ())
            )
        }

    def _answer(self, question, context):
        """Answers questions.

        Args:
            question: (batch,) strings.
            context: (batch,) strings.

        Returns:
            answer, (batch,) strings; score, its probability; start and end, in characters of the
            context without bytes that are not UTF-8; no_answer, a probability; each (batch,).
        """
        check_rows(question, context)
        context = valid_utf8(context)
        windows = passage_windows(self.tokenizer, question, context, *self._sizes)
        score, first, last, none = self._read(windows)

        batch = tf.size(question)
        rows = windows.questions
        best = tf.math.unsorted_segment_max(score, rows, batch)  # (batch,)
        none = tf.math.unsorted_segment_min(none, rows, batch)
        row = tf.range(tf.size(rows))
        row = tf.where(score == tf.gather(best, rows), row, tf.size(rows))
        row = tf.math.unsorted_segment_min(row, rows, batch)  # the first of the best
        base = tf.gather(tf.cast(windows.first_tokens - windows.first_columns, tf.int32), row)
        is_found = best > LOWEST / 2
        start, end = (
            self._character(places, base + tf.gather(column, row), is_found)
            for places, column in ((windows.starts, first), (windows.ends, last))
        )
        answer = tf.strings.substr(context, start, end - start, unit="UTF8_CHAR")
        return {
            "answer": answer,
            "score": tf.exp(best),
            "start": start,
            "end": end,
            "no_answer": tf.exp(none),
        }

    def _read(self, windows):
        """What `_spans` returns for all rows, of which the model reads a few at a time."""
        token_ids = fill_up(windows.token_ids)  # (all rows, length)
        lengths = windows.token_ids.row_lengths()

        def read_some(begin, *before):
            some = slice(begin, begin + WINDOWS_AT_A_TIME)
            ids = token_ids[some]  # (rows, length)
            logits = self.model.logits(ids, segments_of(ids, self.tokenizer))
            log_probs = tf.nn.log_softmax(tf.cast(logits, tf.float32))  # (rows, 2, length)
            spans = self._spans(log_probs, windows.first_columns[some], lengths[some])
            joined = (tf.concat(pair, axis=0) for pair in zip(before, spans, strict=True))
            return begin + WINDOWS_AT_A_TIME, *joined

        none_yet = [tf.zeros([0], t) for t in (tf.float32, tf.int32, tf.int32, tf.float32)]
        _, *of_all = tf.while_loop(
            lambda begin, *_: begin < tf.shape(token_ids)[0],
            read_some,
            (0, *none_yet),
            (tf.TensorShape([]), *[tf.TensorShape([None])] * len(none_yet)),
            parallel_iterations=1,
        )
        return of_all

    def _spans(self, log_probs, first_columns, lengths):
        """The best span of each row, and the log-probability that there is none.

        Args:
            log_probs: float32 (rows, 2, length), of the first and the last token.
            first_columns: where the passage begins, (rows,).
            lengths: tokens of each row, (rows,).

        Returns:
            Log-probability, first and last column of the span; log-probability of none, all
            (rows,).
        """
        length = tf.shape(log_probs)[2]
        column = tf.range(length, dtype=tf.int64)
        in_passage = column >= first_columns[:, None]  # (rows, length)
        in_passage &= column < lengths[:, None] - 1  # [SEP]
        inside = tf.where(in_passage[:, None], log_probs, LOWEST)
        pairs = inside[:, 0, :, None] + inside[:, 1, None, :]  # (rows, first, last)
        distance = column - column[:, None]
        is_span = (distance >= 0) & (distance < self.max_answer_length)
        pairs = tf.where(is_span, pairs, 2 * LOWEST)
        pairs = tf.reshape(pairs, [-1, length * length])
        best = tf.argmax(pairs, axis=1, output_type=tf.int32)
        none = log_probs[:, 0, 0] + log_probs[:, 1, 0]
        return tf.reduce_max(pairs, axis=1), best // length, best % length, none

    @staticmethod
    def _character(places, token, is_found):
        """The place in the text, (batch,), of a token of each row; 0 where there is none."""
        token = places.row_starts() + tf.cast(token, tf.int64)
        token = tf.where(is_found, token, tf.cast(tf.size(places.flat_values), tf.int64))
        return tf.gather(tf.concat([places.flat_values, [0]], axis=0), token)
