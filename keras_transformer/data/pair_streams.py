"""Streams of sentences and their translations, from files of any size."""

import glob
import itertools
import os
import pathlib
from collections.abc import Iterator

from keras_transformer.data.corpora import bytes_of_text, columns_in_lines, lines_of
from keras_transformer.data.tables import table_columns, table_files

ROWS, CHARACTERS = 8192, 2**23  # of a block, at most; one pair may be longer


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

    def blocks(self) -> Iterator[tuple[list[str], list[str], int]]:
        """Yields sources, targets, and about how many bytes of `num_bytes` have been read so far.

        Raises:
            OSError: if a file cannot be read.
            ValueError: if two files differ in length, a line does not have two columns, or a file
                is not UTF-8 or damaged.
        """
        before = 0
        for part in self._parts:
            size = sum(map(bytes_of_text, part))
            position = 0
            for block in _in_blocks(self._pairs(part)):
                sources, targets = zip(*block, strict=True)
                position += sum(map(len, sources)) + sum(map(len, targets))
                yield list(sources), list(targets), before + min(position, size)
            before += size

    def _pairs(self, part):
        if self._is_table:
            for columns in table_columns(part[0], *self._columns):
                yield from zip(*columns, strict=True)
        elif self._is_tsv:
            yield from columns_in_lines(part[0], "source", "target")
        else:
            end = object()
            lines = itertools.zip_longest(*map(lines_of, part), fillvalue=end)
            for number, (source, target) in enumerate(lines, start=1):
                if source is end or target is end:
                    shorter, longer = part if source is end else reversed(part)
                    raise ValueError(
                        "Both files must have the same number of lines, so that line i of one "
                        f"translates line i of the other. Received: {shorter}, which ends before "
                        f"line {number:,}, where {longer} goes on."
                    )
                yield source, target


def _in_blocks(pairs):
    block, size = [], 0
    for source, target in pairs:
        block.append((source, target))
        size += len(source) + len(target)
        if len(block) == ROWS or size >= CHARACTERS:
            yield block
            block, size = [], 0
    if block:
        yield block


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
