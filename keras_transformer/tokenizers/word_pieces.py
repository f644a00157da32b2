"""Text to the word pieces of BERT and back, with a vocabulary of one piece per line.

TensorFlow's string operations clean the text and split it into words, in the order and with the
character classes of the released tokenizer; tensorflow-text then splits each word into its pieces.
tensorflow-text's own BERT tokenizers are not used as a whole: with lower case they also fold "ß"
to "ss" and "½" to "1/2", which the released vocabularies never saw, and they treat a word of 34
Thai letters, 102 bytes, as too long to be known.
"""

import collections
import io
import itertools
import pathlib
from collections.abc import Iterable, Sequence

import sentencepiece
import tensorflow as tf
import tensorflow_text

from keras_transformer.files import atomic_path, in_one_line
from keras_transformer.tokenizers.sentencepiece import as_texts
from keras_transformer.tokenizers.sentencepiece_training import texts_to_learn

PAD, UNKNOWN, CLASS, SEPARATOR, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
_SPECIAL_PIECES = [PAD, UNKNOWN, CLASS, SEPARATOR, MASK]
# The first line of a file of `save`, where its capitals would tell the case wrong.
_FIRST_LINES = {f"{PAD}\tcased": False, f"{PAD}\tuncased": True}
_CONTINUES = "##"  # begins a piece that does not begin a word
_LONGEST_WORD = 100  # characters; a longer word is unknown

_WHITE_SPACE = r"[\t\n\r\p{Z}]"
_CONTROL = r"[\p{Cc}\p{Cf}\p{Co}\x{FFFD}]"
_ACCENT = r"\p{Mn}"  # what canonical decomposition has taken off its letter
# Every punctuation mark and every Chinese character is a word: other than of
# punctuation, all of ASCII that is neither letter, digit nor space counts as such.
_OWN_WORD = (
    r"([!-/:-@\[-`{-~\p{P}"
    r"\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2CEAF}"
    r"\x{F900}-\x{FAFF}\x{2F800}-\x{2FA1F}])"
)

# Characters beyond this share of the text (a stray Greek letter in English) stay unknown.
_CHARACTER_COVERAGE = 0.9999


