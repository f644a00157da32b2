"""The scores of sequences in beam search, and the end of a row."""

import dataclasses

import tensorflow as tf

from keras_transformer.arguments import check_number


@dataclasses.dataclass(frozen=True)
class Scoring:
    """The score of a finished sequence: its log-probability over a divisor that its length decides.

    A subclass says which divisor.

    Args:
        length_penalty: exponent of the divisor, at least 0; 0 compares plain sums of
            log-probabilities.
        early_stopping: when a row ends. "never": once no live sequence can still be among its
            `num_best`, even if it continued to the limit at probability 1. False: once its best
            live sequence, scored as if it ended here, is not above `num_beams` finished ones, which
            may miss a better sequence but takes fewer steps. True: once `num_beams` sequences have
            finished.

    Raises:
        ValueError: if an argument is out of range.
    """

    length_penalty: float
    early_stopping: bool | str
    stops = (True, False, "never")  # the values that `early_stopping` may have
    counts_forced = True  # whether the log-probabilities of forced tokens are part of the score

    def __post_init__(self):
        check_number("length_penalty", self.length_penalty, least=0, reason=" Choose e.g. 0.6.")
        stops = [*map(repr, self.stops)]
        if repr(self.early_stopping) not in stops:
            raise ValueError(
                f"early_stopping must be one of {', '.join(stops)}. "
                f"Received: {self.early_stopping!r}."
            )

    @property
    def is_exact(self):
        """Whether a row continues while any live sequence may still be among its best."""
        return self.early_stopping == "never"

    def divisors(self, lengths):
        """The divisors of sequences of so many tokens, end token included, floats (lengths,)."""
        raise NotImplementedError

    def may_finish(self, log_probs, num_beams):
        """A boolean (batch, candidates), True for extended sequences that may finish; True for all.

        `log_probs` are theirs, of the same shape.
        """
        return True

    def continues(self, live_log_probs, finished_scores, divisor, last_divisor):
        """Whether the search continues for each row, a boolean (batch, 1).

        Args:
            live_log_probs: of the live sequences, best first, (batch, beams).
            finished_scores: of the finished ones, best first, minus infinity for each that is
                missing, (batch, finished).
            divisor: of the live sequences, if they ended here, a scalar.
            last_divisor: of sequences as long as the limit of the row, (batch, 1).
        """
        reachable = live_log_probs[:, :1] / (last_divisor if self.is_exact else divisor)
        may_win = reachable > finished_scores[:, -1:]
        if self.early_stopping is True:
            may_win &= tf.math.is_inf(finished_scores[:, -1:])
        return may_win


@dataclasses.dataclass(frozen=True)
class GNMTScoring(Scoring):
    """Divides the log-probability of a sequence of n tokens by ((5 + n) / 6) ** length_penalty.

    Source: Wu et al. 2016, equation 14, without coverage (https://arxiv.org/abs/1609.08144).

    Args:
        length_penalty: alpha in the paper, as for `Scoring`.
        early_stopping: "never" or False, as for `Scoring`.

    Examples:
        >>> GNMTScoring(1.0).divisors(tf.constant([1.0, 7.0])).numpy().tolist()
        [1.0, 2.0]
    """

    length_penalty: float = 0.6
    early_stopping: bool | str = "never"
    stops = (False, "never")

    def divisors(self, lengths):
        return ((5.0 + lengths) / 6.0) ** float(self.length_penalty)


GNMT = GNMTScoring()


@dataclasses.dataclass(frozen=True)
class HuggingFaceScoring(Scoring):
    """Divides the log-probability of a sequence of n tokens by n ** length_penalty.

    The rules for which Hugging Face's models are released: forced tokens cost nothing, and a
    sequence finishes only if its end is among the `num_beams` best extensions.

    Args:
        length_penalty: as for `Scoring`.
        early_stopping: as for `Scoring`, and with the values of Hugging Face's generation settings.
    """

    length_penalty: float = 1.0
    early_stopping: bool | str = False
    counts_forced = False

    def divisors(self, lengths):
        return tf.maximum(lengths, 1.0) ** float(self.length_penalty)

    def may_finish(self, log_probs, num_beams):
        best = tf.math.top_k(log_probs, num_beams).indices
        is_best = tf.one_hot(best, log_probs.shape[1], True, False, dtype=tf.bool)
        return tf.reduce_any(is_best, axis=1)
