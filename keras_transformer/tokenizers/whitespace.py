"""Tokens that are separated by spaces in the text, from a given list."""

import json

import tensorflow as tf

from keras_transformer.files import atomic_path, read_json
from keras_transformer.tokenizers.control_ids import END_ID, UNKNOWN_ID
from keras_transformer.tokenizers.known_words import KnownWords
from keras_transformer.tokenizers.sentencepiece import as_texts
from keras_transformer.tokenizers.sentencepiece_training import CONTROL_PIECES

_FIRST_ID = END_ID + 1


class WhitespaceTokenizer(tf.Module):
    """Splits texts at spaces, tabs and line breaks, and joins tokens with one space.

    Use it for texts that another tool has cut into tokens, as translation models without a
    tokenizer of their own expect them. Nothing is normalised; a token that is not in the list is
    unknown. A `tf.Module` without resources: its methods may be called inside a `tf.function`, a
    tf.data pipeline or an exported signature. Ids: pad 0, unknown 1, start 2, end 3, then the
    tokens in their order.

    Args:
        tokens: the list, in the order of its ids.

    Raises:
        ValueError: if there is no token, or one is empty, contains a space, occurs twice, or is one
            of the control pieces, such as "<pad>".

    Examples:
        >>> tokenizer = WhitespaceTokenizer(["sh", "a", "."])
        >>> tokenizer.tokenize(["a  sh ?", ""]).to_list()
        [[5, 4, 1], []]
        >>> tokenizer.detokenize([[5, 4, 1, 3]]).numpy().tolist()
        [b'a sh <unk>']
    """

    unknown_id = UNKNOWN_ID

    def __init__(self, tokens):
        super().__init__(name="tokenizer")
        self.tokens = tuple(tokens)
        self._pieces = (*CONTROL_PIECES, *self.tokens)
        is_distinct = len(set(self._pieces)) == len(self._pieces)
        encoded = [token.encode() for token in self.tokens]
        if not encoded or not is_distinct or any(token.split() != [token] for token in encoded):
            raise ValueError(
                "tokens must be distinct strings without spaces, at least one, and none of "
                f"{', '.join(CONTROL_PIECES)}. Received: {len(self.tokens)}, "
                f"{self.tokens[:5]!r:.200} first."
            )
        self._known = KnownWords({token: _FIRST_ID + i for i, token in enumerate(self.tokens)})

    @property
    def vocabulary_size(self) -> int:
        """Number of ids: control ids and tokens."""
        return len(self._pieces)

    @property
    def longest_token(self) -> int:
        """The most bytes of a text that one known token stands for, a space included."""
        return 1 + max(len(token.encode()) for token in self.tokens)

    def tokenize(self, texts) -> tf.RaggedTensor:
        """Cuts (batch,) strings into (batch, None) int32 ids, without start or end."""
        words = tf.strings.split(as_texts(texts))
        return words.with_flat_values(self._known.ids(words.flat_values, UNKNOWN_ID))

    def detokenize(self, ids) -> tf.Tensor:
        """Joins (batch, length) ids, dense or ragged, into (batch,) strings.

        Pad, start, end and ids outside the vocabulary are left out, so any integers are allowed;
        an unknown token becomes "<unk>".
        """
        ids = tf.cast(ids, tf.int32)
        is_text = (ids >= _FIRST_ID) & (ids < self.vocabulary_size)
        kept = tf.ragged.boolean_mask(ids, is_text | (ids == UNKNOWN_ID))
        words = kept.with_flat_values(tf.gather(tf.constant(self._pieces), kept.flat_values))
        return tf.strings.reduce_join(words, axis=-1, separator=" ")

    def pieces(self, ids) -> list[str]:
        """The tokens of some ids as text, to label an axis."""
        return [self._pieces[int(token_id)] for token_id in ids]

    def save(self, path) -> None:
        """Writes the vocabulary to a file that `load` reads; a reader never sees half of it."""
        with atomic_path(path) as draft:
            draft.write_text(json.dumps({"tokens": self.tokens}, ensure_ascii=False), "utf-8")

    @classmethod
    def load(cls, path) -> "WhitespaceTokenizer":
        """Reads what `save` wrote."""
        return cls(read_json(path)["tokens"])
