"""Streams of text from files of any size: sentences and their translations, or documents."""

import codecs
import glob
import io
import itertools
import os
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

from keras_transformer.data.corpora import (
    builder_of,
    bytes_of_text,
    languages_of,
    not_utf8,
    opened,
    pairs_of_dataset,
    split_lines,
    with_line_feeds,
)
from keras_transformer.data.documents import documents_in
from keras_transformer.data.labelled_text import (
    LabelledText,
    labelled,
    labelled_files,
    labelled_lines,
    text_of,
)
from keras_transformer.data.tables import is_table, labelled_rows, table_columns, table_files

ROWS, BYTES = 8192, 2**23  # after which a block ends
DOCUMENT_KINDS = "language_model", "documents", "pretraining"

_LINES_AT_A_TIME = 64
_BYTES_OF_DOCUMENT = 2**20  # after which a document is cut


class _Stream:
    """What streams of text have in common."""

    files = ()

    def states(self) -> list:
        """Name, bytes and time of the last change of each file: other texts have others."""
        stats = [(str(path), os.stat(path)) for path in self.files]
        return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]

    @property
    def num_bytes(self) -> int:
        """About how many bytes of text there are."""
        return sum(map(bytes_of_text, self.files))

    def check_held_out(self):
        """Raises ValueError if what is held out could not be read back."""

    def held_out_lines(self, rows):
        """The name of each file of what is held out, and its lines."""
        for name, texts in zip(self.held_out, zip(*rows, strict=True), strict=True):
            yield name, map(self.as_lines, texts)

    @staticmethod
    def as_lines(text) -> str:
        """What is written of a text to a file; it may hold line breaks."""
        return text.replace("\n", " ") + "\n"


