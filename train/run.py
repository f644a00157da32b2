"""The folder of a run: what it holds, how training fills it, and how a model comes out of it."""

import csv
import dataclasses
import os
import pathlib
import shutil
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.text import load_tokenizer
from keras_transformer.training import Adam, InverseSqrtWarmup
from keras_transformer.training.callbacks import StopOnNonFiniteLoss, TokensPerSecond, save_whole
from keras_transformer.training.checkpoints import (
    Checkpoints,
    SaveOnTerminate,
    average_checkpoints,
)
from keras_transformer.training.distribution import (
    check_workers_agree,
    from_all_workers,
    this_worker,
)
from train.config import TranslationConfig


class Run:
    """A folder with config.json, tokenizer.model, tokens.npz, checkpoints/ and what comes out.

    Args:
        path: of the folder.
        config_class: a subclass of `train.config.TrainingConfig`: whose run it is.
    """

    def __init__(self, path, config_class=TranslationConfig):
        self.path = pathlib.Path(path)
        self.config_class = config_class
        self.config_file = self.path / "config.json"
        self.tokenizer_file = self.path / "tokenizer.model"
        self.tokens_file = self.path / "tokens.npz"
        self.checkpoints = self.path / "checkpoints"
        self.model_file = self.path / "model.keras"
        self.best_model_file = self.path / "best.keras"
        self.history_file = self.path / "history.csv"

    def check(self, config):
        """Whether the folder holds this run already.

        Raises:
            ValueError: if it holds a run with other settings, or something else.
        """
        if not self.config_file.exists():
            if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
                raise ValueError(
                    f"{self.path} holds something that is no run. Choose another --run."
                )
            return False
        earlier = self.config()
        changed = [
            f"{name} is {getattr(earlier, name)!r} there and {value!r} now"
            for name, value in dataclasses.asdict(config).items()
            if getattr(earlier, name) != value
        ]
        if changed:
            raise ValueError(
                f"{self.path} holds a run with other settings. Choose another --run, or delete it. "
                f"Received: {'; '.join(changed)}."
            )
        return True

    def create(self, config, tokenizer, batches):
        """Makes the folder with settings, tokenizer and tokens, whole or not at all.

        Raises:
            ValueError: if another process has been faster.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        draft.mkdir()
        tokenizer.save(draft / self.tokenizer_file.name)
        batches.save(draft / self.tokens_file.name)
        config.save(draft / self.config_file.name)
        try:
            draft.rename(self.path)
        except OSError:
            shutil.rmtree(draft)
            if not self.config_file.exists():
                raise
            raise ValueError(
                f"Another process has begun a run in {self.path} meanwhile. Choose another --run."
            ) from None

    def config(self):
        """The settings of this run.

        Raises:
            ValueError: if the folder holds no run.
        """
        if not self.config_file.exists():
            raise ValueError(f"{self.path} holds no run: there is no {self.config_file.name}.")
        try:
            return self.config_class.load(self.config_file)
        except TypeError as error:  # a setting that this command does not know
            raise ValueError(
                f"{self.path} holds a run of another command or version. Received: {error}."
            ) from None

    def tokenizer(self):
        return load_tokenizer(self.tokenizer_file)

    def model(self):
        """The finished model.

        Raises:
            ValueError: if the training has not finished.
        """
        self.config()
        if not self.model_file.exists():
            raise ValueError(
                f"{self.path} holds no finished model. Run its training command again: it goes on "
                "from the last checkpoint."
            )
        return keras.saving.load_model(self.model_file, compile=False)

    def history(self):
        """The logs of all epochs so far: a dictionary from name to a list of numbers."""
        if not self.history_file.exists():
            return {}
        with open(self.history_file, newline="") as file:
            # An epoch that was broken off after its row has another, of its second end.
            rows = list({row["epoch"]: row for row in csv.DictReader(file)}.values())
        if not rows:  # not even one epoch has come to its end
            return {}
        # Without a validation text Keras logs its numbers as "NA".
        names = [name for name in rows[0] if name != "epoch" and rows[0][name] != "NA"]
        return {name: [float(row[name]) for row in rows] for name in names}


class StopWithoutProgress(keras.callbacks.Callback):
    """Stops when some epochs have not lowered the validation loss.

    Keras's `EarlyStopping` forgets the epochs before its `fit`; a run that was interrupted
    takes several.

    Args:
        patience: number of such epochs.
        losses: of the epochs that an earlier process has come to the end of.
    """

    def __init__(self, patience, losses):
        super().__init__()
        self._patience = patience
        self._losses = list(losses)

    def on_epoch_end(self, epoch, logs=None):
        self._losses[epoch:] = [logs["val_loss"]]
        self.model.stop_training = self.is_due(epoch + 1)

    def is_due(self, epochs):
        """Whether training ends after so many epochs."""
        losses = self._losses[:epochs]
        return bool(losses) and len(losses) - 1 - np.argmin(losses) >= self._patience


@dataclasses.dataclass(frozen=True)
class Task:
    """What a run is trained on, measured by, and what it leaves: what differs between commands.

    Args:
        read: () -> the pair of a tokenizer and batches (`dataset(step)`, `steps_per_epoch`,
            `checksum()`, `save(path)`) made from the text.
        load: path, tokenizer -> the batches that were saved there.
        build: tokenizer, batches -> a compiled model.
        describe: batches -> what is printed of the data.
        validation: tokenizer -> a dataset to measure on after each epoch, or None.
        callbacks: run, tokenizer -> those that measure and write, for the chief alone.
    """

    read: Callable
    load: Callable
    build: Callable
    describe: Callable
    validation: Callable = lambda tokenizer: None
    callbacks: Callable = lambda run, tokenizer: []


def train(run, config, task, strategy=None):
    """Trains a run to its end, from its last checkpoint if it has one.

    With several workers all read the text and the run's folder, and the chief alone writes.

    Args:
        run: a `Run`; its folder is created once everything it needs has proved good.
        config: its settings.
        task: a `Task`.
        strategy: of `keras_transformer.training.choose_strategy`; None for one device.

    Returns:
        The model, with the mean of the weights of its newest checkpoints.

    Raises:
        ValueError: if a setting, the text or the folder does not fit; nothing is written.
        RuntimeError: if the workers see different folders or texts.
    """
    strategy = strategy or tf.distribute.get_strategy()
    is_chief = this_worker(strategy).index == 0
    exists, finished = run.check(config), run.model_file.exists()
    check_workers_agree(strategy, exists + finished, f"what {run.path} holds")
    if finished:
        if is_chief:
            print(f"{run.path} is trained already: nothing to do.")
        return run.model()
    if config.checkpoint_every < 1 or config.average < 1:
        raise ValueError(
            "checkpoint_every and average must be at least 1. Received: "
            f"checkpoint_every={config.checkpoint_every}, average={config.average}."
        )
    keras.utils.set_random_seed(config.seed)
    if exists:  # the text is not tokenised again, and may even have changed
        tokenizer = run.tokenizer()
        batches = task.load(run.tokens_file, tokenizer)
    else:
        tokenizer, batches = task.read()
    check_workers_agree(strategy, batches.checksum(), "the checksum of the tokenised text")
    validation = task.validation(tokenizer)
    with strategy.scope():
        model = task.build(tokenizer, batches)
    checkpoints = Checkpoints(run.checkpoints, model, config.checkpoint_every, config.average)
    if is_chief:
        if not exists:
            run.create(config, tokenizer, batches)
        _report(config, model, task.describe(batches), batches.steps_per_epoch, strategy)
    from_all_workers(strategy, 0)  # the chief has made the folder
    callbacks = [StopOnNonFiniteLoss(), TokensPerSecond()]
    if validation is not None and config.patience:
        callbacks.append(StopWithoutProgress(config.patience, run.history().get("val_loss", [])))
    if is_chief:
        callbacks += task.callbacks(run, tokenizer)
        callbacks.append(keras.callbacks.CSVLogger(str(run.history_file), append=True))
        if config.tensorboard:
            callbacks.append(keras.callbacks.TensorBoard(str(run.path / "tensorboard")))
    _fit(model, config, batches, validation, checkpoints, callbacks, verbose=1 if is_chief else 0)
    from_all_workers(strategy, 0)  # the chief has saved the last checkpoint
    averaged = average_checkpoints(run.checkpoints, model, config.average)
    if is_chief:
        steps = ", ".join(map(str, averaged))
        print(f"The model is the mean of the checkpoints at steps {steps}.")
        save_whole(model, run.model_file)
    return model


def optimizer_of(config):
    """Adam with the schedule that the settings ask for."""
    if config.schedule == "inverse_sqrt":
        rate = InverseSqrtWarmup(config.peak_rate, config.warmup_steps)
    elif config.schedule == "cosine":
        rate = keras.optimizers.schedules.CosineDecay(
            initial_learning_rate=0.0,
            decay_steps=max(1, config.steps - config.warmup_steps),
            alpha=0.1,
            warmup_target=config.peak_rate,
            warmup_steps=config.warmup_steps,
        )
    else:
        raise ValueError(
            f"schedule must be inverse_sqrt or cosine. Received: schedule={config.schedule!r}."
        )
    optimizer = Adam(rate, beta_2=config.beta_2, weight_decay=config.weight_decay or None)
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    return optimizer


def _report(config, model, description, steps_per_epoch, strategy):
    workers, replicas = this_worker(strategy).count, strategy.num_replicas_in_sync
    if replicas > 1:
        print(f"{replicas} replicas on {workers} worker{'s' if workers > 1 else ''}.")
    print(
        f"{description}; {model.count_params():,} parameters; {config.steps:,} steps, "
        f"{steps_per_epoch:,} an epoch."
    )


def _fit(model, config, batches, valid, checkpoints, callbacks, verbose):
    """Calls `fit` from the last checkpoint on, so that epochs end where they would have ended."""
    step = checkpoints.restore()
    if step and verbose:
        print(f"Going on from step {step} of {config.steps}.")
    per_epoch = batches.steps_per_epoch
    stops = [callback for callback in callbacks if isinstance(callback, StopWithoutProgress)]
    model.stop_training = any(stop.is_due(step // per_epoch) for stop in stops)
    while step < config.steps and not model.stop_training:
        epoch, done = divmod(step, per_epoch)
        # A broken epoch is finished first; after it epochs are whole, but for the last.
        epochs = 1 if done else max(1, (config.steps - step) // per_epoch)
        steps = min(per_epoch - done, config.steps - step)
        model.fit(
            batches.dataset(step),
            initial_epoch=epoch,
            epochs=epoch + epochs,
            steps_per_epoch=steps,
            validation_data=valid,
            callbacks=[*callbacks, checkpoints, SaveOnTerminate(checkpoints)],
            verbose=verbose,
            shuffle=False,  # the batches are shuffled already
        )
        step += steps * epochs
    checkpoints.save()
