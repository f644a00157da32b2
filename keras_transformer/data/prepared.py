"""A folder of prepared text: token ids in memory-mapped shards, read in any order.

    manifest.json             what the folder holds, and the sizes of all files; written last
    checksums.npz             CRC-32 of each block of 64 KiB of each file
    tokenizer.model           the tokenizer of all columns
    source-00000.ids.npy      the ids of a shard's rows, one after another, uint16 or uint32
    source-00000.starts.npy   where each row starts, and the end, int64 (rows + 1,)
    source.lengths.npy        the lengths of all rows, uint32 (rows,)
    labels.npy                an array with a row for each row

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

FORMAT = 1  # of the folder; others are refused
MANIFEST, CHECKSUMS = "manifest.json", "checksums.npz"
AGAIN = "Prepare the text again."
ROWS_PER_SHARD, IDS_PER_SHARD = 2**22, 2**30
LARGEST_16_BIT_VOCABULARY = 2**16

_BLOCK = 2**16  # bytes
_HEADER = 128  # bytes of NumPy's npy format before the numbers
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
        num_rows: rows that are on disk.
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
        self._number_type = np.dtype(np.uint16 if is_short else np.uint32)
        self._arrays = dict(arrays or {})
        self._settings = json.loads(json.dumps(settings))
        self._file_lock = filelock.FileLock(f"{self.draft}.lock", timeout=0)
        self._files, self._noted_at = {}, 0.0

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
        journal = {"settings": self._settings, "blocks": 0, "shards": [0], "notes": {}, "sizes": {}}
        kept = None
        if (self.draft / _JOURNAL).exists():
            kept = load_json(self.draft / _JOURNAL, f"Delete {self.draft}.")
            if kept["settings"] == self._settings:
                journal = kept
            elif kept["blocks"]:
                raise ValueError(
                    f"{self.path} was begun with other settings or texts. Give those, choose "
                    f"another folder, or delete {self.draft}."
                )
        if journal is not kept and self.draft.exists():
            shutil.rmtree(self.draft)
        self.work.mkdir(parents=True, exist_ok=True)
        remove_drafts(self.draft)
        self.num_blocks, self.notes = journal["blocks"], journal["notes"]
        self._rows_of_shards, self._sizes = journal["shards"], journal["sizes"]
        self.num_rows = sum(self._rows_of_shards)
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
        with named_if_not_written(self.path):
            shard = self._shard_of_next_block()
            for name, rows in columns.items():
                ids, starts = _names_of(name, shard)
                if ids not in self._sizes:
                    self._write(starts, np.zeros(1, np.int64))
                before = (self._sizes.get(ids, _HEADER) - _HEADER) // self._number_type.itemsize
                self._write(ids, np.asarray(rows.values, self._number_type))
                self._write(starts, rows.starts[1:] + before)
                self._write(_lengths_of(name), rows.lengths.astype(np.uint32))
            for name, (dtype, _) in self._arrays.items():
                self._write(f"{name}.npy", np.asarray(arrays[name], dtype))
            [count] = num_rows
            self._rows_of_shards[-1] += count
            self.num_rows += count
            self.num_blocks += 1
            self.notes = notes or {}
            if time.monotonic() - self._noted_at > _SECONDS_BETWEEN_NOTES:
                self._note()

    def _shard_of_next_block(self):
        shard = len(self._rows_of_shards) - 1
        files = (_names_of(name, shard)[0] for name in self._columns)
        largest = max(self._sizes.get(file, 0) for file in files)
        if self._rows_of_shards[-1] >= ROWS_PER_SHARD or (
            largest >= IDS_PER_SHARD * self._number_type.itemsize
        ):
            self._note()
            for file in self._files.values():
                file.close()  # else there would be more and more
            self._files.clear()
            self._rows_of_shards.append(0)
            shard += 1
        return shard

    def _write(self, name, array):
        file = self._files.get(name)
        if file is None:
            path = self.draft / name
            is_new = name not in self._sizes
            file = self._files[name] = open(path, "wb" if is_new else "r+b")  # noqa: SIM115
            self._sizes[name] = self._sizes.get(name, _HEADER)
            file.seek(self._sizes[name])
            file.truncate()  # what was written after the last note
        file.write(np.ascontiguousarray(array).data)
        self._sizes[name] += array.nbytes

    def _note(self):
        """Notes what is on disk, from where an interrupted folder goes on."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        content = {
            "settings": self._settings, "blocks": self.num_blocks, "notes": self.notes,
            "shards": self._rows_of_shards, "sizes": self._sizes,
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
        if not self.num_rows:
            raise ValueError("No row is left to write. Give more text, or filters that keep more.")
        with named_if_not_written(self.path):
            self._note()
            shards = range(len(self._rows_of_shards))
            for name in self._columns:
                for shard, rows in enumerate(self._rows_of_shards):
                    ids, starts = _names_of(name, shard)
                    self._complete(ids, self._number_type, None)
                    self._complete(starts, np.int64, (rows + 1,))
                self._complete(_lengths_of(name), np.uint32, (self.num_rows,))
            for name, (dtype, shape) in self._arrays.items():
                self._complete(f"{name}.npy", dtype, (self.num_rows, *shape))
            others = (MANIFEST, CHECKSUMS, _JOURNAL, self.work.name)
            names = sorted(p.name for p in self.draft.iterdir() if p.name not in others)
            checksums = {name: _checksums_of_file(self.draft / name) for name in names}
            save_arrays(self.draft / CHECKSUMS, checksums.items())
            content = {
                "format": FORMAT,
                **manifest,
                "settings": self._settings,
                "vocabulary_size": self.vocabulary_size,
                "rows": self._rows_of_shards,
                "columns": {
                    name: {
                        "dtype": self._number_type.name,
                        "ids": [self._num_ids(_names_of(name, shard)[0]) for shard in shards],
                    }
                    for name in self._columns
                },
                "arrays": {n: [str(np.dtype(d)), list(s)] for n, (d, s) in self._arrays.items()},
                "files": {name: (self.draft / name).stat().st_size for name in names},
            }
            save_json(self.draft / MANIFEST, content)
            flush_all(self.draft)
            (self.draft / _JOURNAL).unlink()  # whatever interrupts until here, it goes on
            shutil.rmtree(self.work)
            fill(self.path, self.draft)

    def _num_ids(self, name):
        return (self._sizes[name] - _HEADER) // self._number_type.itemsize

    def _complete(self, name, dtype, shape):
        """Writes the header of an array that has been appended to."""
        self._write(name, np.zeros(0, dtype))  # opens it
        with self._files.pop(name) as file:
            file.seek(0)
            file.write(_header(np.dtype(dtype), shape or (self._num_ids(name),)))


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
        self.columns = {
            name: self._rows_of(name, each) for name, each in manifest["columns"].items()
        }

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
        return sum(self.manifest["rows"])

    def __getitem__(self, row):
        """The ids of one row, {column: int32 (ids,)}, and its rows of the arrays."""
        if not -len(self) <= row < len(self):
            raise IndexError(f"There is no row {row}.")
        row %= len(self)
        ids = {name: rows.take([row]).values for name, rows in self.columns.items()}
        return ids | {name: self.array(name)[row] for name in self.manifest["arrays"]}

    def array(self, name) -> np.ndarray:
        """A further array, e.g. "labels", (rows, ...), mapped into memory."""
        dtype, shape = self.manifest["arrays"][name]
        return self._file(f"{name}.npy", dtype, (len(self), *shape)).whole()

    def tokenizer(self):
        """The tokenizer of all columns."""
        from keras_transformer.tokenizers import load_tokenizer

        return load_tokenizer(self.checked("tokenizer.model"))

    def checked(self, name):
        """The path of a file, after comparing it with its checksums."""
        size = self.manifest["files"][name]
        self._file(name, np.uint8, (size,), offset=0).whole()
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

    def _file(self, name, dtype, shape, offset=_HEADER):
        return _CheckedFile(self, name, dtype, shape, offset)

    def _rows_of(self, name, column):
        shards = []
        counts = zip(self.manifest["rows"], column["ids"], strict=True)
        for number, (rows, num_ids) in enumerate(counts):
            ids, starts = _names_of(name, number)
            ids = self._file(ids, column["dtype"], (num_ids,))
            shards.append((rows, ids, self._file(starts, np.int64, (rows + 1,))))
        return FileRows(shards, self._file(_lengths_of(name), np.uint32, (len(self),)))


