"""The state of a beam search, and the pure functions that extend it by one token."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf
from keras import ops

# The score of a missing hypothesis. Finite, because JSON has no infinity.
NO_HYPOTHESIS_SCORE = -1e9

# Wider blocks mean fewer maxima to sort and more columns to search afterwards.
_LARGEST_WHOLE_BLOCK = 256
_SMALLEST_BLOCK, _LARGEST_BLOCK = 32, 128


class Hypotheses(NamedTuple):
    """The result of a search, best first, or of sampling.

    A missing hypothesis (a limit of 1 token allows only one) has length 0, no ids and the score
    `NO_HYPOTHESIS_SCORE`.

    Attributes:
        token_ids: (batch, hypotheses, length) int32, end token included, padded with 0.
        scores: (batch, hypotheses) float32.
        lengths: (batch, hypotheses) int32, in tokens with the end token.
    """

    token_ids: tf.Tensor
    scores: tf.Tensor
    lengths: tf.Tensor


class Beams(NamedTuple):
    """Live and finished sequences, both best first.

    A missing sequence has a log-probability or score of minus infinity. Both kinds of ids begin
    with the start token, so t tokens take t + 1 columns; with a capacity, there are zeros after.
    """

    live_ids: tf.Tensor  # (batch, beams, t + 1)
    live_log_probs: tf.Tensor  # (batch, beams)
    finished_ids: tf.Tensor  # (batch, num_finished, t + 1)
    finished_scores: tf.Tensor  # (batch, num_finished), divided as the scoring says
    parents: tf.Tensor  # (batch, beams), the previous beam of each live sequence


class Candidates(NamedTuple):
    """The best one-token extensions of the live sequences, (batch, candidates) each."""

    log_probs: tf.Tensor  # of the whole extended sequence
    beams: tf.Tensor  # which live sequence it extends
    token_ids: tf.Tensor  # by which token


def start_beams(limits, num_beams, num_finished, start_id, capacity=None):
    """The state before the first token: one live sequence per row whose limit is above 0.

    With a capacity, ids have room for as many tokens from the start.
    """
    batch_size = tf.shape(limits)[0]
    first = tf.where(limits > 0, 0.0, -np.inf)[:, None]  # (batch, 1)
    # All beams start with the same sequence, so only one of them may be live.
    others = tf.fill((batch_size, num_beams - 1), -np.inf)
    return Beams(
        live_ids=start_ids((batch_size, num_beams), start_id, capacity),
        live_log_probs=tf.concat([first, others], axis=1),
        finished_ids=start_ids((batch_size, num_finished), 0, capacity),
        finished_scores=tf.fill((batch_size, num_finished), -np.inf),
        parents=unchanged_parents(batch_size, num_beams),
    )


def start_ids(shape, start_id, capacity=None):
    """Sequences of the start token alone, (*shape, 1), or with room, (*shape, 1 + capacity).

    The start token is an integer, or one per row.
    """
    ids = tf.reshape(start_id, (-1, 1, 1)) if tf.is_tensor(start_id) else start_id
    ids = tf.broadcast_to(ids, (*shape, 1))
    return ids if capacity is None else tf.pad(ids, [[0, 0], [0, 0], [0, capacity]])


def begin_with(ids, forced_ids, count, grows):
    """Sequences, (batch, beams, ...), of the start token and the first `count` of the forced ids.

    `forced_ids` are (batch, steps). Unless the ids grow, they have room and stay as long.
    """
    shape = (*ops.shape(ids)[:2], ops.shape(forced_ids)[1])
    forced_ids = tf.broadcast_to(forced_ids[:, None], shape)
    ids = tf.concat([ids[:, :, :1], forced_ids], axis=2)
    return ids[:, :, : count + 1] if grows else tf.where(tf.range(shape[2] + 1) <= count, ids, 0)


def append_ids(ids, newest, column=None):
    """Appends a token to each sequence, or writes it to a column where there is room."""
    if column is None:
        return tf.concat([ids, newest[:, :, None]], axis=2)
    return tf.where(tf.equal(tf.range(tf.shape(ids)[2]), column), newest[:, :, None], ids)


def unchanged_parents(batch_size, num_beams):
    """The parents if every beam extends itself, (batch, beams) int32."""
    return tf.tile(tf.range(num_beams)[None], (batch_size, 1))


def extend(beams, candidates, end_id, divisor, column=None, may_finish=True, is_last=None):
    """The beams after a token: finished sequences, which never change again, and live ones.

    Args:
        beams: the state before the token.
        candidates: the extensions to choose from, at least one per beam.
        end_id: the token that finishes a sequence.
        divisor: of the log-probabilities of the extended sequences, float32 scalar.
        column: of the token, if the ids have room for it; None if they grow.
        may_finish: which candidates may finish, (batch, candidates); True for all of them.
        is_last: whether a row has reached its limit, so that sequences finish without an end
            token, (batch, 1); None if the limit forces one.
    """
    num_beams = beams.live_ids.shape[1]
    num_finished = beams.finished_ids.shape[1]
    sequences = tf.gather(beams.live_ids, candidates.beams, batch_dims=1)
    sequences = append_ids(sequences, candidates.token_ids, column)  # (batch, candidates, t + 2)
    is_end = tf.equal(candidates.token_ids, end_id)
    if is_last is not None:
        is_end |= is_last
    end_scores = tf.where(is_end & may_finish, candidates.log_probs / divisor, -np.inf)
    # Sequences that finished earlier come first and win ties.
    scores = tf.concat([beams.finished_scores, end_scores], axis=1)
    finished_scores, best = tf.math.top_k(scores, num_finished)
    finished_ids = beams.finished_ids
    if column is None:
        finished_ids = tf.pad(finished_ids, [[0, 0], [0, 0], [0, 1]])
    finished_ids = tf.concat([finished_ids, sequences], axis=1)

    live_scores = tf.where(is_end, -np.inf, candidates.log_probs)
    live_log_probs, chosen = tf.math.top_k(live_scores, num_beams)
    return Beams(
        live_ids=tf.gather(sequences, chosen, batch_dims=1),
        live_log_probs=live_log_probs,
        finished_ids=tf.gather(finished_ids, best, batch_dims=1),
        finished_scores=finished_scores,
        parents=tf.gather(candidates.beams, chosen, batch_dims=1),
    )


def best_candidates(
    logits, live_log_probs, forced_ids, forbidden_ids, counts_forced=True, free=None
):
    """The most probable extensions of the live sequences of each row.

    There are twice as many candidates as beams, so that live sequences remain even if the best
    candidates all end here. A single beam gets one candidate, which makes it greedy search.

    The result equals one `top_k` of the log-probabilities over all beams and tokens, where the
    lowest (beam, token) wins ties. It is faster because it scans the vocabulary in blocks, and
    computes log-probabilities only in the blocks with the highest maxima.

    Args:
        logits: (batch, beams, vocabulary), float32, vocabulary static.
        live_log_probs: of the live sequences, (batch, beams) float32.
        forced_ids: the only token that a row may take, (batch, 1); -1 leaves the row free.
        forbidden_ids: ids that a free row never takes, a tuple of Python integers.
        counts_forced: whether the log-probabilities of forced tokens count.
        free: log-probabilities to choose from where the choice is free, of the same shape as the
            logits; None for those of the logits.

    Returns:
        `Candidates`.
    """
    num_beams, vocabulary_size = logits.shape[1:]
    blocks = _in_blocks(logits)  # (batch, beams, blocks, width)
    maxima = tf.reduce_max(blocks, axis=3)
    offsets = live_log_probs[:, :, None] - _log_sum_exp(blocks, maxima)  # (batch, beams, 1)

    count = num_beams * 2 if num_beams > 1 and vocabulary_size > 1 else num_beams
    if free is None:
        choice = blocks, maxima, offsets
    else:
        free = _in_blocks(free)
        choice = free, tf.reduce_max(free, axis=3), live_log_probs[:, :, None]
    free_log_probs, indices = _top_indices(*choice, forbidden_ids, count)
    unchanged = None if counts_forced else live_log_probs[:, :, None]
    forced_log_probs, forced_indices = _forced(
        logits, offsets, forced_ids, blocks, count, unchanged
    )
    is_forced = forced_ids >= 0
    indices = tf.where(is_forced, forced_indices, indices)
    padded_size = blocks.shape[2] * blocks.shape[3]
    return Candidates(
        log_probs=tf.where(is_forced, forced_log_probs, free_log_probs),
        beams=indices // padded_size,
        # Never a padding column of the last block, because it loses every tie.
        token_ids=indices % padded_size,
    )


def _in_blocks(logits):
    """(batch, beams, vocabulary) -> (batch, beams, blocks, width)."""
    num_beams, size = logits.shape[1:]
    width = _block_width(size)
    if size % width:
        missing = width - size % width
        logits = tf.pad(logits, [[0, 0], [0, 0], [0, missing]], constant_values=-np.inf)
    return tf.reshape(logits, (-1, num_beams, -(-size // width), width))


def _block_width(size):
    """A width that divides the vocabulary, because padding copies all logits."""
    if size <= _LARGEST_WHOLE_BLOCK:
        return size
    widths = range(_LARGEST_BLOCK, _SMALLEST_BLOCK - 1, -1)
    return next((width for width in widths if size % width == 0), _LARGEST_BLOCK)


def _log_sum_exp(blocks, maxima):
    """Logarithm of the sum over the vocabulary, (batch, beams, 1); never below the maximum."""
    maximum = tf.reduce_max(maxima, axis=2, keepdims=True)  # (batch, beams, 1)
    # This exponential of every logit and the maximum are nearly the whole cost of the search.
    total = tf.reduce_sum(tf.exp(blocks - maximum[:, :, :, None]), axis=(2, 3))
    return maximum + tf.math.log(total)[:, :, None]


def _top_indices(blocks, maxima, offsets, forbidden_ids, count):
    """Log-probabilities and indices, beam * padded vocabulary + token, of the best extensions."""
    num_beams, num_blocks, width = blocks.shape[1:]
    # The maximum of a block may belong to a forbidden token, so keep as many blocks more.
    touched = sorted({token_id // width for token_id in forbidden_ids})
    num_kept = min(count + num_beams * len(touched), num_beams * num_blocks)
    block_scores = tf.reshape(maxima + offsets, (-1, num_beams * num_blocks))
    _, kept = tf.math.top_k(block_scores, num_kept)
    kept = -tf.math.top_k(-kept, num_kept)[0]  # in order, so that the lowest id wins ties

    columns = tf.reshape(blocks, (-1, num_beams * num_blocks, width))
    columns = tf.gather(columns, kept, batch_dims=1)  # (batch, kept, width)
    columns += tf.gather(offsets, kept // num_blocks, batch_dims=1)
    if touched:
        rows, bias = _forbidden_bias(touched, forbidden_ids, num_beams, num_blocks, width)
        columns += tf.gather(bias, tf.gather(rows, kept))
    log_probs, best = tf.math.top_k(tf.reshape(columns, (-1, num_kept * width)), count)
    block = tf.gather(kept, best // width, batch_dims=1)
    return log_probs, block * width + best % width


def _forbidden_bias(touched, forbidden_ids, num_beams, num_blocks, width):
    """Minus infinity for forbidden columns, one row per block with any; row 0 for all others.

    This keeps exported graphs small: they store the table as a constant.
    """
    rows = np.zeros(num_blocks, np.int32)
    rows[touched] = range(1, len(touched) + 1)
    bias = np.zeros((len(touched) + 1, width), np.float32)
    for token_id in forbidden_ids:
        bias[rows[token_id // width], token_id % width] = -np.inf
    return np.tile(rows, num_beams), bias


def _forced(logits, offsets, forced_ids, blocks, count, log_probs=None):
    """Log-probabilities and indices if every live sequence takes the forced token of its row."""
    num_beams, num_blocks, width = blocks.shape[1:]
    token_ids = tf.maximum(forced_ids, 0)  # (batch, 1)
    if log_probs is None:
        log_probs = tf.gather(logits, token_ids, axis=2, batch_dims=1) + offsets
    # log_probs: (batch, beams, 1)
    # Only one candidate per beam exists.
    copies = count // num_beams
    exists = np.array([0.0] + [-np.inf] * (copies - 1), np.float32)
    beam_starts = np.repeat(np.arange(num_beams, dtype=np.int32), copies) * (num_blocks * width)
    return tf.reshape(log_probs + exists, (-1, count)), token_ids + beam_starts
