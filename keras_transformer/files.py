"""Atomic writes of files and folders, and checksums that detect damage.

A write goes to a draft next to its target, which is renamed once it is completely on disk. Even
if the process is killed, the power fails or the disk is full, a reader sees the old content or
the new one, never a part.
"""

import contextlib
import errno
import functools
import io
import json
import math
import os
import pathlib
import re
import secrets
import shutil
import zipfile
import zlib

import filelock
import numpy as np

_DRAFT = re.compile(r"\.draft-\d+-(.+)", re.DOTALL)
_WITH_WORK = ".prepare-"  # a draft that the next process goes on with
_MOVING = ".whole"  # complete content of a folder on its way into it
_LAST = ("config.json", "manifest.json")  # without it, a folder is no run or no prepared text
_MOVING_LOCK = f"{_MOVING}.lock"
_processes = {}  # {process id: its number}, for a fork has another id
_LAST_RECORD = 22  # bytes of the last record of a zip file, which holds the number of entries


class DamagedFile(ValueError):
    """A file does not contain what was written to it."""


def check_format(path, found, expected):
    """Raises ValueError unless a file has the expected number of its format; None is none."""
    if found != expected:
        raise ValueError(f"{path} must have the format {expected}. Received: {found!r:.80}.")


class NotWritten(OSError):
    """A file or folder could not be written, for a reason; its old content is unchanged."""

    def __init__(self, path, reason):
        super().__init__(f"{path} could not be written: {reason}.")
        self.reason = reason


def check_free(path, advice):
    """Checks that a file or folder can be created.

    Raises ValueError, with `advice`, a sentence, if there is anything but an empty folder;
    `NotWritten` as `check_writable`.
    """
    if not is_free(path):
        raise ValueError(f"{path} already exists. {advice}")
    check_writable(path)


