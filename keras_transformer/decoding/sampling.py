"""Samples sequences from a step function."""

import dataclasses
import functools
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.arguments import check_integer, check_number
from keras_transformer.decoding.beams import append_ids, begin_with, start_ids, unchanged_parents
from keras_transformer.decoding.draws import fold_in, uniform
from keras_transformer.decoding.search import (
    PAD_ID,
    apply_rules,
    call_step,
    read_forced,
    read_hypotheses,
    read_rules,
    run_loop,
)
from keras_transformer.decoding.token_rules import NO_RULES, TokenRules, check_token_rules

FEW = 128  # most likely tokens, which a row is drawn from without sorting the others


class Samples(NamedTuple):
    """Sequences while they are sampled, start token first."""

    token_ids: tf.Tensor  # (batch, samples, t + 1)
    log_probs: tf.Tensor  # (batch, samples)
    has_ended: tf.Tensor  # (batch, samples) boolean


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Samples each token from the model's distribution, with temperature, top-k and top-p.

    The logits are divided by `temperature`, restricted to the `top_k` most likely tokens, and
    then to the fewest most likely tokens whose probabilities sum to `top_p`. The same seed
    samples the same text; a row depends on the seed and its index in the batch, not on the other
    rows.

    For a served model, whose requests are merged, seed, temperature, top_k and top_p may be
    tensors with one entry per row. A row is then independent of its index, too. Such tensors are
    not checked: a temperature that is near or below 0, or NaN, takes the most likely token, and
    an infinite one counts as a very high one.

    Source: Fan et al. 2018 for top-k (https://arxiv.org/abs/1805.04833), Holtzman et al.
    2019 for top-p (https://arxiv.org/abs/1904.09751).

    Args:
        temperature: above 0; below 1 sharpens the distribution, above 1 flattens it; or floats
            (batch,).
        top_k: number of most likely tokens to sample from, at least 1; None for all; or integers
            (batch,), 0 for all.
        top_p: probability mass of the most likely tokens to sample from, in (0, 1]; or floats
            (batch,).
        token_rules: which tokens may be sampled, `TokenRules`; they change logits before the
            temperature does.
        end_ids: ids that end a sequence besides the end token, which is written in their place.

    Call arguments:
        step: as for `BeamSearch`, with samples instead of beams.
        cache: as for `BeamSearch`.
        limits: as for `BeamSearch`.
        start_id: as for `BeamSearch`; or integers (batch,), e.g. the first token of a prompt.
        end_id: as for `BeamSearch`.
        seed: two integers, or an int32 or int64 tensor of shape (2,) or (batch, 2).
        num_samples: independent sequences per row, at least 1.
        forbidden_ids: as for `BeamSearch`.
        prefix: as for `BeamSearch`.
        capacity: as for `BeamSearch`; with one, `seed` needs a pair per row.
        prefill: as for `BeamSearch`. With one that returns None for the log-probabilities, the
            tokens that it reads count nothing in the score.
        starts: how many tokens before the text of each row are padding, integers (batch,), so
            that prompts of different lengths end together and are read in one pass: `start_id`,
            `prefix` and the result begin with as many ids other than 0, which `limits` count, and
            `prefill` reads all of them. They change no draw. The cache must know of them, as of
            `LanguageModel.start_cache`, and `seed` needs a pair per row. None for none.

    Returns:
        `Hypotheses`, not ranked. The score is the sum of the model's log-probabilities, without
        temperature, top_k, top_p and token_rules.

    Raises:
        ValueError: if an argument is out of range, or every token is forbidden.

    Examples:
        >>> import tensorflow as tf
        >>> def step(token_ids, parents, position, cache):
        ...     return 99.0 * tf.one_hot(token_ids + 1, 7), cache
        >>> drawn = Sampling(top_k=3)(step, (), limits=[9], start_id=2, end_id=5, seed=(1, 2))
        >>> drawn.token_ids.numpy().tolist()
        [[[3, 4, 5]]]
    """

    temperature: float | tf.Tensor = 1.0
    top_k: int | tf.Tensor | None = None
    top_p: float | tf.Tensor = 1.0
    token_rules: TokenRules = NO_RULES
    end_ids: tuple[int, ...] = ()

    def __post_init__(self):
        if not tf.is_tensor(self.temperature):
            check_number("temperature", self.temperature, above=0)
        if self.top_k is not None and not tf.is_tensor(self.top_k):
            check_integer("top_k", self.top_k, 1)
        if not tf.is_tensor(self.top_p):
            check_number("top_p", self.top_p, above=0, most=1)
        check_token_rules(self.token_rules)
        if not isinstance(self.end_ids, (list, tuple)):  # a list, from JSON
            raise ValueError(f"end_ids must be a tuple of ids. Received: end_ids={self.end_ids!r}.")
        object.__setattr__(self, "end_ids", tuple(self.end_ids))  # a frozen dataclass
        for end_id in self.end_ids:
            check_integer("end_ids", end_id, 0)
        if self.end_ids and (self.token_rules.min_length or self.token_rules.min_new_tokens):
            raise ValueError(
                "min_length and min_new_tokens forbid one end token for a while, not several. "
                f"Received: end_ids={self.end_ids}."
            )

    def __call__(
        self, step, cache, *, limits, start_id, end_id, seed, num_samples=1, forbidden_ids=None,
        prefix=None, capacity=None, prefill=None, starts=None,
    ):  # fmt: skip
        check_integer("num_samples", num_samples, 1)
        draw = self.sampler(seed)
        if not (capacity is None and starts is None) and not isinstance(draw, functools.partial):
            raise ValueError(
                "With a capacity or starts, seed must have the shape (batch, 2): from one seed for "
                "all rows TensorFlow draws different numbers under XLA, and all rows at one "
                f"position. Received: shape {np.shape(seed)}."
            )
        rules = read_rules(
            limits, start_id, end_id, forbidden_ids, prefix, capacity, self.token_rules, starts
        )
        shape = (tf.shape(rules.limits)[0], num_samples)
        last_resort = end_id if rules.token_rules.change_scores else None

        def is_unfinished(_, samples, __):
            return tf.reduce_any(tf.logical_not(samples.has_ended))

        def advance(position, samples, cache):
            newest = tf.gather(samples.token_ids, position, axis=2)
            parents = unchanged_parents(*shape)
            logits, cache = call_step(step, newest, parents, position, cache, rules)
            allowed = apply_rules(logits, samples.token_ids, position, rules)
            place = position if rules.starts is None else position - rules.starts
            drawn = draw(mask_forbidden(allowed, rules.forbidden_ids, last_resort), place)
            forced = tf.gather(rules.forced_ids, position)  # (batch, 1)
            written = drawn = tf.where(forced < 0, drawn, forced)
            for other in self.end_ids:  # in the forced beginning it is a token as all others
                written = tf.where((forced < 0) & tf.equal(drawn, other), end_id, written)
            column = None if rules.grows else position + 1
            samples = _append(samples, drawn, written, logits, rules, column)
            if not rules.token_rules.forces_end:
                is_last = (position + 1 >= rules.limits)[:, None]
                samples = samples._replace(has_ended=samples.has_ended | is_last)
            return position + 1, samples, cache

        count, forced_ids, log_probs, filled = read_forced(prefill, cache, rules)
        samples = Samples(
            token_ids=begin_with(
                start_ids(shape, rules.start_id, capacity), forced_ids, count, rules.grows
            ),
            log_probs=tf.broadcast_to(log_probs[:, None], shape),
            has_ended=tf.broadcast_to(rules.limits[:, None] < 1, shape),
        )
        _, samples, _ = run_loop(is_unfinished, advance, (count, samples, filled), cache)
        return read_hypotheses(samples.token_ids, samples.log_probs, rules)

    def sampler(self, seed):
        """Fixes the seed, which may have a pair per row.

        Returns:
            A function of logits, (batch, samples, vocabulary), and their position, which samples
            one token from each distribution, (batch, samples) int32.
        """
        seed = _read_seed(seed)
        values = self.temperature, self.top_k, self.top_p
        if any(map(tf.is_tensor, values)) or seed.shape.rank == 2:
            return functools.partial(_draw_by_row, seed, *values)

        def draw(logits, position):
            step_seed = tf.random.experimental.stateless_fold_in(seed, position)
            return _draw(logits / float(self.temperature), step_seed, self.top_k, self.top_p)

        return draw


def _append(samples, drawn, written, logits, rules, column):
    """Appends a written token, and the drawn one's log-probability, to what has not ended."""
    chosen = tf.gather(logits, drawn, batch_dims=2)  # (batch, samples)
    log_probs = chosen - tf.reduce_logsumexp(logits, axis=2)
    token_ids = tf.where(samples.has_ended, PAD_ID, written)
    return Samples(
        token_ids=append_ids(samples.token_ids, token_ids, column),
        log_probs=samples.log_probs + tf.where(samples.has_ended, 0.0, log_probs),
        has_ended=samples.has_ended | tf.equal(token_ids, rules.end_id),
    )


def mask_forbidden(logits, forbidden_ids, last_resort=None):
    """The logits with minus infinity for forbidden tokens, except for an id if none is left."""
    if forbidden_ids:
        size = logits.shape[2]
        if len(set(forbidden_ids)) == size:
            raise ValueError(
                "forbidden_ids must leave a token to draw. Received: "
                f"all {size} ids of the vocabulary."
            )
        ids = tf.constant([[token_id] for token_id in forbidden_ids])
        updates = tf.fill((len(forbidden_ids),), -np.inf)
        logits += tf.tensor_scatter_nd_update(tf.zeros(size), ids, updates)
    if last_resort is None:
        return logits
    any_left = tf.reduce_any(tf.math.is_finite(logits), axis=2, keepdims=True)
    is_last_resort = tf.equal(tf.range(logits.shape[2]), last_resort)
    return tf.where(any_left | ~is_last_resort, logits, 0.0)


def _draw(logits, seed, top_k, top_p):
    """Samples one token from each distribution, (batch, samples) int32."""
    num_samples, size = logits.shape[1:]
    flat = tf.reshape(logits, (-1, size))
    if (top_k is None or top_k >= size) and top_p == 1:
        indices = tf.random.stateless_categorical(flat, 1, seed, dtype=tf.int32)
        return tf.reshape(indices, (-1, num_samples))
    best, ids = tf.math.top_k(flat, min(top_k or size, size))
    best = tf.where(_is_within(tf.nn.softmax(best), top_p), best, -np.inf)
    indices = tf.random.stateless_categorical(best, 1, seed, dtype=tf.int32)
    return tf.reshape(tf.gather(ids, indices, batch_dims=1), (-1, num_samples))


def _draw_by_row(seeds, temperature, top_k, top_p, logits, position):
    """Like `_draw`, with seed, temperature, top_k and top_p of each row.

    The best `FEW` tokens nearly always settle the draw. Where they do not, the whole vocabulary is
    sorted. Which of the two draws depends on the row alone, not on its batch.
    """
    batch_size, num_samples, size = tf.shape(logits)[0], logits.shape[1], logits.shape[2]
    seeds = tf.broadcast_to(seeds, (batch_size, 2))
    temperature, top_p = _by_row(temperature, tf.float32), _by_row(top_p, tf.float32)
    top_k = _by_row(0 if top_k is None else top_k, tf.int32)
    temperature = tf.where(temperature > 1e-4, temperature, 1e-4)  # also if it is NaN
    # Finite, so that forbidden tokens stay at minus infinity instead of becoming NaN.
    logits = logits / tf.minimum(temperature, 1e30)
    drawn = uniform(fold_in(seeds, position), num_samples)[..., None]  # (batch, samples, 1)
    if size <= FEW:
        return _draw_sorted(logits, drawn, top_k, top_p)
    token_ids, is_settled = _draw_of_best(logits, drawn, top_k, top_p)
    return tf.cond(
        tf.reduce_all(is_settled),
        lambda: token_ids,
        lambda: tf.where(is_settled, token_ids, _draw_sorted(logits, drawn, top_k, top_p)),
    )


def _draw_sorted(logits, drawn, top_k, top_p):
    """The token at a share `drawn` of the probability that the cuts leave, the best token first."""
    size = logits.shape[2]
    best, ids = tf.math.top_k(logits, size)
    is_kept = (top_k <= 0) | (tf.range(size) < top_k)
    probabilities = tf.nn.softmax(tf.where(is_kept, best, -np.inf))
    probabilities = tf.where(_is_within(probabilities, top_p), probabilities, 0.0)
    shares = tf.cumsum(probabilities, axis=2)  # (batch, samples, vocabulary)
    return _token_at(ids, probabilities, shares, drawn * shares[..., -1:])


def _draw_of_best(logits, drawn, top_k, top_p):
    """The token that `_draw_sorted` returns, and whether it follows from the best `FEW` alone."""
    best, ids = tf.math.top_k(logits, FEW)
    takes_all, is_cut = top_k <= 0, (top_k > 0) & (top_k <= FEW)
    best = tf.where(~is_cut | (tf.range(FEW) < top_k), best, -np.inf)
    total = tf.where(
        is_cut,
        tf.reduce_logsumexp(best, axis=2, keepdims=True),
        tf.reduce_logsumexp(logits, axis=2, keepdims=True),
    )
    probabilities = tf.exp(best - total)  # (batch, samples, FEW)
    is_within = _is_within(probabilities, top_p)
    probabilities = tf.where(is_within, probabilities, 0.0)
    shares = tf.cumsum(probabilities, axis=2)
    # Either all that may be drawn is among the best, or nothing is cut and they hold the share.
    has_all = is_cut | (takes_all & ~is_within[..., -1:])
    is_settled = has_all | (takes_all & (top_p >= 1) & (drawn < shares[..., -1:]))
    share = tf.where(has_all, drawn * shares[..., -1:], drawn)
    return _token_at(ids, probabilities, shares, share), is_settled[..., 0]


def _token_at(ids, probabilities, shares, share):
    """The first token with more than a share, (batch, samples, 1), of the probability up to it."""
    last = tf.math.count_nonzero(probabilities, axis=2, dtype=tf.int32) - 1
    indices = tf.minimum(tf.math.count_nonzero(shares <= share, axis=2, dtype=tf.int32), last)
    return tf.gather(ids, indices, batch_dims=2)


def _is_within(probabilities, top_p):
    """Whether the more likely tokens hold less than top_p; always true for the first token."""
    better = tf.cumsum(probabilities, axis=-1, exclusive=True)
    return (better < top_p) | tf.equal(better, 0.0)


def _by_row(value, dtype):
    """A scalar or (batch,) values as (batch or 1, 1, 1)."""
    return tf.reshape(tf.cast(value, dtype), (-1, 1, 1))


def _read_seed(seed):
    seed = tf.convert_to_tensor(seed)
    is_pair = seed.shape.rank in (1, 2) and seed.shape[-1] == 2
    if seed.dtype not in (tf.int32, tf.int64) or not is_pair:
        raise ValueError(
            "seed must be two integers, e.g. (1, 2), or integers of shape (2,) or (batch, 2). "
            f"Received: {seed.dtype.name} of shape {seed.shape}."
        )
    return seed
