"""The folder of a run, as training writes it."""

import math
import os
import pathlib
import shutil

import keras
import numpy as np

from keras_transformer.convert import Converted
from keras_transformer.files import (
    NotWritten,
    atomic_path,
    check_writable,
    complete,
    draft_of,
    file_checksum,
    is_free,
    load_arrays,
    save_arrays,
    save_json,
)
from keras_transformer.layers.block import NotRegistered
from keras_transformer.serving import RunFolder
from keras_transformer.serving.run_folder import FORMAT
from keras_transformer.training.callbacks import save_model
from keras_transformer.training.checkpoint_files import steps_in

from .progress import StopWithoutProgress, read_log
from .training_config import MAY_CHANGE, describe_changes


class Run(RunFolder):
    """A `RunFolder` with the files for training: checkpoints/, history.csv, a lock and others.

    data/ is the training text as a prepared folder, unless there is --prepared; plan/ the order of
    its rows. pretrained.npz is the architecture of the model of --pretrained, without its weights.

    Until a run begins, its files lie in the folder of `draft`, which is a `Run`, too.

    Args:
        path: path of the folder.
        config_class: the subclass of `TrainingConfig` of its command.
    """

    def __init__(self, path, config_class):
        super().__init__(path)
        self.config_class = config_class
        self.data = self.path / "data"
        self.plan = self.path / "plan"
        self.lock_file = self.path / "lock"
        self.checkpoints = self.path / "checkpoints"
        self.pretrained_file = self.path / "pretrained.npz"
        self.history_file = self.path / "history.csv"
        self.losses_file = self.path / "losses.csv"
        # While it exists, the model lacks steps that the run was given after it was finished.
        self.goes_on_file = self.path / "goes-on"

    def names(self):
        """The names of the files and folders that only training writes, under its lock."""
        return [path.name for path in vars(self).values() if isinstance(path, pathlib.Path)]

    def exists(self):
        """Whether the folder holds a run."""
        complete(self.path)
        return self.config_file.exists()

    def config(self):
        """The settings of this run.

        Raises:
            ValueError: if the folder holds no run, a run of another command, or a damaged one.
        """
        kept = self.settings()
        kept.pop("target_tokenizer", None)
        try:
            return self.config_class.restored(kept)
        except ValueError as error:
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"{self.config_file} belongs to another command, or is damaged. {reason}"
            ) from None

    def holds(self, config):
        """Whether the folder already holds this run.

        An unfinished run may resume with other values of the settings in `MAY_CHANGE`; a finished
        one goes on with them if it has a checkpoint and is given more steps.

        Raises:
            ValueError: if it holds a run with other settings, or something else.
            NotWritten: if it cannot be created.
        """
        if not self.exists():
            if not is_free(self.path):
                raise ValueError(
                    f"{self.path} exists but is not a run folder. Choose another --run."
                )
            check_writable(self.path)
            return False
        before = self.config()
        goes_on = config.steps > before.steps and bool(steps_in(self.checkpoints))
        finished = self.is_finished(before) and not goes_on
        refused = {
            name: (old, new)
            for name, (old, new) in config.changes_from(before).items()
            if finished or not (name in MAY_CHANGE and MAY_CHANGE[name](old, new))
        }
        if refused:
            reason = (
                "is already trained: its settings" if finished else "was begun with settings that"
            )
            raise ValueError(
                f"{self.path} {reason} can no longer change. Choose another --run, or delete it. "
                f"Received: {describe_changes(refused)}."
            )
        return True

    def is_finished(self, config):
        """Whether the run has the model of all steps of a config, or stopped early, as it says."""
        if not self.model_file.exists() or self.goes_on_file.exists():
            return False
        steps = steps_in(self.checkpoints)
        if not steps or steps[-1] >= config.steps:
            return True
        losses = self.history().get("val_loss", [])
        stop = StopWithoutProgress(config.patience, losses)
        return bool(config.patience) and stop.is_due(len(losses))

    def record(self, config):
        """Saves the settings with which a run resumes, and prints the changes in one line."""
        if self.model_file.exists():
            with atomic_path(self.goes_on_file) as draft:
                draft.touch()
        if changes := config.changes_from(self.config()):
            self.save_config(config, self.has_two_tokenizers())
            print(f"Resuming with other settings: {describe_changes(changes)}.")

    def save(self, model):
        """Writes the model of all steps."""
        save_model(model, self.model_file)
        self.goes_on_file.unlink(missing_ok=True)

    def draft(self, process=None):
        """What this process, or that of a number, has of the run before it begins."""
        return Run(draft_of(self.path, process), self.config_class)

    def write(self, experiment):
        """Writes settings, tokenizers, data and their checksums, as they are when a run begins."""
        if experiment.has_own_data:  # read all texts before one is tokenised, which may take long
            _ = experiment.train_text, experiment.valid_text
        tokenizer, target = experiment.make_tokenizer(), experiment.target_tokenizer
        self.path.mkdir(parents=True)
        self.save_config(experiment.config, target is not None)
        tokenizer.save(self.tokenizer_file)
        if target is not None:
            target.save(self.target_tokenizer_file)
        if experiment.has_own_data:
            experiment.prepare(self.data, tokenizer)
        self.save_checksums(experiment.prepared)
        if experiment.pretrained is not None:
            content = experiment.pretrained.model.to_json().encode()
            save_arrays(self.pretrained_file, [("json", np.frombuffer(content, "u1"))])

    def create(self):
        """Makes the folder of this process's draft, whole or not at all.

        Raises:
            ValueError: if another process was faster.
        """
        try:
            with atomic_path(self.path):
                pass  # it is written
        except NotWritten:
            if not self.config_file.exists():
                raise
            raise ValueError(
                f"Another process has just begun a run in {self.path}. Choose another --run."
            ) from None

    def pretrained(self):
        """What a run with a checkpoint needs of its --pretrained, as `convert.Converted`.

        The checkpoint has the weights, the run all else. Returns None without a checkpoint, and
        if a file is damaged.
        """
        if not self.exists() or not (steps_in(self.checkpoints) or self.model_file.exists()):
            return None
        try:
            content = load_arrays(self.pretrained_file)["json"].tobytes()
            tokenizers = self.tokenizer(), self.target_tokenizer()
            model = keras.models.model_from_json(content)
        except (MemoryError, NotRegistered):
            raise
        except Exception:  # Keras raises many types for what it cannot deserialise
            return None
        return Converted("", model, *tokenizers, config=self.settings())

    def save_config(self, config, has_two_tokenizers=False):
        """Writes the settings as JSON, whole or not at all."""
        content = {"format": FORMAT, **config.model_dump(), "target_tokenizer": has_two_tokenizers}
        save_json(self.config_file, content)

    def save_checksums(self, prepared=None):
        """Writes the checksums by which tokenizers and data are known again."""
        checksums = {} if prepared is None else {"tokens": prepared.checksum()}
        for file in (self.tokenizer_file, self.target_tokenizer_file):
            if file.exists():
                checksums[file.stem] = file_checksum(file)
        save_arrays(self.checksums_file, checksums.items())

    def replace_data(self, other):
        """Moves tokenizers, data and checksums of another folder into this one."""
        shutil.rmtree(self.data, ignore_errors=True)
        for name in ("tokenizer_file", "target_tokenizer_file", "data", "checksums_file"):
            if (path := getattr(other, name)).exists():
                os.replace(path, getattr(self, name))

    def save_labels(self, names, multi_label):
        """Writes the names of the labels of a classifier, in the order of its logits."""
        save_json(self.labels_file, {"names": list(names), "multi_label": multi_label})

    def history(self):
        """The logs of all epochs so far, {name: list of numbers}; NaN for what was not measured."""
        rows = [row for _, row in sorted(read_log(self.history_file).items())]
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: [row.get(name, math.nan) for row in rows] for name in names}

    def losses(self):
        """The training loss within epochs, {epochs until then: loss}."""
        rows = [row for _, row in sorted(read_log(self.losses_file).items())]
        return {row["epochs"]: row["loss"] for row in rows if row.keys() == {"epochs", "loss"}}
