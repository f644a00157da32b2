"""Reads what a training left in its run folder: settings, tokenizer, labels, model."""

import json
import pathlib
import zlib

import keras

from keras_transformer.files import DamagedFile, check_archive, read_arrays
from keras_transformer.serving.precision import with_dtype
from keras_transformer.tokenizers import load_tokenizer

AGAIN = "Run its training command again: it makes the file anew."


class RunFolder:
    """The folder of a run: config.json, tokenizer.model, model.keras; labels.json of a classifier.

    checksums.npz tells whether the tokenizer is still the one that the run began with.

    Args:
        path: of the folder.
    """

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.config_file = self.path / "config.json"
        self.tokenizer_file = self.path / "tokenizer.model"
        self.checksums_file = self.path / "checksums.npz"
        self.labels_file = self.path / "labels.json"
        self.model_file = self.path / "model.keras"

    def check(self):
        """Raises ValueError if the folder holds no run."""
        if not self.config_file.exists():
            raise ValueError(f"{self.path} holds no run: there is no {self.config_file.name}.")

    def settings(self):
        """The settings of the run, a dictionary.

        Raises:
            ValueError: if the folder holds no run, or the file is damaged.
        """
        self.check()
        try:
            return dict(json.loads(self.config_file.read_text()))
        except (ValueError, TypeError) as error:
            raise DamagedFile(
                f"{self.config_file} is damaged: restore it, or choose another run. "
                f"Received: {error}"
            ) from None

    def checksums(self):
        """The checksums of tokenizer and tokens, by name; empty if their file is bad or missing."""
        try:
            return {name: int(number) for name, number in read_arrays(self.checksums_file)}
        except (DamagedFile, FileNotFoundError):
            return {}

    def tokenizer(self):
        """The tokenizer of the run.

        Raises:
            ValueError: if the folder holds no run, or the file is damaged or not the one that the
                run began with.
        """
        self.check()
        content = self.tokenizer_file.read_bytes()
        if zlib.crc32(content) != self.checksums().get("tokenizer", zlib.crc32(content)):
            raise DamagedFile(f"{self.tokenizer_file} is damaged. {AGAIN}")
        try:
            return load_tokenizer(self.tokenizer_file)
        except DamagedFile as error:
            raise DamagedFile(f"{error} {AGAIN}") from None

    def model(self, dtype=None):
        """The trained model, not compiled.

        Args:
            dtype: "float32" or "bfloat16" converts weights and computation; None keeps both as
                trained.

        Raises:
            ValueError: if the training has not finished, or the file is damaged.
        """
        self.check()
        if not self.model_file.exists():
            raise ValueError(
                f"{self.path} holds no finished model. Run its training command again: it resumes "
                "from the last checkpoint."
            )
        try:
            check_archive(self.model_file)
        except DamagedFile as error:
            raise DamagedFile(f"{error} {AGAIN}") from None
        model = keras.saving.load_model(self.model_file, compile=False)
        return model if dtype is None else with_dtype(model, dtype)

    def labels(self):
        """The pair of the names of the labels, in the order of the logits, and whether a text may
        have several of them, or none.

        Raises:
            ValueError: if the run has not finished, does not classify, or the file is damaged.
        """
        self.check()
        path = self.labels_file
        if not path.exists():
            raise ValueError(f"{self.path} holds no finished run: there is no {path.name}.")
        try:
            kept = json.loads(path.read_text())
            checksum = kept.pop("checksum", None)
            if checksum not in (None, zlib.crc32(json.dumps(kept).encode())):
                raise ValueError("its checksum is another one")
            # Runs of version 0.1 say "several".
            return kept["names"], kept["multi_label" if "multi_label" in kept else "several"]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DamagedFile(f"{path} is damaged: {error}. {AGAIN}") from None
