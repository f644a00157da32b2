"""The exported form of a language model: a module from prompts to continuations."""

import numpy as np
import tensorflow as tf

from keras_transformer.decoding.sampling import sample
from keras_transformer.serving.reading import read_beginning, read_end
from keras_transformer.serving.settings import SamplingSettings
from keras_transformer.serving.signatures import (
    IDS,
    NUMBER,
    REAL,
    TEXT,
    ServedModule,
    check_rows,
    signature,
)
from keras_transformer.tokenizers.sentencepiece import END_ID, PAD_ID, START_ID, UNKNOWN_ID

CONTROL_IDS = (PAD_ID, UNKNOWN_ID, START_ID, END_ID)


class AfterControlIds:
    """A language model without control ids, such as GPT-2, whose ids come after the four.

    Serve it with a tokenizer whose `first_id` is 4. Control ids get logits of -1e9.

    Args:
        model: a language model whose ids all stand for text.
        end_id: the id with which the model ends a text, such as that of "<|endoftext|>"; it
            becomes the end among the control ids. None if it has none.

    Attributes:
        may_end: whether the model ends texts with the end id, 3; otherwise texts have the
            requested length.
    """

    def __init__(self, model, end_id=None):
        self._model, self._end_id = model, end_id
        self.weights, self.start_cache = model.weights, model.start_cache
        self.has_static_cache = getattr(model, "has_static_cache", False)
        self.may_end = end_id is not None

    def step(self, token_ids, parents, position, cache):
        logits, cache = self._model.step(self._own_ids(token_ids), parents, position, cache)
        return self._with_control_ids(logits), cache

    def logits(self, token_ids):
        return self._with_control_ids(self._model.logits(self._own_ids(token_ids)))

    def attention_scores(self, token_ids):
        return self._model.attention_scores(self._own_ids(token_ids))

    def _own_ids(self, token_ids):
        ids = tf.maximum(token_ids - len(CONTROL_IDS), 0)
        return ids if self._end_id is None else tf.where(token_ids == END_ID, self._end_id, ids)

    def _with_control_ids(self, logits):
        count = len(CONTROL_IDS)
        columns = [[0, 0]] * (logits.shape.rank - 1) + [[count, 0]]
        logits = tf.pad(tf.cast(logits, tf.float32), columns, constant_values=-1e9)
        if self._end_id is None:
            return logits
        ids, end_id = tf.range(tf.shape(logits)[-1]), self._end_id + count
        end = logits[..., end_id, None]
        return tf.where(ids == END_ID, end, tf.where(ids == end_id, -1e9, logits))


