"""Reads text: sentences with their translations, texts with their labels, or one long text."""

import contextlib
import gzip
import io
import os
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
    other Unicode separator. A name ending in `.gz` or `.zst` is unpacked.

    Args:
        source_path: UTF-8 text, one sentence a line.
        target_path: UTF-8 text with as many lines.

    Returns:
        The sentences in the order of the files.

    Raises:
        OSError: if a file is missing, a directory, or cannot be read.
        ValueError: if the files differ in length, hold no text, or are not UTF-8.
    """
    sources, targets = list(lines_of(source_path)), list(lines_of(target_path))
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
        path: UTF-8 text, packed if the name ends in `.gz` or `.zst`.

    Returns:
        The sentences in the order of the file.

    Raises:
        OSError: if the file is missing, a directory, or cannot be read.
        ValueError: if a line does not have exactly two columns, or the file holds no
            text or is not UTF-8.
    """
    return checked_pairs(*columns_of(path, "source", "target"), path)


def checked_pairs(sources, targets, path) -> ParallelText:
    """The parallel text of a file; raises ValueError if a side has no text."""
    if not any(map(str.strip, sources)) or not any(map(str.strip, targets)):
        raise ValueError(f"Expected a source and a target. Received: {path}, which has no text.")
    return ParallelText(sources, targets)


def read_dataset(
    name, split: str, source: str | None = None, target: str | None = None, data_dir=None
) -> ParallelText:
    """Reads a translation data set of TensorFlow Datasets, which must be installed.

    A data set that is not on disk yet is downloaded and prepared first.

    Args:
        name: a name such as `"ted_hrlr_translate/pt_to_en"`, or a builder whose
            data is ready, such as `tfds.folder_dataset.TranslateFolder(folder)`.
        split: `"train"`, `"validation"`, or any split TFDS understands.
        source: language to translate from. None takes the first of the data set's
            supervised keys or, if it has none, of its two languages; of two languages, the
            one that is not `target`.
        target: language to translate to. None takes the other one.
        data_dir: folder of prepared data sets; None for that of TFDS.

    Returns:
        The sentences in the order of the data set.

    Raises:
        ImportError: if TensorFlow Datasets is not installed.
        ValueError: if the name, split or a language is unknown, if the data set does not
            distinguish source and target, or if the split is empty.
    """
    builder = builder_of(name, split, data_dir)
    pairs = list(pairs_of_dataset(builder, split, *languages_of(builder, source, target)))
    if not pairs:
        raise ValueError(f"The split {split!r} of {builder.info.full_name} is empty.")
    return ParallelText(*map(list, zip(*pairs, strict=True)))


def pairs_of_dataset(builder, split, source, target) -> Iterator[tuple[str, str]]:
    """Yields the texts of two features of a data set of TensorFlow Datasets."""
    for batch in builder.as_dataset(split=split).batch(1024).as_numpy_iterator():
        for pair in zip(batch[source], batch[target], strict=True):
            yield tuple(sentence.decode() for sentence in pair)


def read_file(path) -> bytes:
    """Reads one long text unchanged, through gzip if the name ends in `.gz`.

    Raises:
        OSError: if the file is missing, a directory, or cannot be read.
        ValueError: if it is empty, or named `.gz` and not a complete gzip file.
    """
    with opened(path) as file:
        text = file.read()
    return checked_text(text, path)


def checked_text(text: bytes, path) -> bytes:
    """The text of a file; raises ValueError if it is empty."""
    if not text:
        raise ValueError(f"Expected a text. Received: {path}, which is empty.")
    return text


def read_text_dataset(name, split: str, data_dir=None, separator=b"\n") -> bytes:
    """Reads the texts of a data set of TensorFlow Datasets as one, joined by `separator`.

    Raises:
        ImportError: if TensorFlow Datasets is not installed.
        ValueError: if the name or split is unknown, or the data set does not have exactly one
            text feature.
    """
    builder = builder_of(name, split, data_dir)
    texts = text_features(builder)
    if len(texts) != 1:
        raise ValueError(
            f"{builder.info.full_name} must have one feature that is text. Received: {texts}."
        )
    return separator.join(
        example[texts[0]] for example in builder.as_dataset(split=split).as_numpy_iterator()
    )


def builder_of(name, split: str, data_dir=None):
    """The prepared builder of a data set of TensorFlow Datasets; a builder is returned as it is.

    Raises ImportError if TensorFlow Datasets is not installed, ValueError for an unknown name or
    split.
    """
    builder = _prepared_builder(name, data_dir) if isinstance(name, str) else name
    if split.partition("[")[0] not in builder.info.splits:
        raise ValueError(
            f"Expected one of the splits {sorted(builder.info.splits)}. "
            f"Received: split={split!r} of {builder.info.full_name}."
        )
    return builder


def _prepared_builder(name, data_dir):
    try:
        import tensorflow_datasets as tfds
    except ImportError as error:
        raise ImportError(
            "Reading a data set by name needs TensorFlow Datasets: pip install tensorflow-datasets."
        ) from error
    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError:  # its message lists hundreds of names
        raise ValueError(
            "Expected the name of a data set of TensorFlow Datasets, e.g. "
            f"ted_hrlr_translate/pt_to_en. Received: {name!r}."
        ) from None
    builder.download_and_prepare()
    return builder


def text_features(builder) -> list[str]:
    """The names of the features of a data set that are text."""
    return [name for name, feature in builder.info.features.items() if feature.dtype == "string"]


def languages_of(builder, source: str | None, target: str | None) -> tuple[str, str]:
    """The features to read, of those that hold text."""
    texts = text_features(builder)
    keys = builder.info.supervised_keys or (texts if len(texts) == 2 else None)
    if keys is None and None in (source, target):
        raise ValueError(
            f"{builder.info.full_name} does not say which language is the source. "
            f"Choose source and target among {texts}. Received: {source!r} and {target!r}."
        )
    if len(texts) == 2 and (source in texts) != (target in texts):  # the other one is clear
        other = {texts[0]: texts[1], texts[1]: texts[0]}
        pair = source or other[target], target or other[source]
    else:
        pair = source or keys[0], target or keys[1]
    if pair[0] == pair[1] or not set(pair) <= set(texts):
        raise ValueError(
            f"Source and target must be two of {texts}, the languages of "
            f"{builder.info.full_name}. Received: {pair[0]!r} and {pair[1]!r}."
        )
    return pair


def columns_of(path, *names) -> tuple[list[str], list[str]]:
    """The two columns of a text file, separated by one tab; ValueError for any other line."""
    rows = list(split_lines(lines_of(path), path, names))
    return [row[0] for row in rows], [row[1] for row in rows]


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
