"""Text to integer pieces and back, with a byte-pair vocabulary learned from text.

The `sentencepiece` package trains the vocabulary, and tensorflow-text applies it, both in the
tf.data pipeline and in the served graph, so both see the same pieces. Byte fallback spells
characters outside the vocabulary as bytes: no input is ever unknown. What pieces restore is the
text as the model normalises it, which `train_sentencepiece` lets you choose.
"""

import functools
import math
import pathlib
from collections.abc import Iterable

import numpy as np
import sentencepiece
import tensorflow as tf

from keras_transformer.arguments import read_texts
from keras_transformer.files import atomic_path, in_one_line
from keras_transformer.tokenizers import sentencepiece_format
from keras_transformer.tokenizers.control_ids import END_ID, PAD_ID, UNKNOWN_ID
from keras_transformer.tokenizers.internals import lasting_tokenizer, with_pieces
from keras_transformer.tokenizers.known_words import KnownWords
from keras_transformer.tokenizers.sentencepiece_training import (
    CONTROL_PIECES,
    LONGEST_SENTENCE,
    TRAINER_OPTIONS,
    learned_model,
    texts_to_learn,
)

# Control pieces of a model whose ids come after the four control ids, such as Llama.
OWN_UNKNOWN, OWN_END = "<own unk>", "<own end>"
# Beyond the vocabulary of a model whose texts may begin with a language, as in Marian: what begins
# with these signs and ends with the next "<<" is one token.
LANGUAGE_MARKS = ">><<"
# The score of an unused piece that the vocabulary of a neural model has, but its SentencePiece
# model has not.
ONLY_IN_VOCABULARY = -1e9
_FIRST, _OTHERS = "^(>>(?s:.*?)<<)", "(?s:.*)$"


