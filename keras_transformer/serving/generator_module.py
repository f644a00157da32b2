"""What is exported of a language model: a module from prompts to text."""

import numpy as np
import tensorflow as tf

from keras_transformer.decoding.sampling import sample
from keras_transformer.models.functions import GeneratorFunctions
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


def after_control_ids(functions: GeneratorFunctions) -> GeneratorFunctions:
    """A model whose ids are all text, such as GPT-2, for ids that begin with control ids.

    Serve it with a tokenizer whose `first_id` is 4. The control ids are never likely.
    """
    count = len(CONTROL_IDS)

    def with_control_ids(logits):
        columns = [[0, 0]] * (logits.shape.rank - 1) + [[count, 0]]
        return tf.pad(tf.cast(logits, tf.float32), columns, constant_values=-1e9)

    def step(token_ids, parents, position, cache):
        ids = tf.maximum(token_ids - count, 0)
        logits, cache = functions.step(ids, parents, position, cache)
        return with_control_ids(logits), cache

    def logits(token_ids):
        return with_control_ids(functions.logits(tf.maximum(token_ids - count, 0)))

    def attention_scores(token_ids):
        return functions.attention_scores(tf.maximum(token_ids - count, 0))

    return GeneratorFunctions(
        functions.weights, functions.start_cache, step, logits, attention_scores
    )


class GeneratorModule(ServedModule):
    """Goes on with texts, and says how likely texts are, as the signatures of a SavedModel.

    Inputs and outputs have the batch as their first axis. What a row is answered does not
    depend on the other rows, which TensorFlow Serving may have merged from other requests.

    Args:
        functions: the model.
        tokenizer: cuts prompts, joins continuations.
        settings: `SamplingSettings()` if None.
    """

    def __init__(self, functions: GeneratorFunctions, tokenizer, settings=None):
        super().__init__(functions.weights, "generator")
        self.functions = functions  # a dataclass: not tracked, so no layer is saved
        self.tokenizer = tokenizer
        self.settings = settings or SamplingSettings()
        self.endpoints = {
            "serving_default": signature(self.write, TEXT),
            "generate": signature(self.generate, TEXT, NUMBER, REAL, NUMBER, REAL, NUMBER),
            "score": signature(self.score, TEXT),
            "tokenize": signature(self.tokenize, TEXT),
            "detokenize": signature(self.detokenize, IDS, NUMBER),
        }

    def write(self, prompt):
        """A continuation of each prompt, (batch,) strings, as of `generate`, always the same."""
        rows = tf.ones([tf.shape(prompt)[0]], tf.int32)
        return self.generate(
            prompt,
            max_tokens=rows * self.settings.max_tokens,
            temperature=tf.cast(rows, tf.float32) * self.settings.temperature,
            top_k=rows * 0,
            top_p=tf.cast(rows, tf.float32),
            seed=rows * 0,
        )

    def generate(self, prompt, max_tokens, temperature, top_k, top_p, seed):
        """Goes on with each prompt.

        Args:
            prompt: (batch,) strings; one that leaves no room for the continuation loses its
                beginning.
            max_tokens: (batch,) length of the continuation, cut to [1, context - 1].
            temperature: (batch,) below 1 sharpens; near or below 0, or NaN, takes the best token.
            top_k: (batch,) so many of the best tokens may be drawn; 0 for all.
            top_p: (batch,) share of probability that the tokens that may be drawn hold.
            seed: (batch,) the same seed draws the same text.

        Returns:
            continuation, (batch,) strings; length, (batch,), of it in tokens; truncated,
            (batch,), whether the prompt was cut.
        """
        check_rows(prompt, max_tokens, temperature, top_k, top_p, seed)
        context = self.settings.context
        new = tf.clip_by_value(max_tokens, 1, context - 1)
        prompt = tf.where(tf.equal(prompt, ""), self.settings.empty_prompt, prompt)
        ids = self.tokenizer.tokenize(prompt)
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        kept = tf.minimum(lengths, context - new)
        # The newest `kept` tokens of each row.
        places = tf.ragged.range(lengths - kept, lengths)
        ids = tf.gather(ids, places, batch_dims=1).to_tensor(PAD_ID, shape=[None, context])
        first, rest = ids[:, 0], ids[:, 1:]
        drawn = sample(
            lambda token_ids, parents, position, cache: self.functions.step(
                tf.where(position == 0, first[:, None], token_ids), parents, position, cache
            ),
            self.functions.start_cache(tf.shape(first)[0], 1),
            limits=kept + new,
            start_id=START_ID,
            end_id=END_ID,
            seed=tf.stack([seed, seed * 0], axis=1),
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            forbidden_ids=CONTROL_IDS,
            prefix=rest,
        )
        written = drawn.token_ids[:, 0]  # the rest of the prompt, the continuation, the end
        places = tf.range(tf.shape(written)[1])
        is_new = (places >= (kept - 1)[:, None]) & (places < (kept - 1 + new)[:, None])
        return {
            "continuation": self.tokenizer.detokenize(tf.where(is_new, written, PAD_ID)),
            "length": new,
            "truncated": lengths > kept,
        }

    def score(self, text):
        """How likely each text is, given its first token.

        Returns:
            nats, (batch,), the sum of the negative log-likelihoods; length, (batch,), of how
            many tokens; truncated, (batch,), whether the text was longer than the context
            and its rest not read.
        """
        ids = self.tokenizer.tokenize(text)
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        longest = self.settings.context + 1
        ids = ids[:, :longest].to_tensor(PAD_ID)
        ids = tf.pad(ids, [[0, 0], [0, tf.maximum(0, 2 - tf.shape(ids)[1])]])
        logits = tf.cast(self.functions.logits(ids[:, :-1]), tf.float32)
        nats = tf.nn.sparse_softmax_cross_entropy_with_logits(ids[:, 1:], logits)
        counted = tf.clip_by_value(lengths, 1, longest) - 1
        inside = tf.sequence_mask(counted, tf.shape(nats)[1], tf.float32)
        return {
            "nats": tf.reduce_sum(nats * inside, axis=1),
            "length": counted,
            "truncated": lengths > longest,
        }

    def tokenize(self, text):
        """token_ids, (batch, length), filled up with 0, and length, (batch,), of each text."""
        ids = self.tokenizer.tokenize(text)
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        return {"token_ids": ids.to_tensor(PAD_ID), "length": lengths}

    def detokenize(self, token_ids, length):
        """Joins (batch, length) ids to text, (batch,); control ids are left out."""
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

    def try_out(self, ask, texts, hard_texts):
        all_texts = np.concatenate([texts, hard_texts])
        for some in (all_texts, texts[:1]):
            ask("serving_default", prompt=some)
            ask("score", text=some)
            tokens = ask("tokenize", text=some)
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
