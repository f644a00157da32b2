"""A folder of prepared text: token ids in files that are mapped into memory, read in any order.

    manifest.json        what the folder holds, and the sizes of all files; written last
    checksums.npz        CRC-32 of each block of 64 KiB of each file
    tokenizer.model      the tokenizer of all columns
    source.ids.npy       the ids of all rows, one after another, uint16 or uint32
    source.starts.npy    where each row starts, int64 (rows,)
    source.lengths.npy   the length of each row, uint32 (rows,)
    labels.npy           an array with a row for each row

`np.load` reads each of the arrays. A block is compared with its checksum when it is first read.
"""

import contextlib
import functools
import json
import os
import pathlib
import shutil
import time
import zlib

import filelock
import numpy as np

from keras_transformer.data.token_ids import IdRows, ranges
from keras_transformer.files import (
    DamagedFile,
    check_format,
    check_free,
    checksum_of,
    draft_with_work,
    fill,
    flush_all,
    load_arrays,
    load_json,
    named_if_not_written,
    remove_drafts,
    save_arrays,
    save_json,
)

FORMAT = 2  # of the folder; others are refused
MANIFEST, CHECKSUMS = "manifest.json", "checksums.npz"
AGAIN = "Prepare the text again."
LARGEST_16_BIT_VOCABULARY = 2**16

_BLOCK = 2**16  # bytes
_JOURNAL = "journal.json"
_SECONDS_BETWEEN_NOTES = 1.0