class WordPieceTokenizer(tf.Module):
    """Splits texts into words and each word, greedily, into the longest known pieces.

    A `tf.Module` without resources: its methods may be called inside a `tf.function`, a
    tf.data pipeline or an exported signature. A word that cannot be spelled in pieces, or is
    longer than 100 characters, is unknown as a whole. Special pieces written in a text, such
    as "[SEP]", are punctuation and letters like any other.

    Source: Devlin et al. 2018, section 3 (https://arxiv.org/abs/1810.04805), and the
    tokenizer released with it; pieces: Wu et al. 2016, section 4.1
    (https://arxiv.org/abs/1609.08144).

    Args:
        pieces: the vocabulary in the order of its ids. A piece that does not begin a word
            is written with "##" before it.
        lowercase: whether the vocabulary is uncased: letters are lower-cased and lose their
            accents before they are looked up.

    Attributes:
        lowercase: the argument.
        special_ids: the ids of [PAD], [UNK], [CLS], [SEP] and [MASK].
        pad_id, unknown_id, class_id, separator_id, mask_id: each of them.

    Raises:
        ValueError: if a piece occurs twice or is longer than 256 bytes, a special piece is
            missing, or [PAD] is not the first piece, because the models here pad with id 0.

    Examples:
        >>> special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        >>> tokenizer = WordPieceTokenizer([*special, "un", "##able", "!"])
        >>> tokenizer.tokenize(["Unable!", "unseen"]).to_list()
        [[5, 6, 7], [1]]
        >>> tokenizer.detokenize([[2, 5, 6, 7, 3]]).numpy().tolist()
        [b'unable !']
    """

    def __init__(self, pieces: Sequence[str], lowercase: bool = True):
        super().__init__(name="word_piece_tokenizer")
        pieces = list(pieces)
        _check_pieces(pieces)
        self.lowercase = lowercase
        self.special_ids = tuple(pieces.index(piece) for piece in _SPECIAL_PIECES)
        self.pad_id, self.unknown_id, *others = self.special_ids
        self.class_id, self.separator_id, self.mask_id = others
        self._pieces = tuple(pieces)
        try:
            self._cut_word = tensorflow_text.FastWordpieceTokenizer(
                pieces,
                token_out_type=tf.int32,
                max_bytes_per_word=4 * _LONGEST_WORD,  # of UTF-8
                no_pretokenization=True,
            )
        except RuntimeError as error:
            raise ValueError(
                "tensorflow-text refuses the pieces, e.g. one that is longer than 256 "
                f"bytes. Received: {in_one_line(error)}"
            ) from None

    @property
    def vocabulary_size(self) -> int:
        """Number of ids, the special ones included."""
        return len(self._pieces)

    @property
    def longest_token(self) -> int:
        """The most bytes of a text that one token stands for, spaces and accents not counted.

        An unknown word of more than 100 characters is one token, too.
        """
        return 4 * _LONGEST_WORD

    def tokenize(self, texts) -> tf.RaggedTensor:
        """Cuts (batch,) strings into (batch, None) int32 ids, without [CLS] or [SEP]."""
        return self.tokenize_words(split_words(texts, self.lowercase)).merge_dims(1, 2)

    def tokenize_words(self, words: tf.RaggedTensor) -> tf.RaggedTensor:
        """Cuts the (batch, None) words of `split_words` into (batch, None, None) int32 ids."""
        too_long = tf.strings.length(words.flat_values, unit="UTF8_CHAR") > _LONGEST_WORD
        known = tf.where(too_long, UNKNOWN, words.flat_values)
        return words.with_flat_values(self._cut_word.tokenize(known))

    def detokenize(self, ids) -> tf.Tensor:
        """Joins (batch, length) ids, dense or ragged, into (batch,) strings of spaced words.

        Special ids except that of [UNK], and ids outside the vocabulary, are left out.
        """
        ids = tf.cast(ids, tf.int32)
        ids = ids if isinstance(ids, tf.RaggedTensor) else tf.RaggedTensor.from_tensor(ids)
        left_out = tf.constant([i for i in self.special_ids if i != self.unknown_id])
        is_text = tf.reduce_all(ids.flat_values[:, None] != left_out, axis=1)
        is_text &= (ids.flat_values >= 0) & (ids.flat_values < self.vocabulary_size)
        ids = tf.ragged.boolean_mask(ids, ids.with_flat_values(is_text))
        pieces = tf.ragged.map_flat_values(tf.gather, tf.constant(self._pieces), ids)
        texts = tf.strings.reduce_join(pieces, axis=1, separator=" ")
        return tf.strings.regex_replace(texts, f" {_CONTINUES}", "")

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The pieces of some ids as text, to label an axis."""
        return [self._pieces[int(token_id)] for token_id in ids]

    def save(self, path) -> None:
        """Writes the vocabulary as text, one piece per line; a reader never sees half of it.

        Where capitals, or none, would tell the case wrong, the first line says it, too.
        """
        first = PAD
        if _is_uncased(self._pieces) != self.lowercase:
            [first] = (line for line, value in _FIRST_LINES.items() if value == self.lowercase)
        _write_lines(path, [first, *self._pieces[1:]])

    def save_vocabulary(self, path) -> None:
        """Writes a vocab.txt for other libraries: the pieces alone, without the case."""
        _write_lines(path, self._pieces)

    @classmethod
    def load(cls, path, lowercase: bool | None = None) -> "WordPieceTokenizer":
        """Reads what `save` wrote or a released vocab.txt; by default cased if it has capitals."""
        lines = pathlib.Path(path).read_bytes().decode("utf-8").split("\n")
        pieces = [line.removesuffix("\r") for line in lines]
        pieces = pieces[:-1] if pieces[-1] == "" else pieces
        for number, piece in enumerate(pieces, 1):
            if not piece.strip(" \t\r"):
                raise ValueError(f"Line {number} must be a piece. Received: {piece!r:.80}.")
        written = _FIRST_LINES.get(pieces[0]) if pieces else None
        if written is not None:
            pieces[0] = PAD
        if lowercase is None:
            lowercase = _is_uncased(pieces) if written is None else written
        return cls(pieces, lowercase)


def _is_uncased(pieces):
    """Whether a vocabulary has no capitals."""
    return all(piece == piece.lower() for piece in pieces if piece not in _SPECIAL_PIECES)


def _write_lines(path, lines):
    with atomic_path(path) as draft:
        draft.write_text("".join(f"{line}\n" for line in lines), "utf-8", newline="\n")


def split_words(texts, lowercase: bool = True) -> tf.RaggedTensor:
    """Cleans texts and splits them into words, punctuation marks and Chinese characters.

    Control characters and invalid UTF-8 are left out.

    Args:
        texts: strings, (batch,).
        lowercase: whether letters are lower-cased and lose their accents.

    Returns:
        Strings, (batch, None).

    Examples:
        >>> split_words(["Déjà-vu…"]).to_list()
        [[b'deja', b'-', b'vu', b'\\xe2\\x80\\xa6']]
    """
    return tf.strings.split(_spaced(valid_utf8(texts), lowercase))


def word_spans(texts, lowercase: bool = True) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Where each word of `split_words` starts and ends in its text.

    Args:
        texts: strings, (batch,).
        lowercase: as for `split_words`.

    Returns:
        The places of the first character of each word and behind its last, int32 (batch, None),
        counted in characters of the text without invalid UTF-8.

    Examples:
        >>> [places.to_list() for places in word_spans(["Déjà-vu …"])]
        [[[0, 4, 5, 8]], [[4, 5, 7, 9]]]
    """
    characters = tf.strings.unicode_split(valid_utf8(texts), "UTF-8")
    distinct, place = tf.unique(characters.flat_values)
    cleaned = tf.gather(_spaced(distinct, lowercase), place)  # "", " ", "a" or " ! "
    kept = characters.with_flat_values(cleaned != "")
    cleaned = tf.ragged.boolean_mask(characters.with_flat_values(cleaned), kept)
    places = tf.ragged.boolean_mask(tf.ragged.range(characters.row_lengths()), kept)

    rows, parts = cleaned.value_rowids(), cleaned.flat_values
    is_text = tf.strings.strip(parts) != ""
    is_same = rows[1:] == rows[:-1]
    ends_before = tf.strings.regex_full_match(parts, ".* ")[:-1] | ~is_same
    begins_after = tf.strings.regex_full_match(parts, " .*")[1:] | ~is_same
    # A sign that is a word of its own has spaces on both sides, which separate it, too.
    is_sign = is_text & tf.strings.regex_full_match(parts, " .* ")
    edge = tf.ones_like(is_text[:1])
    is_first = is_text & (is_sign | tf.concat([edge, ends_before], axis=0))
    is_last = is_text & (is_sign | tf.concat([begins_after, edge], axis=0))
    firsts = tf.ragged.boolean_mask(places, cleaned.with_flat_values(is_first))
    lasts = tf.ragged.boolean_mask(places, cleaned.with_flat_values(is_last))
    return tf.cast(firsts, tf.int32), tf.cast(lasts, tf.int32) + 1


