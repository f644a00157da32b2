"""The arrays of a plan: in memory, or files of a folder that all processes map into memory.

Each file is compared with its checksum when a plan is opened: 10 million rows take 0.03 s.
"""

import contextlib
import json
import os
import pathlib
import shutil

import filelock
import numpy as np

from keras_transformer.files import (
    DamagedFile,
    NotWritten,
    atomic_path,
    check_free,
    check_writable,
    draft_of,
    file_checksum,
    is_free,
    load_json,
    named_if_not_written,
    save_json,
)

FORMAT = 2
PLAN = "plan.json"


def plan_arrays(make, folder=None, settings=None):
    """The arrays of a plan, and what is known about them.

    Those that a folder holds for the same settings are used again. Otherwise they are made, and the
    folder appears or is replaced once they are whole.

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
        DamagedFile: if a file of the plan is damaged or missing.
        NotWritten: if the folder cannot be written.
    """
    if folder is None:
        arrays = {}

        def new_array(name, shape, dtype):
            return arrays.setdefault(name, np.empty(shape, dtype))

        return make(new_array), arrays
    folder = pathlib.Path(os.path.realpath(folder))
    settings = json.loads(json.dumps({"format": FORMAT, **settings()}))
    with contextlib.suppress(DamagedFile):  # another process may be replacing it
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
            content["files"] = {name: file_checksum(draft / f"{name}.npy") for name in arrays}
            save_json(draft / PLAN, content)
    except NotWritten:
        if not _kept(folder, settings):
            raise  # no other process was faster
    return _kept(folder, settings)


def _kept(folder, settings):
    """The facts and the arrays of a folder; None if it holds no plan of these settings.

    Raises:
        DamagedFile: if a file is damaged or missing.
    """
    file = folder / PLAN
    if not file.exists():
        return None
    try:
        content = load_json(file, "")
        if content["settings"] != settings:
            return None
        arrays = {}
        for name, checksum in content["files"].items():
            file = folder / f"{name}.npy"
            if file_checksum(file) != checksum:
                raise ValueError("its checksum does not match")
            arrays[name] = np.lib.format.open_memmap(file, "r")
        return content["facts"], arrays
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise DamagedFile(f"{file} is damaged. Delete {folder}, which is made again.") from None


def _reserve(path):
    """Takes the room of a file on the disk: a full one would end the process at a later write."""
    if hasattr(os, "posix_fallocate"):
        with open(path, "r+b") as file:
            os.posix_fallocate(file.fileno(), 0, os.path.getsize(path))
