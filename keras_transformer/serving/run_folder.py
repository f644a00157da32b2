"""Reads the results of training from a run folder: settings, tokenizer, labels, model."""

import json
import pathlib
import zlib

import keras

from keras_transformer.files import DamagedFile, check_archive, in_one_line, read_arrays, read_json
from keras_transformer.serving.precision import with_dtype
from keras_transformer.tokenizers import load_tokenizer

AGAIN = "Run its training command again to recreate the file."


class RunFolder:
    """The folder of a run, read only.

    It holds config.json, tokenizer.model and, once training has finished, model.keras; for a
    classifier also labels.json. checksums.npz shows whether the tokenizer is still the one that
    the model was trained with.

    Args:
        path: path of the folder.

    Examples:
        >>> RunFolder("no such folder").settings()
        Traceback (most recent call last):
        ...
        ValueError: no such folder holds no run: there is no config.json.
    """

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.config_file = self.path / "config.json"
        self.tokenizer_file = self.path / "tokenizer.model"
        self.target_tokenizer_file = self.path / "target_tokenizer.model"
        self.checksums_file = self.path / "checksums.npz"
        self.labels_file = self.path / "labels.json"
        self.model_file = self.path / "model.keras"

    def check(self):
        """Raises ValueError if the folder does not hold a run."""
        if not self.config_file.exists():
            raise ValueError(f"{self.path} holds no run: there is no {self.config_file.name}.")

    def settings(self):
        """The settings of the run, a dictionary.

        Raises:
            ValueError: if the folder does not hold a run, or the file is damaged.
        """
        self.check()
        try:
            return dict(read_json(self.config_file))
        except (ValueError, TypeError) as error:
            raise DamagedFile(
                f"{self.config_file} is damaged: restore it, or choose another run. "
                f"Received: {error}"
            ) from None

    def checksums(self):
        """The checksums of tokenizer and tokens, by name; empty if the file is unreadable."""
        try:
            return {name: int(number) for name, number in read_arrays(self.checksums_file)}
        except (ValueError, TypeError, FileNotFoundError):  # also if they are no numbers
            return {}

    def tokenizer(self):
        """The tokenizer of the run.

        Raises:
            ValueError: if the folder does not hold a run, or the file is missing, damaged or not
                the one that the model was trained with.
        """
        self.check()
        return self._tokenizer(self.tokenizer_file)

    def target_tokenizer(self):
        """The target tokenizer of a converted model; None if both sides share one.

        Raises:
            ValueError: as for `tokenizer`.
        """
        self.check()
        has_one = "target_tokenizer" not in self.checksums()
        return None if has_one else self._tokenizer(self.target_tokenizer_file)

    def _tokenizer(self, file):
        if not file.exists():
            raise DamagedFile(f"{file} is missing. {AGAIN}")
        content = file.read_bytes()
        if zlib.crc32(content) != self.checksums().get(file.stem, zlib.crc32(content)):
            raise DamagedFile(f"{file} is damaged. {AGAIN}")
        try:
            return load_tokenizer(file)
        except DamagedFile as error:
            raise DamagedFile(f"{error} {AGAIN}") from None

    def model(self, dtype=None):
        """The trained model, not compiled.

        Args:
            dtype: "float32" or "bfloat16" converts weights and computation; None keeps both as
                trained.

        Raises:
            ValueError: if training has not finished, or the file is damaged.
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
        try:
            model = keras.saving.load_model(self.model_file, compile=False)
        except MemoryError:
            raise
        except Exception as error:  # Keras and h5py raise many types for forged content
            line = in_one_line(error)
            raise DamagedFile(f"{self.model_file} cannot be loaded: {line}. {AGAIN}") from error
        return model if dtype is None else with_dtype(model, dtype)

    def labels(self):
        """The labels of a classifier.

        Returns:
            The pair of their names, in the order of the logits, and whether a text may have any
            number of them instead of exactly one.

        Raises:
            ValueError: if the run has not finished or is not a classifier, or the file is damaged.
        """
        self.check()
        path = self.labels_file
        if not path.exists():
            raise ValueError(
                f"{self.path} holds no finished run of a classifier: there is no {path.name}."
            )
        try:
            content = read_json(path)
            checksum = content.pop("checksum", None)
            if checksum not in (None, zlib.crc32(json.dumps(content).encode())):
                raise ValueError("its checksum does not match")
            # Runs of version 0.1 have "several" instead.
            key = "multi_label" if "multi_label" in content else "several"
            return content["names"], content[key]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DamagedFile(f"{path} is damaged: {error}. {AGAIN}") from None
