"""Streams one sequence, token by token."""

import tensorflow as tf

from keras_transformer.decoding.beams import unchanged_parents
from keras_transformer.decoding.sampling import mask_forbidden, token_sampler
from keras_transformer.decoding.search import check_at_least


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
    check_at_least("num_tokens", num_tokens, 0)
    check_at_least("context", context, 2)
    prompt = [int(token_id) for token_id in prompt]
    if not prompt:
        raise ValueError("The prompt must have at least one token. Received: none.")
    draw = token_sampler(seed, temperature, top_k, top_p)

    @tf.function(reduce_retracing=True, jit_compile=jit_compile)
    def advance(token_id, position, text_position, cache):
        logits, cache = step(token_id[None, None], unchanged_parents(1, 1), position, cache)
        logits = tf.cast(logits, tf.float32)
        return draw(mask_forbidden(logits, tuple(forbidden_ids)), text_position)[0, 0], cache

    written, past, cache = 0, prompt[-context:], start_cache()
    read = 0  # tokens of `past` in the cache
    while written < num_tokens:
        for token_id in past[read:]:
            text_position = tf.constant(len(prompt) + written - len(past) + read)
            drawn, cache = advance(tf.constant(token_id), tf.constant(read), text_position, cache)
            read += 1
        newest = int(drawn)
        yield newest
        written += 1
        past.append(newest)
        if len(past) > context:
            past, cache, read = past[-(context // 2) :], start_cache(), 0
