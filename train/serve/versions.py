"""Which versions of which models are served: those in the folder, newest first."""

import gc
import logging
import os
import pathlib
import re
import threading
import time
import weakref

from .saved_model import SavedModel

NAME, VERSION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*"), re.compile(r"[0-9]{1,18}")
LOADING, AVAILABLE, END = "LOADING", "AVAILABLE", "END"  # states of TensorFlow Serving


class Models:
    """The newest versions of all models in a folder, kept in sync with it.

    A new version is loaded and warmed up while the old one answers, and takes over as soon as it is
    ready. A version that is no longer served finishes the requests that began with it, and is freed
    after the last of them. A version that cannot be loaded does not affect the others; it is tried
    again when its files change.

    Args:
        folder: folder of NAME/VERSION/saved_model.pb.
        num_versions: number of versions to serve per model, the highest ones.
    """

    def __init__(self, folder, num_versions=1):
        self.folder, self.num_versions = pathlib.Path(folder), num_versions
        self._served = {}  # {name: {version: SavedModel}}; replaced, never changed
        self._states = {}  # {name: {version: (state, error message)}}
        self._leaving = []  # weak references to versions that are no longer served
        self._failed = {}  # {path: fingerprint of its files}
        self.update()

    def find(self, name, version=None):
        """The model that answers requests to a name and a version, the newest by default.

        Raises:
            LookupError: if none does, with TensorFlow Serving's message.
        """
        versions = self._served.get(name, {})
        if versions and version is None:
            return versions[max(versions)]
        if version not in versions:
            wanted = f"Latest({name})" if version is None else f"Specific({name}, {version})"
            raise LookupError(f"Servable not found for request: {wanted}")
        return versions[version]

    def names(self):
        """The names of all models that answer."""
        return sorted(name for name, versions in self._served.items() if versions)

    def status(self, name, version=None):
        """The answer to a request for the state of a model, newest version first.

        Raises:
            LookupError: if there never was such a version.
        """
        states = self._states.get(name, {})
        if version not in (None, *states) or not states:
            which = "any versions" if version is None else f"version {version}"
            raise LookupError(f"Could not find {which} of model {name}")
        return {
            "model_version_status": [
                {
                    "version": str(number),
                    "state": state,
                    "status": {
                        "error_code": "UNKNOWN" if message else "OK", "error_message": message
                    },
                }
                for number, (state, message) in sorted(states.items(), reverse=True)
                if version in (None, number)
            ]
        }  # fmt: skip

    def update(self):
        """Loads new versions in the folder and drops removed ones.

        Raises:
            OSError: if the folder cannot be read; then nothing changes.
        """
        self._free()
        found = self._found()
        for name in found.keys() | self._served.keys():
            paths = found.get(name, {})
            old, loaded = self._served.get(name, {}), {}
            states = self._states.setdefault(name, {})
            for number in sorted(paths, reverse=True):
                # In place of a version that cannot be loaded goes the next older one.
                model = old.get(number) or self._load(name, number, paths[number])
                if model:
                    loaded[number] = model
                if len(loaded) == self.num_versions:
                    break
            # Nothing ends before its successor answers.
            self._served = {**self._served, name: loaded}
            for number in old.keys() - loaded.keys():
                states[number] = (END, "")
                self._leaving.append(weakref.ref(old[number]))

    def keep_updated(self, seconds):
        """Checks the folder every few seconds, in a separate thread."""

        def watch():
            while True:
                time.sleep(seconds)
                try:
                    self.update()
                except OSError as error:  # the folder may be unreachable for a while
                    logging.getLogger(__name__).warning("%s", error)

        threading.Thread(target=watch, daemon=True).start()

    def _free(self):
        """Frees versions whose last request has ended.

        Models loaded by TensorFlow contain reference cycles, which Python may take hours to free.
        """
        held = [reference for reference in self._leaving if reference() is not None]
        if len(held) < len(self._leaving):
            gc.collect()
        self._leaving = held

    def _found(self):
        """{name: {version: path}} of the SavedModels in the folder; OSError if it is gone."""
        os.scandir(self.folder).close()  # `glob` would find nothing in a folder that is missing
        found = {}
        for file in self.folder.glob("*/*/saved_model.pb"):
            name, version = file.parent.parent.name, file.parent.name
            if NAME.fullmatch(name) and VERSION.fullmatch(version):
                found.setdefault(name, {})[int(version)] = file.parent
        return found

    def _load(self, name, number, path):
        found = None
        try:
            found = fingerprint(path)
            if self._failed.get(path) == found:
                return None
            self._states[name][number] = (LOADING, "")
            model = SavedModel(name, number, path)
        except Exception as error:  # whatever is in the folder, the others keep running
            self._states[name][number] = (END, f"{error}"[:1000] or type(error).__name__)
            self._failed[path] = found
            logging.getLogger(__name__).warning("%s was not loaded: %s", path, error)
            return None
        self._failed.pop(path, None)
        self._states[name][number] = (AVAILABLE, "")
        return model


def fingerprint(path):
    """A value that shows whether the files of a folder have changed."""
    stats = [(file, file.stat()) for file in sorted(path.rglob("*")) if file.is_file()]
    return [(file, stat.st_size, stat.st_mtime_ns) for file, stat in stats]
