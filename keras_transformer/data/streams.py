"""Streams of text of any size: sentences and their translations, documents, or labelled texts.

`blocks` yields some rows at a time, `read` returns all of them. The rows are the same, but for
documents of more than a mebibyte, which `blocks` cuts. They come from files of text, tables, or
data sets of TensorFlow Datasets.
"""

import functools
import itertools
import math
import os
from collections.abc import Iterator
from typing import NamedTuple

from keras_transformer.data.datasets import (
    builder_of,
    labelled_rows_of_dataset,
    languages_of,
    pairs_of_dataset,
    texts_of_dataset,
)
from keras_transformer.data.documents import documents_in, split_documents
from keras_transformer.data.labelled_text import (
    LabelledText,
    files_of_labels,
    labelled,
    labelled_lines,
)
from keras_transformer.data.tables import is_table, labelled_rows, table_files, table_rows
from keras_transformer.data.text_files import (
    bytes_of_text,
    files_of,
    not_utf8,
    opened,
    split_lines,
    text_of,
    with_line_feeds,
)

ROWS, BYTES = 8192, 2**23  # after which a block ends
DOCUMENT_KINDS = "language_model", "documents", "pretraining"

_LINES_AT_A_TIME = 64
_BYTES_OF_DOCUMENT = 2**20  # after which `DocumentStream.blocks` cuts a document


class ParallelText(NamedTuple):
    """Sentences and their translations: `targets[i]` translates `sources[i]`."""

    sources: list[str]
    targets: list[str]


class _Stream:
    """The parts that all streams of text share."""

    def __init__(self, formats, dataset, split, data_dir):
        """Finds out which one of several formats, {name: value}, is used."""
        formats = {**formats, "dataset": dataset}
        used = {name: value for name, value in formats.items() if value}
        if len(used) != 1:
            received = ", ".join(f"{name}={value!r}" for name, value in used.items())
            raise ValueError(
                f"Give one kind of text: {', '.join(formats)}. Received: {received or 'none'}."
            )
        [(self._format, self._origin)] = used.items()
        self._builder, self._split, self.files = None, split, []
        if dataset:
            self._builder = builder_of(dataset, split, data_dir)

    def states(self) -> list:
        """Name, bytes and time of the last change of each file: other texts have others."""
        stats = [(str(path), os.stat(path)) for path in self.files]
        return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]

    @property
    def num_bytes(self) -> int:
        """About how many bytes of text there are."""
        if self._builder is not None:
            return self._builder.info.splits[self._split].num_bytes
        return sum(map(bytes_of_text, self.files))

    def __str__(self):
        if self._builder is not None:
            return f"split={self._split!r} of {self._builder.info.full_name}"
        several = self._origin if isinstance(self._origin, (tuple, list)) else [self._origin]
        return " and ".join(map(str, several))

    def check_held_out(self):
        """Raises ValueError if what is held out could not be read back."""

    def held_out_lines(self, rows):
        """The name of each file of what is held out, and its lines."""
        for name, texts in zip(self.held_out, zip(*rows, strict=True), strict=True):
            yield name, map(self.as_lines, texts)

    @staticmethod
    def as_lines(text) -> str:
        """The lines of a file for a text, which may hold line breaks."""
        return text.replace("\n", " ") + "\n"