class SentencePieceTokenizer(tf.Module):
    """Splits texts into the pieces of a SentencePiece model and joins them again.

    It is a `tf.Module`: it is tracked if it is assigned to an attribute of another module, and
    its methods may be called inside a `tf.function`, a tf.data pipeline or an exported
    signature. Ids: pad 0, unknown 1, start 2, end 3, then 256 bytes (<0x00> to <0xFF>), then
    pieces of text; or, in a vocabulary of words, the words.

    Args:
        model: the serialised SentencePiece model, as from `train_sentencepiece`. Pieces beyond
            the vocabulary size that it states become unknown. Pieces with the score
            `ONLY_IN_VOCABULARY` do not change how a text is cut; one of characters that are no
            other pieces stands for them where they are all that is between two pieces.
        language: one of `languages`, whose token `tokenize` puts before every text; None for none.
        prefix: text that `tokenize` puts before every text, such as "summarize: " of T5.

    Raises:
        ValueError: if `model` is not a SentencePiece model, its first ids are not pad, unknown,
            start, end, or it has no such language.

    Examples:
        >>> tokenizer = train_sentencepiece(["ab abc", "abc ab"], vocabulary_size=267)
        >>> ids = tokenizer.tokenize(["abc ab", ""])
        >>> ids.shape[0], tokenizer.detokenize(ids).numpy().tolist()
        (2, [b'abc ab', b''])
    """

    unknown_id = UNKNOWN_ID

    def __init__(self, model: bytes, language: str | None = None, prefix: str = ""):
        super().__init__(name="tokenizer")
        pieces = _pieces_of(model)
        fields = sentencepiece_format.Model.FromString(model)
        if unclear := [piece.piece for piece in fields.pieces if math.isnan(piece.score)]:
            raise ValueError(
                "The scores of a SentencePiece model must be numbers. "
                f"Received: nan, of the piece {unclear[0]!r:.80}."
            )
        trained = fields.trainer_spec
        self._has_more = 0 < trained.vocab_size < len(pieces)
        self._pieces = pieces[: trained.vocab_size] if self._has_more else pieces
        # Of `train_sentencepiece`; a model of others cuts at spaces alone.
        self._are_words = (
            trained.model_type == sentencepiece_format.ModelType.WORD
            and trained.max_sentence_length == LONGEST_SENTENCE
            and fields.normalizer_spec.name == TRAINER_OPTIONS["words"]["normalization_rule_name"]
        )
        self._keeps_spaces = _keeps_spaces(fields.normalizer_spec)
        self.model = model
        self.language = language
        self.prefix = prefix
        if language is not None and language not in self.languages:
            raise ValueError(
                f"The language must be one of {', '.join(self.languages) or '(there are none)'}. "
                f"Received: {language!r}."
            )
        self._sentencepiece = self._splitter = lasting_tokenizer(model)
        self._strange = None
        strange, merged = _only_in_vocabulary(fields)
        if strange or merged:
            for index in {*strange.values(), *merged}:
                fields.pieces[index].piece = f"<unused {index}>"
            self._splitter = lasting_tokenizer(fields.SerializeToString())
        if strange:
            self._splitter_into_pieces = with_pieces(self._splitter)
            self._strange = KnownWords(strange)
        self._first_words = None
        if LANGUAGE_MARKS in pieces[len(self._pieces) :]:
            first, last = LANGUAGE_MARKS[:2], LANGUAGE_MARKS[2:]
            ids = {name: index for index, name in enumerate(pieces)}
            self._first_words = KnownWords({
                name: ids[name] if ids[name] < len(self._pieces) else UNKNOWN_ID
                for name in pieces
                if name.startswith(first) and name.endswith(last)
            })  # fmt: skip

    @property
    def vocabulary_size(self) -> int:
        """Number of ids: control ids, bytes and pieces of text."""
        return len(self._pieces)

    @property
    def first_id(self) -> int:
        """How many control ids come before those of a model that has its own, 4 or 0."""
        return len(CONTROL_PIECES) if OWN_UNKNOWN in self._pieces else 0

    @property
    def end_of_text_id(self) -> int | None:
        """The id of the end among a model's own control ids, without `first_id`, or None."""
        return self._pieces.index(OWN_END) - self.first_id if OWN_END in self._pieces else None

    @functools.cached_property
    def longest_token(self) -> int:
        """The most bytes of a text that one token stands for, dropped characters not counted.

        Unknown characters without a gap are one token, too.
        """
        # A character of four bytes may be normalised to a letter of one.
        return 4 * max(len(piece.encode()) for piece in self._pieces)

    @functools.cached_property
    def languages(self) -> dict[str, int]:
        """The ids of language tokens, such as "en" of M2M100 or "eng_Latn" of NLLB.

        They never occur in texts, and joined texts leave them out.
        """
        pieces = sentencepiece_format.Model.FromString(self.model).pieces
        names = {
            index: piece.piece.strip("_")
            for index, piece in enumerate(pieces)
            if piece.type == sentencepiece_format.PieceType.CONTROL
        }
        return {name: i for i, name in names.items() if i > END_ID and not name.startswith("<")}

    def with_language(self, language: str | None) -> "SentencePieceTokenizer":
        """The same tokenizer with another value of the argument `language`."""
        same = language == self.language
        return self if same else type(self)(self.model, language, self.prefix)

    def with_prefix(self, prefix: str) -> "SentencePieceTokenizer":
        """The same tokenizer with another value of the argument `prefix`."""
        same = prefix == self.prefix
        return self if same else type(self)(self.model, self.language, prefix)

    def tokenize(self, texts) -> tf.RaggedTensor:
        """Cuts (batch,) strings into (batch, None) int32 ids, without start or end.

        With a prefix, it is cut together with the text. With a language, its token comes first.
        """
        texts = as_texts(texts)
        if self.prefix:
            texts = tf.strings.join([self.prefix, texts])
        if self._first_words is None:
            ids = self._ids(texts)
        else:
            ids = self._ids(tf.strings.regex_replace(texts, _FIRST, ""))
            words = tf.strings.regex_replace(texts, _FIRST + _OTHERS, r"\1")
            words = self._first_words.ids(words, UNKNOWN_ID)[:, None]
            has_word = tf.strings.regex_full_match(texts, _FIRST + _OTHERS)[:, None]
            ids = tf.concat([tf.ragged.boolean_mask(words, has_word), ids], axis=1)
        if self.language is None:
            return ids
        first = tf.fill([ids.nrows(out_type=tf.int32), 1], self.languages[self.language])
        return tf.concat([first, ids], axis=1)

    def _ids(self, texts):
        """The ids of texts without prefix and language."""
        texts = _words_only(texts) if self._are_words else texts
        ids = self._splitter.tokenize(texts)
        found = ids.flat_values
        if self._strange is not None:
            unknown = tf.equal(found, UNKNOWN_ID)

            def looked_up():
                pieces = self._splitter_into_pieces.tokenize(texts).flat_values
                return tf.where(unknown, self._strange.ids(pieces, UNKNOWN_ID), found)

            found = tf.cond(tf.reduce_any(unknown), looked_up, lambda: found)
        if self._has_more:
            found = tf.where(found < self.vocabulary_size, found, UNKNOWN_ID)
        return ids.with_flat_values(found)

    def are_empty(self, texts) -> tf.Tensor:
        """Whether texts, (batch,), have no token of their own."""
        texts = as_texts(texts)
        return tf.equal(self._ids(texts).row_lengths(), 0)

    @functools.cached_property
    def processor(self) -> sentencepiece.SentencePieceProcessor | None:
        """What gives the ids of `tokenize` without TensorFlow; None if they need more than it."""
        is_plain = self._splitter is self._sentencepiece and self._first_words is None
        if self._are_words or self._has_more or not is_plain:
            return None
        if self.prefix or self.language is not None:
            return None
        return sentencepiece.SentencePieceProcessor(model_proto=self.model)

    def detokenize(self, ids) -> tf.Tensor:
        """Joins (batch, length) ids, dense or ragged, into (batch,) strings.

        Pad, start, end and ids outside the vocabulary are left out, so any integers are allowed.
        An incomplete sequence of bytes becomes U+FFFD: the result is always valid UTF-8.
        """
        ids = tf.cast(ids, tf.int32)
        is_text = (ids > END_ID) & (ids < self.vocabulary_size)
        ids = tf.ragged.boolean_mask(ids, is_text | (ids == UNKNOWN_ID))
        texts = self._sentencepiece.detokenize(ids)
        if not self._keeps_spaces:
            return texts
        return tf.strings.join([self._dropped_spaces(ids), texts])

    def _dropped_spaces(self, ids):
        """The spaces, (batch,), that tensorflow-text drops before a text and sentencepiece keeps.

        SentencePiece leaves out the first, which `tokenize` adds; tensorflow-text also that of each
        piece up to the first with any text.
        """
        begins = tf.constant([piece.startswith("▁") for piece in self._pieces])
        is_space = tf.constant([piece == "▁" for piece in self._pieces])
        ids = ids.to_tensor(PAD_ID)  # (batch, length)
        all_spaces = tf.math.cumprod(tf.cast(tf.gather(is_space, ids), tf.int32), axis=1) > 0
        is_dropped = all_spaces[:, :-1] & tf.gather(begins, ids)[:, 1:]
        return tf.strings.reduce_join(tf.where(is_dropped, " ", ""), axis=1)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The pieces of some ids as text, to label an axis; a leading "▁" is a space."""
        return [self._pieces[int(token_id)] for token_id in ids]

    def save(self, path) -> None:
        """Writes the model to a file that `load` reads; a reader never sees half of it."""
        with atomic_path(path) as draft:
            draft.write_bytes(self.model)

    @classmethod
    def load(cls, path) -> "SentencePieceTokenizer":
        """Reads what `save` wrote, or any SentencePiece model with the same control ids."""
        return cls(pathlib.Path(path).read_bytes())


def train_sentencepiece(
    sentences: Iterable[str],
    vocabulary_size: int,
    tokens: str = "pieces",
    normalization: str = "nmt_nfkc",
) -> SentencePieceTokenizer:
    """Learns a vocabulary from text; the same text gives the same vocabulary.

    With pieces, byte pairs, nothing is unknown, and joined pieces give the normalised text. By
    default SentencePiece normalises to Unicode's NFKC ("x²" becomes "x2", "™" "TM", "…" "...", and
    "½" three characters), leaves out control characters, and replaces tabs, line breaks, U+FFFD and
    invisible characters such as U+200C by spaces. Of spaces in a row one is kept, of those at the
    ends none.
    Words are separated by spaces and punctuation, in lower case, and only the most frequent ones
    are kept: use them to classify, not to generate.

    Source: Sennrich et al. 2016, section 3.2 (https://arxiv.org/abs/1508.07909),
    in the SentencePiece form of Kudo and Richardson 2018.

    Args:
        sentences: the text, one sentence per element. For a joint vocabulary of two languages,
            pass the sentences of both.
        vocabulary_size: number of ids, of which 260 are control ids and bytes; for words the
            maximum, including 4 control ids.
        tokens: "pieces" or "words".
        normalization: "nmt_nfkc", as above, or "identity", with which pieces restore every
            character, spaces too, except that "▁" (U+2581), which stands for a space, becomes one.
            Words have a normalisation of their own.

    Returns:
        A `SentencePieceTokenizer`, of pieces with exactly `vocabulary_size` ids.

    Raises:
        ValueError: if there is no text, the text has too many distinct characters for the
            vocabulary or too few distinct pieces, or `tokens` or `normalization` is something
            else.

    Examples:
        >>> train_sentencepiece(["to be or not to be"], vocabulary_size=273).vocabulary_size
        273
    """
    sentences = texts_to_learn(sentences)
    if tokens == "words":
        sentences = [text.decode() for text in _words_only(list(sentences)).numpy()]
    return SentencePieceTokenizer(learned_model(sentences, vocabulary_size, tokens, normalization))


def as_texts(texts) -> tf.Tensor:
    """Strings, (batch,), as a tensor; a single string is refused."""
    if not tf.is_tensor(texts):
        # What is nested is refused below.
        texts = list(read_texts(texts, kinds=(str, bytes, tf.Tensor, list, tuple, np.ndarray)))
    texts = tf.convert_to_tensor(texts, tf.string)
    if texts.shape.rank not in (None, 1):
        raise ValueError(
            "Texts come in batches: strings of shape (batch,), such as a list of them. "
            f"Received: strings of shape {tuple(texts.shape)}."
        )
    return texts


def _keeps_spaces(spec):
    """Whether texts with more spaces than the one before each word keep them."""
    removes = spec.remove_extra_whitespaces or not spec.HasField("remove_extra_whitespaces")
    return not removes and (spec.add_dummy_prefix or not spec.HasField("add_dummy_prefix"))


def _words_only(texts):
    """Replaces everything but letters, marks, digits and apostrophes by spaces."""
    texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8")  # mends what is not UTF-8
    return tf.strings.regex_replace(texts, r"[^\pL\pM\pN']+", " ")


def _only_in_vocabulary(model):
    """The pieces that only the vocabulary has and that a text could be cut into.

    Returns:
        {piece: id} of those of characters that are no pieces, and the ids of those that BPE would
        make of two pieces, and then take apart in another way than before.
    """
    kinds = sentencepiece_format.PieceType
    found = {
        piece.piece: index
        for index, piece in enumerate(model.pieces)
        if piece.type == kinds.UNUSED and piece.score == ONLY_IN_VOCABULARY
    }
    names = {piece.piece for piece in model.pieces}
    known = names - found.keys()
    strange, merged = {}, []
    for name, index in found.items():
        if known.isdisjoint(name) and not model.trainer_spec.byte_fallback:
            strange[name] = index
        elif model.trainer_spec.model_type == sentencepiece_format.ModelType.BPE:
            cuts = range(1, len(name))
            merged += [index] * any(name[:cut] in names and name[cut:] in names for cut in cuts)
    return strange, merged


def _pieces_of(model: bytes) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(model)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            "A tokenizer needs a serialised SentencePiece model. "
            f"Received: {len(model)} bytes that are not one: {in_one_line(error)}"
        ) from None
    pieces = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
    if pieces[: len(CONTROL_PIECES)] != CONTROL_PIECES:
        raise ValueError(
            f"The first pieces of a SentencePiece model must be {CONTROL_PIECES}. "
            f"Received: {pieces[: len(CONTROL_PIECES)]}."
        )
    return pieces