class FileRows:
    """The rows of one column of a prepared folder, read as they are needed; see `IdRows`."""

    is_checked = True  # ids are above 0: they were checked when they were written

    def __init__(self, shards, lengths):
        self._ids, self._starts = [each[1] for each in shards], [each[2] for each in shards]
        self._first_rows = np.cumsum([0, *(each[0] for each in shards)])
        self._first_ids = np.cumsum([0, *(len(ids) for ids in self._ids)])
        self._lengths = lengths

    def __len__(self):
        return len(self._lengths)

    @property
    def num_ids(self) -> int:
        """The number of ids of all rows."""
        return int(self._first_ids[-1])

    @property
    def lengths(self) -> np.ndarray:
        """The length of each row, uint32 (rows,), mapped into memory."""
        return self._lengths.whole()

    def take(self, rows) -> IdRows:
        """The rows of these numbers, integers (rows,), in their order, int32."""
        rows = np.asarray(rows, np.int64)
        shards = np.searchsorted(self._first_rows, rows, side="right") - 1
        starts, ends = np.empty_like(rows), np.empty_like(rows)
        for shard, among in _by_shard(shards):
            local = rows[among] - self._first_rows[shard]
            starts[among] = self._first_ids[shard] + self._starts[shard].take(local)
            ends[among] = self._first_ids[shard] + self._starts[shard].take(local + 1)
        return self.read(starts, ends - starts)

    def read(self, starts, lengths) -> IdRows:
        """Rows that start and end anywhere in the ids of all rows one after another, int32."""
        starts = np.array(starts, np.int64)
        lengths = np.array(np.broadcast_to(lengths, starts.shape), np.int64)
        rows = IdRows(np.empty(lengths.sum(), np.int32), lengths)
        places = rows.starts[:-1].copy()
        while lengths.any():  # more than once for rows that go on in the next shard
            shards = np.searchsorted(self._first_ids, starts, side="right") - 1
            shards = np.minimum(shards, len(self._ids) - 1)
            parts = np.minimum(lengths, self._first_ids[shards + 1] - starts)
            for shard, among in _by_shard(shards):
                local = starts[among] - self._first_ids[shard]
                ids = self._ids[shard].take_ranges(local, parts[among])
                rows.values[ranges(places[among], parts[among])] = ids
            starts, places, lengths = starts + parts, places + parts, lengths - parts
        return rows

    def checksum(self) -> int:
        """A number that changes with any id."""
        return checksum_of(file.checksums() for file in (*self._ids, *self._starts))


