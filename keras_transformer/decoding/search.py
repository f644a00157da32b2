"""Greedy search and beam search over a step function."""

import dataclasses
import functools
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.arguments import check_integer
from keras_transformer.decoding.beams import (
    NO_HYPOTHESIS_SCORE,
    Hypotheses,
    begin_with,
    best_candidates,
    extend,
    start_beams,
)
from keras_transformer.decoding.scoring import GNMT, Scoring
from keras_transformer.decoding.token_rules import NO_RULES, TokenRules, check_token_rules

PAD_ID = 0


@dataclasses.dataclass(frozen=True)
class BeamSearch:
    """Keeps the `num_beams` most probable sequences at each step and ranks the finished ones.

    A row ends when its scoring says so. The result of a row does not depend on the rest of its
    batch, which may have zero rows.

    Args:
        num_beams: live sequences per row, at least 1; 1 is greedy search.
        num_best: hypotheses per row, in [1, num_beams]; None for 4, or for `num_beams` if that is
            smaller. Fewer hypotheses do not change the best ones, and end an exact search sooner.
        scoring: `GNMTScoring` or `HuggingFaceScoring`, or another `Scoring`.
        token_rules: which tokens the search may choose, `TokenRules`.

    Call arguments:
        step: function `(token_ids, parents, position, cache) -> (logits, cache)`; see
            `keras_transformer.decoding`.
        cache: initial cache, any nest of tensors, batch first; `()` for none.
        limits: maximum length of each row in tokens, end token included, integers (batch,). The
            last token within the limit is forced to be the end token. 0 gives no hypothesis.
        start_id: the token before the first one.
        end_id: the token that ends a sequence; not 0, which is padding.
        forbidden_ids: ids that are never chosen, only forced; None for 0 and `start_id`.
        prefix: the first tokens of each row, integers (batch, prefix) below the vocabulary size,
            padded with 0, which leaves the choice free.
        capacity: the number of steps for which a cache of full size has room, at least the
            largest of `limits`, an integer scalar: then nothing grows, and XLA can compile the
            search. None for a cache that grows.
        prefill: function `(token_ids, next_ids, count, cache) -> (log_probs, cache)` that reads
            the tokens that all rows are forced to take in one pass, as `LanguageModel.prefill`
            does; None takes a step for each.
        rows_leave: whether rows that have ended leave the batch, so that the steps that remain
            compute less. The batch then shrinks between calls of `step`, and the cache must hold
            all that it knows of a row, such as its encoded source. Not with a capacity.

    Returns:
        `Hypotheses`, best first; with a capacity, they have that many columns.

    Raises:
        ValueError: if an argument is out of range, or the last axis of the logits is not static.

    Examples:
        >>> import tensorflow as tf
        >>> def step(token_ids, parents, position, cache):
        ...     return 3.0 * tf.one_hot(token_ids + 1, 6), cache
        >>> search = BeamSearch(num_beams=2, num_best=1)
        >>> best = search(step, (), limits=[5], start_id=1, end_id=4)
        >>> best.token_ids.numpy().tolist(), f"{best.scores.numpy().item():.2f}"
        ([[[2, 3, 4]]], '-0.56')
    """

    num_beams: int = 4
    num_best: int | None = None
    scoring: Scoring = GNMT
    token_rules: TokenRules = NO_RULES

    def __post_init__(self):
        check_integer("num_beams", self.num_beams, 1)
        if self.num_best is None:
            object.__setattr__(self, "num_best", min(4, self.num_beams))  # a frozen dataclass
        check_integer("num_best", self.num_best, 1)
        if self.num_best > self.num_beams:
            raise ValueError(
                "num_best must be at most num_beams, the number of sequences the search follows. "
                f"Received: num_best={self.num_best}, num_beams={self.num_beams}."
            )
        if not isinstance(self.scoring, Scoring):
            raise ValueError(
                "scoring must be GNMTScoring, HuggingFaceScoring or another Scoring. "
                f"Received: {self.scoring!r:.80}."
            )
        check_token_rules(self.token_rules)

    def __call__(
        self, step, cache, *, limits, start_id, end_id, forbidden_ids=None, prefix=None,
        capacity=None, prefill=None, rows_leave=False,
    ):  # fmt: skip
        scoring, num_best = self.scoring, self.num_best
        rules = read_rules(
            limits, start_id, end_id, forbidden_ids, prefix, capacity, self.token_rules
        )
        if rows_leave and not rules.grows:
            raise ValueError("rows_leave needs a cache that grows. Received: a capacity.")
        divisors = scoring.divisors(tf.cast(tf.range(rules.steps + 1), tf.float32))

        def advance(rules, position, beams, cache_before):
            newest = tf.gather(beams.live_ids, position, axis=2)
            logits, longer = call_step(step, newest, beams.parents, position, cache_before, rules)
            candidates = best_candidates(
                logits, beams.live_log_probs, tf.gather(rules.forced_ids, position),
                rules.forbidden_ids, scoring.counts_forced,
                constrained_log_probs(logits, beams.live_ids, position, rules),
            )  # fmt: skip
            position += 1
            column = None if capacity is None else position
            divisor, last_divisor = tf.gather(divisors, position), tf.gather(divisors, rules.limits)
            is_last = None if rules.token_rules.forces_end else (position >= rules.limits)[:, None]
            may_finish = scoring.may_finish(candidates.log_probs, self.num_beams)
            beams = extend(beams, candidates, rules.end_id, divisor, column, may_finish, is_last)
            continues = scoring.continues(
                beams.live_log_probs, beams.finished_scores, divisor, last_divisor[:, None]
            )
            live_log_probs = tf.where(continues, beams.live_log_probs, -np.inf)
            return position, beams._replace(live_log_probs=live_log_probs), longer

        num_finished = num_best if scoring.is_exact else self.num_beams
        beams = start_beams(rules.limits, self.num_beams, num_finished, rules.start_id, capacity)
        count, forced_ids, log_probs, filled = read_forced(
            prefill, cache, rules, scoring.counts_forced
        )
        beams = beams._replace(
            live_ids=begin_with(beams.live_ids, forced_ids, count, rules.grows),
            live_log_probs=beams.live_log_probs + log_probs[:, None],
            finished_ids=begin_with(beams.finished_ids, forced_ids * 0, count, rules.grows),
        )
        run = _run_while_rows_leave if rows_leave else _run_all_rows
        ids, scores = run(advance, (count, beams, filled), cache, rules)
        return read_hypotheses(ids[:, :num_best], scores[:, :num_best], rules)


