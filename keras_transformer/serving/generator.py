"""Continues texts with a trained language model, from Python or as a SavedModel."""

import dataclasses
import functools
import itertools
import re

import tensorflow as tf

from keras_transformer.arguments import check_integer, read_text, read_texts
from keras_transformer.decoding.compiling import bucket, compiled, fill, first_rows, row_bucket
from keras_transformer.decoding.streaming import Streamer, growing_specs
from keras_transformer.figures.attention import Attention, token_labels
from keras_transformer.models.decoder_only import LanguageModel
from keras_transformer.models.text_model import TextModel, check_kind
from keras_transformer.models.xl_model import TransformerXLModel
from keras_transformer.serving.control_ids import CONTROL_IDS, AfterControlIds
from keras_transformer.serving.reading import read_part
from keras_transformer.serving.run_folder import RunFolder
from keras_transformer.serving.served_model import (
    IDS,
    NUMBER,
    REAL,
    TEXT,
    ServedModel,
    Signature,
    check_positions,
    check_rows,
    warn_truncated,
)
from keras_transformer.serving.settings import SamplingSettings, read_sampling
from keras_transformer.tokenizers.control_ids import END_ID, PAD_ID, UNKNOWN_ID

MAX_CHARACTER_BYTES = 4  # in UTF-8
INCOMPLETE = re.compile(rf"\ufffd{{1,{MAX_CHARACTER_BYTES - 1}}}\Z")  # $ would end a line, too