class PairStream(_Stream):
    """Pairs of one or more files, in blocks; reads them again each time.

    Args:
        sources: files of sentences, one a line; a path, a pattern such as `"train-*.en.gz"`, or
            several of them. Files of a pattern are read in the order of their names.
        targets: as many files of their translations.
        tsv: instead: files of two columns, source TAB target.
        table: instead: Parquet or Arrow files, as for `read_table`.
        columns: names of the two columns of a table, None for "source" and "target"; or of the
            languages of a data set, None for those that it says.
        dataset: instead: data set of TensorFlow Datasets, as for `read_dataset`.
        split: split of the data set.

    Attributes:
        files: the files, a list of paths.
        kind: "translation".
        format: how they are read, a list of strings.

    Raises:
        OSError: if there is no such file.
        ValueError: if not exactly one kind of files is given, or the sides have different numbers
            of files.
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
    ):
        given = {"files": sources or targets, "tsv": tsv, "table": table, "dataset": dataset}
        given = {name: value for name, value in given.items() if value}
        if len(given) != 1 or bool(sources) != bool(targets):
            raise ValueError(
                "Give one kind of text: files of sources and of targets, or tsv, table or dataset. "
                f"Received: sources={sources!r}, targets={targets!r}, tsv={tsv!r}, "
                f"table={table!r}, dataset={dataset!r}."
            )
        [(name, value)] = given.items()
        self.format, self._names, self._builder = [name], columns or self.columns, None
        if sources:
            sides = files_of(sources), files_of(targets)
            if len(sides[0]) != len(sides[1]):
                raise ValueError(
                    "Each file of sources needs one of targets. "
                    f"Received: {len(sides[0])} and {len(sides[1])} files."
                )
            self._parts = list(zip(*sides, strict=True))
        elif dataset:
            self._builder, self._parts = builder_of(dataset, split), []
            self._names = languages_of(self._builder, *columns or (None, None))
            self.format += [self._builder.info.full_name, split, *self._names]
        else:
            found = files_of_tables(value) if table else files_of(value)
            self._parts = [(path,) for path in found]
            self.format += self._names if table else ()
        self.files = list(itertools.chain.from_iterable(self._parts))

    @property
    def num_bytes(self) -> int:
        """About how many bytes of text there are."""
        if self._builder is not None:
            return self._builder.info.splits[self.format[2]].num_bytes
        return super().num_bytes

    def blocks(self) -> Iterator["Block"]:
        """Yields all pairs, some at a time.

        Raises:
            OSError: if a file cannot be read.
            ValueError: if two files differ in length, or one is damaged.
        """
        if self._builder is not None:
            rows = pairs_of_dataset(self._builder, self.format[2], *self._names)
            yield from _placed(_blocks_of_rows(rows), 0, self.num_bytes)
        before = 0
        for part in self._parts:
            if self.format[0] == "table":
                tables = table_columns(part[0], *self._names)
                rows = itertools.chain.from_iterable(zip(*each, strict=True) for each in tables)
                blocks = _blocks_of_rows(rows)
            else:
                blocks = _blocks_of_lines(part, self.columns if self.format == ["tsv"] else ())
            size = sum(map(bytes_of_text, part))
            yield from _placed(blocks, before, size)
            before += size


class DocumentStream(_Stream):
    """Documents of one or more files, in blocks; reads them again each time.

    Documents are separated by empty lines, which belong to the one before; lines end in "\\n",
    "\\r\\n" or "\\r". One of more than a mebibyte is cut at the end of a line. For pretraining each
    `.txt` file of a folder is one.

    Args:
        text: files of text, or tables as for `read_text`; a path, a pattern, or several of them; or
            a folder of `.txt` files, and of such folders.
        column: name of the column of a table, of which each row is a document.
        kind: what they are for: "language_model" for windows of the whole text, "documents" for
            packed ones, "pretraining" for documents of sentences.

    Attributes:
        files: the files, a list of paths.
        kind: what was given.
        format: how they are read, a list of strings.

    Raises:
        OSError: if there is no such file.
        ValueError: if `kind` is something else.
    """

    columns = ("text",)
    held_out = ("held_out.txt",)
    sample = 20_000

    def __init__(self, text, column="text", kind="documents"):
        if kind not in DOCUMENT_KINDS:
            raise ValueError(f"kind must be one of {DOCUMENT_KINDS}. Received: {kind!r}.")
        self.kind, self.format, self.files = kind, [column], []
        self._are_whole = []  # for each file whether it is one document
        paths = files_of(text)
        folders = [path for path in paths if path.is_dir() and not is_table(path)]
        for path in paths:
            files = documents_in(path) if path in folders else table_files(path)
            self.files += files
            self._are_whole += [path in folders] * len(files)
        if not all(self._are_whole):  # so that what was prepared of one kind alone stays valid
            self.format += map(str, folders)

    def blocks(self) -> Iterator["Block"]:
        """Yields all documents, some at a time.

        Raises:
            OSError: if a file cannot be read.
            ValueError: if a file is not UTF-8, or damaged.
        """
        files = zip(self.files, self._are_whole, strict=True)
        rows = ((text,) for file in files for text in self._documents(*file))
        yield from _placed(_blocks_of_rows(rows), 0, self.num_bytes)

    def _documents(self, path, is_whole):
        if is_table(path):
            for [texts] in table_columns(path, self.format[0]):
                yield from (text + "\n" for text in texts)
        else:
            yield from _documents_of_file(path, is_whole)

    @staticmethod
    def as_lines(text) -> str:
        """What is written of a document to a file of documents."""
        return text.rstrip("\r\n") + "\n\n"

    def held_out_lines(self, rows):
        if self.kind != "language_model":  # otherwise the file is read as one text
            rows = [(_without_empty_lines(text),) for (text,) in rows]
        return super().held_out_lines(rows)


class LabelledStream(_Stream):
    """Texts and their labels of one or more files, in blocks; reads them again each time.

    Args:
        tsv: files of two columns, as for `read_labelled_tsv`; a path, a pattern, or several.
        folder: instead: a folder, as for `read_labelled_folder`.
        table: instead: tables, as for `read_labelled_table`.
        columns: names of the columns of a table, of texts and of labels.
        names: the allowed labels; None for those that occur, for which all is read once more;
            empty for labels that are numbers.

    Attributes:
        files: the files, a list of paths.
        kind: "classification".
        format: how they are read, a list of strings.
        names: the labels.

    Raises:
        OSError: if there is no such file.
        ValueError: if not exactly one kind of files is given, or as `labelled`.
    """

    kind = "classification"
    columns = ("text",)
    held_out = ("held_out.tsv",)
    sample = 150_000

    def __init__(self, tsv=None, folder=None, table=None, columns=("text", "label"), names=None):
        given = {"tsv": tsv, "folder": folder, "table": table}
        given = {name: value for name, value in given.items() if value}
        if len(given) != 1:
            raise ValueError(
                "Give one kind of text: tsv, folder or table. "
                f"Received: tsv={tsv!r}, folder={folder!r}, table={table!r}."
            )
        [(name, value)] = given.items()
        readers = {"tsv": files_of, "folder": labelled_files, "table": files_of_tables}
        self.files, self._columns = readers[name](value), columns
        self.format = [name, *(columns if table else ())]
        self.names = names
        if names is None:
            occurring, count = set(), 0
            for _, labels in self._rows():
                occurring.update(labels)
                count += 1
            if len(occurring) < 2:
                raise ValueError(
                    "Classification needs texts with at least two different labels. "
                    f"Received: {value} with {count:,} texts, labels {sorted(occurring)}."
                )
            self.names = sorted(occurring)
        self.format += ["labels", *self.names]

    def blocks(self) -> Iterator["Block"]:
        """Yields all texts, some at a time.

        Raises:
            OSError: if a file cannot be read.
            ValueError: if a file is damaged, or a label is not allowed.
        """
        for block in _placed(_blocks_of_rows(self._rows()), 0, self.num_bytes):
            texts, labels = block.sides
            yield block._replace(sides=[texts], labels=labelled(texts, labels, self.names))

    def _rows(self):
        for path in self.files:
            if self.format[0] == "folder":
                yield text_of(path), (path.parent.name,)
            elif self.format[0] == "tsv":
                yield from labelled_lines(path, self.names)
            else:
                yield from labelled_rows(path, *self._columns, self.names)

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
    """A text that `read_documents` does not cut."""
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
        return lines.decode("utf-8-sig" if first == 1 else "utf-8")  # a byte order mark
    except UnicodeDecodeError as error:
        before = lines[: error.start]
        number = len((before + b"?").splitlines()) - 1 if universal else before.count(b"\n")
        raise not_utf8(path, first + number, error) from None


def _blocks_of_lines(paths, names):
    first, num_rows, size, sides = 1, 0, 0, [[] for _ in paths]
    for parts in itertools.zip_longest(*map(_parts_of_file, paths), fillvalue=()):
        counts = list(map(len, parts))
        if len(set(counts)) > 1:
            shorter, longer = paths if counts[0] < counts[1] else reversed(paths)
            raise ValueError(
                "Both files must have the same number of lines, so that line i of one "
                f"translates line i of the other. Received: {shorter}, which ends before "
                f"line {first + num_rows + min(counts):,}, where {longer} goes on."
            )
        num_rows += counts[0]
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


def _documents_of_file(path, is_whole):
    """The texts of a file between empty lines, each with those after it; or the whole file."""
    lines, size, is_end, number = [], 0, False, 0
    ends = b"\n", b"\r\n", b"\r"
    marked_ends = [codecs.BOM_UTF8 + end for end in ends]
    with opened(path) as file:
        # Latin-1 has a character for each byte, and `newline=""` keeps the line ends as they are.
        read = io.TextIOWrapper(file, "latin-1", newline="")
        for line in itertools.chain((line.encode("latin-1") for line in read), [None]):
            is_empty = line in ends or (number == 0 and line in marked_ends)
            is_next = is_end and not is_empty and not is_whole
            if lines and (line is None or is_next or size >= _BYTES_OF_DOCUMENT):
                yield _decoded(b"".join(lines), path, number - len(lines) + 1, universal=True)
                lines, size = [], 0
            is_end, number = is_empty, number + 1
            if line is not None:
                lines.append(line)
                size += len(line)


def _placed(blocks, before, size):
    """The blocks with their positions, of a text that begins after so many bytes of others."""
    position = 0
    for block in blocks:
        position += block.size
        yield block._replace(position=before + min(position, size))


def files_of_tables(paths) -> list[pathlib.Path]:
    """The files of tables, of which some may be folders."""
    return [file for path in files_of(paths) for file in table_files(path)]


def files_of(paths) -> list[pathlib.Path]:
    """The files of a path, a pattern, or several of them; OSError for one that is missing."""
    several = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    found = []
    for path in several:
        matches = [path] if os.path.exists(path) else sorted(glob.glob(str(path), recursive=True))
        if not matches:
            raise FileNotFoundError(
                f"Expected a file, or a pattern of files. Received: {path}, which does not exist."
            )
        found += map(pathlib.Path, matches)
    return found
