"""Rules on which tokens a search may choose after those that it has chosen."""

import dataclasses

import numpy as np
import tensorflow as tf
from keras import ops

from keras_transformer.arguments import check_integer, check_number


@dataclasses.dataclass(frozen=True)
class TokenRules:
    """What may follow a sequence of tokens; by default, anything.

    Names and meaning are those of Hugging Face's generation settings. A sequence begins with the
    start token of the search, or with the first token of the prompt. A forced token is chosen
    whatever the other rules say. Where the rules leave no token at all, a search gives the
    sequence up, and sampling ends it.

    The penalty changes log-probabilities, and with them the scores of beam search; in greedy
    search and sampling it changes logits. The other rules take tokens away and leave the
    log-probabilities of the rest as they are, unless these are to be renormalised.

    Source: Paulus et al. 2017, section 2.5, for n-grams (https://arxiv.org/abs/1705.04304); Keskar
    et al. 2019, section 4.1, for the penalty (https://arxiv.org/abs/1909.05858).

    Args:
        no_repeat_ngram_size: no run of this many tokens occurs twice; 0 for no such rule.
        repetition_penalty: what divides the scores of the tokens that have occurred, if they are
            positive, or multiplies them, if they are negative; above 0, and 1 for no penalty.
        min_length: minimum number of tokens, end token included; a prefix or prompt counts.
        min_new_tokens: minimum number of tokens between the prefix or prompt and the end token.
        bad_words_ids: sequences of ids that never occur. The end token alone is not one of them.
        suppress_tokens: ids that are never chosen.
        begin_suppress_tokens: ids that are never chosen for the first free token.
        forced_bos_token_id: the first token, unless a prefix gives another one; None for any.
        forces_end: whether the last token within the limit is the end token; otherwise a sequence
            may be cut off there, unless the limit is 1.
        start_counts_as: the id that the start token counts as; None for its own.
        counts_as_end: another id that counts as the end token where it occurs, such as the own end
            of a language model behind control ids; None for none.
        renormalize_logits: whether a beam search makes the probabilities of the tokens that are
            left sum to 1 again. Sampling does so anyway.

    Raises:
        ValueError: if a rule is out of range.

    Examples:
        >>> TokenRules(bad_words_ids=[[5], [6, 7]]).bad_words_ids
        ((5,), (6, 7))
    """

    no_repeat_ngram_size: int = 0
    repetition_penalty: float = 1.0
    min_length: int = 0
    min_new_tokens: int = 0
    bad_words_ids: tuple = ()
    suppress_tokens: tuple = ()
    begin_suppress_tokens: tuple = ()
    forced_bos_token_id: int | None = None
    forces_end: bool = True
    start_counts_as: int | None = None
    counts_as_end: int | None = None
    renormalize_logits: bool = False

    def __post_init__(self):
        for name in ("no_repeat_ngram_size", "min_length", "min_new_tokens"):
            check_integer(name, getattr(self, name), 0)
        check_number("repetition_penalty", self.repetition_penalty, above=0)
        for name in ("forced_bos_token_id", "start_counts_as", "counts_as_end"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 0)
        for name in ("forces_end", "renormalize_logits"):
            if not isinstance(value := getattr(self, name), bool):
                raise ValueError(f"{name} must be True or False. Received: {value!r}.")
        self._freeze("suppress_tokens", _ids("suppress_tokens", self.suppress_tokens))
        begin = _ids("begin_suppress_tokens", self.begin_suppress_tokens)
        self._freeze("begin_suppress_tokens", begin)
        words = _list("bad_words_ids", self.bad_words_ids)
        words = tuple(
            _ids(f"bad_words_ids[{index}]", word, least=1) for index, word in enumerate(words)
        )
        self._freeze("bad_words_ids", words)

    def _freeze(self, name, value):
        object.__setattr__(self, name, value)  # a frozen dataclass

    def changed(self):
        """The rules that differ from their defaults, a dictionary that JSON can hold."""
        fields = dataclasses.fields(self)
        values = {field.name: getattr(self, field.name) for field in fields}
        return {f.name: values[f.name] for f in fields if values[f.name] != f.default}

    def largest_id(self):
        """The largest id of any rule; 0 if there is none."""
        one = (self.forced_bos_token_id, self.start_counts_as, self.counts_as_end)
        several = (*self.bad_words_ids, self.suppress_tokens, self.begin_suppress_tokens)
        return max([0, *(i for i in one if i is not None), *(i for ids in several for i in ids)])

    @property
    def change_scores(self):
        """Whether any rule does more than force a token."""
        names = {"forced_bos_token_id", "forces_end", "start_counts_as", "counts_as_end"}
        return not self.changed().keys() <= names

    def apply(self, scores, sequences, seen, position, first_free, end_id):
        """The scores of the next token: minus infinity where a rule forbids it.

        Args:
            scores: (batch, beams, vocabulary) float32.
            sequences: the tokens so far, start token first, (batch, beams, columns) int32.
            seen: how many columns hold tokens, an int32 scalar.
            position: how many tokens come before the next one, without the start token, an int32
                scalar or (batch,).
            first_free: (batch,) the position of the first token that is not forced.
            end_id: the token that ends a sequence.

        Returns:
            The scores, of the same shape.
        """
        size, columns = scores.shape[-1], tf.shape(sequences)[2]
        position = tf.reshape(position, (-1, 1, 1))
        if self.start_counts_as is not None:
            is_start = tf.equal(tf.range(columns) + position - seen, -1)
            sequences = tf.where(is_start, self.start_counts_as, sequences)
        if self.counts_as_end is not None:
            sequences = tf.where(tf.equal(sequences, self.counts_as_end), end_id, sequences)
        if self.repetition_penalty != 1:
            penalty = float(self.repetition_penalty)
            occurred = _marked(sequences, tf.range(columns) < seen, size)
            changed = tf.where(scores < 0, scores * penalty, scores / penalty)
            scores = tf.where(occurred, changed, scores)
        free = position - tf.reshape(first_free, (-1, 1, 1))  # chosen tokens so far
        is_short = (position + 1 < self.min_length) | (free < self.min_new_tokens)
        alone = {word[0] for word in self.bad_words_ids if len(word) == 1} - {end_id}
        never = sorted(alone | set(self.suppress_tokens))
        forbidden = [(never, True)] if never else []
        if self.min_length or self.min_new_tokens:
            forbidden.append(([end_id], is_short))
        if self.begin_suppress_tokens:
            forbidden.append((self.begin_suppress_tokens, tf.equal(free, 0)))
        if self.no_repeat_ngram_size:
            forbidden.append(self._repeated(sequences, seen))
        for length, words in self._longer_words().items():
            ends = _last(sequences, seen, length - 1)[:, :, None]  # (batch, beams, 1, length - 1)
            matches = tf.reduce_all(tf.equal(ends, [word[:-1] for word in words]), axis=3)
            forbidden.append(([word[-1] for word in words], matches & (seen >= length - 1)))
        if not forbidden:
            return scores
        shape = ops.shape(scores)[:2]
        parts = [_broadcast(ids, which, shape) for ids, which in forbidden]
        ids, which = (tf.concat(part, axis=2) for part in zip(*parts, strict=True))
        return tf.where(_marked(ids, which, size), -np.inf, scores)

    def _longer_words(self):
        """The bad words of several tokens, by their length."""
        lengths = sorted({len(word) for word in self.bad_words_ids} - {1})
        return {n: [word for word in self.bad_words_ids if len(word) == n] for n in lengths}

    def _repeated(self, sequences, seen):
        """The token after each run of tokens, and whether that run ends the sequence again."""
        before = self.no_repeat_ngram_size - 1  # tokens of an n-gram before its last one
        columns = tf.shape(sequences)[2]
        padded = tf.pad(sequences, [[0, 0], [0, 0], [0, before]])
        newest = _last(sequences, seen, before)
        matches = tf.range(columns) + before < seen
        for index in range(before):
            window = padded[:, :, index : index + columns]
            matches &= tf.equal(window, newest[:, :, index, None])
        return padded[:, :, before:], matches


