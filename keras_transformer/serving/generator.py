"""Continues texts with a trained language model, from Python."""

import itertools

import tensorflow as tf

from keras_transformer.arguments import check_integer
from keras_transformer.decoding.compiling import is_static
from keras_transformer.decoding.sampling import token_sampler
from keras_transformer.decoding.streaming import stream
from keras_transformer.figures.attention import Attention, names_of
from keras_transformer.models.decoder_only import LanguageModel
from keras_transformer.models.text_model import check_kind
from keras_transformer.models.xl_model import TransformerXLModel
from keras_transformer.serving.compiled import CompiledGeneratorModule
from keras_transformer.serving.generator_module import (
    AfterControlIds,
    GeneratorModule,
)
from keras_transformer.serving.run_folder import RunFolder
from keras_transformer.serving.settings import SamplingSettings, read_sampling
from keras_transformer.serving.text_model import (
    ServedModel,
    check_string,
    list_of_strings,
    warn_truncated,
)
from keras_transformer.tokenizers.sentencepiece import END_ID

MAX_CHARACTER_BYTES = 4  # in UTF-8


class Generator(ServedModel):
    """Continues and scores texts.

    Args:
        model: of `kt.language_model`, `kt.gpt2` or `kt.transformer_xl`, as built or reloaded; or
            another language model with the methods that `models.TextModel` documents.
        tokenizer: splits prompts into tokens and joins continuations. A released GPT-2, which has
            no control ids, needs one whose `first_id` is 4.
        settings: defaults to `SamplingSettings()`.
        cache: the cache of keys and values in decoding: "growing"; "static", for a search that XLA
            compiles; or "auto", static if TensorFlow sees a GPU. Exports always use a growing one.

    Raises:
        ValueError: if the model is of another kind, has fewer ids than the tokenizer, fewer
            positions than `settings.context` or no static cache, or the tokenizer makes no token
            of `settings.empty_prompt`.

    Examples:
        >>> import keras_transformer as kt
        >>> tokenizer = kt.tokenizers.SymbolTokenizer("abc")
        >>> model = kt.language_model(tokenizer.vocabulary_size, num_layers=1)
        >>> (text,) = Generator(model, tokenizer)(["ab"], max_tokens=5)
        >>> len(text)
        5
    """

    def __init__(self, model, tokenizer, settings=None, cache="auto"):
        settings = settings or SamplingSettings()
        check_language_model(model)
        decoded = model
        if isinstance(model, LanguageModel):
            _check_positions(model.positions, settings.context)
            if first_id_of(model, tokenizer):
                decoded = AfterControlIds(model, tokenizer.end_of_text_id)
        given, compiled = (decoded, tokenizer, settings), None
        if is_static(cache, getattr(model, "has_static_cache", False)):
            compiled = CompiledGeneratorModule(*given)
        super().__init__(model, tokenizer, GeneratorModule(*given), compiled)

    @classmethod
    def load(cls, run, dtype=None, cache="auto", token_rules=None, weights="averaged"):
        """Loads a finished run of `python -m train.language_model`.

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
        config = folder.settings()
        context = config.get("context")
        model = folder.model(dtype, weights)
        check_language_model(model)
        if isinstance(model, TransformerXLModel):
            context += model.recurrence.memory_length
        settings = read_sampling(config.get("sampling"), context, token_rules)
        return cls(model, folder.tokenizer(), settings, cache)

    def __call__(self, prompts, max_tokens=None, temperature=None, top_k=None, top_p=None, seed=0):
        """Continues prompts.

        Args:
            prompts: a list of strings. Prompts that leave no room for the continuation lose
                their beginning, with a warning.
            max_tokens: length of each continuation in tokens, below `settings.context`; defaults
                to `settings.max_tokens`.
            temperature: above 0; below 1 sharpens the distribution; defaults to
                `settings.temperature`.
            top_k: number of most likely tokens to sample from, at least 1, and as many as the
                vocabulary has for all; defaults to `settings.top_k`.
            top_p: probability mass of the most likely tokens to sample from, in (0, 1]; defaults
                to `settings.top_p`.
            seed: an integer; prompt i is continued with seed + i. The same seed samples the same
                text.

        Returns:
            A list with the continuation of each prompt, without the prompt.

        Raises:
            ValueError: if `prompts` is not a list of strings, or an argument is out of range.
        """
        prompts = list_of_strings(prompts, "prompts")
        settings, count = self.module.settings, len(prompts)
        max_tokens = settings.max_tokens if max_tokens is None else max_tokens
        temperature, top_k, top_p = self._sampling(temperature, top_k, top_p)
        _check_seed(seed, count)
        check_integer("max_tokens", max_tokens, 1)
        if max_tokens >= settings.context:
            raise ValueError(
                f"max_tokens must be below the context of {settings.context} tokens, which "
                "includes the prompt. Use `stream` for longer texts. Received: "
                f"max_tokens={max_tokens}."
            )
        answer = self.answer(
            prompts,
            "generate",
            max_tokens=[max_tokens] * count,
            temperature=[temperature] * count,
            top_k=[top_k or 0] * count,
            top_p=[top_p] * count,
            seed=range(seed, seed + count),
        )
        limit = settings.context - max_tokens
        warn_truncated(answer["truncated"], limit, "truncated at the beginning")
        return [text.decode() for text in answer["continuation"]]

    def stream(self, prompt, max_tokens, temperature=None, top_k=None, top_p=None, seed=0):
        """Continues one prompt and yields each piece of text as soon as it is sampled.

        The text may have any length: when the context is full, its newest half becomes the
        prompt.

        Args:
            prompt: a string; an empty one is replaced by `settings.empty_prompt`.
            max_tokens: length of the continuation in tokens, at least 0.
            temperature: this and all further arguments are those of a call.

        Returns:
            An iterator of strings; joined, they are the continuation.

        Raises:
            ValueError: if `prompt` is not a string, or an argument is out of range.
        """
        check_string(prompt, "prompt")
        settings, model = self.module.settings, self.module.model
        temperature, top_k, top_p = self._sampling(temperature, top_k, top_p)
        _check_seed(seed)
        check_integer("max_tokens", max_tokens, 0)
        is_compiled = self.compiled_module is not None
        length = [settings.context] if is_compiled else []
        ids = stream(
            model.step,
            lambda: model.start_cache(1, 1, *length),
            self.tokenizer.tokenize([prompt]).to_list()[0] or self.module.empty_prompt_ids,
            num_tokens=max_tokens,
            context=settings.context,
            seed=tf.constant([[seed, 0]]),  # per row, to sample as the served model does
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            forbidden_ids=self.module.forbidden_ids,
            jit_compile=is_compiled,
            token_rules=settings.token_rules,
            end_id=END_ID,
        )
        return self._pieces(itertools.takewhile(lambda token_id: token_id != END_ID, ids))

    def score(self, texts):
        """The log-probability of each text, given its first token.

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
                f"Texts must fit into the context of {self.module.settings.context} tokens. "
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
        check_string(text, "text")
        (ids,) = self.tokenizer.tokenize([text]).to_list()
        if not ids:
            raise ValueError(f"text must have at least one token. Received: text={text!r}.")
        scores = self.attention_scores(tf.constant([ids]))
        tokens = {"decoder": names_of(self.tokenizer, ids)}
        return Attention.of_first_example(scores, tokens, tokens, title=text)

    def _sampling(self, temperature, top_k, top_p):
        """Temperature, top_k and top_p, checked; None stands for those of the settings."""
        settings = self.module.settings
        temperature = settings.temperature if temperature is None else temperature
        top_k = settings.top_k if top_k is None else top_k
        top_p = settings.top_p if top_p is None else top_p
        token_sampler((0, 0), temperature, top_k, top_p)
        return temperature, top_k, top_p

    def _pieces(self, ids):
        """The text that each token adds, held back until the bytes of a character are complete."""

        def text_of(ids):
            return self.tokenizer.detokenize([ids]).numpy()[0].decode()

        before, pending = [], []  # a piece depends on the one before, e.g. for a space between
        for token_id in ids:
            pending.append(token_id)
            text = text_of(before + pending)[len(text_of(before)) :]
            if not text.endswith("\ufffd"):
                yield text
                before, pending = pending, []
            elif len(pending) == MAX_CHARACTER_BYTES:  # the first byte starts no character
                yield text_of(pending[:1])
                before, pending = [], pending[1:]
        if pending:
            yield text_of(before + pending)[len(text_of(before)) :]


def check_language_model(model):
    """Raises ValueError unless `Generator` can use a model."""
    kinds = (LanguageModel, TransformerXLModel)
    builders = "language_model(), gpt2() or transformer_xl()"
    check_kind(model, kinds, ("start_cache", "step", "logits"), builders)


def first_id_of(model, tokenizer):
    """How many ids of a tokenizer come before those of a model: the control ids that it lacks."""
    first_id, size = getattr(tokenizer, "first_id", 0), model.embedding.vocabulary_size
    return first_id if size == tokenizer.vocabulary_size - first_id else 0


def _check_positions(positions, context):
    num_positions = getattr(positions, "max_sequence_length", context)  # sinusoids have no limit
    if num_positions < context:
        raise ValueError(
            f"context must be at most the {num_positions} positions of the model. Choose e.g. "
            f"SamplingSettings(context={num_positions}, max_tokens={num_positions // 2}). "
            f"Received: context={context}."
        )


def _check_seed(seed, count=1):
    check_integer("seed", seed, -(2**31), 2**31 - max(count, 1))
