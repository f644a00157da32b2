"""Texts with labels: reading them, and cutting them into batches."""

import pathlib
import zlib
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.data.batching import ragged, tokenize_all
from keras_transformer.data.corpora import builder_of, check_split, lines_of, opened
from keras_transformer.data.length_plan import LengthPlan, batched
from keras_transformer.files import load_arrays, save_arrays
from keras_transformer.tokenizers.sentencepiece import PAD_ID

# Lengths count as equal up to the next multiple, so that other texts meet in every epoch.
_LENGTH_STEP = 16


class LabelledText(NamedTuple):
    """Texts and their labels: `labels[i]` are those of `texts[i]`, each a row of `names`.

    A text may have several labels, or none; `names` is sorted.
    """

    texts: list[str]
    labels: list[tuple[str, ...]]
    names: list[str]


def labelled(texts, labels, names=None) -> LabelledText:
    """Checks texts and labels and lists the names of the labels.

    Args:
        texts: a list of strings.
        labels: for each text a tuple of names.
        names: all that are allowed, e.g. those of the training text; None takes those there are.

    Raises:
        ValueError: if there is no text, there are fewer than two labels, or a label is not
            among `names`.
    """
    found = sorted({name for row in labels for name in row})
    names = found if names is None else list(names)
    if not texts or len(names) < 2:
        raise ValueError(
            "Classification needs texts with at least two different labels. "
            f"Received: {len(texts)} texts, labels {names}."
        )
    if unknown := set(found) - set(names):
        raise ValueError(f"Labels must be among {names}. Received: {sorted(unknown)}.")
    return LabelledText(list(texts), list(labels), names)


def read_labelled_folder(path, names=None) -> LabelledText:
    """Reads a folder of folders: each inner one is named by a label and holds files of texts.

    The layout of the Large Movie Review Dataset, whose folder of unlabelled texts, `unsup`,
    is left out. Files end in `.txt` and are read in the order of their names. Where folders
    hold folders of such files, as those of that data set's training and test texts do, no
    label is found.

    Raises:
        OSError: if there is no such folder, or a file cannot be read.
        ValueError: as `labelled`, and if a file is not UTF-8.
    """
    path = pathlib.Path(path)
    if not path.exists():
        raise FileNotFoundError(
            f"Expected a folder of labels. Received: {path}, which does not exist."
        )
    if not path.is_dir():
        raise NotADirectoryError(f"Expected a folder of labels. Received: {path}, which is a file.")
    files = _files_of_labels(path)
    return labelled(list(map(text_of, files)), [(file.parent.name,) for file in files], names)


def text_of(path) -> str:
    """The text of a whole file; lines end in a line feed, however they end there.

    Raises:
        OSError: if it is a directory or cannot be read.
        ValueError: if it is not UTF-8.
    """
    try:
        with opened(path) as file:
            return file.read().decode().replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"A text must be UTF-8. Received: {path}: {error.reason}.") from None


def labelled_files(path) -> list[pathlib.Path]:
    """What `read_labelled_folder` reads, in its order; nothing if there are no two labels."""
    path = pathlib.Path(path)
    files = _files_of_labels(path) if path.is_dir() else []
    return files if len({file.parent for file in files}) > 1 else []


def _files_of_labels(path):
    """The files of the folders in a folder, unless there are folders of files in those."""
    if next(path.glob("*/*/**/*.txt"), None):
        return []
    return [file for file in sorted(path.glob("*/*.txt")) if file.parent.name != "unsup"]


def read_labelled_tsv(path, names=None) -> LabelledText:
    """Reads a file of two columns, text TAB label, without a header; `.gz` is unpacked.

    Several labels of a text are joined by commas, and spaces around a label do not count; a
    text without one has an empty column.

    Raises:
        OSError: if the file is missing, a directory, or cannot be read.
        ValueError: as `labelled`, and if a line has not exactly two columns.
    """
    texts, labels = [], []
    for number, line in enumerate(lines_of(path), start=1):
        columns = line.split("\t")
        if len(columns) != 2:
            raise ValueError(
                "Each line must have two columns: text, one tab, label. "
                f"Received: {path}, line {number} with {len(columns)}: {line[:80]!r}."
            )
        texts.append(columns[0])
        found = (name.strip() for name in columns[1].split(","))
        labels.append(tuple(dict.fromkeys(name for name in found if name)))
    return labelled(texts, labels, names)


