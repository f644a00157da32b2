"""Files that are whole or not there, and that tell when they are damaged.

Whatever is written is a draft beside its place until all of it is on the disk; then it is
renamed. A reader sees what was there before or what is there now, never half of it, whether the
process was killed, the power failed or the disk was full.
"""

import contextlib
import io
import os
import pathlib
import re
import shutil
import zipfile

import numpy as np

_LAST_RECORD = 22  # bytes of the last record of a zip file, which tells how many entries there are


class DamagedFile(ValueError):
    """A file does not hold what was written to it."""


class NotWritten(OSError):
    """A file or folder could not be written, and is as it was before."""

    def __init__(self, path, reason):
        super().__init__(f"{path} could not be written: {reason}.")
        self.reason = reason


@contextlib.contextmanager
def whole(path):
    """Yields the place to write a new file or folder to; it becomes `path` at the end.

    Args:
        path: of the file or folder; folders above it are made. A file that is there is replaced,
            a folder only if it is empty.

    Raises:
        NotWritten: with the path and the reason, e.g. that the disk is full.
    """
    path = pathlib.Path(path)
    draft = path.with_name(f".draft-{os.getpid()}-{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield draft
        _flush_all(draft)
        draft.replace(path)
        _flush(path.parent)  # which holds the name
    except OSError as error:
        reason = error.reason if isinstance(error, NotWritten) else error.strerror or error
        raise NotWritten(path, reason) from error
    finally:
        _remove(draft)  # which may be what fills the disk


def remove_drafts(folder, of=None):
    """Removes the drafts that killed processes have left in a folder.

    No other process may be writing them: hold a lock.

    Args:
        folder: where they are.
        of: name of the file or folder they were to become; None for all.
    """
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        draft = re.fullmatch(r"\.draft-\d+-(.+)", name, re.DOTALL)
        if draft and of in (None, draft[1]):
            _remove(pathlib.Path(folder, name))


def save_arrays(path, arrays):
    """Writes arrays to a file of NumPy's format npz, whole or not at all.

    Args:
        path: of the file.
        arrays: iterable of pairs of a name and what `np.asarray` takes; of a generator, one
            array at a time is in memory.

    Raises:
        NotWritten: if there is no room for it.
    """
    with whole(path) as draft, zipfile.ZipFile(draft, "w") as archive:
        for name, array in arrays:
            entry = zipfile.ZipInfo(f"{name}.npy")  # without the time: equal arrays, equal files
            with archive.open(entry, "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)


def read_arrays(path):
    """Yields the pairs of name and array that `save_arrays` has written, in their order.

    One array at a time is in memory, read-only. Those of types that NumPy lacks, such as
    bfloat16, are of type void, to be viewed as what they were.

    Raises:
        DamagedFile: at the first array that is not as it was written.
        OSError: if there is no such file, or it may not be read.
    """
    for name, content in _entries(path):
        yield name.removesuffix(".npy"), _array_of(content)


def load_arrays(path):
    """All arrays that `save_arrays` has written, a dict by their names.

    Raises:
        DamagedFile: if the file is not as it was written.
        OSError: if there is no such file, or it may not be read.
    """
    return dict(read_arrays(path))


def check_archive(path):
    """Raises a `DamagedFile` if a zip file, such as `model.keras`, is not as it was written."""
    for _ in _entries(path):
        pass


def _entries(path):
    """Yields name and content of each part of a zip file, once its checksum has proved right."""
    with open(path, "rb") as file:  # outside of what follows: a missing file is not damaged
        try:
            with zipfile.ZipFile(file) as archive:
                file.seek(-_LAST_RECORD, os.SEEK_END)
                count = int.from_bytes(file.read()[10:12], "little")
                # A wrong length in the table of contents would hide the entries behind it.
                if count != min(len(archive.infolist()), 0xFFFF):
                    raise zipfile.BadZipFile(f"{count} entries, not all of them found")
                for entry in archive.infolist():
                    yield entry.filename, archive.read(entry)
        except MemoryError:
            raise
        except Exception as error:  # of a damaged file zipfile raises many kinds
            raise DamagedFile(f"{path} is damaged: {error or type(error).__name__}.") from error


def _array_of(content):
    """The array that the bytes of NumPy's format npy hold, not a copy of them: read-only."""
    header = io.BytesIO(content)
    np.lib.format.read_magic(header)
    shape, in_columns, dtype = np.lib.format.read_array_header_1_0(header)
    order = "F" if in_columns else "C"
    return np.ndarray(shape, dtype, buffer=content, offset=header.tell(), order=order)


def _flush_all(path):
    """Waits until a file, or a folder with all that is in it, is on the disk."""
    for folder, _, names in os.walk(path):
        for place in (*names, "."):
            _flush(os.path.join(folder, place))
    if path.is_file():
        _flush(path)


def _flush(path):
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
