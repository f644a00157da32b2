"""The byte-level byte pairs of GPT-2, Llama 3 and Qwen2, which restore texts exactly.

Qwen2's restore their NFC, and no tokenizer restores an added piece that stands for no text, such as
"<|endoftext|>" of GPT-2.

TensorFlow's string operations split a text into words and its bytes into characters, and
tensorflow-text merges these with a SentencePiece model made from the vocabulary: training and
serving use the same operations. KerasHub's tokenizer is not used: outside a graph it does not
split words, so it gives different ids than inside. Hugging Face's `tokenizers` learns new pairs;
it is imported only here.
"""

import json
import pathlib
import re
from collections.abc import Iterable, Sequence

import tensorflow as tf
import tensorflow_text

from keras_transformer.files import atomic_path, read_json
from keras_transformer.tokenizers import sentencepiece_format
from keras_transformer.tokenizers.control_ids import END_ID, PAD_ID, START_ID, UNKNOWN_ID
from keras_transformer.tokenizers.internals import lasting_tokenizer
from keras_transformer.tokenizers.sentencepiece import as_texts
from keras_transformer.tokenizers.sentencepiece_training import CONTROL_PIECES, texts_to_learn

END_OF_TEXT = "<|endoftext|>"  # of GPT-2

_WIDE = r" \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}"
_SPACE, _IN_LINE = rf"[\t-\r{_WIDE}]", rf"[\t\v\f{_WIDE}]"
_SPACES = f"{_SPACE}+"
# What a run of letters, of digits or of other signs is; a space before it belongs to it.
_SIGNS = rf" ?[^\p{{L}}\p{{N}}{_SPACE[1:-1]}]+"
_WORD = rf"'s|'t|'re|'ve|'m|'ll|'d| ?\p{{L}}+| ?\p{{N}}+|{_SIGNS}"
# Llama 3's and Qwen2's: line breaks belong to signs or spaces before them, and any sign may stand
# before letters. Of Llama 3's digits three are a word, of Qwen2's one.
_LATER_WORD = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,DIGITS}|"
    rf"{_SIGNS}[\r\n]*|{_SPACE}*[\r\n]+|{_SPACES}"
)
WORDS = {
    "gpt2": _WORD,
    "llama3": _LATER_WORD.replace("DIGITS", "3"),
    "qwen2": _LATER_WORD.replace("DIGITS", "1"),
}
NORMALISED = ("qwen2",)  # to NFC, before texts are split
_CUT = b"\xff"  # in no text of UTF-8
_OPEN, _CLOSE = "\ue000", "\ue001"  # around a word that may be a piece although no merge makes it
# The characters that stand for the bytes 0 to 255 in GPT-2's files: those that can be seen as
# they are, the others from U+0100 on.
_VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_HIDDEN = [byte for byte in range(256) if byte not in _VISIBLE]
_CHARACTERS = [b if b in _VISIBLE else 0x100 + _HIDDEN.index(b) for b in range(256)]
_BYTES = {chr(character): byte for byte, character in enumerate(_CHARACTERS)}


