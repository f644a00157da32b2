"""The byte-level byte pairs of GPT-2: every text comes back as it was, spaces and breaks too.

KerasHub applies them, inside a graph and in what is served; Hugging Face's `tokenizers` learns
new ones. Both are imported only here.
"""

import json
import os
import pathlib
from collections.abc import Iterable, Sequence

import tensorflow as tf

from keras_transformer.text.tokenizers import CONTROL_PIECES, as_texts, check_texts

END_OF_TEXT = "<|endoftext|>"  # of GPT-2


class BytePairTokenizer(tf.Module):
    """Cuts texts into byte pairs and joins them again, without any normalisation.

    Its methods may be called inside a `tf.function`, a tf.data pipeline or an exported
    signature. The ids are those of the vocabulary: GPT-2's, as released, or of
    `train_byte_pairs`, which begin with pad 0, unknown 1, start 2, end 3.

    Source: Radford et al. 2019, section 2.2
    (https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf).

    Args:
        vocabulary: id of each piece, as in GPT-2's `vocab.json`.
        merges: pairs of pieces, a space between them, the first one first, as in its
            `merges.txt`.
        first_id: what is added to all ids; 4 leaves room for pad, unknown, start and end,
            as batches and `serving.Generator` need it, where the vocabulary has none.

    Attributes:
        control_ids: those that stand for no text, such as the end of one.

    Raises:
        ImportError: without KerasHub.
        ValueError: if the ids are not 0, 1, 2 and so on.

    Example:
        >>> tokenizer = train_byte_pairs(["to be or not to be"], vocabulary_size=263)
        >>> ids = tokenizer.tokenize(["to be\\n"])
        >>> tokenizer.detokenize(ids).numpy().tolist()
        [b'to be\\n']
    """

    def __init__(self, vocabulary: dict[str, int], merges: Sequence[str], first_id: int = 0):
        super().__init__(name="tokenizer")
        try:
            import keras_hub
        except ImportError as error:
            raise ImportError(
                f"Byte pairs need KerasHub: pip install keras-hub. {error}"
            ) from error
        if first_id not in (0, len(CONTROL_PIECES)):
            raise ValueError(f"first_id must be 0 or 4. Received: first_id={first_id}.")
        if sorted(vocabulary.values()) != list(range(len(vocabulary))):
            raise ValueError(
                "The ids of a vocabulary must be 0, 1, 2 and so on. "
                f"Received: {len(vocabulary)} pieces with other ids."
            )
        # As tuples: a tf.Module would wrap a dictionary or list into a kind of its own.
        self._pieces = tuple(sorted(vocabulary, key=vocabulary.get))
        self._merges = tuple(merges)
        control = [name for name in (*CONTROL_PIECES, END_OF_TEXT) if name in vocabulary]
        self.first_id = first_id
        self.control_ids = (*range(first_id), *(vocabulary[name] + first_id for name in control))
        self._byte_pairs = keras_hub.tokenizers.BytePairTokenizer(
            vocabulary=dict(vocabulary), merges=list(merges), unsplittable_tokens=control
        )
        # Outside of a graph it would answer with lists.
        rows = tf.RaggedTensorSpec([None, None], tf.int32)
        self._joined = tf.function(self._byte_pairs.detokenize, input_signature=[rows])

    @property
    def vocabulary_size(self) -> int:
        """Number of ids."""
        return len(self._pieces) + self.first_id

    def tokenize(self, texts) -> tf.RaggedTensor:
        """Cuts (batch,) strings into (batch, None) int32 ids, without start or end."""
        texts = as_texts(texts)
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8")  # mends what is not UTF-8
        if tf.executing_eagerly():  # then KerasHub answers with lists
            rows = [text.decode() for text in texts.numpy()]
            rows = self._byte_pairs.tokenize(rows) if rows else []
            rows = [[int(token_id) + self.first_id for token_id in row] for row in rows]
            return tf.ragged.constant(rows, tf.int32, ragged_rank=1)
        # To one text KerasHub gives a dense row of ids; with one more they stay ragged.
        return self._byte_pairs.tokenize(tf.concat([texts, [""]], axis=0))[:-1] + self.first_id

    def detokenize(self, ids) -> tf.Tensor:
        """Joins (batch, length) ids, dense or ragged, into (batch,) strings.

        Control ids and ids outside of the vocabulary are left out; bytes that are not UTF-8
        become U+FFFD.
        """
        ids = tf.cast(ids, tf.int32)
        is_text = (ids >= 0) & (ids < self.vocabulary_size)
        for control in self.control_ids:
            is_text &= tf.not_equal(ids, control)
        kept = tf.ragged.boolean_mask(ids, is_text) - self.first_id
        joined = self._joined(kept)
        return tf.strings.unicode_transcode(joined, "UTF-8", "UTF-8")

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The pieces of some ids as text, to label an axis; a leading "Ġ" is a space."""
        names = [*CONTROL_PIECES, *self._pieces] if self.first_id else self._pieces
        return [names[int(token_id)] for token_id in ids]

    def save(self, path) -> None:
        """Writes the vocabulary to a file that `load` reads; a reader never sees half of it."""
        path = pathlib.Path(path)
        draft = path.with_name(f".{os.getpid()}.{path.name}")
        vocabulary = {piece: number for number, piece in enumerate(self._pieces)}
        content = {"vocabulary": vocabulary, "merges": self._merges, "first_id": self.first_id}
        draft.write_text(json.dumps(content, ensure_ascii=False), "utf-8")
        draft.replace(path)

    @classmethod
    def load(cls, path) -> "BytePairTokenizer":
        """Reads what `save` wrote."""
        return cls(**json.loads(pathlib.Path(path).read_text("utf-8")))

    @classmethod
    def from_files(cls, vocabulary_path, merges_path, first_id=0) -> "BytePairTokenizer":
        """Reads GPT-2's `vocab.json` and `merges.txt` as they were released."""
        lines = pathlib.Path(merges_path).read_text("utf-8").split("\n")
        merges = [line for line in lines if line and not line.startswith("#version")]
        vocabulary = json.loads(pathlib.Path(vocabulary_path).read_text("utf-8"))
        return cls(vocabulary, merges, first_id)


def train_byte_pairs(texts: Iterable[str], vocabulary_size: int) -> BytePairTokenizer:
    """Learns byte pairs from texts, in the way of GPT-2.

    Args:
        texts: the texts, of any length.
        vocabulary_size: number of ids, of which 260 are control ids and bytes.

    Returns:
        A `BytePairTokenizer` of at most `vocabulary_size` ids.

    Raises:
        ImportError: without `tokenizers`.
        ValueError: if `texts` is one string, or there is no room for more than the bytes.
    """
    check_texts(texts)
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