def check_writable(path):
    """Raises `NotWritten` if a file or folder could not be created here, without creating it."""
    path = pathlib.Path(os.path.realpath(path))
    try:
        folder = next(place for place in (path, *path.parents) if place.exists())
    except OSError as error:
        raise NotWritten(path, error.strerror) from error
    if not folder.is_dir():
        raise NotWritten(path, f"{folder} is not a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise NotWritten(path, f"no permission to write in {folder}")


@contextlib.contextmanager
def atomic_path(path):
    """Yields the path of a draft to write, a file or a folder; at the end it becomes `path`.

    Parent folders are created and links followed. An existing file is replaced, an existing folder
    only filled, if it is empty. Raises `NotWritten` with the reason, e.g. a full disk.

    An empty folder may be a mount point or the target of a link, which no other folder can replace.
    Its draft is therefore inside it, and the content moves up at the end, config.json last: until
    then the folder is not a run yet, and `complete` finishes the move if the process is killed.
    """
    target, draft = pathlib.Path(os.path.realpath(path)), draft_of(path)
    place = draft.parent
    try:
        with named_if_not_written(path):
            place.mkdir(parents=True, exist_ok=True)
            yield draft
            flush_all(draft)
            fill(target, draft)
    finally:
        _remove(draft)  # it may be what fills the disk


def this_process():
    """A random number of this process: process ids repeat in the containers that share a disk."""
    return _processes.setdefault(os.getpid(), secrets.randbits(60))


def draft_of(path, process=None):
    """The path of the draft of a file or folder, by this process or that of a number."""
    target = pathlib.Path(os.path.realpath(path))
    place = target if target.is_dir() else target.parent
    return place / f".draft-{process or this_process()}-{target.name}"


def draft_with_work(path):
    """The path of the draft of a folder that takes long: one for all processes, beside a lock."""
    target = pathlib.Path(os.path.realpath(path))
    name = _WITH_WORK + target.name
    is_begun_beside = (target.parent / name).exists()
    return (target if target.is_dir() and not is_begun_beside else target.parent) / name


@contextlib.contextmanager
def named_if_not_written(path):
    """Raises `NotWritten` with this path for what the disk refuses."""
    try:
        yield
    except OSError as error:
        reason = error.reason if isinstance(error, NotWritten) else error.strerror or error
        raise NotWritten(path, reason) from error


def complete(folder):
    """Finishes what a killed process had begun to move into an empty folder, if anything."""
    if os.path.isdir(os.path.join(folder, _MOVING)):
        with _moving_lock(folder):
            _move_up(pathlib.Path(folder, _MOVING))


def _move_up(moving):
    if moving.is_dir():  # no other process was faster
        for entry in sorted(moving.iterdir(), key=lambda entry: entry.name in _LAST):
            entry.replace(moving.parent / entry.name)
        flush(moving.parent)
        moving.rmdir()


@contextlib.contextmanager
def _moving_lock(folder):
    """Held by the process that fills a folder, or finishes that."""
    with filelock.FileLock(os.path.join(folder, _MOVING_LOCK)) as lock:
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # Windows deletes no open file
                os.unlink(lock.lock_file)


def is_free(path):
    """Whether there is nothing at a path, or an empty folder; drafts do not count."""
    complete(path)
    path = pathlib.Path(path)
    try:
        return not path.exists() or (path.is_dir() and not _content(path))
    except FileNotFoundError:  # another process has just removed it
        return True


def fill(folder, draft):
    """Makes a draft a folder, which must not exist, or be empty with the draft inside it."""
    if draft.parent != folder:
        draft.replace(folder)
        flush(draft.parent)  # makes the new name durable
        return
    if not draft.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    with _moving_lock(folder):
        if _content(folder):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        _move_up(draft.replace(folder / _MOVING))


def _content(folder):
    """The names in a folder, without drafts and what a new file system has at its root."""
    no_content = ("lost+found", _MOVING_LOCK)
    names = [name for name in os.listdir(folder) if name not in no_content]
    return [name for name in names if not (_DRAFT.fullmatch(name) or name.startswith(_WITH_WORK))]


def remove_drafts(folder, of=None):
    """Removes the drafts, of all targets or those named, that killed processes left in a folder.

    Hold a lock, so that no other process is writing one.
    """
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        draft = _DRAFT.fullmatch(name)
        if draft and (of is None or draft[1] in of):
            _remove(pathlib.Path(folder, name))


def save_arrays(path, arrays):
    """Atomically writes (name, array) pairs to a file in NumPy's npz format.

    With a generator, only one array at a time is in memory. Raises `NotWritten`, e.g. if the disk
    is full.
    """
    with atomic_path(path) as draft, zipfile.ZipFile(draft, "w") as archive:
        for name, array in arrays:
            # Without a timestamp, so that equal arrays make equal files.
            entry = zipfile.ZipInfo(f"{name}.npy")
            with archive.open(entry, "w", force_zip64=True) as file:
                _write_array(file, np.asarray(array))


def _write_array(file, array):
    """Writes NumPy's npy format, a contiguous array without a copy in memory."""
    if not array.flags.c_contiguous or array.dtype.hasobject:
        np.lib.format.write_array(file, array, allow_pickle=False)
        return
    header = np.lib.format.header_data_from_array_1_0(array)
    np.lib.format.write_array_header_1_0(file, header)
    file.write(array.reshape(-1).view(np.uint8))


def read_arrays(path):
    """Yields name and array, read-only, of a file of `save_arrays`, in the order of writing.

    Arrays of types that NumPy lacks, such as bfloat16, have a void type; call `view` with the
    original one. Raises `DamagedFile` at the first damaged array.
    """
    for name, content in _entries(path):
        with _damage_of(path):
            array = _array_of(content)
        yield name.removesuffix(".npy"), array


def load_arrays(path):
    """All arrays of a file of `save_arrays`, {name: array}, as from `read_arrays`."""
    return dict(read_arrays(path))


def read_json(path):
    """The content of a JSON file; ValueError if it is not JSON, or nested too deeply for Python."""
    try:
        return json.loads(pathlib.Path(path).read_text("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def save_json(path, content):
    """Atomically writes a dictionary as JSON, with its checksum."""
    with atomic_path(path) as draft:
        content = {**content, "checksum": json_checksum(content)}
        draft.write_text(json.dumps(content, indent=1) + "\n")


def load_json(path, advice):
    """A dictionary that `save_json` has written.

    Raises `DamagedFile`, with `advice`, a sentence, if it is another one.
    """
    try:
        content = read_json(path)
        if not isinstance(content, dict) or content.pop("checksum", None) != json_checksum(content):
            raise ValueError("it was edited, or a byte of it has changed")
    except ValueError as error:
        raise DamagedFile(f"{path} is damaged: {in_one_line(error)}. {advice}") from None
    return content


def json_checksum(content) -> int:
    """A number that changes with anything in a JSON object."""
    return zlib.crc32(json.dumps(content).encode())


def file_checksum(path) -> int:
    """A number that changes with any byte of a file."""
    with open(path, "rb") as file:
        blocks = iter(functools.partial(file.read, 2**20), b"")
        return functools.reduce(lambda total, block: zlib.crc32(block, total), blocks, 0)


def checksum_of(parts) -> int:
    """A number that changes with any bit of arrays or bytes."""
    total = 0
    for part in parts:
        total = zlib.crc32(np.ascontiguousarray(part).reshape(-1).view(np.uint8), total)
    return total


def in_one_line(error):
    """The message of a parser, which may hold lines of the file or all of it; else its type."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def check_archive(path):
    """Raises `DamagedFile` if a zip file, such as `model.keras`, is damaged."""
    for _ in _entries(path):
        pass


def _entries(path):
    """Yields name and content of each entry of a zip file after checking its checksum."""
    with open(path, "rb") as file:  # outside `_damage_of`: a missing file is not damaged
        with _damage_of(path):
            archive = zipfile.ZipFile(file)
            file.seek(-_LAST_RECORD, os.SEEK_END)
            count = int.from_bytes(file.read()[10:12], "little")
            # A wrong length in the table of contents hides the entries after it.
            if count != min(len(archive.infolist()), 0xFFFF):
                raise zipfile.BadZipFile(f"not all of its {count} entries can be found")
        for entry in archive.infolist():
            with _damage_of(path):
                # Neither we nor Keras compress, and few bytes could fill the memory.
                if entry.compress_type != zipfile.ZIP_STORED:
                    raise zipfile.BadZipFile(f"{entry.filename!r:.100} is compressed")
                content = archive.read(entry)
            yield entry.filename, content


@contextlib.contextmanager
def _damage_of(path):
    """Turns whatever a parser raises into `DamagedFile`: NumPy and zipfile raise many types."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        raise DamagedFile(f"{path} is damaged: {in_one_line(error)}.") from error


def _array_of(content):
    """The array in bytes of NumPy's npy format, a read-only view of numbers or text.

    Python would follow the bytes of any other kind, an object, as an address in memory.
    """
    header = io.BytesIO(content)
    if (version := np.lib.format.read_magic(header)) != (1, 0):
        raise ValueError(f"version {version} of the npy format")
    try:
        shape, in_columns, dtype = np.lib.format.read_array_header_1_0(header)
    except MemoryError:  # Python's parser: the header nests too deeply
        raise ValueError("its header cannot be parsed") from None
    if dtype.kind not in "biufcSUV" or dtype.names or dtype.subdtype or not dtype.itemsize:
        raise ValueError(f"arrays of type {dtype} are never written")
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError(f"an array of shape {shape}")
    if math.prod(shape) * dtype.itemsize != len(content) - header.tell():
        raise ValueError(f"the bytes of an array are not those of its shape {shape}")
    order = "F" if in_columns else "C"
    return np.ndarray(shape, dtype, buffer=content, offset=header.tell(), order=order)


def flush_all(path):
    """Waits until a file, or a folder with all its content, is on disk."""
    for folder, _, names in os.walk(path):
        for name in (*names, "."):
            flush(os.path.join(folder, name))
    if path.is_file():
        flush(path)


def flush(path):
    """Waits until a file, or the names in a folder, are on disk."""
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