class BytePairTokenizer(tf.Module):
    """Splits texts into byte pairs and joins them again, without any normalisation but Qwen2's.

    Its methods may be called inside a `tf.function`, a tf.data pipeline or an exported
    signature. The ids are those of the vocabulary: GPT-2's, as released, or those of
    `train_byte_pairs`, which begin with pad 0, unknown 1, start 2, end 3.

    Source: Radford et al. 2019, section 2.2
    (https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf);
    the words of Llama 3 and Qwen2: their released tokenizers.

    Args:
        vocabulary: id of each piece, as in GPT-2's `vocab.json`.
        merges: pairs of pieces separated by a space, the first merge first, as in its
            `merges.txt`.
        first_id: number added to all ids; 4 leaves room for pad, unknown, start and end, which
            batches and `serving.Generator` need, if the vocabulary does not have them.
        words: how texts are split into the words whose bytes are merged: "gpt2", "llama3" or
            "qwen2", which normalises texts to NFC, too.
        added: {piece: whether it stands for no text} of pieces that are found in texts before these
            are split, with None for those that no text has; by default "<|endoftext|>" stands for
            no text, if the vocabulary has it.
        whole_words: whether a word that is a piece stays whole, even if no merge makes it.
        end_of_text: the piece that ends a text.
        start_piece: a control piece, such as "<s>" of BART, that `tokenize` puts before every text;
            joined texts then leave out all pieces that no merge makes. None for none.

    Attributes:
        merges: the argument, as a tuple.
        control_ids: ids that stand for no text, such as the end.
        end_of_text_id: id of `end_of_text` in the vocabulary, without `first_id`, or None.
        start_id: id of the `start_piece`, if there is one.
        pad_id, unknown_id, class_id, separator_id: 0 to 3; the last two start and end a text
            of RoBERTa.

    Raises:
        ValueError: if the ids are not 0, 1, 2 and so on; if a byte, an added piece or the
            `start_piece` is not among them; or if `words` is unknown.

    Examples:
        >>> tokenizer = train_byte_pairs(["to be or not to be"], vocabulary_size=263)
        >>> ids = tokenizer.tokenize(["to be\\n"])
        >>> tokenizer.detokenize(ids).numpy().tolist()
        [b'to be\\n']
    """

    pad_id, unknown_id, class_id, separator_id = PAD_ID, UNKNOWN_ID, START_ID, END_ID

    def __init__(
        self,
        vocabulary: dict[str, int],
        merges: Sequence[str],
        first_id: int = 0,
        words: str = "gpt2",
        added: dict[str, bool | None] | None = None,
        whole_words: bool = False,
        end_of_text: str = END_OF_TEXT,
        start_piece: str | None = None,
    ):
        super().__init__(name="tokenizer")
        if first_id not in (0, len(CONTROL_PIECES)):
            raise ValueError(f"first_id must be 0 or 4. Received: first_id={first_id}.")
        if words not in WORDS:
            raise ValueError(f"words must be one of {', '.join(WORDS)}. Received: words={words!r}.")
        is_dictionary = isinstance(vocabulary, dict)
        if not is_dictionary or not all(type(number) is int for number in vocabulary.values()):
            raise ValueError(
                "A vocabulary must be a dictionary from pieces to their ids, as in vocab.json. "
                f"Received: {vocabulary!r:.80}."
            )
        if sorted(vocabulary.values()) != list(range(len(vocabulary))):
            raise ValueError(
                "The ids of a vocabulary must be 0, 1, 2 and so on. "
                f"Received: {len(vocabulary)} pieces with other ids."
            )
        if missing := [character for character in _BYTES if character not in vocabulary]:
            raise ValueError(
                "A vocabulary of byte pairs must have a piece for each of the 256 bytes. "
                f"Received: none for {len(missing)} of them, as {missing[0]!r}."
            )
        if start_piece is not None and start_piece not in vocabulary:
            raise ValueError(
                f"start_piece must be in the vocabulary. Received: start_piece={start_piece!r}."
            )
        added = usual_added(vocabulary) if added is None else added
        if start_piece is not None:
            made = {pair.replace(" ", "") for pair in merges} | _BYTES.keys()
            others = [name for name in vocabulary if name not in made]
            added = {**dict.fromkeys(others), **added}
            self.start_id = vocabulary[start_piece] + first_id
        if absent := [name for name in added if name not in vocabulary]:
            raise ValueError(f"added must be pieces of the vocabulary. Received: {absent[0]!r}.")
        # As tuples: a tf.Module would wrap a dictionary or list into a kind of its own.
        self._pieces = tuple(sorted(vocabulary, key=vocabulary.get))
        self.merges = tuple(merges)
        self.words, self.whole_words, self.end_of_text = words, whole_words, end_of_text
        self._added = tuple(added.items())
        control = dict.fromkeys(name for name in CONTROL_PIECES if name in vocabulary)
        control |= {name: None for name, is_control in added.items() if is_control is not False}
        self.first_id = first_id
        self.end_of_text_id = vocabulary.get(end_of_text)
        self.control_ids = (*range(first_id), *(vocabulary[name] + first_id for name in control))
        self.start_piece = start_piece
        stand_for_text = [True] * (first_id + len(vocabulary))
        for control_id in self.control_ids:
            stand_for_text[control_id] = False
        self._stand_for_text = tuple(stand_for_text)
        # The bytes of each piece; of one that no merge makes, its name.
        self._texts = tuple(
            bytes(map(_BYTES.get, piece))
            if piece not in added and set(piece) <= _BYTES.keys()
            else piece.encode()
            for piece in self._pieces
        )
        model = _merging_model(self._pieces, self.merges, added)
        self._merge = lasting_tokenizer(model.SerializeToString())
        self._ids = None  # of what `_merge` finds, where that is more than pieces
        if whole_words:
            with tf.init_scope():
                counts = self._merge.tokenize(self._pieces).row_lengths().numpy()
            whole = [i for i, count in enumerate(counts) if count > 1]
            for piece in (_OPEN, _CLOSE, *(_OPEN + self._pieces[i] + _CLOSE for i in whole)):
                kind = sentencepiece_format.PieceType.USER_DEFINED
                model.pieces.add(piece=piece, type=kind)
            self._merge = lasting_tokenizer(model.SerializeToString())
            others = len(model.pieces) - len(self._pieces) - len(whole)
            self._ids = (*range(len(self._pieces)), *[-1] * others, *whole)

    @property
    def added(self) -> dict[str, bool | None]:
        """The argument."""
        return dict(self._added)

    @property
    def vocabulary_size(self) -> int:
        """Number of ids."""
        return len(self._pieces) + self.first_id

    @property
    def longest_token(self) -> int:
        """The most bytes of a text that one token stands for."""
        return max(map(len, self._texts))

    def tokenize(self, texts) -> tf.RaggedTensor:
        """Cuts (batch,) strings into (batch, None) int32 ids, without start or end.

        With a `start_piece`, its token comes first.
        """
        texts = as_texts(texts)
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8")  # mends what is not UTF-8
        found = [name for name, is_control in self._added if is_control is not None]
        words = _split_words(texts, found, self.words)
        # Each byte is a character of Latin-1.
        letters = tf.strings.unicode_decode(words.flat_values, "ISO-8859-1")
        letters = letters.with_flat_values(tf.gather(_CHARACTERS, letters.flat_values))
        written = tf.strings.unicode_encode(letters, "UTF-8")
        if self._ids is not None:
            written = tf.strings.join([_OPEN, written, _CLOSE])
        pieces = words.with_flat_values(self._merge.tokenize(written))  # (batch, words, None)
        ids = pieces.merge_dims(1, 2)
        if self._ids is not None:
            ids = ids.with_flat_values(tf.gather(self._ids, ids.flat_values))
            ids = tf.ragged.boolean_mask(ids, ids >= 0)
        ids += self.first_id
        if self.start_piece is None:
            return ids
        return tf.concat([tf.fill([ids.nrows(out_type=tf.int32), 1], self.start_id), ids], axis=1)

    def detokenize(self, ids) -> tf.Tensor:
        """Joins (batch, length) ids, dense or ragged, into (batch,) strings.

        Control ids and ids outside of the vocabulary are left out; bytes that are not UTF-8
        become U+FFFD.
        """
        ids = tf.cast(ids, tf.int32)
        ids = tf.ragged.boolean_mask(ids, (ids >= 0) & (ids < self.vocabulary_size))
        is_text = tf.ragged.map_flat_values(tf.gather, tf.constant(self._stand_for_text), ids)
        kept = tf.ragged.boolean_mask(ids, is_text) - self.first_id
        texts = tf.ragged.map_flat_values(tf.gather, tf.constant(self._texts), kept)
        joined = tf.strings.reduce_join(texts, axis=1)
        return tf.strings.unicode_transcode(joined, "UTF-8", "UTF-8")

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The pieces of some ids as text, to label an axis; a leading "Ġ" is a space."""
        names = [*CONTROL_PIECES, *self._pieces] if self.first_id else self._pieces
        return [names[int(token_id)] for token_id in ids]

    def save(self, path) -> None:
        """Writes the vocabulary to a file that `load` reads; a reader never sees half of it."""
        vocabulary = {piece: number for number, piece in enumerate(self._pieces)}
        content = {"vocabulary": vocabulary, "merges": self.merges, "first_id": self.first_id}
        usual = {
            "words": "gpt2",
            "added": usual_added(vocabulary),
            "whole_words": False,
            "end_of_text": END_OF_TEXT,
            "start_piece": None,
        }
        content |= {n: getattr(self, n) for n, value in usual.items() if getattr(self, n) != value}
        with atomic_path(path) as draft:
            draft.write_text(json.dumps(content, ensure_ascii=False), "utf-8")

    def save_files(self, vocabulary_path, merges_path) -> None:
        """Writes `vocab.json` and `merges.txt` as `from_files` reads them, without `first_id`."""
        vocabulary = {piece: number for number, piece in enumerate(self._pieces)}
        with atomic_path(vocabulary_path) as draft:
            draft.write_text(json.dumps(vocabulary, ensure_ascii=False), "utf-8")
        with atomic_path(merges_path) as draft:
            draft.write_text("\n".join(["#version: 0.2", *self.merges, ""]), "utf-8")

    @classmethod
    def load(cls, path) -> "BytePairTokenizer":
        """Reads what `save` wrote."""
        return cls(**read_json(path))

    @classmethod
    def from_files(cls, vocabulary_path, merges_path, first_id=0) -> "BytePairTokenizer":
        """Reads GPT-2's `vocab.json` and `merges.txt` as they were released."""
        return cls(read_json(vocabulary_path), merges_of(merges_path), first_id)


