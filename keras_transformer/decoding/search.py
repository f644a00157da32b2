"""Greedy search and beam search over a step function."""

import numbers
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.decoding.beams import (
    NO_HYPOTHESIS_SCORE,
    Hypotheses,
    best_candidates,
    extend,
    start_beams,
)

PAD_ID = 0
SCORINGS = ("gnmt", "huggingface", "huggingface_early_stopping")


def beam_search(
    step,
    cache,
    *,
    num_beams,
    limits,
    start_id,
    end_id,
    forbidden_ids=None,
    length_penalty=0.6,
    prefix=None,
    n_best=None,
    capacity=None,
    scoring="gnmt",
):
    """Keeps the `num_beams` most probable sequences at each step and ranks the finished ones.

    The score of a finished sequence of n tokens, end token included, is the sum of its
    log-probabilities divided by ((5 + n) / 6) ** length_penalty. The search ends as soon as no
    live sequence of any row can reach the `n_best` of its row. The result of a row does not
    depend on the rest of its batch, which may have zero rows.

    Source: Wu et al. 2016, equation 14, without coverage (https://arxiv.org/abs/1609.08144).

    Args:
        step: function `(token_ids, parents, position, cache) -> (logits, cache)`; see
            `keras_transformer.decoding`.
        cache: initial cache, any nest of tensors, batch first; `()` for none.
        num_beams: live sequences per row, at least 1; 1 is greedy search.
        limits: maximum length of each row in tokens, end token included, integers (batch,). The
            last token within the limit is forced to be the end token. 0 gives no hypothesis.
        start_id: the token before the first one.
        end_id: the token that ends a sequence; not 0, which is padding.
        forbidden_ids: ids that are never chosen, only forced; None for 0 and `start_id`.
        length_penalty: alpha, at least 0; 0 compares plain sums of log-probabilities.
        prefix: the first tokens of each row, integers (batch, prefix) below the vocabulary size,
            padded with 0, which leaves the choice free. Their log-probabilities are part of the
            score.
        n_best: hypotheses per row, in [1, num_beams]; None for `num_beams`. Fewer hypotheses
            end the search sooner and do not change the best ones.
        capacity: the number of steps for which a cache of full size has room, at least the
            largest of `limits`, an integer scalar: then nothing grows, and XLA can compile the
            search. None for a cache that grows.
        scoring: "gnmt", as above; or "huggingface", the rules for which Hugging Face's models
            are released: the divisor is n ** length_penalty, forced tokens cost nothing, a
            sequence finishes only if its end is among the `num_beams` best extensions, and a row
            ends once its best live sequence, scored as if it ended here, is below `num_beams`
            finished ones; or "huggingface_early_stopping", the same except that a row ends once
            `num_beams` sequences have finished.

    Returns:
        `Hypotheses`, best first; with a capacity, they have that many columns.

    Raises:
        ValueError: if an argument is out of range, or the last axis of the logits is not static.

    Examples:
        >>> import tensorflow as tf
        >>> def step(token_ids, parents, position, cache):
        ...     return 3.0 * tf.one_hot(token_ids + 1, 6), cache
        >>> best = beam_search(step, (), num_beams=2, n_best=1, limits=[5], start_id=1, end_id=4)
        >>> best.token_ids.numpy().tolist(), f"{best.scores.numpy().item():.2f}"
        ([[[2, 3, 4]]], '-0.56')
    """
    n_best = num_beams if n_best is None else n_best
    _check_search(num_beams, n_best, length_penalty, scoring)
    as_hugging_face = scoring != "gnmt"
    rules = read_rules(limits, start_id, end_id, forbidden_ids, prefix, capacity)
    penalties = _length_penalties(rules, length_penalty, as_hugging_face)
    limit_penalties = tf.gather(penalties, rules.limits)[:, None]  # (batch, 1)

    def can_improve(beams, penalties):
        reachable = beams.live_log_probs[:, :1] / penalties
        return reachable > beams.finished_scores[:, -1:]  # (batch, 1)

    def is_unsettled(_, beams, __):
        # The upper bound of a live sequence: probability 1 from here on, and the maximum length.
        return tf.reduce_any(can_improve(beams, limit_penalties))

    def advance(position, beams, cache):
        newest = tf.gather(beams.live_ids, position, axis=2)
        logits, cache = call_step(step, newest, beams.parents, position, cache, rules)
        forced_ids = tf.gather(rules.forced_ids, position)
        candidates = best_candidates(
            logits, beams.live_log_probs, forced_ids, rules.forbidden_ids, as_hugging_face
        )
        position += 1
        column = None if capacity is None else position
        penalty = tf.gather(penalties, position)
        beams = extend(beams, candidates, rules.end_id, penalty, column, as_hugging_face)
        if as_hugging_face:
            goes_on = can_improve(beams, penalty)
            if scoring == "huggingface_early_stopping":
                goes_on &= tf.math.is_inf(beams.finished_scores[:, -1:])
            live = tf.where(goes_on, beams.live_log_probs, -np.inf)
            beams = beams._replace(live_log_probs=live)
        return position, beams, cache

    finished = num_beams if as_hugging_face else n_best
    beams = start_beams(rules.limits, num_beams, finished, rules.start_id, capacity)
    beams = run_loop(is_unsettled, advance, beams, cache)
    ids, scores = beams.finished_ids[:, :n_best], beams.finished_scores[:, :n_best]
    return read_hypotheses(ids, scores, rules)