class PairStream(_Stream):
    """Pairs of sentences of one or more files, or of a data set; reads them again each time.

    Args:
        sources: files of sentences, UTF-8 text, one a line; a path, a pattern such as
            `"train-*.en.gz"`, or several of them. Files of a pattern are read in the order of their
            names. Lines end in "\\n" or "\\r\\n" and nothing else, so a sentence may hold any other
            Unicode separator. A name ending in `.gz` or `.zst` is unpacked.
        targets: as many files of their translations: line i of one translates line i of the other.
        tsv: instead: files of two columns, source TAB target, without a header or quoting.
        table: instead: `.parquet` or `.arrow` files, folders of `.parquet` files, or the folder
            that `save_to_disk` of Hugging Face's `datasets` has written for one split.
        columns: names of the two columns of a table, None for "source" and "target"; a field of a
            column of structures is named with a dot, e.g. `translation.en`. Or the languages of a
            data set to translate from and to; None for the first two of its supervised keys or,
            if it has none, its only two languages.
        dataset: instead: a data set of TensorFlow Datasets, downloaded and prepared first if it is
            not on disk: a name such as `"ted_hrlr_translate/pt_to_en"`, or a builder whose data is
            ready, such as `tfds.folder_dataset.TranslateFolder(folder)`.
        split: `"train"`, `"validation"`, or any split of the data set that TFDS understands.
        data_dir: folder of prepared data sets; None for that of TFDS.

    Attributes:
        files: the files, a list of paths.
        kind: "translation".
        format: how they are read, a list of strings.

    Raises:
        ImportError: if a table needs pyarrow, or a data set TensorFlow Datasets, to be installed.
        OSError: if there is no such file.
        ValueError: if not exactly one kind of text is given, the sides have different numbers of
            files, or a name, the split or a language of a data set is unknown.
    """

    kind = "translation"
    columns = "source", "target"
    held_out = "held_out.source.txt", "held_out.target.txt"
    sample = 150_000

    def __init__(
        self,
        sources=None,
        targets=None,
        tsv=None,
        table=None,
        columns=None,
        dataset=None,
        split="train",
        data_dir=None,
    ):
        if bool(sources) != bool(targets):
            raise ValueError(
                "Give files of sources and of targets. "
                f"Received: sources={sources!r}, targets={targets!r}."
            )
        files = sources and (sources, targets)
        formats = {"sources and targets": files, "tsv": tsv, "table": table}
        super().__init__(formats, dataset, split, data_dir)
        self.format, self._names = ["files" if files else self._format], columns or self.columns
        if dataset:
            self._parts = [()]
            languages = [name or None for name in columns or (None, None)]
            self._names = languages_of(self._builder, *languages)
            self.format += [self._builder.info.full_name, split, *self._names]
        elif files:
            sides = files_of(sources), files_of(targets)
            if len(sides[0]) != len(sides[1]):
                raise ValueError(
                    "Each file of sources needs one of targets. "
                    f"Received: {len(sides[0])} and {len(sides[1])} files."
                )
            self._parts = list(zip(*sides, strict=True))
        else:
            self._parts = [(path,) for path in (files_of(tsv) if tsv else _files_of_tables(table))]
            self.format += self._names if table else ()
        self.files = list(itertools.chain.from_iterable(self._parts))

    def blocks(self) -> Iterator["Block"]:
        """Yields all pairs, some at a time.

        Raises:
            OSError: if a file cannot be read.
            ValueError: if two files differ in length, a line does not have two columns, a column is
                missing or holds null, or a file is not UTF-8, or damaged.
        """
        before = 0
        for part in self._parts:
            if self._builder is not None:
                size = self.num_bytes
                blocks = _blocks_of_rows(pairs_of_dataset(self._builder, self._split, *self._names))
            else:
                size = sum(map(bytes_of_text, part))
                if self._format == "table":
                    blocks = _blocks_of_rows(table_rows(*part, *self._names))
                else:
                    blocks = _blocks_of_lines(part, self.columns if self._format == "tsv" else ())
            yield from _placed(blocks, before, size)
            before += size

    def read(self) -> ParallelText:
        """All pairs in memory, in order.

        Raises:
            OSError: if a file cannot be read.
            ValueError: as `blocks`, and if a side has no text.
        """
        text = ParallelText([], [])
        for block in self.blocks():
            for side, texts in zip(text, block.columns(), strict=True):
                side += texts
        for name, texts in zip(self.columns, text, strict=True):
            if not any(map(str.strip, texts)):
                raise ValueError(
                    "Expected sentences and their translations. "
                    f"Received: {self}, whose {name}s have no text."
                )
        return text