def usual_added(vocabulary):
    """The `added` of a `BytePairTokenizer` that is given none."""
    return {END_OF_TEXT: True} if END_OF_TEXT in vocabulary else {}


def merges_of(path):
    """The pairs of a `merges.txt`, the first one first.

    Raises:
        ValueError: if a line is no pair.
    """
    lines = pathlib.Path(path).read_text("utf-8").split("\n")
    pairs = [line for line in lines if line and not line.startswith("#version")]
    check_pairs(pairs)
    return pairs


def check_pairs(merges):
    """Raises ValueError unless each merge is a pair of pieces with a space between."""
    for number, pair in enumerate(merges, 1):
        if len(parts := pair.split(" ")) != 2 or not all(parts):
            raise ValueError(
                f"Merge {number} must be two pieces with a space between. Received: {pair!r:.80}."
            )


def _split_words(texts, added, kind):
    """Cuts (batch,) texts into (batch, None) added pieces and words of a kind, one of `WORDS`."""
    if not added:
        return _words_of(texts, kind)
    # The longest first, of those that begin alike.
    pattern = "|".join(re.escape(name) for name in sorted(added, key=len, reverse=True))
    parts = _cut_around(texts, pattern)
    flat = parts.flat_values
    is_added = tf.strings.regex_full_match(flat, pattern)
    whole = tf.ragged.boolean_mask(flat[:, None], is_added[:, None])
    words = tf.concat([whole, _words_of(tf.where(is_added, "", flat), kind)], axis=1)
    return parts.with_flat_values(words).merge_dims(1, 2)


