"""One sequence drawn token by token, to be read while it is written."""

import tensorflow as tf

from keras_transformer.decoding.beams import own_beams
from keras_transformer.decoding.sampling import drawing, without
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
):
    """Yields the tokens that a model writes after a prompt, each as soon as it is drawn.

    When the context is full, the newest half of it becomes a new prompt, so that the text
    may be of any length. Until then they are the tokens that `sample` draws.

    Args:
        step: as for `beam_search`, with one row and one beam.
        start_cache: () -> the cache before the first step.
        prompt: ids, at least one.
        num_tokens: how many to write, at least 0.
        context: most tokens that the model reads, at least 2.
        seed: as for `sample`, and so the next three.
        temperature: above 0.
        top_k: at least 1, or None.
        top_p: in (0, 1], or None.
        forbidden_ids: ids that are never drawn.

    Yields:
        Integers.

    Raises:
        ValueError: if an argument is outside its limits.

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
    draw = drawing(seed, temperature, top_k, top_p)

    @tf.function(reduce_retracing=True)
    def advance(token_id, position, place, cache):
        logits, cache = step(token_id[None, None], own_beams(1, 1), position, cache)
        logits = tf.cast(logits, tf.float32)
        return draw(without(logits, tuple(forbidden_ids)), place)[0, 0], cache

    written, past, cache = 0, prompt[-context:], start_cache()
    read = 0  # how many tokens of `past` are in the cache
    while written < num_tokens:
        for token_id in past[read:]:
            place = tf.constant(len(prompt) + written - len(past) + read)
            drawn, cache = advance(tf.constant(token_id), tf.constant(read), place, cache)
            read += 1
        newest = int(drawn)
        yield newest
        written += 1
        past.append(newest)
        if len(past) > context:
            past, cache, read = past[-(context // 2) :], start_cache(), 0