def check_token_rules(token_rules):
    """Raises ValueError unless these are `TokenRules`."""
    if not isinstance(token_rules, TokenRules):
        raise ValueError(f"token_rules must be TokenRules. Received: {token_rules!r:.80}.")


def _last(sequences, seen, count):
    """The newest tokens, (batch, beams, count); arbitrary if there are fewer."""
    return tf.gather(sequences, tf.maximum(seen - count + tf.range(count), 0), axis=2)


def _broadcast(ids, which, shape):
    """Ids and booleans with the axes (batch, beams, ids)."""
    ids = tf.convert_to_tensor(ids)
    shape = (*shape, ops.shape(ids)[-1])
    return tf.broadcast_to(ids, shape), tf.broadcast_to(which, shape)


def _marked(ids, which, size):
    """Which ids of the vocabulary are among (batch, beams, n) ids where a boolean is True."""
    batch, beams, count = ops.shape(ids)
    which = tf.cast(tf.broadcast_to(which, (batch, beams, count)), tf.int32)
    rows = tf.reshape(tf.range(batch * beams), (batch, beams, 1))
    counts = tf.math.unsorted_segment_sum(which, ids + rows * size, batch * beams * size)
    return tf.reshape(counts > 0, (batch, beams, size))


def _list(name, values):
    if not isinstance(values, (list, tuple)):
        raise ValueError(f"{name} must be a list. Received: {name}={values!r:.80}.")
    return values


def _ids(name, values, least=0):
    values = _list(name, values)
    if len(values) < least:
        raise ValueError(f"{name} must have at least {least} id. Received: {values!r}.")
    for index, value in enumerate(values):
        check_integer(f"{name}[{index}]", value, 0)
    return tuple(map(int, values))


NO_RULES = TokenRules()