def valid_utf8(texts) -> tf.Tensor:
    """Texts, (batch,), without bytes that are not UTF-8."""
    return tf.strings.unicode_transcode(as_texts(texts), "UTF-8", "UTF-8", errors="ignore")


def _spaced(texts, lowercase):
    """Clean texts with spaces around every punctuation mark and Chinese character."""
    texts = tf.strings.regex_replace(texts, _WHITE_SPACE, " ")
    texts = tf.strings.regex_replace(texts, _CONTROL, "")
    if lowercase:
        texts = tf.strings.lower(texts, encoding="utf-8")
        texts = tensorflow_text.normalize_utf8(texts, "NFD")
        texts = tf.strings.regex_replace(texts, _ACCENT, "")
    return tf.strings.regex_replace(texts, _OWN_WORD, r" \1 ")


def train_word_pieces(
    sentences: Iterable[str], vocabulary_size: int, lowercase: bool = True
) -> WordPieceTokenizer:
    """Learns a vocabulary of word pieces from text; the same text gives the same vocabulary.

    The trainer of the paper was never released. Here, as in most of today's tools, pieces are
    the merges of byte-pair encoding (Sennrich et al. 2016,
    https://arxiv.org/abs/1508.07909), learned by the `sentencepiece` package from the words
    of `split_words`. Each character gets a piece that begins a word, and, if it occurs inside
    words, one that continues a word.

    Args:
        sentences: the text, in parts of any length.
        vocabulary_size: number of ids, of which 5 are special.
        lowercase: whether the vocabulary is uncased.

    Returns:
        A `WordPieceTokenizer` of exactly `vocabulary_size` ids.

    Raises:
        ValueError: if there is no text, or the text has too many distinct
            characters for the vocabulary or too few distinct pieces.

    Examples:
        >>> train_word_pieces(["to be or not to be"], vocabulary_size=20).vocabulary_size
        20
    """
    counts = _count_words(texts_to_learn(sentences), lowercase)
    if not counts:
        raise ValueError("A vocabulary needs text to learn from. Received: no word.")
    characters, merges = _learn_merges(counts, vocabulary_size)
    inside = {character for word in counts for character in word[1:]}  # no punctuation
    least = [*_SPECIAL_PIECES, *characters, *(_CONTINUES + c for c in characters if c in inside)]
    if vocabulary_size < len(least):
        raise ValueError(
            f"The vocabulary must have at least {len(least)} pieces: {len(_SPECIAL_PIECES)} "
            "special ones and those for the characters of the text. "
            f"Received: vocabulary_size={vocabulary_size}."
        )
    pieces = [*least, *merges][:vocabulary_size]
    if len(pieces) < vocabulary_size:
        raise ValueError(
            f"The text allows a vocabulary of at most {len(pieces)} pieces. Choose a smaller "
            f"vocabulary or give more text. Received: vocabulary_size={vocabulary_size}."
        )
    return WordPieceTokenizer(pieces, lowercase)


