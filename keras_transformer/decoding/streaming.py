"""Streams sequences, token by token."""

import dataclasses

import tensorflow as tf

from keras_transformer.arguments import check_integer
from keras_transformer.decoding.beams import unchanged_parents
from keras_transformer.decoding.sampling import Sampling, mask_forbidden
from keras_transformer.decoding.search import check_backend, check_ids, growing_shape

SHORTEST_PROMPT = 16  # tokens to which XLA's prompts are padded


class Streamer:
    """Continues prompts and yields each token as soon as it is sampled.

    Until the context is full, these are the tokens of a call of `Sampling`. Then the newest half of
    the context becomes a new prompt, so the text may have any length. No token ends it. TensorFlow
    traces the functions once for all texts; XLA compiles the step once, and what reads prompts once
    for each length that they are padded to.

    Args:
        step: as for `BeamSearch`, with one row and one beam.
        start_cache: () -> the cache before the first step.
        sampling: `Sampling`; its rules see the tokens that the model reads.
        context: maximum number of tokens that the model reads, at least 2.
        forbidden_ids: ids that are never sampled.
        jit_compile: whether XLA compiles the step, for a cache that has room for the whole context
            from the start, and `prefill` for prompts that are padded to a power of two of at least
            16 tokens; seeds must then have the shape (1, 2).
        end_id: the token that ends a text, for the rules of the sampling; required with those.
        prefill: as for `BeamSearch`; reads a prompt in one pass.
        num_starts: how many tokens of the prompt, at least 0, stay at the beginning of all that is
            read, such as a start token.

    Call arguments:
        prompt: at least one id.
        num_tokens: length of the continuation, at least 0.
        seed: as for `Sampling`.
        temperature: replaces that of the sampling, and so do the others; None for that of the
            sampling. Tensors, with one entry, may change from call to call without a new trace.
        top_k: as for `Sampling`.
        top_p: as for `Sampling`.

    Returns:
        A generator of integer ids.

    Raises:
        ValueError: if an argument is out of range.

    Examples:
        >>> import tensorflow as tf
        >>> def step(token_ids, parents, position, cache):
        ...     return 99.0 * tf.one_hot(token_ids + 1, 9), cache
        >>> streamer = Streamer(step, tuple, Sampling(), context=5)
        >>> list(streamer([3], num_tokens=4, seed=(1, 2)))
        [4, 5, 6, 7]
    """

    def __init__(
        self, step, start_cache, sampling, *, context, forbidden_ids=(), jit_compile=False,
        end_id=None, prefill=None, num_starts=0,
    ):  # fmt: skip
        check_backend()
        check_integer("context", context, 2)
        check_integer("num_starts", num_starts, 0, context - 1)
        if not isinstance(sampling, Sampling):
            raise ValueError(f"sampling must be a Sampling. Received: {sampling!r:.80}.")
        self._num_starts = num_starts
        self._sampling, self._rules = sampling, sampling.token_rules
        if self._rules.change_scores:
            check_integer("end_id", end_id, 1, reason=" token_rules need it.")
        self._step, self._start_cache, self._prefill = step, start_cache, prefill
        self._context, self._end_id = context, end_id
        self._forbidden_ids, self._pads = tuple(forbidden_ids), jit_compile
        options = {"jit_compile": jit_compile, "autograph": False}
        self._advance = tf.function(self.draw_next, **options)
        self._read_prompt = tf.function(self._cache_of, **options)

    def __call__(self, prompt, *, num_tokens, seed, temperature=None, top_k=None, top_p=None):
        check_integer("num_tokens", num_tokens, 0)
        context, rules = self._context, self._rules
        prompt = [int(token_id) for token_id in prompt]
        if not prompt:
            raise ValueError("The prompt must have at least one token. Received: none.")
        changes = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
        changes = {name: value for name, value in changes.items() if value is not None}
        sampling = dataclasses.replace(self._sampling, **changes)
        sampling.sampler(seed)  # raises for a wrong seed
        drawing = seed, sampling.temperature, sampling.top_k, sampling.top_p
        first_free = tf.constant([len(prompt) - 1])
        sequence = tf.zeros((1, 1, 0), tf.int32)  # which only the rules look at
        written, past, cache = 0, self._newest(prompt, context), self._start_cache()
        advance, read_prompt = self._traced(cache, drawing)
        read = 0  # tokens of `past` in the cache
        while written < num_tokens:
            if self._prefill is not None and not read and len(past) > 1:
                read = len(past) - 1
                # Few lengths, for XLA compiles a program for each.
                length = prompt_bucket(read, context) if self._pads else read
                token_ids = tf.constant([past[:-1] + [0] * (length - read)])
                cache = read_prompt(token_ids, tf.constant(read), cache)
            for token_id in past[read:]:
                text_position = tf.constant(len(prompt) + written - len(past) + read)
                if rules.change_scores:
                    sequence = tf.constant([[past + [0] * (context - len(past))]])
                place = tf.constant(read), text_position, first_free
                drawn, cache = advance(tf.constant(token_id), *place, cache, sequence, *drawing)
                read += 1
            newest = int(drawn)
            yield newest
            written += 1
            past.append(newest)
            if len(past) > context:
                past, cache, read = self._newest(past, context // 2), self._start_cache(), 0

    def _newest(self, tokens, count):
        """The starts and the newest of some tokens, `count` together, or one more than the starts.

        All of them, if they are no more.
        """
        if len(tokens) <= count:
            return [*tokens]
        first = self._num_starts
        return tokens[:first] + tokens[-max(count - first, 1) :]

    def _traced(self, cache, drawing):
        """The functions for caches and prompts of any length, traced unless they are already.

        TensorFlow would look for them at every call, the longer the more lengths it has seen.
        """
        cache = growing_specs(cache)
        scalar, sequence = tf.TensorSpec([], tf.int32), tf.TensorSpec([1, 1, None], tf.int32)
        first_free, prompt = tf.TensorSpec([1], tf.int32), tf.TensorSpec([1, None], tf.int32)
        drawing = [
            tf.TensorSpec.from_tensor(each) if tf.is_tensor(each) else each for each in drawing
        ]
        advance = self._advance.get_concrete_function(
            scalar, scalar, scalar, first_free, cache, sequence, *drawing
        )
        if self._prefill is None:
            return advance, None
        return advance, self._read_prompt.get_concrete_function(prompt, scalar, cache)

    def draw_next(
        self, token_id, position, text_position, first_free, cache, sequence,
        seed, temperature, top_k, top_p,
    ):  # fmt: skip
        """Draws one token, not traced.

        Args:
            token_id: the newest token, an integer scalar.
            position: number of tokens in the cache, an integer scalar.
            text_position: number of tokens before the newest one, from which its seed follows.
            first_free: number of tokens of the prompt, without the first, (1,).
            cache: from the previous token, or from `read_prompt`.
            sequence: all tokens, (1, 1, columns), for rules.
            seed: as of a call.
            temperature: this and all further arguments are those of `Sampling`.

        Returns:
            The pair of the token, an integer scalar, and the cache.
        """
        parents = unchanged_parents(1, 1)
        logits, cache = self._step(token_id[None, None], parents, position, cache)
        check_ids(logits.shape[-1], 0, self._end_id or 0, self._forbidden_ids, self._rules)
        logits, last_resort = tf.cast(logits, tf.float32), None
        if self._rules.change_scores:
            seen, last_resort = position + 1, self._end_id
            logits = self._rules.apply(
                logits, sequence, seen, text_position, first_free, self._end_id
            )
        logits = mask_forbidden(logits, self._forbidden_ids, last_resort)
        sampling = Sampling(temperature, top_k, top_p)
        drawn = sampling.sampler(seed)(logits, text_position)[0, 0]
        if (first_id := self._rules.forced_bos_token_id) is not None:
            drawn = tf.where(tf.equal(text_position, 0), first_id, drawn)
        return drawn, cache

    def _cache_of(self, token_ids, count, cache):
        return self._prefill(token_ids, None, count, cache)[1]


def prompt_bucket(length, longest):
    """The smallest power of two that is at least `length` and 16, but at most `longest`.

    Examples:
        >>> prompt_bucket(5, 300), prompt_bucket(17, 300), prompt_bucket(257, 300)
        (16, 32, 300)
    """
    return min(max(SHORTEST_PROMPT, 1 << (length - 1).bit_length()), longest)


def growing_specs(cache):
    """What a cache of any length looks like, a nest of `tf.TensorSpec`; from that of length 0."""
    cache = tf.nest.map_structure(tf.convert_to_tensor, cache)
    return tf.nest.map_structure(lambda x: tf.TensorSpec(growing_shape(x), x.dtype), cache)