class DocumentStream(_Stream):
    """Documents of one or more files, or of a data set; reads them again each time.

    Documents are separated by empty lines, which belong to the one before; lines end in "\\n",
    "\\r\\n" or "\\r". Each `.txt` file of a folder is one document, and so is each row of a table
    or of a data set, followed by a line feed.

    Args:
        text: files of text, or tables as for `PairStream`; a path, a pattern, or several of them;
            or a folder of `.txt` files, and of such folders, which are read in the order of their
            names. Of a folder of labels, as for `LabelledStream`, only the labelled texts are read,
            then those in `unsup`, but no other files.
        column: name of the column of a table.
        kind: what they are for: "language_model" for windows of the whole text, "documents" for
            packed ones, "pretraining" for documents of sentences.
        dataset: instead: a data set, as for `PairStream`, with one feature that is text.
        split: as for `PairStream`, and so is `data_dir`.

    Attributes:
        files: the files, a list of paths.
        kind: what was given.
        format: how they are read, a list of strings.

    Raises:
        ImportError: as `PairStream`.
        OSError: if there is no such file.
        ValueError: if `kind` is something else, not exactly one of text and data set is given, or
            the name or split of a data set is unknown.
    """

    columns = ("text",)
    held_out = ("held_out.txt",)
    sample = 20_000

    def __init__(
        self,
        text=None,
        column="text",
        kind="documents",
        dataset=None,
        split="train",
        data_dir=None,
    ):
        if kind not in DOCUMENT_KINDS:
            raise ValueError(f"kind must be one of {DOCUMENT_KINDS}. Received: {kind!r}.")
        super().__init__({"text": text}, dataset, split, data_dir)
        self.kind, self._column, self.format = kind, column, [column]
        if dataset:
            self.format = ["dataset", self._builder.info.full_name, split]
        self._are_one = []  # for each file whether it is one document
        paths = files_of(text or ())
        folders = [path for path in paths if path.is_dir() and not is_table(path)]
        for path in paths:
            files = documents_in(path) if path in folders else table_files(path)
            self.files += files
            self._are_one += [path in folders] * len(files)
        if not all(self._are_one):  # so that what was prepared of one kind alone stays valid
            self.format += map(str, folders)

    def blocks(self) -> Iterator["Block"]:
        """Yields all documents, some at a time; one of more than a mebibyte is cut after a line.

        Raises:
            OSError: if a file cannot be read.
            ValueError: if a file is not UTF-8, or damaged, or a column is missing or holds null.
        """
        rows = ((text,) for text in self._texts(_BYTES_OF_DOCUMENT))
        yield from _placed(_blocks_of_rows(rows), 0, self.num_bytes)

    def read(self) -> list[str]:
        """All documents in memory, in order.

        Raises:
            OSError: if a file cannot be read.
            ValueError: as `blocks`, and if there is no text.
        """
        return self._checked(list(self._texts()))

    def read_bytes(self) -> list[bytes]:
        """`read` for text that need not be UTF-8."""
        return self._checked([text for text, _, _ in self._documents()])

    def _checked(self, texts):
        if not any(texts):
            reason = "is empty" if self.files or self._builder else "has no .txt files"
            raise ValueError(f"Expected a text. Received: {self}, which {reason}.")
        return texts

    def _texts(self, longest=math.inf):
        return (_decoded(*each, universal=True) for each in self._documents(longest))

    def _documents(self, longest=math.inf):
        """Yields each document, bytes, with its file and the number of its first line."""
        if self._builder is not None:
            for text in texts_of_dataset(self._builder, self._split):
                yield text + b"\n", str(self), 1
        for path, is_one in zip(self.files, self._are_one, strict=True):
            if is_table(path):
                for number, (text,) in enumerate(table_rows(path, self._column), start=1):
                    yield f"{text}\n".encode(), path, number
            else:
                with opened(path) as file:
                    for text, first in split_documents(file, is_one, longest):
                        yield text, path, first

    @staticmethod
    def as_lines(text) -> str:
        """The lines of a file of documents for a document."""
        return text.rstrip("\r\n") + "\n\n"

    def held_out_lines(self, rows):
        if self.kind != "language_model":  # otherwise the file is read as one text
            rows = [(_without_empty_lines(text),) for (text,) in rows]
        return super().held_out_lines(rows)


