"""Streams one sequence, token by token."""

import tensorflow as tf

from keras_transformer.arguments import check_integer
from keras_transformer.decoding.beams import unchanged_parents
from keras_transformer.decoding.sampling import mask_forbidden, token_sampler
from keras_transformer.decoding.token_rules import NO_RULES


def stream(
    step,
    start_cache,
    prompt,
    *,
    num_tokens,
    context,
    seed,
    temperature=1.0,
    top_k=None,
    top_p=None,
    forbidden_ids=(),
    jit_compile=False,
    token_rules=None,
    end_id=None,
    prefill=None,
):
    """Continues a prompt and yields each token as soon as it is sampled.

    Until the context is full, these are the tokens of `sample`. Then the newest half of the
    context becomes a new prompt, so the text may have any length.

    Args:
        step: as for `beam_search`, with one row and one beam.
        start_cache: () -> the cache before the first step.
        prompt: at least one id.
        num_tokens: length of the continuation, at least 0.
        context: maximum number of tokens that the model reads, at least 2.
        seed: as for `sample`.
        temperature: as for `sample`, above 0.
        top_k: as for `sample`, at least 1, or None.
        top_p: as for `sample`, in (0, 1], or None.
        forbidden_ids: ids that are never sampled.
        jit_compile: whether XLA compiles the step, once, for a cache that has room for the
            whole context from the start; `seed` must then have the shape (1, 2).
        token_rules: as for `sample`; they see the tokens that the model reads.
        end_id: the token that ends a text, for `token_rules`; required with those.
        prefill: as for `beam_search`; reads a prompt in one pass.

    Yields:
        Integer ids.

    Raises:
        ValueError: if an argument is out of range.

    Examples:
        >>> import tensorflow as tf
        >>> def step(token_ids, parents, position, cache):
        ...     return 99.0 * tf.one_hot(token_ids + 1, 9), cache
        >>> list(stream(step, tuple, [3], num_tokens=4, context=5, seed=(1, 2)))
        [4, 5, 6, 7]
    """
    check_integer("num_tokens", num_tokens, 0)
    check_integer("context", context, 2)
    prompt = [int(token_id) for token_id in prompt]
    if not prompt:
        raise ValueError("The prompt must have at least one token. Received: none.")
    draw = token_sampler(seed, temperature, top_k, top_p)
    rules = token_rules or NO_RULES
    if rules.change_scores:
        check_integer("end_id", end_id, 1, reason=" token_rules need it.")
    first_free = tf.constant([len(prompt) - 1])
    last_resort = end_id if rules.change_scores else None

    @tf.function(reduce_retracing=True, jit_compile=jit_compile, autograph=False)
    def advance(token_id, position, text_position, cache, sequence):
        logits, cache = step(token_id[None, None], unchanged_parents(1, 1), position, cache)
        logits = tf.cast(logits, tf.float32)
        if rules.change_scores:
            seen = position + 1
            logits = rules.apply(logits, sequence, seen, text_position, first_free, end_id)
        logits = mask_forbidden(logits, tuple(forbidden_ids), last_resort)
        return draw(logits, text_position)[0, 0], cache

    @tf.function(reduce_retracing=True, jit_compile=jit_compile, autograph=False)
    def read_prompt(token_ids, count, cache):
        return prefill(token_ids, None, count, cache)[1]

    sequence = tf.zeros((1, 1, 0), tf.int32)  # which only the rules look at
    written, past, cache = 0, prompt[-context:], start_cache()
    read = 0  # tokens of `past` in the cache
    while written < num_tokens:
        if prefill is not None and not read and len(past) > 1:
            read = len(past) - 1
            padding = context - read if jit_compile else 0  # one shape, for one program
            token_ids = tf.constant([past[:-1] + [0] * padding])
            cache = read_prompt(token_ids, tf.constant(read), cache)
        for token_id in past[read:]:
            text_position = tf.constant(len(prompt) + written - len(past) + read)
            if rules.change_scores:
                sequence = tf.constant([[past + [0] * (context - len(past))]])
            drawn, cache = advance(
                tf.constant(token_id), tf.constant(read), text_position, cache, sequence
            )
            read += 1
        newest = int(drawn)
        yield newest
        written += 1
        past.append(newest)
        if len(past) > context:
            past, cache, read = past[-(context // 2) :], start_cache(), 0