class Generator(ServedModel):
    """Continues and scores texts.

    Its signatures are `serving_default`, `generate`, `score`, `tokenize` and `detokenize`.

    Args:
        model: of `kt.language_model`, `kt.gpt2` or `kt.transformer_xl`, as built or reloaded; or
            another language model with the methods that `models.TextModel` documents.
        tokenizer: splits prompts into tokens and joins continuations. A released GPT-2, which has
            no control ids, needs one whose `first_id` is 4.
        settings: defaults to `SamplingSettings()`.
        cache: the cache of keys and values in decoding: "growing"; "static", for a search that XLA
            compiles once for each bucket of sizes; or "auto", static if TensorFlow sees a GPU.
            Exports always use a growing one.

    Attributes:
        settings: settings of the sampling.

    Raises:
        ValueError: if the model is of another kind, has fewer ids than the tokenizer (a model of
            your own: when it is first called), fewer positions than `settings.context` or no
            static cache, or the tokenizer makes no token of `settings.empty_prompt`.

    Examples:
        >>> import keras_transformer as kt
        >>> tokenizer = kt.tokenizers.SymbolTokenizer("abc")
        >>> model = kt.language_model(tokenizer.vocabulary_size, num_layers=1)
        >>> (text,) = Generator(model, tokenizer)(["ab"], max_tokens=5)
        >>> len(text)
        5
    """

    def __init__(self, model, tokenizer, settings=None, cache="auto"):
        self.settings = settings or SamplingSettings()
        check_language_model(model)
        super().__init__(model, tokenizer, cache=cache)
        first_id, self._own_end = 0, None
        if isinstance(model, LanguageModel):
            choice = "SamplingSettings(context={0}, max_tokens={1})"
            check_positions("context", self.settings.context, model.positions, choice)
            first_id = first_id_of(model, tokenizer)
            if first_id:
                self._text_model = AfterControlIds(model, tokenizer.end_of_text_id)
                if tokenizer.end_of_text_id is not None:  # which texts may hold
                    self._own_end = tokenizer.end_of_text_id + first_id
        if isinstance(model, TextModel):
            self._check_scores(first_id + model.embedding.vocabulary_size)
        start_id = self.settings.start_id
        self._start = [] if start_id is None else [start_id]
        special = (*self._start, *self.settings.sampling.end_ids)
        if any(token_id >= tokenizer.vocabulary_size for token_id in special):
            raise ValueError(
                f"start_id and end_ids must be below the {tokenizer.vocabulary_size} ids of the "
                f"tokenizer. Received: {special}."
            )
        self.empty_prompt_ids = tokenizer.tokenize([self.settings.empty_prompt]).to_list()[0]
        if self._start:
            self.empty_prompt_ids = []
        elif not self.empty_prompt_ids:
            raise ValueError(
                "empty_prompt must have at least one token with this tokenizer. Choose e.g. "
                'SamplingSettings(empty_prompt="The"). Received: '
                f"empty_prompt={self.settings.empty_prompt!r}."
            )
        may_end = getattr(self._text_model, "may_end", False)
        self.forbidden_ids = CONTROL_IDS[:END_ID] if may_end else CONTROL_IDS
        sampling = self.settings.sampling
        rules = {"counts_as_end": self._own_end, "forces_end": False}
        rules = dataclasses.replace(sampling.token_rules, **rules)
        self._sampling = dataclasses.replace(sampling, token_rules=rules)
        self._compiled_sampling = compiled(self._sample_ids)

    @classmethod
    def load(cls, run, dtype=None, cache="auto", token_rules=None, weights="averaged"):
        """Loads a finished run of `keras-transformer language-model`.

        Args:
            run: path of the run folder.
            dtype: "float32" or "bfloat16" converts the weights; None keeps them as trained.
            cache: as for `Generator`.
            token_rules: rules that replace the run's, a dictionary with the names of
                `decoding.TokenRules`, e.g. {"no_repeat_ngram_size": 3}.
            weights: "averaged" or "best", as for `RunFolder.model`.

        Returns:
            A `Generator` with the context of the run, including the memory of a Transformer-XL.

        Raises:
            ValueError: if the folder does not hold a finished run of this kind, a file is
                damaged, or an argument is out of range.
        """
        folder = RunFolder(run)
        model = folder.model(dtype, weights)
        check_language_model(model)
        config = folder.settings(["context", "sampling"])
        context = config["context"]
        check_integer("context", context, 2)
        if isinstance(model, TransformerXLModel):
            context += model.recurrence.memory_length
        settings = read_sampling(config["sampling"], context, token_rules)
        return cls(model, folder.tokenizer(), settings, cache)

    def __call__(self, prompts, max_tokens=None, temperature=None, top_k=None, top_p=None, seed=0):
        """Continues prompts.

        Args:
            prompts: a list of strings. Prompts that leave no room for the continuation lose
                their beginning, with a warning.
            max_tokens: length of each continuation in tokens, below `settings.context`, while
                `stream` has no limit; defaults to `settings.max_tokens`.
            temperature: above 0; below 1 sharpens the distribution; defaults to that of
                `settings.sampling`.
            top_k: number of most likely tokens to sample from, at least 1, and as many as the
                vocabulary has for all; defaults to that of `settings.sampling`.
            top_p: probability mass of the most likely tokens to sample from, in (0, 1]; defaults
                to that of `settings.sampling`.
            seed: an integer; prompt i is continued with seed + i. The same seed samples the same
                text.

        Returns:
            A list with the continuation of each prompt: what the new tokens add to its text.

        Raises:
            ValueError: if `prompts` is not a list of strings, or an argument is out of range.
        """
        prompts = list(read_texts(prompts, "prompts"))
        settings = self.settings
        if max_tokens is not None:
            settings = dataclasses.replace(settings, max_tokens=max_tokens)
        drawing = self._drawing(temperature=temperature, top_k=top_k, top_p=top_p)
        count = len(prompts)
        _check_seed(seed, count)
        answer = self.answer(
            prompts,
            "generate",
            max_tokens=[settings.max_tokens] * count,
            seed=range(seed, seed + count),
            **{name: [value] * count for name, value in drawing.items()},
        )
        limit = settings.context - settings.max_tokens - len(self._start)
        warn_truncated(answer["truncated"], limit, "truncated at the beginning")
        return [text.decode() for text in answer["continuation"]]

    def stream(self, prompt, max_tokens, temperature=None, top_k=None, top_p=None, seed=0):
        """Continues one prompt and yields each piece of text as soon as it is sampled.

        The text may have any length: when the context is full, its newest half becomes the
        prompt, which is read in one pass.

        Args:
            prompt: a string; an empty one is replaced by `settings.empty_prompt`.
            max_tokens: length of the continuation in tokens, at least 0.
            temperature: this and all further arguments are those of a call.

        Returns:
            An iterator of strings; joined, they are the continuation.

        Raises:
            ValueError: if `prompt` is not a string, or an argument is out of range.
        """
        prompt = read_text(prompt, "prompt")
        drawing = self._drawing(temperature=temperature, top_k=top_k, top_p=top_p)
        _check_seed(seed)
        check_integer("max_tokens", max_tokens, 0)
        prompt_ids = self._start + (self._ids_of(prompt) or self.empty_prompt_ids)
        ids = self._streamer(
            prompt_ids,
            num_tokens=max_tokens,
            seed=tf.constant([[seed, 0]]),  # per row, to sample as the served model does
            **{name: tf.constant([value]) for name, value in drawing.items()},
        )
        ends = (END_ID, *self.settings.sampling.end_ids)
        ids = itertools.takewhile(lambda token_id: token_id not in ends, ids)
        return self._pieces(prompt_ids, ids)

    @functools.cached_property
    def _streamer(self):
        model = self._text_model
        length = [self.settings.context] if self._is_static else []
        return Streamer(
            model.step,
            lambda: model.start_cache(1, 1, *length),
            self._sampling,
            context=self.settings.context,
            forbidden_ids=self.forbidden_ids,
            jit_compile=self._is_static,
            end_id=END_ID,
            prefill=getattr(model, "prefill", None),
            num_starts=len(self._start),
        )

    def score(self, texts):
        """The log-probability of each text, given its first token or the start token.

        Args:
            texts: a list of strings, each at most one token longer than `settings.context`.

        Returns:
            Log-probabilities in nats, float32 (texts,).

        Raises:
            ValueError: if `texts` is not a list of strings, or a text is longer; for long texts,
                see `kt.data.sliding_windows`.
        """
        answer = self.answer(texts, "score")
        if answer["truncated"].any():
            raise ValueError(
                f"Texts must fit into the context of {self.settings.context} tokens. "
                f"Received: text {answer['truncated'].argmax()} is longer."
            )
        return -answer["nats"]

    def attention(self, text):
        """The attention between the tokens of a text.

        Args:
            text: a string of at least one token.

        Returns:
            `figures.Attention` of the kind "decoder".

        Raises:
            ValueError: if `text` is empty or not a string, or the model has no
                `attention_scores`.
        """
        text = read_text(text, "text")
        ids = self._ids_of(text)
        if not ids:
            raise ValueError(f"text must have at least one token. Received: text={text!r}.")
        ids = self._start + ids
        scores = self._attention_scores(tf.constant([ids]))
        tokens = {"decoder": token_labels(self.tokenizer, ids)}
        return Attention.of_first_example(scores, tokens, tokens, title=text)

    def saved_module(self):
        """As of a `ServedModel`, with functions that draw a continuation token by token.

        `start_stream` takes what the signature `generate` does, of one row, and returns a nest of
        tensors. `continue_stream` takes it, and returns what `generate` would after one token more,
        and the next such nest, whose `goes_on` is True until the continuation ends. They are no
        signatures: a client would have to send and receive the cache for each token.
        """
        module = super().saved_module()
        if getattr(self._text_model, "prefill", None):
            specs = self.signatures["generate"].input_signature
            start, go_on = map(self._with_columns, (self._start_stream, self._continue_stream))
            start = tf.function(start, input_signature=specs, autograph=False)
            state = start.get_concrete_function().structured_outputs
            state["cache"] = growing_specs(self._text_model.start_cache(1, 1))
            state = tf.nest.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), state)
            module.start_stream = start
            module.continue_stream = tf.function(go_on, input_signature=[state], autograph=False)
        return module

    def _start_stream(self, prompt, max_tokens, temperature, top_k, top_p, seed):
        check_rows(prompt, max_tokens, temperature, top_k, top_p, seed)
        ids, kept, new, is_cut = self._kept_ids(prompt, max_tokens)
        ids, cache = ids.to_tensor(), self._text_model.start_cache(1, 1)
        count = kept[0] - 1
        return {
            "token_ids": ids,  # (1, prompt), and later with the continuation
            "kept": kept,
            "max_tokens": new,
            "truncated": is_cut,
            "drawing": (tf.stack([seed, seed * 0], axis=1), temperature, top_k, top_p),
            "cache": tf.cond(
                count > 0,
                lambda: self._text_model.prefill(ids[:, :-1], None, count, cache)[1],
                lambda: cache,
            ),
            "goes_on": tf.fill([1], True),
        }

    def _continue_stream(self, state):
        ids, kept, new = state["token_ids"], state["kept"], state["max_tokens"]
        ids.set_shape([1, None])
        position = tf.shape(ids)[1] - 1
        drawn, cache = self._streamer.draw_next(
            ids[0, -1], position, position, kept - 1, state["cache"], ids[:, None],
            *state["drawing"],
        )  # fmt: skip
        is_end = tf.reduce_any(tf.equal(drawn, (END_ID, *self.settings.sampling.end_ids)))
        drawn = tf.where(is_end, END_ID, drawn)
        ids = tf.concat([ids, tf.reshape(drawn, [1, 1])], axis=1)
        length = position + 2 - kept
        has_ended = is_end | (length >= new)
        outputs = {
            "continuation": self._added_text(ids[:, : kept[0]], ids[:, kept[0] :]),
            "length": length,
            "truncated": state["truncated"],
        }
        return outputs, {**state, "token_ids": ids, "cache": cache, "goes_on": ~has_ended}

    def _use_cache(self, is_static):
        super()._use_cache(is_static)
        self.__dict__.pop("_streamer", None)

    def _signatures(self):
        continued = {"continuation": (), "length": (), "truncated": ()}
        return {
            "serving_default": Signature(self._continue, {"prompt": TEXT}, continued),
            "generate": Signature(
                self._generate,
                {
                    "prompt": TEXT,
                    "max_tokens": NUMBER,
                    "temperature": REAL,
                    "top_k": NUMBER,
                    "top_p": REAL,
                    "seed": NUMBER,
                },
                continued,
            ),
            "score": Signature(
                self._score, {"text": TEXT}, {"nats": (), "length": (), "truncated": ()}
            ),
            "tokenize": Signature(
                self._tokenize, {"text": TEXT}, {"token_ids": (None,), "length": ()}
            ),
            "detokenize": Signature(
                self._detokenize, {"token_ids": IDS, "length": NUMBER}, {"text": ()}
            ),
        }

    def _continue(self, prompt):
        """Continues prompts with the settings of the export and seed 0: always the same texts."""
        rows = tf.ones([tf.shape(prompt)[0]], tf.int32)
        return self._generate(
            prompt,
            max_tokens=rows * self.settings.max_tokens,
            seed=rows * 0,
            **{name: tf.fill(tf.shape(rows), value) for name, value in self._drawing().items()},
        )

    def _generate(self, prompt, max_tokens, temperature, top_k, top_p, seed):
        """Continues prompts; those that leave no room for the continuation lose their beginning.

        All arguments have one entry per row. `max_tokens` is clipped to [1, context - 1]; a
        temperature near or below 0, or NaN, takes the most likely token; a `top_k` of 0 takes all.
        """
        check_rows(prompt, max_tokens, temperature, top_k, top_p, seed)
        context = self.settings.context
        prompt_ids, kept, new, is_cut = self._kept_ids(prompt, max_tokens)
        starts = self._starts(kept, new)
        padding = tf.fill([tf.reduce_sum(starts)], tf.constant(UNKNOWN_ID, prompt_ids.dtype))
        padding = tf.RaggedTensor.from_row_lengths(padding, tf.cast(starts, tf.int64))
        ids = tf.concat([padding, prompt_ids], axis=1).to_tensor(PAD_ID, shape=[None, context])
        seeds, ends = tf.stack([seed, seed * 0], axis=1), starts + kept
        limits = tf.maximum(ends + new - 1, 2)  # at a limit of 1 there would be an end token
        drawn = self._sample(ids, limits, starts, seeds, temperature, top_k, top_p)
        written = drawn.token_ids[:, 0]  # the rest of the prompt, the continuation
        columns = tf.range(1, tf.shape(written)[1] + 1)
        is_new = (columns >= ends[:, None]) & (columns < (ends + new)[:, None])
        ids = tf.where(is_new, written, PAD_ID)
        return {
            "continuation": self._added_text(prompt_ids.to_tensor(PAD_ID), ids),
            "length": tf.math.count_nonzero(ids, axis=1, dtype=tf.int32),  # with the end
            "truncated": is_cut,
        }

    def _added_text(self, ids, new):
        """What new ids add to the text of those before them, both (batch, length).

        That is more than the text of the new ids, such as the space before a first word.
        """
        text = self.tokenizer.detokenize(ids)
        whole = self.tokenizer.detokenize(tf.concat([ids, new], axis=1))
        for _ in range(MAX_CHARACTER_BYTES - 1):  # the new ids may complete a character
            length = tf.minimum(tf.strings.length(text), tf.strings.length(whole))
            begins = tf.equal(tf.strings.substr(whole, tf.zeros_like(length), length), text)
            text = tf.where(begins, text, tf.strings.regex_replace(text, "\ufffd$", ""))
        length = tf.minimum(tf.strings.length(text), tf.strings.length(whole))
        return tf.strings.substr(whole, length, tf.strings.length(whole) - length)

    def _kept_ids(self, prompt, max_tokens):
        """The ids that are read of prompts, ragged; their numbers; how many to draw; is it cut."""
        new = tf.clip_by_value(max_tokens, 1, self.settings.context - 1)
        ids, is_cut = self._prompt_ids(prompt)
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        num_starts = len(self._start)
        kept = tf.minimum(lengths, self.settings.context - new - num_starts)
        newest = tf.ragged.range(lengths - kept, lengths)
        ids = self._begun(tf.gather(ids, newest, batch_dims=1))
        return ids, kept + num_starts, new, is_cut | (lengths > kept)

    def _starts(self, lengths, new):
        """How many tokens of padding come before each prompt, so that as many as can end together.

        There is room for as many new tokens behind each.
        """
        if not getattr(self._text_model, "pads_left", False):
            return tf.zeros_like(lengths)
        end = tf.reduce_min(tf.concat([self.settings.context - new, [self.settings.context]], 0))
        end = tf.minimum(end, tf.reduce_max(tf.concat([lengths, [0]], axis=0)))
        return tf.maximum(end - lengths, 0)

    def _score(self, text):
        """The negative log-likelihood of texts given their first token, and its number of tokens.

        A text longer than context + 1 tokens is truncated. A start token is the first one.
        """
        longest = self.settings.context + 1
        ids, is_cut = read_part(self.tokenizer, text, longest)
        ids = self._begun(ids)
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        ids = ids[:, :longest].to_tensor(PAD_ID)
        ids = tf.pad(ids, [[0, 0], [0, tf.maximum(0, 2 - tf.shape(ids)[1])]])
        logits = self._logits_of(ids[:, :-1])
        labels = ids[:, 1:]
        if self._own_end is not None:
            labels = tf.where(tf.equal(labels, self._own_end), END_ID, labels)
        nats = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        counted = tf.clip_by_value(lengths, 1, longest) - 1
        inside = tf.sequence_mask(counted, tf.shape(nats)[1], tf.float32)
        return {
            "nats": tf.reduce_sum(nats * inside, axis=1),
            "length": counted,
            "truncated": is_cut | (lengths > longest),
        }

    def _tokenize(self, text):
        """The tokens of texts, (batch, length), padded with 0, and their numbers."""
        ids = self.tokenizer.tokenize(text)
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        return {"token_ids": ids.to_tensor(PAD_ID), "length": lengths}

    def _sample(self, ids, limits, *drawing):
        """Continues ids; with a static cache, in one program for each bucket of limits."""
        if not self._is_static:
            return self._sample_ids(ids, limits, *drawing)
        rows = tf.shape(ids)[0]
        num_rows = row_bucket(rows)
        longest = tf.reduce_max(tf.concat([limits, [0]], axis=0))
        capacity = tf.minimum(bucket(longest), self.settings.context)
        filled = [fill(each, num_rows) for each in (limits, *drawing)]
        ids = fill(ids, num_rows, capacity)
        return first_rows(self._compiled_sampling(ids, *filled, tf.range(capacity)), rows)

    def _sample_ids(self, ids, limits, starts, seeds, temperature, top_k, top_p, columns=None):
        """Continues ids (batch, length), padded with 0, up to the limits.

        `starts` are how many tokens of each row are padding before it; `columns` are those of a
        static cache, whose number XLA reads off the shape.
        """
        first, rest = ids[:, 0], ids[:, 1:]
        capacity = [] if columns is None else [tf.size(columns)]
        padding = {"starts": starts} if getattr(self._text_model, "pads_left", False) else {}
        prefill = getattr(self._text_model, "prefill", None)

        def step(token_ids, parents, position, cache):
            logits, cache = self._text_model.step(token_ids, parents, position, cache)
            self._check_scores(logits.shape[-1])
            return logits, cache

        def read_prompt(token_ids, _, count, cache):
            return prefill(token_ids, None, count, cache)  # without log-probabilities

        sampling = dataclasses.replace(
            self._sampling, temperature=temperature, top_k=top_k, top_p=top_p
        )
        return sampling(
            step,
            self._text_model.start_cache(tf.shape(first)[0], 1, *capacity, **padding),
            limits=limits,
            start_id=first,
            end_id=END_ID,
            seed=seeds,
            forbidden_ids=self.forbidden_ids,
            prefix=rest,
            capacity=capacity[0] if capacity else None,
            prefill=prefill and read_prompt,
            **padding,
        )

    def _logits_of(self, ids):
        logits = self._text_model.logits(ids)
        self._check_scores(logits.shape[-1])
        return tf.cast(logits, tf.float32)

    def _ids_of(self, text):
        """The tokens of one text, a list."""
        return self.tokenizer.tokenize([text]).to_list()[0]

    def _begun(self, ids):
        """Ragged ids, (batch, None), after the start token, if there is one."""
        if not self._start:
            return ids
        start = tf.fill([ids.nrows(out_type=tf.int32), 1], tf.constant(*self._start, ids.dtype))
        return tf.concat([start, ids], axis=1)

    def _prompt_ids(self, prompt):
        """The last tokens of each prompt, ragged, and whether it was cut.

        A prompt without tokens has those of `empty_prompt`.
        """
        ids, is_cut = read_part(self.tokenizer, prompt, self.settings.context - 1, False, end=True)
        is_empty = tf.cast(tf.equal(ids.row_lengths(), 0), tf.int32)
        replacement = tf.constant(self.empty_prompt_ids, ids.dtype)
        replacements = tf.RaggedTensor.from_row_lengths(
            tf.tile(replacement, [tf.reduce_sum(is_empty)]),
            tf.cast(is_empty * len(self.empty_prompt_ids), tf.int64),
        )
        return tf.concat([replacements, ids], axis=1), is_cut

    def _drawing(self, **changes):
        """Temperature, top_k and top_p as `generate` takes them; None leaves those of the settings.

        Raises ValueError if one is out of range.
        """
        changes = {name: value for name, value in changes.items() if value is not None}
        sampling = dataclasses.replace(self.settings.sampling, **changes)
        numbers = float(sampling.temperature), int(sampling.top_k or 0), float(sampling.top_p)
        return dict(zip(("temperature", "top_k", "top_p"), numbers, strict=True))

    def _pieces(self, before, ids):
        """The text that each id adds to that of the ids before, without incomplete characters."""

        def text_of(ids):
            inputs = tf.constant([ids], tf.int32), tf.constant([len(ids)])
            return self.signatures["detokenize"](*inputs)["text"].numpy()[0].decode()

        new, shown = [], len(text_of(before))
        for token_id in ids:
            new.append(token_id)
            text = text_of(before + new)
            complete = INCOMPLETE.sub("", text)
            yield complete[shown:]
            if complete == text and text[shown:].strip():
                # A piece depends on the one before, e.g. for a space between.
                before, new = new, []
                shown = len(text_of(before))
            else:  # what follows a token of no text, or of spaces, follows the text before it, too
                shown = max(shown, len(complete))
        if new:
            yield text_of(before + new)[shown:]


def check_language_model(model):
    """Raises ValueError unless `Generator` can use a model."""
    kinds = (LanguageModel, TransformerXLModel)
    builders = "language_model(), gpt2() or transformer_xl()"
    check_kind(model, kinds, ("start_cache", "step", "logits"), builders)


def first_id_of(model, tokenizer):
    """The number of a tokenizer's control ids if the model lacks them, otherwise 0."""
    first_id, size = getattr(tokenizer, "first_id", 0), model.embedding.vocabulary_size
    return first_id if size == tokenizer.vocabulary_size - first_id else 0


def _check_seed(seed, count=1):
    check_integer("seed", seed, -(2**31), 2**31 - max(count, 1))
