"""The exported form of a translation model: a module from texts to translations."""

import functools

import numpy as np
import tensorflow as tf

from keras_transformer.decoding.search import beam_search
from keras_transformer.serving.reading import read_beginning
from keras_transformer.serving.settings import SearchSettings
from keras_transformer.serving.signatures import (
    IDS,
    NUMBER,
    TEXT,
    ServedModule,
    check_rows,
    signature,
)
from keras_transformer.serving.token_signatures import TokenSignatures
from keras_transformer.tokenizers.sentencepiece import (
    END_ID,
    PAD_ID,
    START_ID,
    SentencePieceTokenizer,
)


class TranslatorModule(ServedModule):
    """A translator as the signatures of a SavedModel: text in, translation out, and each stage.

    Inputs and outputs have the batch as their first axis; floating-point outputs are float32.
    Token ids come with their lengths, and columns beyond a length are never read, because
    TensorFlow Serving pads rows with arbitrary values when it merges requests. Ids outside the
    vocabulary count as unknown. `TokenSignatures` documents the signatures on token ids.

    Args:
        model: with the methods that `models.TextModel` documents.
        source_tokenizer: splits sources into tokens.
        target_tokenizer: joins translations; defaults to `source_tokenizer`.
        settings: of the search; defaults to `SearchSettings()`.

    Raises:
        ValueError: if the model has fewer target ids than the tokenizer.
    """

    def __init__(
        self,
        model,
        source_tokenizer: SentencePieceTokenizer,
        target_tokenizer: SentencePieceTokenizer | None = None,
        settings: SearchSettings | None = None,
    ):
        super().__init__(model, "translator")
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer or source_tokenizer
        self.has_source_language, self.has_target_language = (
            getattr(tokenizer, "language", None) is not None
            for tokenizer in (self.source_tokenizer, self.target_tokenizer)
        )
        self.settings = settings or SearchSettings()
        self.token_signatures = TokenSignatures(
            model, self.source_tokenizer, self.target_tokenizer, self.settings
        )
        vocabulary_size = self.token_signatures.vocabulary_size
        if vocabulary_size < self.target_tokenizer.vocabulary_size:
            raise ValueError(
                "The model must score every piece of the target tokenizer. Received: a model of "
                f"{vocabulary_size} ids, a tokenizer of {self.target_tokenizer.vocabulary_size}."
            )
        self.endpoints = {
            "serving_default": signature(self.translate, text=TEXT),
            "translate_nbest": signature(
                self.translate_nbest, text=TEXT, target_prefix=TEXT, max_length=NUMBER
            ),
            "tokenize": signature(self.tokenize, text=TEXT),
            "detokenize": signature(self.detokenize, token_ids=IDS, length=NUMBER),
            **self.token_signatures.endpoints(),
        }

    def translate(self, text):
        """The best translation of each text.

        Args:
            text: (batch,) strings, possibly empty; bytes that are not UTF-8 count as U+FFFD.

        Returns:
            translation, (batch,) strings, empty for an empty text; score, (batch,), its
            log-probability in nats, divided by ((5 + length) / 6) ** length_penalty, or by
            length ** length_penalty unless the scoring is "gnmt"; length, (batch,), in tokens with
            the end token; truncated, (batch,), whether the text lost its end.
        """
        source_ids, truncated, is_empty = self._source(text)
        limits, prefix = self._limits(source_ids, is_empty), None
        if self.has_target_language:
            empty = tf.fill([tf.shape(source_ids)[0]], "")
            prefix = self.target_tokenizer.tokenize(empty).to_tensor(PAD_ID)
        best = self._search(source_ids, limits, 1, prefix)
        return {
            "translation": self.target_tokenizer.detokenize(best.token_ids[:, 0]),
            "score": best.scores[:, 0],
            "length": best.lengths[:, 0],
            "truncated": truncated,
        }

    def translate_nbest(self, text, target_prefix, max_length):
        """The `num_best` best translations of each text, with a given beginning.

        Args:
            text: (batch,) strings.
            target_prefix: (batch,) the beginning of each translation; "" leaves it free.
            max_length: (batch,) limit in tokens, end token included; 0 for the model's own
                limit. The prefix and an end token always fit.

        Returns:
            translation, score and length as from `translate`, but (batch, num_best), best first;
            truncated, (batch,), whether text or prefix lost their end. Missing translations are
            "" with a score of about -1e9.
        """
        check_rows(text, target_prefix, max_length)
        source_ids, is_source_truncated, is_empty = self._source(text)
        longest = self.settings.max_target_length
        prefix, is_prefix_cut = read_beginning(self.target_tokenizer, target_prefix, longest - 1)
        is_prefix_truncated = is_prefix_cut | (prefix.row_lengths() > longest - 1)
        prefix = prefix[:, : longest - 1]
        shortest = tf.cast(prefix.row_lengths(), tf.int32) + 1
        limits = self._limits(source_ids, is_empty)
        limits = tf.where(max_length > 0, max_length, tf.minimum(limits + shortest - 1, longest))
        limits = tf.clip_by_value(limits, shortest, longest)
        count = self.settings.num_best
        best = self._search(source_ids, limits, count, prefix.to_tensor(PAD_ID))
        rows, _, length = tf.unstack(tf.shape(best.token_ids))
        # Every size is explicit: TensorFlow cannot infer a -1 if there are no rows.
        ids = tf.reshape(best.token_ids, [rows * count, length])
        return {
            "translation": tf.reshape(self.target_tokenizer.detokenize(ids), [rows, count]),
            "score": best.scores,
            "length": best.lengths,
            "truncated": is_source_truncated | is_prefix_truncated,
        }

    def tokenize(self, text):
        """The tokens of sources, as `encode` and `logits` expect them.

        Args:
            text: (batch,) strings.

        Returns:
            token_ids, (batch, source), with the end token, padded with 0; length, (batch,);
            truncated, (batch,).
        """
        ids, truncated, _ = self._source(text)
        return {"token_ids": ids, "length": _lengths(ids), "truncated": truncated}

    def detokenize(self, token_ids, length):
        """Joins target tokens to texts, without control ids.

        Args:
            token_ids: (batch, length).
            length: (batch,) in tokens; columns beyond it are not read.

        Returns:
            text, (batch,) strings.
        """
        check_rows(token_ids, length)
        inside = tf.sequence_mask(length, tf.shape(token_ids)[1])
        ids = tf.where(inside, token_ids, PAD_ID)
        return {"text": self.target_tokenizer.detokenize(ids)}

    def default_inputs(self, texts):
        return {"text": texts}

    def warm_up_requests(self, texts):
        one = _nbest_inputs(texts[:1], prefixes=[b""], lengths=[0])
        return [*super().warm_up_requests(texts), ("translate_nbest", one)]

    def row_shapes(self):
        best = (self.settings.num_best,)
        return {
            "serving_default": {"translation": (), "score": (), "length": (), "truncated": ()},
            "translate_nbest": {
                "translation": best, "score": best, "length": best, "truncated": (),
            },
            "tokenize": {"token_ids": (None,), "length": (), "truncated": ()},
            "detokenize": {"text": ()},
            **self.token_signatures.row_shapes(),
        }  # fmt: skip

    def exercise(self, ask, texts, hard_texts):
        all_texts = np.concatenate([texts, hard_texts])
        ask("serving_default", text=all_texts)
        ask("serving_default", text=texts[:1])
        translations = ask("serving_default", text=texts)["translation"]
        prefixes = [
            text[: len(text) // 2].decode(errors="ignore").encode() for text in translations
        ]
        ask("translate_nbest", **_nbest_inputs(texts, prefixes, lengths=[5] * len(texts)))
        empty = [b""] * len(all_texts)
        ask("translate_nbest", **_nbest_inputs(all_texts, empty, lengths=[0, 1] * len(all_texts)))

        tokens = ask("tokenize", text=texts)
        ids, lengths = tokens["token_ids"], tokens["length"]
        unknown = np.where(ids % 5 == 0, -7, np.where(ids % 7 == 0, 2**30, ids)).astype(np.int32)
        ask("detokenize", token_ids=unknown, length=lengths)
        ask("encode", source_ids=unknown, source_length=lengths)
        state = ask("encode", source_ids=ids, source_length=lengths)
        token_ids = np.full(len(texts), START_ID, np.int32)
        for _ in range(2):
            answer = ask("decode_step", token_ids=token_ids, **state)
            token_ids = answer["logits"].argmax(-1).astype(np.int32)
            state = {**state, "cache": answer["cache"], "cache_length": answer["cache_length"]}
        ask("logits", source_ids=ids, source_length=lengths, target_ids=ids, target_length=lengths)

    def _source(self, text):
        """Source ids with the end token, whether each text was truncated, whether it is empty."""
        room = self.settings.max_source_length - 1
        ids, is_cut = read_beginning(self.source_tokenizer, text, room)
        lengths = ids.row_lengths()
        ends = tf.fill([ids.nrows(), 1], END_ID)
        ids = tf.concat([ids[:, :room], ends], axis=1).to_tensor(PAD_ID)
        return ids, is_cut | (lengths > room), lengths == int(self.has_source_language)

    def _limits(self, source_ids, is_empty):
        """The length limit of each translation: about twice its source, or Hugging Face's."""
        longest = self.settings.max_target_length
        if self.settings.scoring != "gnmt":
            return tf.where(is_empty, 1, longest)
        limits = tf.maximum(2 * _lengths(source_ids) + 8, self.settings.token_rules.min_length)
        limits = tf.minimum(limits, longest)
        return tf.where(is_empty, 1, limits)

    def _search(self, source_ids, limits, num_best, prefix=None, capacity=None):
        encoded = self.model.encode(source_ids)
        length = [] if capacity is None else [capacity]
        return beam_search(
            functools.partial(self.model.step, encoded),
            self.model.start_cache(encoded, self.settings.num_beams, *length),
            num_beams=self.settings.num_beams,
            limits=limits,
            start_id=START_ID,
            end_id=END_ID,
            length_penalty=self.settings.length_penalty,
            prefix=prefix,
            n_best=num_best,
            capacity=capacity,
            scoring=self.settings.scoring,
            token_rules=self.settings.token_rules,
        )


def _lengths(ids):
    return tf.math.count_nonzero(ids, axis=1, dtype=tf.int32)


def _nbest_inputs(texts, prefixes, lengths):
    """The inputs of `translate_nbest`; surplus prefixes and lengths are dropped."""
    count = len(texts)
    return {
        "text": texts,
        "target_prefix": np.array(prefixes, object)[:count],
        "max_length": np.array(lengths, np.int32)[:count],
    }
