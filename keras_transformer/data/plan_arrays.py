"""The arrays of a plan: in memory, or files of a folder that all processes map into memory.

Each file is compared with its checksum when a plan is opened: 10 million rows take 0.03 s.
"""

import json
import os
import pathlib
import shutil
import zlib

import filelock
import numpy as np

from keras_transformer.files import (
    NotWritten,
    atomic_path,
    check_free,
    check_writable,
    draft_of,
    is_free,
    named_if_not_written,
    read_json,
)

FORMAT = 2
PLAN = "plan.json"


def plan_arrays(make, folder=None, settings=None):
    """The arrays of a plan, and what is known about them.

    Those that a folder holds for the same settings are used again. Otherwise, also if they are
    damaged, they are made, and the folder appears or is replaced once they are whole.

    Args:
        make: function that makes the arrays and returns facts about them, as JSON. It is given a
            function `new(name, shape, dtype)`, which returns an array to fill.
        folder: path of the folder; None for arrays in memory.
        settings: function without arguments; returns what the arrays depend on, as JSON. It is
            called only if there is a folder.

    Returns:
        The facts, and the arrays by name, read-only if they are files.

    Raises:
        ValueError: if the folder holds something else than a plan.
        NotWritten: if the folder cannot be written.
    """
    if folder is None:
        arrays = {}

        def new_array(name, shape, dtype):
            return arrays.setdefault(name, np.empty(shape, dtype))

        return make(new_array), arrays
    folder = pathlib.Path(os.path.realpath(folder))
    settings = json.loads(json.dumps({"format": FORMAT, **settings()}))
    if kept := _kept(folder, settings):
        return kept
    if is_free(folder):
        return _written(folder, settings, make)
    # Of several processes one replaces the plan; the others wait for it. The old one goes at once:
    # a process that met a part of it would take it for something else.
    with named_if_not_written(folder), filelock.FileLock(folder.parent / f".{folder.name}.lock"):
        if kept := _kept(folder, settings):
            return kept
        if (folder / PLAN).exists():
            shutil.rmtree(folder.replace(folder.with_name(draft_of(folder).name)))
        else:
            check_free(folder, "Choose another folder for the plan.")
        return _written(folder, settings, make)


def _written(folder, settings, make):
    """Makes the arrays, and returns what `plan_arrays` does."""
    check_writable(folder)
    arrays = {}
    try:
        with atomic_path(folder) as draft:
            draft.mkdir()

            def new_file(name, shape, dtype):
                path, shape = draft / f"{name}.npy", tuple(map(int, shape))
                arrays[name] = np.lib.format.open_memmap(path, "w+", np.dtype(dtype), shape)
                _reserve(path)
                return arrays[name]

            content = {"settings": settings, "facts": make(new_file)}
            content["files"] = {name: _checksum(draft / f"{name}.npy") for name in arrays}
            content["checksum"] = zlib.crc32(json.dumps(content).encode())
            (draft / PLAN).write_text(json.dumps(content, indent=1) + "\n")
    except NotWritten:
        if not _kept(folder, settings):
            raise  # no other process was faster
    return _kept(folder, settings)


def _kept(folder, settings):
    """The facts and the arrays of a folder; None unless they are whole and of these settings."""
    try:
        content = read_json(folder / PLAN)
        checksum, files = content.pop("checksum"), content["files"]
        if content["settings"] != settings or checksum != zlib.crc32(json.dumps(content).encode()):
            return None
        if any(_checksum(folder / f"{name}.npy") != files[name] for name in files):
            return None
        arrays = {name: np.lib.format.open_memmap(folder / f"{name}.npy", "r") for name in files}
        return content["facts"], arrays
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _checksum(path):
    return zlib.crc32(np.memmap(path, np.uint8, "r"))


def _reserve(path):
    """Takes the room of a file on the disk: a full one would end the process at a later write."""
    if hasattr(os, "posix_fallocate"):
        with open(path, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, os.path.getsize(path))