class GeneratorModule(ServedModule):
    """A language model as the signatures of a SavedModel: it continues and scores texts.

    Inputs and outputs have the batch as their first axis. The answer to a row does not depend on
    the other rows, which may come from other requests that TensorFlow Serving merged.

    Args:
        model: with the methods that `models.TextModel` documents.
        tokenizer: splits prompts into tokens and joins continuations.
        settings: defaults to `SamplingSettings()`.

    Raises:
        ValueError: if the tokenizer has more ids than the model, or makes no token of
            `settings.empty_prompt`.
    """

    def __init__(self, model, tokenizer, settings=None):
        super().__init__(model, "generator")
        self.forbidden_ids = (
            CONTROL_IDS[:END_ID] if getattr(model, "may_end", False) else CONTROL_IDS
        )
        self.tokenizer = tokenizer
        self.settings = settings or SamplingSettings()
        size = model.logits(tf.zeros([1, 1], tf.int32)).shape[-1]
        if size < tokenizer.vocabulary_size:
            raise ValueError(
                "The model must score every id of the tokenizer. Received: a model of "
                f"{size} ids, a tokenizer of {tokenizer.vocabulary_size}."
            )
        self.empty_prompt_ids = tokenizer.tokenize([self.settings.empty_prompt]).to_list()[0]
        if not self.empty_prompt_ids:
            raise ValueError(
                "empty_prompt must have at least one token with this tokenizer. Choose e.g. "
                'SamplingSettings(empty_prompt="The"). Received: '
                f"empty_prompt={self.settings.empty_prompt!r}."
            )
        self.endpoints = {
            "serving_default": signature(self.write, prompt=TEXT),
            "generate": signature(
                self.generate,
                prompt=TEXT,
                max_tokens=NUMBER,
                temperature=REAL,
                top_k=NUMBER,
                top_p=REAL,
                seed=NUMBER,
            ),
            "score": signature(self.score, text=TEXT),
            "tokenize": signature(self.tokenize, text=TEXT),
            "detokenize": signature(self.detokenize, token_ids=IDS, length=NUMBER),
        }

    def write(self, prompt):
        """Continues prompts with the settings of the export and seed 0.

        Args:
            prompt: (batch,) strings.

        Returns:
            The outputs of `generate`; the same prompt always gets the same continuation.
        """
        rows = tf.ones([tf.shape(prompt)[0]], tf.int32)
        return self.generate(
            prompt,
            max_tokens=rows * self.settings.max_tokens,
            temperature=tf.cast(rows, tf.float32) * self.settings.temperature,
            top_k=rows * (self.settings.top_k or 0),
            top_p=tf.cast(rows, tf.float32) * self.settings.top_p,
            seed=rows * 0,
        )

    def generate(self, prompt, max_tokens, temperature, top_k, top_p, seed):
        """Continues prompts.

        Args:
            prompt: (batch,) strings; prompts that leave no room for the continuation lose their
                beginning.
            max_tokens: (batch,) length of the continuation in tokens, clipped to
                [1, context - 1].
            temperature: (batch,) below 1 sharpens the distribution; near or below 0, or NaN,
                takes the most likely token.
            top_k: (batch,) number of most likely tokens to sample from; 0 for all.
            top_p: (batch,) probability mass of the most likely tokens to sample from.
            seed: (batch,) the same seed samples the same text.

        Returns:
            continuation, (batch,) strings; length, (batch,), of the continuation in tokens;
            truncated, (batch,), whether the prompt lost its beginning.
        """
        check_rows(prompt, max_tokens, temperature, top_k, top_p, seed)
        context = self.settings.context
        new = tf.clip_by_value(max_tokens, 1, context - 1)
        ids, is_cut = self._prompt_ids(prompt)
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        kept = tf.minimum(lengths, context - new)
        newest = tf.ragged.range(lengths - kept, lengths)
        ids = tf.gather(ids, newest, batch_dims=1).to_tensor(PAD_ID, shape=[None, context])
        seeds = tf.stack([seed, seed * 0], axis=1)
        drawn = self._sample(ids, kept + new, seeds, temperature, top_k, top_p)
        written = drawn.token_ids[:, 0]  # the rest of the prompt, the continuation, the end
        columns = tf.range(tf.shape(written)[1])
        is_new = (columns >= (kept - 1)[:, None]) & (columns < (kept - 1 + new)[:, None])
        return {
            "continuation": self.tokenizer.detokenize(tf.where(is_new, written, PAD_ID)),
            "length": new,
            "truncated": is_cut | (lengths > kept),
        }

    def score(self, text):
        """The negative log-likelihood of texts, each given its first token.

        Args:
            text: (batch,) strings.

        Returns:
            nats, (batch,), summed over the tokens; length, (batch,), the number of these tokens;
            truncated, (batch,), whether the text is longer than context + 1 tokens and the rest
            was not read.
        """
        longest = self.settings.context + 1
        ids, is_cut = read_beginning(self.tokenizer, text, longest)
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        ids = ids[:, :longest].to_tensor(PAD_ID)
        ids = tf.pad(ids, [[0, 0], [0, tf.maximum(0, 2 - tf.shape(ids)[1])]])
        logits = tf.cast(self.model.logits(ids[:, :-1]), tf.float32)
        nats = tf.nn.sparse_softmax_cross_entropy_with_logits(ids[:, 1:], logits)
        counted = tf.clip_by_value(lengths, 1, longest) - 1
        inside = tf.sequence_mask(counted, tf.shape(nats)[1], tf.float32)
        return {
            "nats": tf.reduce_sum(nats * inside, axis=1),
            "length": counted,
            "truncated": is_cut | (lengths > longest),
        }

    def tokenize(self, text):
        """The tokens of texts.

        Args:
            text: (batch,) strings.

        Returns:
            token_ids, (batch, length), padded with 0; length, (batch,).
        """
        ids = self.tokenizer.tokenize(text)
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        return {"token_ids": ids.to_tensor(PAD_ID), "length": lengths}

    def detokenize(self, token_ids, length):
        """Joins tokens to texts, without control ids.

        Args:
            token_ids: (batch, length).
            length: (batch,) in tokens; columns beyond it are not read.

        Returns:
            text, (batch,) strings.
        """
        check_rows(token_ids, length)
        inside = tf.sequence_mask(length, tf.shape(token_ids)[1])
        return {"text": self.tokenizer.detokenize(tf.where(inside, token_ids, PAD_ID))}

    def default_inputs(self, texts):
        return {"prompt": texts}

    def row_shapes(self):
        written = {"continuation": (), "length": (), "truncated": ()}
        return {
            "serving_default": written,
            "generate": written,
            "score": {"nats": (), "length": (), "truncated": ()},
            "tokenize": {"token_ids": (None,), "length": ()},
            "detokenize": {"text": ()},
        }

    def exercise(self, ask, texts, hard_texts):
        all_texts = np.concatenate([texts, hard_texts])
        for batch in (all_texts, texts[:1]):
            ask("serving_default", prompt=batch)
            ask("score", text=batch)
            tokens = ask("tokenize", text=batch)
            ask("detokenize", **tokens)
        rows = np.arange(len(all_texts), dtype=np.int32)
        ask(
            "generate",
            prompt=all_texts,
            max_tokens=rows * 3,
            temperature=rows.astype(np.float32) / 5,
            top_k=rows % 4,
            top_p=(1 - rows / 20).astype(np.float32),
            seed=rows,
        )

    def _sample(self, ids, limits, seeds, temperature, top_k, top_p, capacity=None):
        """Continues ids (batch, length), padded with 0, up to the limits."""
        first, rest = ids[:, 0], ids[:, 1:]
        length = [] if capacity is None else [capacity]
        return sample(
            self.model.step,
            self.model.start_cache(tf.shape(first)[0], 1, *length),
            limits=limits,
            start_id=first,
            end_id=END_ID,
            seed=seeds,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            forbidden_ids=self.forbidden_ids,
            prefix=rest,
            capacity=capacity,
            token_rules=self.settings.token_rules,
        )

    def _prompt_ids(self, prompt):
        """The last tokens of each prompt, ragged, and whether it was cut.

        Where there is no token, those of `empty_prompt`.
        """
        ids, is_cut = read_end(self.tokenizer, prompt, self.settings.context - 1)
        is_empty = tf.cast(tf.equal(ids.row_lengths(), 0), tf.int32)
        replacement = tf.constant(self.empty_prompt_ids, ids.dtype)
        replacements = tf.RaggedTensor.from_row_lengths(
            tf.tile(replacement, [tf.reduce_sum(is_empty)]),
            tf.cast(is_empty * len(self.empty_prompt_ids), tf.int64),
        )
        return tf.concat([replacements, ids], axis=1), is_cut
