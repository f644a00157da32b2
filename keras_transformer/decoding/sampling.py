"""Sequences drawn at random from a step function."""

import functools
import numbers
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.decoding.beams import own_beams
from keras_transformer.decoding.search import (
    PAD_ID,
    call_step,
    check_at_least,
    read_hypotheses,
    read_rules,
    run_loop,
)


class Samples(NamedTuple):
    """Sequences being drawn, the start token first."""

    token_ids: tf.Tensor  # (batch, samples, t + 1)
    log_probs: tf.Tensor  # (batch, samples)
    has_ended: tf.Tensor  # (batch, samples) boolean


def sample(
    step,
    cache,
    *,
    limits,
    start_id,
    end_id,
    seed,
    num_samples=1,
    temperature=1.0,
    top_k=None,
    top_p=None,
    forbidden_ids=None,
    prefix=None,
):
    """Draws each token from the model's probabilities, sharpened and cut as asked.

    The logits are divided by `temperature`, then all but the `top_k` best tokens are left
    out, then all but the fewest best tokens that hold `top_p` of the remaining
    probability. The same seed draws the same text; what a row draws depends on the seed
    and on its place in the batch, not on other rows.

    The seed, the temperature and the cuts may be tensors with one entry a row, as a served
    model needs, whose requests are merged: then a row draws the same wherever it stands.
    Such tensors are not checked: a temperature near or below 0, or that is no number, takes the
    best token, and an infinite one draws as the highest.

    Source: Fan et al. 2018 for top-k (https://arxiv.org/abs/1805.04833), Holtzman et al.
    2019 for top-p (https://arxiv.org/abs/1904.09751).

    Args:
        step: as for `beam_search`; samples take the place of beams.
        cache: as for `beam_search`.
        limits: as for `beam_search`.
        start_id: as for `beam_search`.
        end_id: as for `beam_search`.
        seed: two integers, or an int32 or int64 tensor of the shape (2,) or (batch, 2).
        num_samples: independent sequences for each row, at least 1.
        temperature: above 0; below 1 sharpens, above 1 flattens; or floats (batch,).
        top_k: how many of the best tokens may be drawn, at least 1; None means all; or
            integers (batch,), of which 0 means all.
        top_p: probability in (0, 1] that the tokens that may be drawn hold; None means 1;
            or floats (batch,).
        forbidden_ids: as for `beam_search`.
        prefix: as for `beam_search`.

    Returns:
        `Hypotheses` in the order of drawing. The score is the plain sum of the
        log-probabilities the model gives the tokens, whatever the temperature and cuts.

    Raises:
        ValueError: if an argument is outside its limits, or every token is forbidden.

    Examples:
        >>> import tensorflow as tf
        >>> def step(token_ids, parents, position, cache):
        ...     return 99.0 * tf.one_hot(token_ids + 1, 7), cache
        >>> drawn = sample(step, (), limits=[9], start_id=2, end_id=5, seed=(1, 2))
        >>> drawn.token_ids.numpy().tolist()
        [[[3, 4, 5]]]
    """
    check_at_least("num_samples", num_samples, 1)
    draw = drawing(seed, temperature, top_k, top_p)
    rules = read_rules(limits, start_id, end_id, forbidden_ids, prefix)
    shape = (tf.shape(rules.limits)[0], num_samples)

    def is_going_on(_, samples, __):
        return tf.reduce_any(tf.logical_not(samples.has_ended))

    def advance(position, samples, cache):
        newest = samples.token_ids[:, :, -1]
        logits, cache = call_step(step, newest, own_beams(*shape), position, cache, rules)
        drawn = draw(without(logits, rules.forbidden_ids), position)
        forced = tf.gather(rules.forced_ids, position)  # (batch, 1)
        return (
            position + 1,
            _append(samples, tf.where(forced < 0, drawn, forced), logits, rules),
            cache,
        )

    samples = Samples(
        token_ids=tf.fill((*shape, 1), rules.start_id),
        log_probs=tf.zeros(shape),
        has_ended=tf.broadcast_to(rules.limits[:, None] < 1, shape),
    )
    samples = run_loop(is_going_on, advance, samples, cache)
    return read_hypotheses(samples.token_ids[:, :, 1:], samples.log_probs, rules.end_id)


def _append(samples, token_ids, logits, rules):
    """Adds a token, and what the model thinks of it, to the samples that have not ended."""
    chosen = tf.gather(logits, token_ids, batch_dims=2)  # (batch, samples)
    log_probs = chosen - tf.reduce_logsumexp(logits, axis=2)
    token_ids = tf.where(samples.has_ended, PAD_ID, token_ids)
    return Samples(
        token_ids=tf.concat([samples.token_ids, token_ids[:, :, None]], axis=2),
        log_probs=samples.log_probs + tf.where(samples.has_ended, 0.0, log_probs),
        has_ended=samples.has_ended | tf.equal(token_ids, rules.end_id),
    )


