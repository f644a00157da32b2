"""Reads the results of training from a run folder: settings, tokenizer, labels, model."""

import functools
import json
import logging
import pathlib

import keras
import tensorflow as tf

from keras_transformer.files import (
    DamagedFile,
    check_archive,
    check_format,
    file_checksum,
    in_one_line,
    json_checksum,
    load_json,
    read_arrays,
    read_json,
)
from keras_transformer.layers.block import NotRegistered
from keras_transformer.models.copies import with_dtype
from keras_transformer.models.lora import lora_of, merge_lora
from keras_transformer.tokenizers import load_tokenizer

FORMAT = 1  # of config.json and the files beside it; others are refused
WEIGHTS = ("averaged", "best")
AGAIN = "Run its training command again to recreate the file."
DELETE = f"Delete it. {AGAIN}"


LOG = logging.getLogger(__name__)


@functools.cache  # once for each edit
def _warn_of_edit(path, _):
    LOG.warning("%s was edited by hand. Its settings are used as they are there.", path)


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
        self.best_model_file = self.path / "best.keras"

    def check(self):
        """Raises ValueError if the folder does not hold a run."""
        if not self.config_file.exists():
            raise ValueError(f"{self.path} holds no run: there is no {self.config_file.name}.")

    def content(self):
        """All that config.json holds, a dictionary; also of a folder of another library.

        Raises:
            DamagedFile: if it is not JSON, or no dictionary.
            ValueError: if the folder has no such file.
        """
        self.check()
        try:
            content = read_json(self.config_file)
        except ValueError as error:
            raise self._damage(error) from None
        if not isinstance(content, dict):
            raise self._damage("it holds no settings")
        return content

    def settings(self, needed=()):
        """The settings of the run, a dictionary.

        Args:
            needed: names of settings without which the file is damaged.

        Raises:
            ValueError: if the folder does not hold a run, or the file is damaged or has another
                format.
        """
        content = self.content()
        check_format(self.config_file, content.get("format"), FORMAT)
        if missing := [name for name in needed if name not in content]:
            raise self._damage(f"it does not say {', '.join(missing)}")
        if content.pop("checksum", None) != json_checksum(content):
            _warn_of_edit(str(self.config_file), json_checksum(content))
        del content["format"]
        return content

    def _damage(self, reason):
        return DamagedFile(
            f"{self.config_file} is damaged: {reason}; restore it, or choose another run."
        )

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
        return self._tokenizer(self.target_tokenizer_file) if self.has_two_tokenizers() else None

    def has_two_tokenizers(self):
        """Whether source and target have a tokenizer each.

        Raises:
            ValueError: if config.json does not say, or says no although there is a second one.
        """
        has_second = "target_tokenizer" in self.checksums() or self.target_tokenizer_file.exists()
        stated = self.settings().get("target_tokenizer")
        if not isinstance(stated, bool) or stated < has_second:
            raise DamagedFile(
                f"target_tokenizer in {self.config_file} must be {str(has_second).lower()}, as the "
                f"files of the run say. Received: {json.dumps(stated):.80}."
            )
        return stated

    def _tokenizer(self, file):
        if not file.exists():
            raise DamagedFile(f"{file} is missing. {AGAIN}")
        checksum = file_checksum(file)
        if checksum != self.checksums().get(file.stem, checksum):
            raise DamagedFile(f"{file} is damaged. {DELETE}")
        try:
            return load_tokenizer(file)
        except DamagedFile as error:
            raise DamagedFile(f"{error} {DELETE}") from None

    def model(self, dtype=None, weights="averaged"):
        """The trained model, not compiled; LoRA is merged into its kernels.

        Args:
            dtype: "float32" or "bfloat16" converts weights and computation; None keeps both as
                trained.
            weights: "averaged" for the mean of the newest checkpoints, which a finished run has;
                "best" for those with the best score that was measured during training.

        Raises:
            ValueError: if training has not finished, if no score was measured, or if the file or
                the settings beside it are damaged.
        """
        self.settings()
        if weights not in WEIGHTS:
            raise ValueError(f"weights must be one of {', '.join(WEIGHTS)}. Received: {weights!r}.")
        if weights == "averaged":
            file, advice = self.model_file, AGAIN
            missing = (
                "finished model. Run its training command again: it resumes from the last "
                "checkpoint."
            )
        else:
            file, advice = self.best_model_file, "Use the averaged weights."
            missing = (
                f"{file.name}: no score was measured during training, as keras-transformer "
                f"translation does with --bleu-every. {advice}"
            )
        if not file.exists():
            raise ValueError(f"{self.path} holds no {missing}")
        try:
            check_archive(file)
        except DamagedFile as error:
            raise DamagedFile(f"{error} {advice}") from None
        try:
            model = keras.saving.load_model(file, compile=False)
        except (MemoryError, tf.errors.ResourceExhaustedError, NotRegistered):
            raise
        except Exception as error:  # Keras and h5py raise many types for what they cannot load
            reason = in_one_line(str(error).rpartition("Exception encountered: ")[2] or error)
            raise DamagedFile(
                f"{file} holds no model that can be loaded: {reason.rstrip('.')}. {advice}"
            ) from None
        if lora_of(model) is not None:
            model = merge_lora(model)
        return model if dtype is None else with_dtype(model, dtype)

    def labels(self):
        """The labels of a classifier.

        Returns:
            The pair of their names, in the order of the logits, and whether a text may have any
            number of them instead of exactly one. Without names, the run predicts numbers.

        Raises:
            ValueError: if the run has not finished or is not a classifier, or the file is damaged.
        """
        self.check()
        path = self.labels_file
        if not path.exists():
            raise ValueError(
                f"{self.path} holds no finished run of a classifier: there is no {path.name}."
            )
        content = load_json(path, AGAIN)
        return content["names"], content["multi_label"]