def _is_live(beams):
    """Whether a row goes on, (batch,): the search leaves one that ends no live sequence."""
    return beams.live_log_probs[:, 0] > -np.inf


def _run_all_rows(advance, start, empty_cache, rules):
    """The ids and scores of the finished sequences, once no row goes on."""
    _, beams, _ = run_loop(
        lambda _, beams, __: tf.reduce_any(_is_live(beams)),
        functools.partial(advance, rules),
        start,
        empty_cache,
    )
    return beams.finished_ids, beams.finished_scores


def _run_while_rows_leave(advance, start, empty_cache, rules):
    """Like `_run_all_rows`; when an eighth of the rows have ended, the others go on alone."""
    position, beams, cache = start
    # The number of sequences stays static, for signatures that return them.
    shape = tf.shape(beams.finished_ids)[0], beams.finished_ids.shape[1], rules.steps + 1

    def few_have_ended(_, beams, __):
        is_live = _is_live(beams)
        return 8 * tf.math.count_nonzero(is_live, dtype=tf.int32) > 7 * tf.size(is_live)

    def advance_some(position, state, cache):
        rows, beams, ids, scores = state
        body = functools.partial(advance, rules.of_rows(rows))
        position, beams, cache = run_loop(
            few_have_ended, body, (position, beams, cache), empty_cache
        )
        missing = [[0, 0], [0, 0], [0, shape[2] - tf.shape(beams.finished_ids)[2]]]
        places = rows[:, None]
        ids = tf.tensor_scatter_nd_update(ids, places, tf.pad(beams.finished_ids, missing))
        scores = tf.tensor_scatter_nd_update(scores, places, beams.finished_scores)
        remaining = tf.reshape(tf.where(_is_live(beams)), [-1])
        state = (rows, beams), cache
        (rows, beams), cache = tf.nest.map_structure(lambda x: tf.gather(x, remaining), state)
        return position, (rows, beams, ids, scores), cache

    all_rows = tf.range(shape[0])
    found = tf.zeros(shape, tf.int32), tf.fill(shape[:2], -np.inf)
    _, (_, _, ids, scores), _ = run_loop(
        lambda _, state, __: tf.size(state[0]) > 0,
        advance_some,
        (position, (all_rows, beams, *found), cache),
        empty_cache,
    )
    return ids, scores