def _by_shard(shards):
    """Each shard among these numbers, and which of them it is, a mask."""
    return [(shard, shards == shard) for shard in np.unique(shards).tolist()]


class _CheckedFile:
    """An array in a file, mapped into memory, whose blocks are checked when first read."""

    def __init__(self, folder, name, dtype, shape, offset):
        self._folder, self._name, self._number_type = folder, name, np.dtype(dtype)
        self._shape, self._offset = shape, offset

    @property
    def _file_path(self):
        return self._folder.path / self._name

    def checksums(self):
        return self._folder.checksums_of_files[self._name]

    def __len__(self):
        return self._shape[0]

    @functools.cached_property
    def _array(self):
        if 0 in self._shape:
            return np.zeros(self._shape, self._number_type)
        return np.memmap(self._file_path, self._number_type, "r", self._offset, self._shape)

    @functools.cached_property
    def _is_checked(self):
        return np.zeros(len(self.checksums()), bool)

    def take(self, places):
        self._check(places, np.ones_like(places))
        return self._array[places]

    def take_ranges(self, starts, lengths):
        """The numbers of all ranges from `starts` on, one after another."""
        self._check(starts, lengths)
        return self._array[ranges(starts, lengths)]

    def whole(self):
        """The array, once all of it is checked."""
        self._check(np.zeros(1, np.int64), np.array([self._array.size]))
        return self._array

    def _check(self, starts, lengths):
        some = lengths > 0
        size = self._number_type.itemsize
        first = (self._offset + starts[some] * size) // _BLOCK
        last = (self._offset + (starts[some] + lengths[some]) * size - 1) // _BLOCK
        if (
            self._is_checked[first].all()
            and self._is_checked[last].all()
            and ((last - first <= 1).all() or self._is_checked.all())
        ):
            return
        blocks = np.unique(ranges(first, last - first + 1))
        expected = self.checksums()
        with open(self._file_path, "rb") as file:
            for block in blocks[~self._is_checked[blocks]].tolist():
                file.seek(block * _BLOCK)
                if zlib.crc32(file.read(_BLOCK)) != expected[block]:
                    raise DamagedFile(
                        f"{self._file_path} is damaged: {_BLOCK} bytes from {block * _BLOCK} on "
                        f"are not those that were written. {AGAIN}"
                    )
                self._is_checked[block] = True


def _names_of(column, shard):
    """The files of the ids of a shard, and of where its rows start."""
    return f"{column}-{shard:05d}.ids.npy", f"{column}-{shard:05d}.starts.npy"


def _lengths_of(column):
    return f"{column}.lengths.npy"


def _header(dtype, shape):
    """The header of an array in NumPy's npy format, version 1.0."""
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': {tuple(shape)}, }}"
    text = text.ljust(_HEADER - 11) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def _checksums_of_file(path):
    with open(path, "rb") as file:
        blocks = iter(functools.partial(file.read, _BLOCK), b"")
        return np.array([zlib.crc32(block) for block in blocks], np.uint32)
