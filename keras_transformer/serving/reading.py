"""Reads no more of a text than a model can use: long texts are cut before they are tokenised."""

import tensorflow as tf

NEVER_CUT = 2**16  # bytes; tokenising them takes some milliseconds
LARGEST_TEXT = 2**30 - 1  # bytes; twice as many are still an int32
SPARE_TOKENS = 16  # the last tokens of a cut text may differ from those of the whole text


def read_part(tokenizer, texts, num_tokens, beginning=True, end=False):
    """Tokenises the beginning of long texts, their end, or both without the middle.

    The first or last `num_tokens` tokens are those of the whole text: `bytes_of` has the reason and
    the exceptions, in which a text has fewer of them.

    Returns:
        The ids, ragged (batch, None), and (batch,) whether a text was cut.
    """
    size = bytes_of(tokenizer, num_tokens)
    texts, is_cut = cut(texts, size if beginning else 0, size if end else 0)
    return tokenizer.tokenize(texts), is_cut


def bytes_of(tokenizer, num_tokens):
    """How many bytes of a text are read for a number of tokens.

    Twice as many tokens of the longest kind fit, and some more, so that no kept token is near the
    cut. Two kinds of texts are exceptions. A text has fewer than `num_tokens` in so many bytes if
    its tokenizer drops or joins most of its characters: long runs of spaces, of invisible or of
    unknown characters. And pieces of an end without a space, such as a single letter thousands of
    times, may be merged from another letter on.
    """
    longest = getattr(tokenizer, "longest_token", None)
    if longest is None:  # a tokenizer of the user's own
        return LARGEST_TEXT
    return max(NEVER_CUT, longest * (2 * num_tokens + SPARE_TOKENS))


def cut(texts, before, after):
    """Takes the middle out of texts, (batch,) bytes, between whole characters; says which are cut.

    Up to three bytes more or less than `before` remain at the beginning, than `after` at the end.

    Examples:
        >>> cut(tf.constant(["a dög runs", "a dog"]), 4, 2)[0].numpy().tolist()
        [b'a dns', b'a dog']
    """
    texts = tf.convert_to_tensor(texts, tf.string)
    lengths = tf.strings.length(texts)  # bytes
    is_cut = lengths > before + after

    def shortened():
        parts = []
        if before:
            end = tf.where(is_cut, _boundary(texts, tf.minimum(lengths, before)), lengths)
            parts.append(tf.strings.substr(texts, tf.zeros_like(end), end))
        if after:
            start = _boundary(texts, tf.maximum(lengths - after, 0))
            start = tf.where(is_cut, start, lengths if before else 0)
            parts.append(tf.strings.substr(texts, start, lengths - start))
        return tf.strings.join(parts)

    return tf.cond(tf.reduce_any(is_cut), shortened, lambda: texts), is_cut


def _boundary(texts, places):
    """The places, (batch,), or up to three bytes before them, where a character begins."""
    first = tf.maximum(places - 3, 0)
    four = tf.strings.substr(texts, first, tf.zeros_like(first) + 4)
    window = tf.io.decode_raw(four, tf.uint8, fixed_length=4)  # (batch, 4)
    begins = tf.bitwise.bitwise_and(window, 0xC0) != 0x80
    candidates = first[:, None] + tf.range(4)
    candidates = tf.where(begins & (candidates <= places[:, None]), candidates, -1)
    last = tf.reduce_max(candidates, axis=1)
    return tf.where(last < 0, places, last)  # there may be none in bytes that are not UTF-8