class LabelledStream(_Stream):
    """Texts and their labels of one or more files, or of a data set; reads them again each time.

    Args:
        tsv: files of two columns, text TAB label, without a header; a path, a pattern, or several.
            Several labels of a text are joined by commas, and spaces around a label do not count;
            a text without one has an empty column.
        folder: instead: a folder of folders, each named by the label of the `.txt` files in it,
            which are read in the order of their names. This is the layout of the Large Movie Review
            Dataset, whose folder of unlabelled texts, `unsup`, is skipped. If the inner folders
            hold further folders of such files, as in the folder above that data set's training and
            test texts, no label is found.
        table: instead: tables, as for `PairStream`. A label is a text, or an integer; if the table
            names the integers, as the `ClassLabel` of Hugging Face's `datasets` does, these names
            are the labels. A list holds all labels of a text.
        columns: names of the columns of a table, of texts and of labels.
        names: the allowed labels, e.g. those of the training text; None for those that occur, for
            which `blocks` reads everything once more; empty for labels that are numbers.
        dataset: instead: a data set, as for `PairStream`, with a text and a class label.
        split: as for `PairStream`, and so is `data_dir`.

    Attributes:
        files: the files, a list of paths.
        kind: "classification".
        format: how they are read, a list of strings.
        names: the labels.

    Raises:
        ImportError: as `PairStream`.
        OSError: if there is no such file.
        ValueError: if not exactly one kind of text is given, or the name or split of a data set is
            unknown.
    """

    kind = "classification"
    columns = ("text",)
    held_out = ("held_out.tsv",)
    sample = 150_000

    def __init__(
        self,
        tsv=None,
        folder=None,
        table=None,
        columns=("text", "label"),
        names=None,
        dataset=None,
        split="train",
        data_dir=None,
    ):
        super().__init__({"tsv": tsv, "folder": folder, "table": table}, dataset, split, data_dir)
        self._columns, self._allowed = columns, names
        readers = {"tsv": files_of, "folder": files_of_labels, "table": _files_of_tables}
        if not dataset:
            self.files = readers[self._format](self._origin)

    @functools.cached_property
    def names(self):
        if self._allowed is not None:
            return self._allowed
        occurring, count = set(), 0
        for _, labels in self._rows():
            occurring.update(labels)
            count += 1
        if len(occurring) < 2:
            raise ValueError(
                "Classification needs texts with at least two different labels. "
                f"Received: {self} with {count:,} texts, labels {sorted(occurring)}."
            )
        return sorted(occurring)

    @property
    def format(self):
        how = {"table": self._columns}.get(self._format, ())
        if self._builder is not None:
            how = self._builder.info.full_name, self._split
        return [self._format, *how, "labels", *self.names]

    def blocks(self) -> Iterator["Block"]:
        """Yields all texts, some at a time.

        Raises:
            OSError: if a file cannot be read.
            ValueError: if there are fewer than two labels, a label is not among `names`, or not a
                finite number, a text of a data set has none, a line does not have two columns, a
                column is missing or holds null, or a file is not UTF-8, or damaged.
        """
        for block in _placed(_blocks_of_rows(self._rows()), 0, self.num_bytes):
            texts, labels = block.sides
            yield block._replace(sides=[texts], labels=labelled(texts, labels, self.names))

    def read(self) -> LabelledText:
        """All texts in memory, in order.

        Raises:
            OSError: if a file cannot be read.
            ValueError: as `blocks`, and if there is no text.
        """
        rows = list(self._rows())
        texts, labels = ([row[side] for row in rows] for side in range(2))
        return labelled(texts, labels, self._allowed)

    def _rows(self):
        if self._builder is not None:
            yield from labelled_rows_of_dataset(self._builder, self._split)
        for path in self.files:
            if self._format == "folder":
                yield text_of(path), (path.parent.name,)
            elif self._format == "tsv":
                yield from labelled_lines(path, self._allowed)
            else:
                yield from labelled_rows(path, *self._columns, self._allowed)

    def check_held_out(self):
        wrong = [name for name in self.names if name != name.strip() or set(name) & set(",\t\r\n")]
        if wrong or "" in self.names:
            raise ValueError(
                "Labels must not be empty or hold a comma, a tab, a line break or outer spaces if "
                "texts are held out: a file of columns separates several labels by commas. Rename "
                f"them. Received: {wrong[:5] or ['']}."
            )

    def held_out_lines(self, rows):
        yield self.held_out[0], [f"{_one_line(text)}\t{labels}\n" for text, labels in rows]


def _without_empty_lines(text):
    """A text that `split_documents` does not cut."""
    return "\n".join(filter(None, with_line_feeds(text).split("\n")))


def _one_line(text):
    """A text that a line of a table holds; other separators, such as U+2028, end no line there."""
    return with_line_feeds(text).replace("\t", " ").removesuffix("\n").replace("\n", " ")


