"""Reads texts with labels, which are names or numbers."""

import math
import pathlib
from typing import NamedTuple

import numpy as np

from keras_transformer.arguments import read_texts
from keras_transformer.data.text_files import lines_of, split_lines


class LabelledText(NamedTuple):
    """Texts and their labels: `labels[i]` are the labels of `texts[i]`, all of them in `names`.

    A text may have several labels, or none; `names` is sorted. In a text for regression `names` is
    empty, and each text has one label, a number.
    """

    texts: list[str]
    labels: list[tuple[str | float, ...]]
    names: list[str]

    def matrix(self) -> np.ndarray:
        """The labels as float32 (texts, labels), 1 for each label that a text has.

        Labels that are numbers are (texts, 1).
        """
        if not self.names:
            return np.array(self.labels, np.float32)
        place = {name: index for index, name in enumerate(self.names)}
        matrix = np.zeros((len(self.texts), len(self.names)), np.float32)
        for row, names in enumerate(self.labels):
            matrix[row, [place[name] for name in names]] = 1.0
        return matrix


def labelled(texts, labels, names=None) -> LabelledText:
    """Checks texts and labels and lists the names of the labels.

    Args:
        texts: a list of strings.
        labels: for each text a tuple of names, or of one number.
        names: the allowed labels, e.g. those of the training text; None for those that occur;
            empty for labels that are numbers.

    Raises:
        ValueError: if there is no text, texts and labels are not as many, there are fewer than two
            labels, or a label is not among `names`, or not a finite number.

    Examples:
        >>> labelled(["a film to see twice", "dull"], [("4.5",), ("1",)], names=[]).labels
        [(4.5,), (1.0,)]
    """
    texts = list(read_texts(texts))
    if len(texts) != len(labels):
        raise ValueError(
            "Each text needs a tuple of its labels. "
            f"Received: {len(texts)} texts, labels of {len(labels)}."
        )
    if wrong := [row for row in labels if not isinstance(row, (tuple, list))]:
        raise ValueError(
            f'The labels of a text must be a tuple, such as ("pos",). Received: {wrong[0]!r:.80}.'
        )
    if are_numbers(names):
        if not texts:
            raise ValueError("Regression needs texts with numbers. Received: no text.")
        rows = enumerate(labels, start=1)
        numbers = [(number_of(row[0] if len(row) == 1 else row, f"text {i}"),) for i, row in rows]
        return LabelledText(texts, numbers, [])
    occurring = {name for row in labels for name in row}
    names = sorted(occurring) if names is None else list(names)
    if not texts or len(names) < 2:
        raise ValueError(
            "Classification needs texts with at least two different labels. "
            f"Received: {len(texts)} texts, labels {names}."
        )
    if unknown := occurring - set(names):
        raise ValueError(f"Labels must be among {names}. Received: {sorted(unknown)}.")
    return LabelledText(texts, list(labels), names)


def are_numbers(names) -> bool:
    """Whether the allowed labels are numbers instead of names."""
    return names is not None and not len(names)


def number_of(label, place) -> float:
    """A label as a number.

    Args:
        label: a text or a number.
        place: where it was read, in words, for the message.

    Raises:
        ValueError: if it is no number, or not finite in float32.
    """
    try:
        number = float(label) if "_" not in str(label) else math.nan  # Python reads 1_000
    except (TypeError, ValueError):
        number = math.nan
    if not abs(number) <= float(np.finfo(np.float32).max):
        raise ValueError(
            f"The label of each text must be one finite number, e.g. 2.5. Received: {label!r:.80}, "
            f"{place}."
        )
    return number


def labelled_files(path) -> list[pathlib.Path]:
    """The files of a folder of labels, in order; none if there are not two labels."""
    path = pathlib.Path(path)
    files = files_of_labels(path) if path.is_dir() else []
    return files if len({file.parent for file in files}) > 1 else []


def files_of_labels(path) -> list[pathlib.Path]:
    """The files of a folder of folders, each named by the label of its files, in order.

    The layout of the Large Movie Review Dataset, whose folder of unlabelled texts, `unsup`, is
    skipped. There are none if the inner folders hold further folders of files, as the folder above
    that data set's training and test texts does.

    Raises OSError if there is no such folder.
    """
    path = pathlib.Path(path)
    if not path.exists():
        raise FileNotFoundError(
            f"Expected a folder of labels. Received: {path}, which does not exist."
        )
    if not path.is_dir():
        raise NotADirectoryError(f"Expected a folder of labels. Received: {path}, which is a file.")
    if next(path.glob("*/*/**/*.txt"), None):
        return []
    return [file for file in sorted(path.glob("*/*.txt")) if file.parent.name != "unsup"]


def labelled_lines(path, names=None):
    """Yields the text and the labels of each line, text TAB label, of a file without a header.

    Several labels of a text are joined by commas, and spaces around a label do not count; a
    text without one has an empty column. With empty `names`, each label is one number, whose
    decimal sign is a point.
    """
    lines = split_lines(lines_of(path), path, ("text", "label"))
    for number, (text, joined) in enumerate(lines, start=1):
        if are_numbers(names):
            yield text, (number_of(joined, f"line {number} of {path}"),)
        else:
            yield text, tuple(dict.fromkeys(filter(None, map(str.strip, joined.split(",")))))


def hold_out(text: LabelledText, count: int, seed: int) -> tuple[LabelledText, LabelledText]:
    """Sets aside `count` examples drawn with the seed; returns the remaining and the drawn ones.

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
    """Draws `count` of `number` rows; returns the remaining and the drawn ones, both in order."""
    order = np.random.default_rng(seed).permutation(number)
    return np.sort(order[count:]), np.sort(order[:count])