def _count_words(sentences, lowercase):
    """How often each word occurs, those too long to be known left out."""
    counts = collections.Counter()
    split = tf.function(
        lambda batch: split_words(batch, lowercase).flat_values,
        input_signature=[tf.TensorSpec([None], tf.string)],
        autograph=False,
    )
    while batch := list(itertools.islice(sentences, 1024)):
        counts.update(word.decode() for word in split(batch).numpy())
    return {word: count for word, count in counts.items() if len(word) <= _LONGEST_WORD}


def _learn_merges(counts, vocabulary_size):
    """The characters, most frequent first, and the merges in their order, as word pieces."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(f"{word}\t{count}" for word, count in counts.items()),
        input_format="tsv",
        model_writer=model,
        # To it the space before a word is a character, so that one more merge goes into the
        # pieces of one character; and it may give back fewer pieces than it was asked for.
        vocab_size=vocabulary_size + len(set().union(*counts)) + 2,
        hard_vocab_limit=False,
        model_type="bpe",
        character_coverage=_CHARACTER_COVERAGE,
        normalization_rule_name="identity",
        bos_id=-1,
        eos_id=-1,
        minloglevel=2,  # its progress report would go to the terminal
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    # The first piece is the unknown one; "▁" stands for the space before a word.
    pieces = [processor.id_to_piece(i) for i in range(1, processor.get_piece_size())]
    characters = [piece for piece in pieces if len(piece) == 1 and piece != "▁"]
    merges = [
        piece[1:] if piece.startswith("▁") else _CONTINUES + piece
        for piece in pieces
        if len(piece.removeprefix("▁")) > 1
    ]
    return characters, merges


def _check_pieces(pieces):
    missing = [piece for piece in _SPECIAL_PIECES if piece not in pieces]
    if missing:
        raise ValueError(
            f"A vocabulary of word pieces must hold {', '.join(_SPECIAL_PIECES)}. "
            f"Received: {len(pieces)} pieces without {', '.join(missing)}."
        )
    if pieces[0] != PAD:
        raise ValueError(
            f"The first piece must be {PAD}, because the models pad with id 0. "
            f"Received: {pieces[0]!r} as first piece."
        )
    twice = [piece for piece, count in collections.Counter(pieces).items() if count > 1]
    if twice:
        raise ValueError(f"Each piece must occur once. Received: {twice[:5]} more than once.")
