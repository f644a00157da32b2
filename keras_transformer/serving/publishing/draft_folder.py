"""A temporary folder for a draft, removed even if its process is killed."""

import contextlib
import glob
import os
import secrets
import shutil

from filelock import FileLock, Timeout

_SUFFIX, _LOCK = ".export", ".lock"


@contextlib.contextmanager
def draft_folder(directory, name):
    """Yields the path of a hidden, empty folder; removes it, and those of killed processes.

    It is on the file system of the final place, so that a rename publishes it. A lock file is next
    to the folder as long as the folder exists. The operating system releases the lock when the
    process dies, even by `kill -9`, so a folder whose lock is free has no owner.
    """
    for lock_file in glob.glob(os.path.join(glob.escape(directory), f".*{_SUFFIX}{_LOCK}")):
        # Timeout: it is in use. OSError: it belongs to another user.
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
    if not os.path.exists(folder):  # otherwise the next export tries again
        with contextlib.suppress(FileNotFoundError):
            os.unlink(folder + _LOCK)