class Rules(NamedTuple):
    """The checked constraints of all rows, as the loops use them."""

    limits: tf.Tensor  # (batch,) int32, at least 0
    forced_ids: tf.Tensor  # (steps, batch, 1) int32, -1 where the choice is free
    first_free: tf.Tensor  # (batch,) int32, position of the first token that is not forced
    steps: tf.Tensor  # the longest limit, or the capacity
    grows: bool  # whether there is no capacity
    start_id: int | tf.Tensor
    end_id: int
    forbidden_ids: tuple
    token_rules: TokenRules
    prefix_length: tf.Tensor | None  # None without a prefix
    starts: tf.Tensor | None  # (batch,) int32, tokens of padding before each row; None for none

    def of_rows(self, rows):
        """The rules of some rows, in the loop; `rows` are indices, (rows,)."""
        return self._replace(
            limits=tf.gather(self.limits, rows),
            forced_ids=tf.gather(self.forced_ids, rows, axis=1),
            first_free=tf.gather(self.first_free, rows),
        )


def read_rules(limits, start_id, end_id, forbidden_ids, prefix, capacity, token_rules, starts=None):
    """Checks the arguments that searches and sampling share, and returns them as `Rules`."""
    check_backend()
    if tf.is_tensor(start_id):
        start_id = _integers("start_id", start_id, ("batch",))
    else:
        check_integer("start_id", start_id, 0)
        start_id = int(start_id)
    if forbidden_ids is None:
        forbidden_ids = (PAD_ID,) if tf.is_tensor(start_id) else (PAD_ID, start_id)
    check_integer("end_id", end_id, 1, reason=" 0 is padding.")
    for index, token_id in enumerate(forbidden_ids):
        check_integer(f"forbidden_ids[{index}]", token_id, 0)
    limits = tf.maximum(_integers("limits", limits, ("batch",)), 0)
    if capacity is None:
        steps = tf.reduce_max(tf.concat([limits, [0]], axis=0))  # 0 if there are no rows
    else:
        steps, limits = capacity, tf.minimum(limits, capacity)

    first_id = token_rules.forced_bos_token_id
    has_prefix = prefix is not None or first_id is not None
    if prefix is None:
        prefix = tf.zeros((tf.shape(limits)[0], 0), tf.int32)
    prefix = _integers("prefix", prefix, ("batch", "prefix"))
    if starts is not None:
        starts = _integers("starts", starts, ("batch",))
    if first_id is not None:
        missing = 1  # where a row has padding before its start, and nothing after it
        if starts is None:
            missing = tf.cast(tf.equal(tf.shape(prefix)[1], 0), tf.int32)
        prefix = tf.pad(prefix, [[0, 0], [0, missing]])
        place = 0 if starts is None else starts[:, None]
        is_first = tf.equal(tf.range(tf.shape(prefix)[1]), place) & tf.equal(prefix, PAD_ID)
        prefix = tf.where(is_first, first_id, prefix)
    first_free = tf.math.count_nonzero(prefix, axis=1, dtype=tf.int32)
    prefix = prefix[:, :steps]
    prefix_length = tf.shape(prefix)[1]
    missing = [[0, 0], [0, steps - prefix_length]]
    prefix = tf.transpose(tf.pad(prefix, missing, constant_values=PAD_ID))
    forced_ids = tf.where(prefix != PAD_ID, prefix, -1)  # (steps, batch)
    # If both force a token, the limit wins.
    is_last = tf.range(steps)[:, None] + 1 >= limits
    forces_end = is_last if token_rules.forces_end else is_last & (limits <= 1)
    forced_ids = tf.where(forces_end, int(end_id), forced_ids)
    return Rules(
        limits=limits,
        forced_ids=forced_ids[:, :, None],
        first_free=first_free,
        steps=steps,
        grows=capacity is None,
        start_id=start_id,
        end_id=int(end_id),
        forbidden_ids=tuple(map(int, forbidden_ids)),
        token_rules=token_rules,
        prefix_length=prefix_length if has_prefix else None,
        starts=starts,
    )