def _words_of(texts, kind):
    """Cuts (batch,) texts into (batch, None) words of a kind, one of `WORDS`."""
    if kind == "gpt2":
        return _words_of_gpt2(texts)
    if kind in NORMALISED:
        texts = tensorflow_text.normalize_utf8(texts, "NFC")
    # TensorFlow's expressions cannot look ahead: that the last of several spaces belongs to what
    # comes after them is a cut before it.
    cut = _CUT + rb"\1\2"
    marked = tf.strings.regex_replace(texts, f"({_IN_LINE})([^{_SPACE[1:-1]}])", cut)
    parts = tf.strings.split(marked, _CUT)
    words = parts.with_flat_values(_cut_around(parts.flat_values, WORDS[kind]))
    return words.merge_dims(1, 2)


def _words_of_gpt2(texts):
    """Cuts (batch,) texts into spaces and GPT-2's words, (batch, None).

    Of several spaces before a word the last one belongs to it, or stands alone if it is no
    " ". TensorFlow's expressions cannot look ahead: the spaces are cut off first.
    """
    parts = _cut_around(texts, _SPACES)
    flat, rows = parts.flat_values, parts.value_rowids()
    are_spaces = tf.strings.regex_full_match(flat, _SPACES)
    is_last = tf.concat([rows[1:] != rows[:-1], [True]], axis=0)[: tf.size(flat)]
    last_space = tf.strings.regex_replace(flat, "(?s)^.*(.)$", r"\1")
    last_space = tf.where(are_spaces & ~is_last, last_space, "")
    others = tf.where(is_last, flat, tf.strings.regex_replace(flat, "(?s).$", ""))
    others = tf.where(are_spaces, others, "")
    goes_on = last_space == " "
    before = tf.concat([[""], tf.where(goes_on, " ", "")], axis=0)[:-1]
    chunks = tf.where(are_spaces, "", before + flat)
    words = [
        tf.RaggedTensor.from_tensor(tf.stack([others, tf.where(goes_on, "", last_space)], axis=1)),
        _cut_around(chunks, WORDS["gpt2"]),
    ]
    words = tf.concat(words, axis=1)  # (parts, None)
    words = tf.ragged.boolean_mask(words, words != "")
    return parts.with_flat_values(words).merge_dims(1, 2)


