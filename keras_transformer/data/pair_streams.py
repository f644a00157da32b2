"""Streams of sentences and their translations, from files of any size."""

import glob
import itertools
import os
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

from keras_transformer.data.corpora import bytes_of_text, not_utf8, opened, split_lines
from keras_transformer.data.tables import table_columns, table_files

ROWS, BYTES = 8192, 2**23  # after which a block ends
_LINES_AT_A_TIME = 64


class PairStream:
    """Pairs of one or more files, in blocks; reads them again each time.

    Args:
        sources: files of sentences, one a line; a path, a pattern such as `"train-*.en.gz"`, or
            several of them. Files of a pattern are read in the order of their names.
        targets: as many files of their translations.
        tsv: instead: files of two columns, source TAB target.
        table: instead: Parquet or Arrow files, as for `read_table`.
        columns: names of the two columns of a table.

    Attributes:
        files: the files, a list of paths.
        kind: how they are read, a list of strings.

    Raises:
        OSError: if there is no such file.
        ValueError: if not exactly one kind of files is given, or the sides have different numbers
            of files.
    """

    def __init__(
        self, sources=None, targets=None, tsv=None, table=None, columns=("source", "target")
    ):
        given = [bool(sources or targets), tsv is not None, table is not None]
        if sum(given) != 1 or bool(sources) != bool(targets):
            raise ValueError(
                "Give one kind of text: files of sources and of targets, or tsv, or table. "
                f"Received: sources={sources!r}, targets={targets!r}, tsv={tsv!r}, table={table!r}."
            )
        self._columns, self._is_table, self._is_tsv = columns, table is not None, tsv is not None
        self.kind = ["table", *columns] if self._is_table else ["tsv" if self._is_tsv else "files"]
        if sources:
            sides = files_of(sources), files_of(targets)
            if len(sides[0]) != len(sides[1]):
                raise ValueError(
                    "Each file of sources needs one of targets. "
                    f"Received: {len(sides[0])} and {len(sides[1])} files."
                )
            self._parts = list(zip(*sides, strict=True))
        else:
            found = files_of(tsv) if self._is_tsv else files_of_tables(table)
            self._parts = [(path,) for path in found]
        self.files = list(itertools.chain.from_iterable(self._parts))

    def states(self) -> list:
        """Name, bytes and time of the last change of each file: other texts have others."""
        stats = [(str(path), os.stat(path)) for path in self.files]
        return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]

    @property
    def num_bytes(self) -> int:
        """About how many bytes of text all files hold."""
        return sum(map(bytes_of_text, self.files))

    def blocks(self) -> Iterator["Block"]:
        """Yields all pairs, some at a time.

        Raises:
            OSError: if a file cannot be read.
            ValueError: if two files differ in length, or one is damaged.
        """
        before = 0
        for part in self._parts:
            size, position = sum(map(bytes_of_text, part)), 0
            if self._is_table:
                tables = table_columns(part[0], *self._columns)
                rows = itertools.chain.from_iterable(zip(*each, strict=True) for each in tables)
                blocks = _blocks_of_rows(rows)
            else:
                blocks = _blocks_of_lines(part, ("source", "target") if self._is_tsv else ())
            for block in blocks:
                position += block.size
                yield block._replace(position=before + min(position, size))
            before += size


class Block(NamedTuple):
    """Some rows as they were read; whatever process needs them splits and decodes them.

    Args:
        sides: for each column a list of texts, or for each file the bytes of some lines.
        num_rows: the number of rows.
        size: bytes, or characters, of the sides.
        paths: the files of lines.
        first: the number of the first of these lines, from 1 on.
        names: names of the columns that a line has, separated by tabs; none if it is one text.
        position: about how many bytes of the whole text have been read so far.
    """

    sides: list
    num_rows: int
    size: int
    paths: tuple = ()
    first: int = 1
    names: tuple = ()
    position: int = 0

    def columns(self) -> list[list[str]]:
        """The texts of each column.

        Raises ValueError for a line that is not UTF-8 or has other columns than its file should.
        """
        if not self.paths:
            return self.sides
        columns = [
            _decoded(lines, path, self.first)
            for lines, path in zip(self.sides, self.paths, strict=True)
        ]
        if not self.names:
            return columns
        rows = split_lines(columns[0], self.paths[0], self.names, self.first)
        return [list(column) for column in zip(*rows, strict=True)]


def _decoded(lines, path, first):
    """The texts of lines, a list; those of `lines_of`."""
    try:
        text = lines.decode("utf-8-sig" if first == 1 else "utf-8")  # a byte order mark
    except UnicodeDecodeError as error:
        number = first + lines.count(b"\n", 0, error.start)
        raise not_utf8(path, number, error) from None
    texts = text.removesuffix("\n").split("\n")
    return [each.removesuffix("\r") for each in texts] if "\r" in text else texts


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