def read_labelled_dataset(name, split: str, names=None, data_dir=None) -> LabelledText:
    """Reads a data set of TensorFlow Datasets with a text and a class label.

    Raises:
        ImportError: if TensorFlow Datasets is not installed.
        ValueError: if the name or split is unknown, the features are others, or a text has no
            label, as those of a test whose answers are kept elsewhere.
    """
    builder = builder_of(name, data_dir) if isinstance(name, str) else name
    check_split(builder, split)
    features = builder.info.features
    texts = [key for key, feature in features.items() if feature.dtype == "string"]
    classes = [key for key, feature in features.items() if hasattr(feature, "int2str")]
    texts = ["text"] if "text" in texts else texts
    if len(classes) != 1 or len(texts) != 1:
        raise ValueError(
            f"{builder.info.full_name} must have one text and one class label. "
            f"Received: texts {texts}, labels {classes}."
        )
    (text,), (label,) = texts, classes
    rows = list(builder.as_dataset(split=split).as_numpy_iterator())
    if without := sum(int(row[label] < 0) for row in rows):
        raise ValueError(
            f"The texts of {builder.info.full_name} must have labels. "
            f"Received: {without} of {len(rows)} of split={split!r} without one."
        )
    labels = [(features[label].int2str(int(row[label])),) for row in rows]
    return labelled([row[text].decode() for row in rows], labels, names)


def hold_out(text: LabelledText, count: int, seed: int) -> tuple[LabelledText, LabelledText]:
    """Sets `count` examples aside, drawn with the seed: the pair of the others and of these.

    Raises:
        ValueError: if `count` is not below the number of examples.
    """
    if not 0 < count < len(text.texts):
        raise ValueError(
            "hold_out must leave examples to learn from. "
            f"Received: hold_out={count} of {len(text.texts)} examples."
        )
    return tuple(
        labelled([text.texts[i] for i in part], [text.labels[i] for i in part], text.names)
        for part in split_rows(len(text.texts), count, seed)
    )


