"""Vocabularies in which every character, or every byte, of a text is a token.

Bytes restore every text of UTF-8; characters restore those of which the vocabulary has all.
"""

import json

import tensorflow as tf

from keras_transformer.files import atomic_path, read_json
from keras_transformer.tokenizers.control_ids import END_ID, UNKNOWN_ID
from keras_transformer.tokenizers.sentencepiece import as_texts
from keras_transformer.tokenizers.sentencepiece_training import CONTROL_PIECES

_FIRST_ID = END_ID + 1


class SymbolTokenizer(tf.Module):
    """Splits texts into characters or bytes and joins them again, without any normalisation.

    Its methods may be called inside a `tf.function`, a tf.data pipeline or an exported
    signature. Ids: pad 0, unknown 1, start 2, end 3, then the symbols.

    Args:
        characters: the characters of the vocabulary, each once; None for bytes, of which
            there are 256.
        errors: what becomes of joined bytes that are not UTF-8: "replace" makes them U+FFFD,
            "ignore" leaves them out.

    Raises:
        ValueError: if there are no characters, or one is there twice; for other `errors`.

    Examples:
        >>> tokenizer = SymbolTokenizer("abc")
        >>> tokenizer.tokenize(["cab!"]).to_list()
        [[6, 4, 5, 1]]
        >>> SymbolTokenizer().detokenize([[108, 3]]).numpy().tolist()
        [b'h']
    """

    unknown_id = UNKNOWN_ID

    def __init__(self, characters: str | None = None, errors: str = "replace"):
        super().__init__(name="tokenizer")
        if errors not in ("replace", "ignore"):
            raise ValueError(f"errors must be replace or ignore. Received: errors={errors!r}.")
        if characters is not None and (not characters or len(set(characters)) < len(characters)):
            raise ValueError(
                "characters must be at least one, each of them once. "
                f"Received: {len(characters)}, {len(set(characters))} of them different."
            )
        self.characters = None if characters is None else "".join(sorted(characters))
        self.errors = errors

    @property
    def vocabulary_size(self) -> int:
        """Number of ids: control ids and symbols."""
        return _FIRST_ID + (256 if self.characters is None else len(self.characters))

    @property
    def longest_token(self) -> int:
        """The most bytes of a text that one token stands for."""
        return 1 if self.characters is None else 4

    def tokenize(self, texts) -> tf.RaggedTensor:
        """Cuts (batch,) strings into (batch, None) int32 ids, without start or end."""
        texts = as_texts(texts)
        if self.characters is None:
            symbols = tf.strings.bytes_split(texts)
            numbers = tf.reshape(tf.io.decode_raw(symbols.flat_values, tf.uint8), [-1])
            return symbols.with_flat_values(tf.cast(numbers, tf.int32) + _FIRST_ID)
        symbols = tf.strings.unicode_decode(texts, "UTF-8")
        points = self._code_points()
        places = tf.searchsorted(points, symbols.flat_values)
        places = tf.minimum(places, len(self.characters) - 1)
        is_known = tf.equal(tf.gather(points, places), symbols.flat_values)
        return symbols.with_flat_values(tf.where(is_known, places + _FIRST_ID, UNKNOWN_ID))

    def detokenize(self, ids) -> tf.Tensor:
        """Joins (batch, length) ids, dense or ragged, into (batch,) strings.

        Pad, start, end and ids outside the vocabulary are left out, so any integers are allowed;
        an unknown character, and bytes that are not UTF-8 unless `errors` are ignored, become
        U+FFFD.
        """
        ids = tf.cast(ids, tf.int32)
        is_text = (ids >= _FIRST_ID) & (ids < self.vocabulary_size)
        if self.characters is None:
            places = tf.ragged.boolean_mask(ids, is_text) - _FIRST_ID
            table = tf.constant([bytes([number]) for number in range(256)])
            joined = tf.strings.reduce_join(tf.gather(table, places), axis=-1)
            return tf.strings.unicode_transcode(joined, "UTF-8", "UTF-8", self.errors)
        kept = tf.ragged.boolean_mask(ids, is_text | tf.equal(ids, UNKNOWN_ID))
        places = kept.flat_values - _FIRST_ID
        points = tf.gather(self._code_points(), tf.maximum(places, 0))
        points = tf.where(places < 0, 0xFFFD, points)
        return tf.strings.unicode_encode(kept.with_flat_values(points), "UTF-8")

    def pieces(self, ids) -> list[str]:
        """The symbols of some ids as text, to label an axis."""
        names = [*CONTROL_PIECES]
        if self.characters is None:
            names += [chr(n) if 32 <= n < 127 else f"<0x{n:02X}>" for n in range(256)]
        else:
            names += self.characters
        return [names[int(token_id)] for token_id in ids]

    def save(self, path) -> None:
        """Writes the vocabulary to a file that `load` reads; a reader never sees half of it."""
        with atomic_path(path) as draft:
            content = {"characters": self.characters, "errors": self.errors}
            draft.write_text(json.dumps(content), "utf-8")

    @classmethod
    def load(cls, path) -> "SymbolTokenizer":
        """Reads what `save` wrote."""
        content = read_json(path)
        return cls(content["characters"], content["errors"])

    def _code_points(self):
        return tf.constant([ord(character) for character in self.characters])