def read_forced(prefill, cache, rules, with_log_probs=True):
    """Reads the tokens that all rows are forced to begin with, in one pass.

    Returns:
        The number of these tokens, a scalar; the forced tokens of each row, (batch, steps), 0
        where there is none; the sum of the log-probabilities of those that were read, (batch,),
        zeros if `prefill` returns none, as without `with_log_probs`; and the cache.
    """
    exists = rules.limits[:, None] > 0  # (batch, 1); no hypothesis, nothing to read
    forced_ids = tf.where(exists, tf.transpose(rules.forced_ids[:, :, 0]), 0)  # (batch, steps)
    zeros = tf.zeros_like(rules.limits, tf.float32)
    if prefill is None or rules.prefix_length is None:
        return tf.constant(0), tf.maximum(forced_ids, 0), zeros, cache
    # The search itself takes the last token within a limit, and an end token.
    is_forced = (forced_ids >= 0) & (forced_ids != rules.end_id)
    is_forced &= tf.range(1, rules.steps + 1) < rules.limits[:, None]
    by_all = tf.reduce_all(is_forced | ~exists, axis=0)
    count = tf.reduce_sum(tf.math.cumprod(tf.cast(by_all, tf.int32)))
    forced_ids = tf.maximum(forced_ids, 0)
    start_ids = tf.broadcast_to(tf.reshape(rules.start_id, (-1, 1)), tf.shape(exists))
    token_ids, next_ids = tf.concat([start_ids, forced_ids[:, :-1]], axis=1), forced_ids
    length = count if rules.grows else rules.prefix_length  # XLA knows the latter
    token_ids, next_ids = token_ids[:, :length], next_ids[:, :length]

    def read():
        log_probs, longer = prefill(token_ids, next_ids if with_log_probs else None, count, cache)
        if log_probs is None:
            return zeros, longer
        is_read = exists & (tf.range(tf.shape(log_probs)[1]) < count)
        return tf.reduce_sum(tf.where(is_read, log_probs, 0.0), axis=1), longer

    log_probs, cache = tf.cond(count > 0, read, lambda: (zeros, cache))
    return count, forced_ids, log_probs, cache


