"""A table of logits for every prefix is a fine model."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

START, END = 2, 3


class PrefixTable:
    """Random logits for each row of a batch and each prefix of tokens, and plain references."""

    def __init__(self, num_rows, vocabulary_size, max_length, seed, scale=2.0):
        self.num_rows, self.size = num_rows, vocabulary_size
        num_prefixes = sum(vocabulary_size**n for n in range(max_length))
        generator = np.random.default_rng(seed)
        shape = (num_rows, num_prefixes, vocabulary_size)
        self.logits = generator.normal(0, scale, shape).astype("float32")
        exact = self.logits.astype("float64")
        self.log_probs = exact - np.log(np.sum(np.exp(exact), axis=-1, keepdims=True))

    def cache(self, num_beams, rows=None):
        """A nest of the row, a number for the prefix, and a tensor with a growing axis."""
        rows = np.arange(self.num_rows) if rows is None else np.array(rows, int)
        rows = np.tile(rows[:, None], (1, num_beams)).astype("int32")
        history = tf.zeros((len(rows), num_beams, 5, 0), tf.int32)
        return {"row": tf.constant(rows), "prefix": (tf.zeros_like(rows),), "history": [history]}

    def step(self, token_ids, parents, position, cache):
        cache = tf.nest.map_structure(lambda x: tf.gather(x, parents, batch_dims=1), cache)
        prefix = cache["prefix"][0] * self.size + token_ids + 1
        prefix = tf.where(position > 0, prefix, 0)
        # Past a row's end there is no table; the search must not need one.
        prefix = tf.where(prefix < self.logits.shape[1], prefix, 0)
        logits = tf.gather_nd(self.logits, tf.stack([cache["row"], prefix], axis=-1))
        new = tf.tile(token_ids[:, :, None, None], (1, 1, 5, 1))
        history = tf.concat([cache["history"][0], new], axis=3)
        return logits, {"row": cache["row"], "prefix": (prefix,), "history": [history]}

    def step_by_history(self, token_ids, parents, position, cache):
        """The same logits, from nothing but the growing axis."""
        _, cache = self.step(token_ids, parents, position, cache)
        history = cache["history"][0][:, :, 4]  # (batch, beams, t + 1), the start token first
        powers = self.size ** tf.range(position - 1, -1, -1)
        prefix = tf.reduce_sum((history[:, :, 1:] + 1) * powers, axis=2)
        prefix = tf.where(prefix < self.logits.shape[1], prefix, 0)
        return tf.gather_nd(self.logits, tf.stack([cache["row"], prefix], axis=-1)), cache

    def score(self, row, token_ids, alpha=0.0):
        """Teacher-forced: log-probability of the tokens over the length penalty."""
        prefix, total = 0, 0.0
        for token_id in token_ids:
            total += self.log_probs[row, prefix, token_id]
            prefix = prefix * self.size + token_id + 1
        return total / ((5 + len(token_ids)) / 6) ** alpha

    def all_hypotheses(self, row, limit, alpha, start=()):
        """Every sequence the rules allow, best first: (score, ids)."""
        going_on = [i for i in range(self.size) if i not in (0, START, END)]
        found = []
        for n in range(limit):
            for body in itertools.product(going_on, repeat=n):
                ids = (*body, END)
                # The limit wins over the prefix.
                begins = ids[: len(start)] == tuple(start)[: limit - 1]
                if ids[: len(start)] == tuple(start) or (n + 1 == limit and begins):
                    found.append((self.score(row, ids, alpha), ids))
        return sorted(found, reverse=True)

    def textbook_beam(self, row, limit, alpha, num_beams, heuristic=False):
        """Beam search with sets of tuples; with the heuristic it may end before the limit."""
        live, finished = [(0.0, ())], []
        for position in range(limit):
            allowed = [i for i in range(self.size) if i not in (0, START)]
            allowed = [END] if position + 1 == limit else allowed
            longer = [(*ids, token_id) for _, ids in live for token_id in allowed]
            best = sorted(((self.score(row, ids), ids) for ids in longer), reverse=True)
            best = best[: 2 * num_beams if num_beams > 1 else 1]
            finished += [(self.score(row, ids, alpha), ids) for _, ids in best if ids[-1] == END]
            live = [pair for pair in best if pair[1][-1] != END][:num_beams]
            worst = sorted(finished, reverse=True)[num_beams - 1 : num_beams]
            penalty = ((6 + position) / 6) ** alpha
            if heuristic and worst and live and live[0][0] / penalty <= worst[0][0]:
                break
        return sorted(finished, reverse=True)[:num_beams]


@pytest.fixture
def prefix_table():
    return PrefixTable


@pytest.fixture
def ids_of():
    """The hypotheses of one row as tuples, without the filling, best first."""

    def read(hypotheses, row):
        ids, lengths = hypotheses.token_ids.numpy()[row], hypotheses.lengths.numpy()[row]
        return [tuple(one[:length].tolist()) for one, length in zip(ids, lengths, strict=True)]

    return read
