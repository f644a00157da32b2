"""Reads parallel text: a list of sentences and the list of their translations."""

import gzip
import pathlib
import zlib
from collections.abc import Iterator
from typing import NamedTuple


class ParallelText(NamedTuple):
    """Sentences and their translations: `targets[i]` translates `sources[i]`."""

    sources: list[str]
    targets: list[str]


def read_files(source_path, target_path) -> ParallelText:
    """Reads two files in which line i of one translates line i of the other.

    Lines end in "\\n" or "\\r\\n" and nothing else, so a sentence may hold any
    other Unicode separator. A name ending in `.gz` is read through gzip.

    Args:
        source_path: UTF-8 text, one sentence a line.
        target_path: UTF-8 text with as many lines.

    Returns:
        The sentences in the order of the files.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if the files differ in length, hold no text, or are not UTF-8.
    """
    sources, targets = list(_lines(source_path)), list(_lines(target_path))
    for path, lines in ((source_path, sources), (target_path, targets)):
        if not any(map(str.strip, lines)):
            raise ValueError(f"Expected one sentence a line. Received: {path}, which has no text.")
    if len(sources) != len(targets):
        raise ValueError(
            "Both files must have the same number of lines, so that line i of one translates "
            f"line i of the other. Received: {source_path} with {len(sources)} lines, "
            f"{target_path} with {len(targets)}."
        )
    return ParallelText(sources, targets)


def read_tsv(path) -> ParallelText:
    """Reads one file of two columns, source TAB target, with no header and no quoting.

    Args:
        path: UTF-8 text, through gzip if the name ends in `.gz`.

    Returns:
        The sentences in the order of the file.

    Raises:
        FileNotFoundError: if the file is missing.
        ValueError: if a line has not exactly two columns, or the file holds no
            text or is not UTF-8.
    """
    sources, targets = [], []
    for number, line in enumerate(_lines(path), start=1):
        columns = line.split("\t")
        if len(columns) != 2:
            raise ValueError(
                "Each line must have two columns: source, one tab, target. "
                f"Received: {path}, line {number} with {len(columns)}: {line[:80]!r}."
            )
        sources.append(columns[0])
        targets.append(columns[1])
    if not any(map(str.strip, sources)) or not any(map(str.strip, targets)):
        raise ValueError(
            f"Expected a source and a target a line. Received: {path}, which has no text."
        )
    return ParallelText(sources, targets)


def _lines(path) -> Iterator[str]:
    """The lines of a UTF-8 text file, plain or gzip, without their ends."""
    path = pathlib.Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"Expected a text file. Received: {path}, which does not exist.")
    number = 1
    try:
        # Binary files split at "\n" only; str.splitlines would cut at U+2028 as well.
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                encoding = "utf-8-sig" if number == 1 else "utf-8"  # a byte order mark
                yield line.decode(encoding).removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"The text must be UTF-8. Received: {path}, line {number}: {error.reason}."
        ) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(
            f"A name ending in .gz must be a whole gzip file. Received: {path}: {error}."
        ) from None