def greedy_search(
    step,
    cache,
    *,
    limits,
    start_id,
    end_id,
    forbidden_ids=None,
    length_penalty=0.6,
    prefix=None,
    capacity=None,
):
    """Chooses the most probable token at each step: a beam search with one beam.

    Args:
        step: as for `beam_search`; it gets token_ids of shape (batch, 1).
        cache: as for `beam_search`, with one beam.
        limits: as for `beam_search`.
        start_id: as for `beam_search`.
        end_id: as for `beam_search`.
        forbidden_ids: as for `beam_search`.
        length_penalty: as for `beam_search`; affects only the score.
        prefix: as for `beam_search`.
        capacity: as for `beam_search`.

    Returns:
        `Hypotheses`, one per row.

    Raises:
        ValueError: as for `beam_search`.

    Examples:
        >>> import tensorflow as tf
        >>> def step(token_ids, parents, position, cache):
        ...     return tf.one_hot(token_ids + 1, 7), cache
        >>> greedy_search(step, (), limits=[9], start_id=2, end_id=5).token_ids.numpy().tolist()
        [[[3, 4, 5]]]
    """
    return beam_search(
        step,
        cache,
        num_beams=1,
        limits=limits,
        start_id=start_id,
        end_id=end_id,
        forbidden_ids=forbidden_ids,
        length_penalty=length_penalty,
        prefix=prefix,
        capacity=capacity,
    )


class Rules(NamedTuple):
    """The checked constraints of all rows, in the form that the loops use."""

    limits: tf.Tensor  # (batch,) int32, at least 0
    forced_ids: tf.Tensor  # (steps, batch, 1) int32, -1 where the choice is free
    steps: tf.Tensor  # the longest limit, or the capacity
    grows: bool  # whether there is no capacity
    start_id: int
    end_id: int
    forbidden_ids: tuple


def read_rules(limits, start_id, end_id, forbidden_ids, prefix, capacity=None):
    """Checks the arguments that searches and sampling share, and returns them as `Rules`."""
    forbidden_ids = (PAD_ID, start_id) if forbidden_ids is None else tuple(forbidden_ids)
    check_at_least("start_id", start_id, 0)
    check_at_least("end_id", end_id, 1, " 0 is padding.")
    for token_id in forbidden_ids:
        check_at_least("each of forbidden_ids", token_id, 0)
    limits = tf.maximum(_integers("limits", limits, ("batch",)), 0)
    if capacity is None:
        steps = tf.reduce_max(tf.concat([limits, [0]], axis=0))  # 0 if there are no rows
    else:
        steps, limits = capacity, tf.minimum(limits, capacity)

    positions = tf.range(steps)[:, None]
    forced_ids = tf.where(positions + 1 >= limits, int(end_id), -1)  # (steps, batch)
    if prefix is not None:
        prefix = _integers("prefix", prefix, ("batch", "prefix"))[:, :steps]
        missing = steps - tf.shape(prefix)[1]
        prefix = tf.transpose(tf.pad(prefix, [[0, 0], [0, missing]], constant_values=PAD_ID))
        # If both force a token, the limit wins.
        from_prefix = tf.where(prefix != PAD_ID, prefix, -1)
        forced_ids = tf.where(forced_ids < 0, from_prefix, forced_ids)
    return Rules(
        limits=limits,
        forced_ids=forced_ids[:, :, None],
        steps=steps,
        grows=capacity is None,
        start_id=int(start_id),
        end_id=int(end_id),
        forbidden_ids=tuple(map(int, forbidden_ids)),
    )