def split_rows(number: int, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws `count` of the rows 0 to `number` - 1: the others and these, each in order."""
    order = np.random.default_rng(seed).permutation(number)
    return np.sort(order[count:]), np.sort(order[:count])


def cut_middle(ids: tf.RaggedTensor, max_length: int) -> tf.RaggedTensor:
    """Leaves out the middle of rows longer than `max_length`; a quarter of what stays is before it.

    What a text is about stands at its beginning, and what its author thinks at its end.

    Source: Sun et al. 2019, section 5.3.1 (https://arxiv.org/abs/1905.05583).

    Example:
        >>> cut_middle(tf.ragged.constant([[1, 2, 3, 4, 5, 6], [7, 8]]), max_length=4).to_list()
        [[1, 4, 5, 6], [7, 8]]
    """
    before = max_length // 4
    lengths = ids.row_lengths()
    places = tf.ragged.range(lengths).flat_values
    after = tf.repeat(lengths, lengths) - (max_length - before)
    return tf.ragged.boolean_mask(ids, ids.with_flat_values((places < before) | (places >= after)))


def check_max_length(max_length: int) -> None:
    if max_length < 1:
        raise ValueError(
            f"max_length must be at least 1 token of a text. Received: max_length={max_length}."
        )


def fill_up(ids: tf.RaggedTensor) -> tf.Tensor:
    """Pads rows to equal lengths, of at least one column, so that there is something to pool.

    Example:
        >>> fill_up(tf.ragged.constant([[], []], dtype="int32")).numpy().tolist()
        [[0], [0]]
    """
    filled = ids.to_tensor(PAD_ID)  # (batch, length)
    return tf.pad(filled, [[0, 0], [0, tf.maximum(0, 1 - tf.shape(filled)[1])]])


class LabelledBatches:
    """Batches of token ids and labels, for training a classifier.

    Texts longer than `max_length` tokens lose their middle, see `cut_middle`. As in
    `TokenBatches` texts of similar lengths share a batch, and data order is a pure function
    of seed and step.

    Args:
        text: a `LabelledText`.
        tokenizer: cuts the texts.
        tokens_per_batch: most tokens of a batch, padding included, but not what `prepare` adds.
        max_length: tokens that are read of a text, at most `tokens_per_batch`.
        seed: integer that fixes the order of every epoch.
        prepare: from token ids, (batch, length), to the inputs of the model, when they are more
            than that; None if they are not.

    Attributes:
        names: of the labels, in the order of their columns.
        several: whether there are texts with several labels, or none.
        num_texts: texts of an epoch.
        num_tokens: tokens of an epoch, padding not.
        steps_per_epoch: batches of an epoch, the same for every epoch.

    Raises:
        ValueError: if `max_length` is below 1, or a text is longer than a batch may be.

    Example:
        >>> from keras_transformer.tokenizers import train_sentencepiece
        >>> text = labelled(["a b", "b"], [("good",), ("bad",)])
        >>> batches = LabelledBatches(text, train_sentencepiece(text.texts, vocabulary_size=263))
        >>> ids, labels = next(iter(batches.epoch()))
        >>> tuple(ids.shape), sorted(labels.numpy().tolist())
        ((2, 4), [[0.0, 1.0], [1.0, 0.0]])
    """

    def __init__(
        self, text, tokenizer, tokens_per_batch=8192, max_length=512, seed=0, prepare=None
    ):
        check_max_length(max_length)
        ids = tokenize_all(text.texts, tokenizer, lambda ids: cut_middle(ids, max_length))
        place = {name: index for index, name in enumerate(text.names)}
        labels = np.zeros((len(text.texts), len(text.names)), np.float32)
        for row, of_row in enumerate(text.labels):
            labels[row, [place[name] for name in of_row]] = 1.0
        self._arrange(ids, labels, text.names, tokens_per_batch, seed, prepare)

    @property
    def several(self) -> bool:
        return bool((self._labels.sum(axis=1) != 1).any())

    def dataset(self, start_step: int = 0) -> tf.data.Dataset:
        """Training batches without end, from step `start_step` on.

        Returns:
            Elements of token ids, int32 (batch, length), padded with 0, and labels, float32
            (batch, labels), 1 for each label that a text has.
        """
        return batched(self._plan.epochs(start_step), self._batch)

    def epoch(self) -> tf.data.Dataset:
        """Each text once, those of similar lengths together: for validation."""
        return batched(self._plan.epochs().take(self.steps_per_epoch), self._batch)

    def save(self, path) -> None:
        """Writes the tokenised texts to a file of NumPy's format npz, whole or not at all."""
        ids, lengths = self._ids.flat_values.numpy(), self._ids.row_lengths().numpy()
        names = np.array(self.names)
        arrays = {"ids": ids, "lengths": lengths, "labels": self._labels, "names": names}
        save_arrays(path, arrays.items())

    @classmethod
    def load(cls, path, tokens_per_batch=8192, seed=0, prepare=None) -> "LabelledBatches":
        """The batches of texts that `save` has written, without tokenising them again."""
        batches = cls.__new__(cls)
        kept = load_arrays(path)
        ids, names = ragged(kept["ids"], kept["lengths"]), kept["names"].tolist()
        batches._arrange(ids, kept["labels"], names, tokens_per_batch, seed, prepare)
        return batches

    def checksum(self) -> int:
        """A number that differs as soon as any token, label or name of a label does."""
        total = zlib.crc32("\0".join(self.names).encode())
        total = zlib.crc32(self._ids.flat_values.numpy(), total)
        total = zlib.crc32(self._ids.row_splits.numpy(), total)
        return zlib.crc32(np.ascontiguousarray(self._labels), total)

    def _arrange(self, ids, labels, names, tokens_per_batch, seed, prepare):
        self._ids, self._labels, self._prepare = ids, labels, prepare
        self.names = list(names)
        lengths = ids.row_lengths().numpy()
        self.num_texts, self.num_tokens = len(lengths), int(lengths.sum())
        longest = int(lengths.max(initial=0))
        if longest > tokens_per_batch:
            raise ValueError(
                "tokens_per_batch must be at least max_length, so that any text fits into a "
                f"batch. Received: tokens_per_batch={tokens_per_batch}, a text of {longest} tokens."
            )
        # A text without tokens takes a column too.
        steps = np.maximum(1, -(-lengths // _LENGTH_STEP))
        rounded = np.minimum(steps * _LENGTH_STEP, tokens_per_batch)
        self._plan = LengthPlan(np.arange(len(lengths)), rounded, rounded, tokens_per_batch, seed)
        self.steps_per_epoch = self._plan.steps_per_epoch

    def _batch(self, rows):
        inputs = fill_up(tf.gather(self._ids, rows))
        if self._prepare is not None:
            inputs = self._prepare(inputs)
        return inputs, tf.gather(self._labels, rows)