def check_backend():
    """Raises ValueError unless Keras runs on TensorFlow, which searches and samples."""
    if (backend := keras.backend.backend()) != "tensorflow":
        raise ValueError(
            "Decoding needs Keras's TensorFlow backend, whatever backend trained the model: load "
            f"it with KERAS_BACKEND=tensorflow. Received: {backend}."
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
    start_id = 0 if tf.is_tensor(rules.start_id) else rules.start_id
    check_ids(size, start_id, rules.end_id, rules.forbidden_ids, rules.token_rules)
    logits.set_shape((None, expected, size))
    # bfloat16 has 8 significant bits: a sum of log-probabilities needs more.
    return tf.cast(logits, tf.float32), cache


def check_ids(size, start_id, end_id, forbidden_ids, token_rules):
    """Raises ValueError for an id of an argument that the logits do not have."""
    if max(start_id, end_id, *forbidden_ids, token_rules.largest_id()) >= size:
        raise ValueError(
            "start_id, end_id, forbidden_ids and the ids of token_rules must be below the "
            f"vocabulary size {size}. Received: start_id={start_id}, end_id={end_id}, "
            f"forbidden_ids={forbidden_ids}, token_rules={token_rules}."
        )


def constrained_log_probs(logits, sequences, position, rules):
    """The log-probabilities under the rules; None if no rule changes them.

    With several beams the penalty of repetitions changes log-probabilities, with one beam logits,
    as in Hugging Face's beam search and greedy search.
    """
    if not rules.token_rules.change_scores:
        return None
    total = tf.reduce_logsumexp(logits, axis=2, keepdims=True)
    if logits.shape[1] == 1:
        log_probs = apply_rules(logits, sequences, position, rules) - total
    else:
        log_probs = apply_rules(logits - total, sequences, position, rules)
    if not rules.token_rules.renormalize_logits:
        return log_probs
    is_never = np.isin(np.arange(logits.shape[2]), rules.forbidden_ids)
    left = tf.reduce_logsumexp(tf.where(is_never, -np.inf, log_probs), axis=2, keepdims=True)
    return log_probs - tf.where(tf.math.is_finite(left), left, 0.0)


def apply_rules(scores, sequences, position, rules):
    """The scores under the rules, unchanged if there are none."""
    if not rules.token_rules.change_scores:
        return scores
    seen, first_free = position + 1, rules.first_free
    if rules.starts is not None:
        is_padding = tf.range(tf.shape(sequences)[2]) < rules.starts[:, None, None]
        sequences = tf.where(is_padding, PAD_ID, sequences)
        position, first_free = position - rules.starts, first_free - rules.starts
    return rules.token_rules.apply(scores, sequences, seen, position, first_free, rules.end_id)


def run_loop(condition, advance, start, empty_cache):
    """Runs `advance(position, state, cache)` while the condition holds; returns the last of each.

    `condition` takes the same, `advance` returns them after a step, and `start` has them before the
    loop. Axes of size 0 in `empty_cache`, that before the first step, grow.
    """
    position, state, cache = start
    cache, empty_cache = (
        tf.nest.map_structure(tf.convert_to_tensor, each) for each in (cache, empty_cache)
    )
    state_shapes = tf.nest.map_structure(_state_shape, state)
    shapes = (tf.TensorShape([]), state_shapes, tf.nest.map_structure(growing_shape, empty_cache))

    def body(position, state, cache):
        after = advance(position, state, cache)
        tf.nest.assert_same_structure((position, state, cache), after)
        tf.nest.map_structure(lambda tensor, shape: tensor.set_shape(shape), after, shapes)
        return after

    return tf.while_loop(condition, body, (position, state, cache), shapes)


def read_hypotheses(token_ids, scores, rules):
    """The sequences without their start tokens, trimmed if they grew."""
    exists = tf.math.is_finite(scores)
    token_ids = tf.where(exists[:, :, None], token_ids[:, :, 1:], PAD_ID)
    columns = tf.range(1, tf.shape(token_ids)[2] + 1)
    # Without forbidden_ids, 0 may be a token like any other before the last one.
    lengths = tf.where(token_ids != PAD_ID, columns, 0)
    lengths = tf.maximum(tf.reduce_max(lengths, axis=2), 0)  # if no sequence has a column
    scores = tf.where(lengths > 0, scores, NO_HYPOTHESIS_SCORE)
    hypotheses = Hypotheses(token_ids, scores, lengths)
    return trim(hypotheses) if rules.grows else hypotheses


def trim(hypotheses):
    """Leaves out the columns after the longest hypothesis, however many steps the search took."""
    lengths = tf.reshape(hypotheses.lengths, [-1])
    longest = tf.reduce_max(tf.concat([[0], lengths], axis=0))
    return hypotheses._replace(token_ids=hypotheses.token_ids[:, :, :longest])


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
    """The loop invariant of shapes (batch,), (batch, beams) and (batch, beams, t + 1)."""
    return tf.TensorShape([None, *tensor.shape[1:2], None][: tensor.shape.rank])


def growing_shape(tensor):
    """The shape of a tensor of a cache in any step: batch and empty axes may vary."""
    sizes = tensor.shape.as_list()
    return tf.TensorShape([None] + [size or None for size in sizes[1:]])