def call_step(step, token_ids, parents, position, cache, rules):
    """Calls the step function and checks its logits; returns them in float32, and the cache."""
    logits, cache = step(token_ids, parents, position, cache)
    size, expected = logits.shape[-1], token_ids.shape[1]
    if logits.shape.rank != 3 or size is None or logits.shape[1] not in (None, expected):
        raise ValueError(
            f"step must return logits of shape (batch, {expected}, vocabulary) with a static "
            f"vocabulary. Received: logits of shape {logits.shape}."
        )
    largest = max(rules.start_id, rules.end_id, *rules.forbidden_ids, 0)
    if largest >= size:
        raise ValueError(
            f"start_id, end_id and forbidden_ids must be below the vocabulary size {size}. "
            f"Received: start_id={rules.start_id}, end_id={rules.end_id}, "
            f"forbidden_ids={rules.forbidden_ids}."
        )
    logits.set_shape((None, expected, size))
    # bfloat16 has 8 significant bits: a sum of log-probabilities needs more.
    return tf.cast(logits, tf.float32), cache


def run_loop(condition, advance, state, cache):
    """Runs `advance(position, state, cache)` while the condition holds; returns the state."""
    cache = tf.nest.map_structure(tf.convert_to_tensor, cache)
    state_shapes = tf.nest.map_structure(_state_shape, state)
    shapes = (tf.TensorShape([]), state_shapes, tf.nest.map_structure(_cache_shape, cache))

    def body(position, state, cache):
        after = advance(position, state, cache)
        tf.nest.assert_same_structure((position, state, cache), after)
        tf.nest.map_structure(lambda tensor, shape: tensor.set_shape(shape), after, shapes)
        return after

    return tf.while_loop(condition, body, (tf.constant(0), state, cache), shapes)[1]


def read_hypotheses(token_ids, scores, rules):
    """The sequences without their start tokens, trimmed if they grew."""
    token_ids = token_ids[:, :, 1:]
    counts = tf.range(1, tf.shape(token_ids)[2] + 1)
    lengths = tf.reduce_sum(tf.where(tf.equal(token_ids, rules.end_id), counts, 0), axis=2)
    scores = tf.where(lengths > 0, scores, NO_HYPOTHESIS_SCORE)
    found = Hypotheses(token_ids, scores, lengths)
    return trim(found) if rules.grows else found


def trim(hypotheses):
    """Leaves out the columns after the longest hypothesis, however many steps the search took."""
    lengths = tf.reshape(hypotheses.lengths, [-1])
    longest = tf.reduce_max(tf.concat([[0], lengths], axis=0))
    return hypotheses._replace(token_ids=hypotheses.token_ids[:, :, :longest])


def check_at_least(name, value, least, reason=""):
    """Raises a ValueError unless the value is an integer of at least `least`."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
        raise ValueError(
            f"{name} must be an integer of at least {least}.{reason} Received: {value!r}."
        )


def _check_search(num_beams, n_best, length_penalty, scoring):
    check_at_least("num_beams", num_beams, 1)
    check_at_least("n_best", n_best, 1)
    if n_best > num_beams:
        raise ValueError(
            "n_best must be at most num_beams, the number of sequences the search follows. "
            f"Received: n_best={n_best}, num_beams={num_beams}."
        )
    if not isinstance(length_penalty, numbers.Real) or not length_penalty >= 0:
        raise ValueError(
            "length_penalty must be a number of at least 0, or the search could stop before the "
            "best sequence ends. Choose e.g. 0.6. "
            f"Received: length_penalty={length_penalty!r}."
        )
    if scoring not in SCORINGS:
        raise ValueError(f"scoring must be one of {', '.join(SCORINGS)}. Received: {scoring!r}.")


def _length_penalties(rules, length_penalty, as_hugging_face):
    """((5 + n) / 6) ** alpha, or n ** alpha, for n = 0 to the number of steps."""
    lengths = tf.cast(tf.range(rules.steps + 1), tf.float32)
    lengths = tf.maximum(lengths, 1.0) if as_hugging_face else (5.0 + lengths) / 6.0
    return lengths ** float(length_penalty)


def _integers(name, values, axes):
    """Checks that the values are integers with the given axes; returns an int32 tensor."""
    values = tf.convert_to_tensor(values)
    if not values.dtype.is_integer or values.shape.rank not in (None, len(axes)):
        raise ValueError(
            f"{name} must be integers of shape ({', '.join(axes)}{',' * (len(axes) == 1)}). "
            f"Received: {values.dtype.name} of shape {values.shape}."
        )
    return tf.cast(values, tf.int32)


def _state_shape(tensor):
    """The loop invariant of shapes (batch, beams) and (batch, beams, t + 1)."""
    return tf.TensorShape([None, tensor.shape[1], None][: tensor.shape.rank])


def _cache_shape(tensor):
    """The loop invariant of a cache's shape: batch and empty axes may vary."""
    sizes = tensor.shape.as_list()
    return tf.TensorShape([None] + [size or None for size in sizes[1:]])