class Block(NamedTuple):
    """Some rows as they were read; whatever process needs them splits and decodes them.

    Args:
        sides: for each column a list of texts, or for each file the bytes of some lines.
        num_rows: the number of rows.
        size: bytes, or characters, of the sides.
        paths: the files of lines.
        first: the number of the first of these lines, from 1 on.
        names: names of the columns that a line has, separated by tabs; none if it is one text.
        labels: the rows as `LabelledText`, if they have labels.
        position: about how many bytes of the whole text have been read so far.
    """

    sides: list
    num_rows: int
    size: int
    paths: tuple = ()
    first: int = 1
    names: tuple = ()
    labels: LabelledText | None = None
    position: int = 0

    def __str__(self):
        if self.paths:
            paths = ", ".join(map(str, self.paths))
            return f"{paths}, {self.num_rows:,} rows from line {self.first:,}"
        return f"{self.num_rows:,} rows that end near byte {self.position:,} of the text"

    def columns(self) -> list[list[str]]:
        """The texts of each column.

        Raises ValueError for a line that is not UTF-8 or has other columns than its file should.
        """
        if not self.paths:
            return self.sides
        columns = []
        for lines, path in zip(self.sides, self.paths, strict=True):
            texts = _decoded(lines, path, self.first).removesuffix("\n").split("\n")
            columns.append([text.removesuffix("\r") for text in texts])
        if not self.names:
            return columns
        rows = split_lines(columns[0], self.paths[0], self.names, self.first)
        return [list(column) for column in zip(*rows, strict=True)]


def _decoded(lines, path, first, universal=False):
    """The text of lines of a file, of which the number of the first one is given.

    Lines end in line feeds or, if `universal`, in any of the line ends of `with_line_feeds`.
    """
    try:
        # A byte order mark is no text; `split_documents` has left it out.
        return lines.decode("utf-8-sig" if first == 1 and not universal else "utf-8")
    except UnicodeDecodeError as error:
        before = lines[: error.start]
        number = len((before + b"?").splitlines()) - 1 if universal else before.count(b"\n")
        raise not_utf8(path, first + number, error) from None


def _blocks_of_lines(paths, names):
    first, num_rows, size, sides = 1, 0, 0, [[] for _ in paths]
    for parts in itertools.zip_longest(*map(_parts_of_file, paths), fillvalue=()):
        if len(set(map(len, parts))) > 1:
            # Read to their ends: one that is damaged is refused as such.
            counts = [sum(map(len, _parts_of_file(path))) for path in paths]
            raise ValueError(
                "Both files must have the same number of lines, so that line i of one translates "
                f"line i of the other. Received: {paths[0]} with {counts[0]:,} lines, {paths[1]} "
                f"with {counts[1]:,}."
            )
        num_rows += len(parts[0])
        for side, part in zip(sides, parts, strict=True):
            side.append(b"".join(part))
            size += len(side[-1])
        if num_rows >= ROWS or size >= BYTES:
            yield Block(list(map(b"".join, sides)), num_rows, size, paths, first, names)
            first, num_rows, size, sides = first + num_rows, 0, 0, [[] for _ in paths]
    if num_rows:
        yield Block(list(map(b"".join, sides)), num_rows, size, paths, first, names)


def _parts_of_file(path):
    """Lists of so many lines, bytes."""
    with opened(path) as file:
        while part := list(itertools.islice(file, _LINES_AT_A_TIME)):
            yield part


def _blocks_of_rows(rows):
    some, size = [], 0
    for row in rows:
        some.append(row)
        size += sum(map(len, row))
        if len(some) >= ROWS or size >= BYTES:
            yield Block([list(column) for column in zip(*some, strict=True)], len(some), size)
            some, size = [], 0
    if some:
        yield Block([list(column) for column in zip(*some, strict=True)], len(some), size)


def _placed(blocks, before, size):
    """The blocks with their positions, of a text that begins after so many bytes of others."""
    position = 0
    for block in blocks:
        position += block.size
        yield block._replace(position=before + min(position, size))


def _files_of_tables(paths):
    """The files of tables, of which some may be folders."""
    return [file for path in files_of(paths) for file in table_files(path)]
