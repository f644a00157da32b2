"""Opens files of text, plain or packed, and splits them into lines and columns."""

import contextlib
import glob
import gzip
import io
import os
import pathlib
import zlib
from collections.abc import Iterator


def split_lines(lines, path, names, first=1) -> Iterator[list[str]]:
    """Yields the two columns of each line, separated by one tab; ValueError for any other line.

    `first` is the number of the first line in its file.
    """
    for number, line in enumerate(lines, start=first):
        columns = line.split("\t")
        if len(columns) != 2:
            raise ValueError(
                f"Each line must have two columns: {names[0]}, one tab, {names[1]}. "
                f"Received: {path}, line {number} with {len(columns)}: {line[:80]!r}."
            )
        yield columns


def lines_of(path) -> Iterator[str]:
    """The lines of a UTF-8 text file, plain or packed, without their ends."""
    number = 1
    try:
        # Binary files split only at "\n"; str.splitlines would also split at U+2028.
        with opened(path) as file:
            for number, line in enumerate(file, start=1):
                encoding = "utf-8-sig" if number == 1 else "utf-8"  # a byte order mark
                yield line.decode(encoding).removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise not_utf8(path, number, error) from None


def with_line_feeds(text: str) -> str:
    """A text whose lines may end in "\\n", "\\r\\n" or "\\r", with "\\n" for each of them."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def not_utf8(path, line, error):
    """The ValueError for a line of a file, of which the number is given."""
    return ValueError(f"The text must be UTF-8. Received: {path}, line {line}: {error.reason}.")


class _ZstFile(io.RawIOBase):
    """A Zstandard file unpacked; EOFError if its end is missing, which zstandard ignores."""

    def __init__(self, path, mode="rb"):
        try:
            import zstandard
        except ImportError:
            raise ImportError(
                f"Reading {path} needs the package zstandard: pip install zstandard."
            ) from None
        self._unpacker, self._error = zstandard.ZstdDecompressor(), zstandard.ZstdError
        self._file, self._frame, self._packed, self._ready = open(path, mode), None, b"", b""  # noqa: SIM115

    def readable(self):
        return True

    def readinto(self, buffer):
        while not self._ready:
            packed = self._packed or self._file.read(2**17)
            if not packed:
                if self._frame is not None:
                    raise EOFError("its end is missing")
                return 0
            self._frame = self._frame or self._unpacker.decompressobj()
            try:
                self._ready = self._frame.decompress(packed)
            except self._error as error:
                raise EOFError(str(error)) from None
            self._packed = self._frame.unused_data
            if self._frame.eof:
                self._frame = None
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def close(self):
        self._file.close()
        super().close()


def _opened_zst(path, mode):
    return io.BufferedReader(_ZstFile(path, mode))


_PACKED, _BYTES_OF_PACKED = (".gz", ".zst", ".parquet"), 4
_NAMES = {".gz": "gzip", ".zst": "Zstandard"}
_OPENERS = {".gz": gzip.open, ".zst": _opened_zst}


def bytes_of_text(path) -> int:
    """About how many bytes a file of text holds, unpacked."""
    size = os.path.getsize(path)
    return size * _BYTES_OF_PACKED if pathlib.Path(path).suffix in _PACKED else size


@contextlib.contextmanager
def opened(path):
    """The file of a path, unpacked if its name ends in `.gz` or `.zst`, to be read as bytes.

    Raises OSError with the path if it cannot be read, ValueError for an incomplete packed file,
    ImportError for `.zst` without the package zstandard.
    """
    path = pathlib.Path(path)
    try:
        with _OPENERS.get(path.suffix, open)(path, "rb") as file:
            yield file
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(
            f"A file ending in {path.suffix} must be a complete {_NAMES[path.suffix]} file. "
            f"Received: {path}: {error}."
        ) from None
    except OSError as error:
        reasons = {
            FileNotFoundError: ", which does not exist",
            IsADirectoryError: ", which is a directory",
        }
        reason = reasons.get(type(error), f": {error.strerror or error}")
        raise type(error)(
            f"Expected a text file that can be read. Received: {path}{reason}."
        ) from None


def text_of(path) -> str:
    """The text of a whole file, with line feeds as line endings and without a byte order mark.

    Raises:
        OSError: if it is a directory or cannot be read.
        ValueError: if it is not UTF-8.
    """
    try:
        with opened(path) as file:
            return with_line_feeds(file.read().decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(f"A text must be UTF-8. Received: {path}: {error.reason}.") from None


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