def without(logits, forbidden_ids):
    """The logits with minus infinity for the forbidden tokens."""
    if not forbidden_ids:
        return logits
    size = logits.shape[2]
    if len(set(forbidden_ids)) == size:
        raise ValueError(
            f"forbidden_ids must leave a token to draw. Received: all {size} ids of the vocabulary."
        )
    ids = tf.constant([[token_id] for token_id in forbidden_ids])
    bias = tf.tensor_scatter_nd_update(tf.zeros(size), ids, tf.fill((len(forbidden_ids),), -np.inf))
    return logits + bias


def drawing(seed, temperature=1.0, top_k=None, top_p=None):
    """Checks the arguments of `sample` that say how tokens are drawn.

    Returns:
        A function of logits (batch, samples, vocabulary) and their position, which draws one
        token of each, (batch, samples) int32.
    """
    seed = _read_seed(seed)
    if any(tf.is_tensor(value) for value in (temperature, top_k, top_p)) or seed.shape.rank == 2:
        return functools.partial(_draw_by_row, seed, temperature, top_k, top_p)
    if top_k is not None:
        check_at_least("top_k", top_k, 1)
    _check_above_zero("temperature", temperature, np.inf)
    if top_p is not None:
        _check_above_zero("top_p", top_p, 1.0)

    def draw(logits, position):
        step_seed = tf.random.experimental.stateless_fold_in(seed, position)
        return _draw(logits / float(temperature), step_seed, top_k, top_p)

    return draw


def _draw(logits, seed, top_k, top_p):
    """One token for each distribution, (batch, samples) int32."""
    num_samples, size = logits.shape[1:]
    flat = tf.reshape(logits, (-1, size))
    if (top_k is None or top_k >= size) and top_p in (None, 1):
        places = tf.random.stateless_categorical(flat, 1, seed, dtype=tf.int32)
        return tf.reshape(places, (-1, num_samples))
    best, ids = tf.math.top_k(flat, min(top_k or size, size))
    best = tf.where(_is_within(tf.nn.softmax(best), 1.0 if top_p is None else top_p), best, -np.inf)
    places = tf.random.stateless_categorical(best, 1, seed, dtype=tf.int32)
    return tf.reshape(tf.gather(ids, places, batch_dims=1), (-1, num_samples))


def _draw_by_row(seeds, temperature, top_k, top_p, logits, position):
    """Like `_draw`, where every row has a seed, a temperature and cuts of its own."""
    batch_size, num_samples, size = tf.shape(logits)[0], logits.shape[1], logits.shape[2]
    seeds = tf.broadcast_to(seeds, (batch_size, 2))
    temperature = _by_row(temperature, 1.0, tf.float32)
    top_k, top_p = _by_row(top_k, 0, tf.int32), _by_row(top_p, 1.0, tf.float32)
    temperature = tf.where(temperature > 1e-4, temperature, 1e-4)  # also where it is NaN
    # A forbidden token stays at minus infinity, which an infinite temperature would undo.
    best, ids = tf.math.top_k(logits / tf.minimum(temperature, 1e30), size)
    is_kept = (top_k <= 0) | (tf.range(size) < top_k)
    probabilities = tf.nn.softmax(tf.where(is_kept, best, -np.inf))
    probabilities = tf.where(_is_within(probabilities, top_p), probabilities, 0.0)
    shares = tf.cumsum(probabilities, axis=2)  # (batch, samples, vocabulary)

    def uniform(row_seed):
        row_seed = tf.random.experimental.stateless_fold_in(row_seed, position)
        return tf.random.stateless_uniform([num_samples], row_seed)

    drawn = tf.map_fn(uniform, seeds, fn_output_signature=tf.float32)  # (batch, samples)
    is_before = shares <= drawn[..., None] * shares[..., -1:]
    last = tf.math.count_nonzero(probabilities, axis=2, dtype=tf.int32) - 1
    places = tf.minimum(tf.math.count_nonzero(is_before, axis=2, dtype=tf.int32), last)
    return tf.gather(ids, places, batch_dims=2)


def _is_within(probabilities, top_p):
    """Whether the tokens before each one, best first, do not reach top_p; true of the first."""
    better = tf.cumsum(probabilities, axis=-1, exclusive=True)
    return (better < top_p) | tf.equal(better, 0.0)


def _by_row(value, default, dtype):
    """One value, or one a row, as (batch or 1, 1, 1)."""
    return tf.reshape(tf.cast(default if value is None else value, dtype), (-1, 1, 1))


def _check_above_zero(name, value, most):
    if not isinstance(value, numbers.Real) or not 0 < value <= most or value == np.inf:
        limit = "a finite number" if most == np.inf else f"a number of at most {most}"
        raise ValueError(f"{name} must be {limit} above 0. Received: {name}={value!r}.")


def _read_seed(seed):
    seed = tf.convert_to_tensor(seed)
    is_pair = seed.shape.rank in (1, 2) and seed.shape[-1] == 2
    if seed.dtype not in (tf.int32, tf.int64) or not is_pair:
        raise ValueError(
            "seed must be two integers, int32 or int64 of the shape (2,) or (batch, 2), "
            "e.g. (1, 2). "
            f"Received: {seed.dtype.name} of shape {seed.shape}."
        )
    return seed