class PreparedWriter:
    """Writes a prepared folder block by block; interrupted, it goes on where it was.

    Until `finish` the files lie in a hidden folder beside the final one, or inside it if it exists,
    for it may be a mount point. Use it as a context manager, which keeps other processes from
    writing the same folder.

    Args:
        path: the folder, which must not exist or be empty.
        columns: names of the columns of ids.
        vocabulary_size: ids are below it.
        arrays: {name: (dtype, shape of a row)} of further arrays with one row for each row.
        settings: what the content depends on, as JSON; an interrupted folder with others is
            refused if it has rows, and else begun anew.

    Attributes:
        draft: the hidden folder; other files written there become part of the folder.
        work: a folder for files that `finish` deletes.
        num_blocks: blocks that are on disk, of an interrupted folder; leave these out.
        notes: what was given with the last of these blocks.

    Raises:
        ValueError: if there is something at the path, the interrupted folder has other settings,
            or another process is writing it.
        NotWritten: if the folder cannot be written.
    """

    def __init__(self, path, columns, vocabulary_size, arrays=None, settings=None):
        self.path = pathlib.Path(os.path.realpath(path))
        check_free(self.path, "Choose another folder for the prepared text.")
        self.draft = draft_with_work(self.path)
        self.work = self.draft / "work"
        self._columns, self.vocabulary_size = list(columns), vocabulary_size
        is_short = vocabulary_size <= LARGEST_16_BIT_VOCABULARY
        self._arrays = list(arrays or {})
        types = {f"{name}.npy": each for name, each in (arrays or {}).items()}
        for name in columns:
            types[f"{name}.ids.npy"] = np.uint16 if is_short else np.uint32
            types[f"{name}.starts.npy"] = np.int64
            types[f"{name}.lengths.npy"] = np.uint32
        self._row_types = {name: np.dtype(each) for name, each in types.items()}
        self._settings = json.loads(json.dumps(settings))
        self._file_lock = filelock.FileLock(f"{self.draft}.lock", timeout=0)
        self._files = {}

    def __enter__(self):
        with named_if_not_written(self.path):
            self.draft.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._file_lock.acquire()
            except filelock.Timeout:
                raise ValueError(
                    f"Another process is preparing {self.path}. Wait until it ends, or choose "
                    "another folder."
                ) from None
            try:
                self._begin_or_go_on()
            except BaseException:
                self.__exit__()
                raise
        return self

    def __exit__(self, *_):
        for file in self._files.values():
            with contextlib.suppress(OSError):  # what a full disk refuses once more
                file.close()
        self._files.clear()
        with contextlib.suppress(OSError):  # Windows deletes no open file
            os.unlink(self._file_lock.lock_file)  # while it is held: later it may be another's
        self._file_lock.release()

    def _begin_or_go_on(self):
        journal, kept = self.draft / _JOURNAL, None
        if journal.exists():
            kept = load_json(journal, f"Delete {self.draft}.")
            if kept["settings"] != self._settings:
                if kept["blocks"]:
                    raise ValueError(
                        f"{self.path} was begun with other settings or texts. Give those, choose "
                        f"another folder, or delete {self.draft}."
                    )
                kept = None
        if kept is None and self.draft.exists():
            shutil.rmtree(self.draft)
        self.work.mkdir(parents=True, exist_ok=True)
        remove_drafts(self.draft)
        kept = kept or {"blocks": 0, "notes": {}, "counts": dict.fromkeys(self._row_types, 0)}
        self.num_blocks, self.notes, self._counts = kept["blocks"], kept["notes"], kept["counts"]
        for name in self._row_types:
            (self.draft / name).touch()
            self._files[name] = open(self.draft / name, "r+b")  # noqa: SIM115
            self._go_to_end(name)
            self._files[name].truncate()  # what was written after the last note
        self._note()

    def append(self, columns, arrays=None, notes=None):
        """Writes one block of rows.

        Args:
            columns: {name: `IdRows`} of all columns, with equal numbers of rows.
            arrays: {name: array (rows, ...)} of all arrays.
            notes: what `notes` shall hold if this is the last block before an interruption, as
                JSON.
        """
        num_rows = {len(each) for each in (*columns.values(), *(arrays or {}).values())}
        if len(num_rows) != 1 or list(columns) != self._columns:
            raise ValueError(
                f"A block must hold the columns {self._columns}, with equal numbers of rows. "
                f"Received: {list(columns)} of {sorted(num_rows)} rows."
            )
        for name, rows in columns.items():
            ids = np.asarray(rows.values)
            if len(ids) and not 0 < ids.min() <= ids.max() < self.vocabulary_size:
                raise ValueError(
                    f"Ids must be at least 1 and below {self.vocabulary_size}. "
                    f"Received: {name} with ids from {ids.min()} to {ids.max()}."
                )
        content = {f"{name}.npy": array for name, array in (arrays or {}).items()}
        for name, rows in columns.items():
            content[f"{name}.ids.npy"] = rows.values
            content[f"{name}.starts.npy"] = self._counts[f"{name}.ids.npy"] + rows.starts[:-1]
            content[f"{name}.lengths.npy"] = rows.lengths
        with named_if_not_written(self.path):
            for name, dtype in self._row_types.items():
                self._files[name].write(np.ascontiguousarray(content[name], dtype.base).data)
                self._counts[name] += len(content[name])
            self.num_blocks += 1
            self.notes = notes or {}
            if time.monotonic() - self._noted_at > _SECONDS_BETWEEN_NOTES:
                self._note()

    def _go_to_end(self, name):
        """Writes the header of an array, and goes to where its next rows are written."""
        dtype, file = self._row_types[name], self._files[name]
        file.seek(0)
        shape = self._counts[name], *dtype.shape
        header = {"descr": dtype.base.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)  # as long for any count
        file.seek(self._counts[name] * dtype.itemsize, os.SEEK_CUR)

    def _note(self):
        """Notes what is on disk, from where an interrupted folder goes on."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        content = {
            "settings": self._settings, "blocks": self.num_blocks, "notes": self.notes,
            "counts": self._counts,
        }  # fmt: skip
        save_json(self.draft / _JOURNAL, content)
        self._noted_at = time.monotonic()

    def finish(self, manifest):
        """Completes the folder.

        Args:
            manifest: what `Prepared` shall tell of it, as JSON: "kind", "counts" and others.

        Raises:
            ValueError: if there is no row.
            NotWritten: if the folder cannot be written.
        """
        num_rows = self._counts[f"{self._columns[0]}.lengths.npy"]
        if not num_rows:
            raise ValueError("No row is left to write. Give more text, or filters that keep more.")
        with named_if_not_written(self.path):
            for name in self._row_types:
                self._go_to_end(name)
            self._note()
            for file in self._files.values():
                file.close()
            others = (MANIFEST, CHECKSUMS, _JOURNAL, self.work.name)
            names = sorted(p.name for p in self.draft.iterdir() if p.name not in others)
            checksums = {name: _checksums_of_file(self.draft / name) for name in names}
            save_arrays(self.draft / CHECKSUMS, checksums.items())
            content = {
                "format": FORMAT,
                **manifest,
                "settings": self._settings,
                "vocabulary_size": self.vocabulary_size,
                "rows": num_rows,
                "columns": self._columns,
                "arrays": self._arrays,
                "files": {name: (self.draft / name).stat().st_size for name in names},
            }
            save_json(self.draft / MANIFEST, content)
            flush_all(self.draft)
            (self.draft / _JOURNAL).unlink()  # whatever interrupts until here, it goes on
            shutil.rmtree(self.work)
            fill(self.path, self.draft)


class Prepared:
    """A prepared folder, read as it is needed: memory does not grow with the text.

    Args:
        path: the folder.

    Attributes:
        path: the folder, a `pathlib.Path`; set it where the folder has moved.
        kind: what the rows are: "translation", "classification", "language_model", "documents" or
            "pretraining".
        manifest: all that the folder tells of itself, a dictionary: "settings", "counts", ...
        columns: {name: `FileRows`}.
        vocabulary_size: ids are below it.

    Raises:
        ValueError: if the folder is no prepared one, or has another format.
        DamagedFile: if a file is missing or has another size than was written, or the manifest is
            damaged.
    """

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.manifest = manifest = self._read_manifest()
        for name, size in manifest["files"].items():
            file = self.path / name
            actual = file.stat().st_size if file.exists() else None
            if actual != size:
                received = "no such file" if actual is None else f"{actual:,} bytes"
                raise DamagedFile(
                    f"{file} is damaged: expected {size:,} bytes. Received: {received}. {AGAIN}"
                )
        self.kind, self.vocabulary_size = manifest["kind"], manifest["vocabulary_size"]
        self.columns = {name: FileRows(self, name) for name in manifest["columns"]}
        self._arrays = {name: _CheckedFile(self, f"{name}.npy") for name in manifest["arrays"]}

    def _read_manifest(self):
        path = self.path / MANIFEST
        if not path.exists():
            raise ValueError(
                "Expected a folder that keras-transformer prepare has made. "
                f"Received: {self.path}, which has no {MANIFEST}."
            )
        manifest = load_json(path, AGAIN)
        check_format(path, manifest.get("format"), FORMAT)
        return manifest

    def __reduce__(self):
        return Prepared, (self.path.absolute(),)

    def __len__(self):
        return self.manifest["rows"]

    def __getitem__(self, row):
        """The ids of one row, {column: int32 (ids,)}, and its rows of the arrays."""
        if not -len(self) <= row < len(self):
            raise IndexError(f"There is no row {row}.")
        row %= len(self)
        ids = {name: rows.take([row]).values for name, rows in self.columns.items()}
        return ids | {name: self.array(name)[row] for name in self._arrays}

    def array(self, name) -> np.ndarray:
        """A further array, e.g. "labels", (rows, ...), mapped into memory."""
        return self._arrays[name].whole()

    def tokenizer(self):
        """The tokenizer of all columns."""
        from keras_transformer.tokenizers import load_tokenizer

        return load_tokenizer(self.checked("tokenizer.model"))

    def checked(self, name):
        """The path of a file, after comparing it with its checksums."""
        _CheckedFile(self, name).check()
        return self.path / name

    def check(self):
        """Compares all files with their checksums; raises `DamagedFile` at the first difference."""
        for name in self.manifest["files"]:
            self.checked(name)

    def checksum(self) -> int:
        """A number that changes with any byte of the files."""
        return checksum_of(self.checksums_of_files.values())

    @functools.cached_property
    def checksums_of_files(self) -> dict[str, np.ndarray]:
        """CRC-32 of each block of 64 KiB of each file."""
        checksums = load_arrays(self.path / CHECKSUMS)
        shapes = {name: (-(-size // _BLOCK),) for name, size in self.manifest["files"].items()}
        if {name: each.shape for name, each in checksums.items()} != shapes:
            raise DamagedFile(f"{self.path / CHECKSUMS} is damaged. {AGAIN}")
        return checksums


class FileRows:
    """The rows of one column of a prepared folder, read as they are needed; see `IdRows`."""

    is_checked = True  # ids are above 0: they were checked when they were written

    def __init__(self, folder, name):
        self._ids, self._starts, self._lengths = (
            _CheckedFile(folder, f"{name}.{part}.npy") for part in ("ids", "starts", "lengths")
        )

    def __len__(self):
        return len(self._lengths)

    @property
    def num_ids(self) -> int:
        """The number of ids of all rows."""
        return len(self._ids)

    @property
    def lengths(self) -> np.ndarray:
        """The length of each row, uint32 (rows,), mapped into memory."""
        return self._lengths.whole()

    def take(self, rows) -> IdRows:
        """The rows of these numbers, integers (rows,), in their order, int32."""
        rows = np.asarray(rows, np.int64)
        return self.read(self._starts.take(rows), self._lengths.take(rows))

    def read(self, starts, lengths) -> IdRows:
        """Rows that start and end anywhere in the ids of all rows one after another, int32."""
        starts = np.asarray(starts, np.int64)
        lengths = np.broadcast_to(lengths, starts.shape).astype(np.int64)
        return IdRows(self._ids.take(ranges(starts, lengths)).astype(np.int32), lengths)

    def checksum(self) -> int:
        """A number that changes with any id, or with where a row starts."""
        return checksum_of([self._ids.checksums, self._starts.checksums])


class _CheckedFile:
    """A file of a folder, mapped into memory, whose blocks are checked when first read."""

    def __init__(self, folder, name):
        self._folder, self._name = folder, name

    @property
    def checksums(self):
        return self._folder.checksums_of_files[self._name]

    def __len__(self):
        return len(self._array)

    @functools.cached_property
    def _array(self):
        self._check_blocks(np.array([0]))  # which holds the header
        return np.lib.format.open_memmap(self._folder.path / self._name, "r")

    @functools.cached_property
    def _is_checked(self):
        return np.zeros(len(self.checksums), bool)

    def take(self, places):
        self._check_blocks((self._array.offset + places * self._array.itemsize) // _BLOCK)
        return self._array[places]

    def whole(self):
        """The array, once all of it is checked."""
        self.check()
        return self._array

    def check(self):
        """Compares all blocks with their checksums."""
        self._check_blocks(np.arange(len(self._is_checked)))

    def _check_blocks(self, blocks):
        blocks = np.unique(blocks[~self._is_checked[blocks]]).tolist()
        if not blocks:
            return
        path, expected = self._folder.path / self._name, self.checksums
        with open(path, "rb") as file:
            for block in blocks:
                file.seek(block * _BLOCK)
                if zlib.crc32(file.read(_BLOCK)) != expected[block]:
                    raise DamagedFile(
                        f"{path} is damaged: {_BLOCK} bytes from {block * _BLOCK} on are not "
                        f"those that were written. {AGAIN}"
                    )
                self._is_checked[block] = True


def _checksums_of_file(path):
    with open(path, "rb") as file:
        blocks = iter(functools.partial(file.read, _BLOCK), b"")
        return np.array([zlib.crc32(block) for block in blocks], np.uint32)