def _cut_around(texts, pattern):
    """(batch,) texts as what matches and what lies between, (batch, None), nothing empty.

    tensorflow-text's `regex_split` would end a text at its first zero byte.
    """
    marked = tf.strings.regex_replace(texts, f"({pattern})", _CUT + b"\\1" + _CUT)
    parts = tf.strings.split(marked, _CUT)
    return tf.ragged.boolean_mask(parts, parts != "")


def _merging_model(pieces, merges, added):
    """A SentencePiece model that merges characters as the pairs are ranked."""
    ranks = {}
    for rank, pair in enumerate(merges):
        ranks.setdefault(pair.replace(" ", ""), rank)
    model = sentencepiece_format.Model()
    kinds = sentencepiece_format.PieceType
    for piece in pieces:
        if added.get(piece) is not None:
            kind = kinds.USER_DEFINED
            piece = "".join(chr(_CHARACTERS[byte]) for byte in piece.encode())
        elif piece == CONTROL_PIECES[UNKNOWN_ID]:
            kind = kinds.UNKNOWN
        elif piece not in (*CONTROL_PIECES, *added) and (piece in ranks or piece in _BYTES):
            kind = kinds.NORMAL
        else:  # found in no text
            kind = kinds.CONTROL
        model.pieces.add(piece=piece, score=-ranks.get(piece, 0), type=kind)
    if all(piece.type != kinds.UNKNOWN for piece in model.pieces):  # there must be one
        model.pieces.add(piece="<no piece>", type=kinds.UNKNOWN)
    model.trainer_spec.model_type = sentencepiece_format.ModelType.BPE
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = False
    model.normalizer_spec.remove_extra_whitespaces = False
    model.normalizer_spec.escape_whitespaces = False
    return model


def train_byte_pairs(texts: Iterable[str], vocabulary_size: int) -> BytePairTokenizer:
    """Learns byte pairs from texts, as GPT-2 does.

    Args:
        texts: the texts, of any length.
        vocabulary_size: number of ids, of which 260 are control ids and bytes.

    Returns:
        A `BytePairTokenizer` of at most `vocabulary_size` ids.

    Raises:
        ImportError: without `tokenizers`.
        ValueError: if `texts` is one string, or there is no room for more than the bytes.
    """
    texts = texts_to_learn(texts)
    if vocabulary_size <= 260:
        raise ValueError(
            "A vocabulary of byte pairs must have more than 260 ids: 4 control ids, 256 bytes. "
            f"Received: vocabulary_size={vocabulary_size}."
        )
    try:
        import tokenizers
    except ImportError as error:
        raise ImportError(
            f"Learning byte pairs needs tokenizers: pip install tokenizers. {error}"
        ) from error
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    learner = tokenizers.Tokenizer(tokenizers.models.BPE())
    learner.pre_tokenizer = byte_level(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        initial_alphabet=sorted(byte_level.alphabet()),
        special_tokens=CONTROL_PIECES,
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer)
    model = json.loads(learner.to_str())["model"]
    return BytePairTokenizer(model["vocab"], [" ".join(pair) for pair in model["merges"]])
