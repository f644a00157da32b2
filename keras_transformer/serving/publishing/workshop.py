"""A folder to write a draft in, which no process, however it ends, leaves behind for good."""

import contextlib
import glob
import os
import secrets
import shutil

from filelock import FileLock, Timeout

_SUFFIX, _LOCK = ".export", ".lock"


@contextlib.contextmanager
def workshop(directory, name):
    """A new hidden folder, removed at the end; those of processes that were killed go first.

    A lock file stands beside the folder from before it is made until after it is removed.
    The operating system frees the lock when its process dies, even by `kill -9`: a folder
    whose lock is free belongs to nobody.

    Args:
        directory: where the folder is made, on the file system where the draft will stay.
        name: of what is written in it; part of the folder's name.

    Yields:
        The path of the folder, empty.

    Raises:
        OSError: if `directory` cannot be written to.
    """
    for lock_file in glob.glob(os.path.join(glob.escape(directory), f".*{_SUFFIX}{_LOCK}")):
        # Timeout: it is in use. OSError: it is another user's.
        with contextlib.suppress(Timeout, OSError), FileLock(lock_file, blocking=False):
            _remove(lock_file.removesuffix(_LOCK))
    folder = os.path.join(directory, f".{name}-{secrets.token_hex(8)}{_SUFFIX}")
    with FileLock(folder + _LOCK):
        try:
            os.mkdir(folder)
            yield folder
        finally:
            _remove(folder)


def _remove(folder):
    shutil.rmtree(folder, ignore_errors=True)
    if not os.path.exists(folder):  # what could not be removed is left to the next export
        with contextlib.suppress(FileNotFoundError):
            os.unlink(folder + _LOCK)
