"""The folder of a run: what it holds, how training fills it, and how a model comes out of it."""

import contextlib
import dataclasses
import pathlib
import tempfile
import zlib
from collections.abc import Callable

import keras
import tensorflow as tf

from keras_transformer.files import (
    DamagedFile,
    NotWritten,
    check_archive,
    read_arrays,
    save_arrays,
    whole,
)
from keras_transformer.tokenizers import load_tokenizer
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
from train.progress import EpochLog, StopWithoutProgress, read_epochs
from train.recovery import AGAIN, data_of, finished_model, locked
from train.training_config import MAY_CHANGE, in_words


class Run:
    """A folder with config.json, tokenizer.model, tokens.npz, checkpoints/ and what comes out.

    checksums.npz tells whether tokenizer and tokens are still those that the run began with.

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
        self.checksums_file = self.path / "checksums.npz"
        self.lock_file = self.path / "lock"
        self.checkpoints = self.path / "checkpoints"
        self.model_file = self.path / "model.keras"
        self.best_model_file = self.path / "best.keras"
        self.history_file = self.path / "history.csv"

    def check(self, config):
        """Whether the folder holds this run already.

        A run that is not finished may go on with other settings where `MAY_CHANGE` says so.

        Raises:
            ValueError: if it holds a run with other settings, or something else.
        """
        if not self.config_file.exists():
            if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
                raise ValueError(
                    f"{self.path} exists but is not a run folder. Choose another --run."
                )
            return False
        finished = self.model_file.exists()
        refused = {
            name: (before, now)
            for name, (before, now) in config.changes_from(self.config()).items()
            if finished or not (name in MAY_CHANGE and MAY_CHANGE[name](before, now))
        }
        if refused:
            reason = (
                "is trained already: its settings" if finished else "was begun with settings that"
            )
            raise ValueError(
                f"{self.path} {reason} can no longer change. Choose another --run, or delete it. "
                f"Received: {in_words(refused)}."
            )
        return True

    def record(self, config):
        """Keeps the settings with which a run goes on, and says in a line what has changed."""
        if changes := config.changes_from(self.config()):
            config.save(self.config_file)
            print(f"Going on with other settings: {in_words(changes)}.")

    def create(self, config, tokenizer, batches):
        """Makes the folder with settings, tokenizer and tokens, whole or not at all.

        Raises:
            ValueError: if another process has been faster.
        """
        try:
            with whole(self.path) as draft:
                draft.mkdir()
                config.save(draft / self.config_file.name)
                Run(draft).save_data(tokenizer, batches)
        except NotWritten:
            if not self.config_file.exists():
                raise
            raise ValueError(
                f"Another process has begun a run in {self.path} meanwhile. Choose another --run."
            ) from None

    def save_data(self, tokenizer, batches):
        """Writes tokenizer and tokens, and the checksums by which they are known again."""
        tokenizer.save(self.tokenizer_file)
        batches.save(self.tokens_file)
        save_arrays(self.checksums_file, self.checksums_of(tokenizer, batches).items())

    @staticmethod
    def checksums_of(tokenizer, batches):
        """Numbers that differ as soon as a tokenizer or any of the tokens does, by name."""
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "tokenizer")
            tokenizer.save(file)
            return {"tokenizer": zlib.crc32(file.read_bytes()), "tokens": batches.checksum()}

    def checksums(self):
        """The checksums of `save_data`, a dict; empty if their file is damaged or not there."""
        try:
            return {name: int(number) for name, number in read_arrays(self.checksums_file)}
        except (DamagedFile, FileNotFoundError):
            return {}

    def config(self):
        """The settings of this run.

        Raises:
            ValueError: if the folder holds no run.
        """
        if not self.config_file.exists():
            raise ValueError(f"{self.path} holds no run: there is no {self.config_file.name}.")
        return self.config_class.load(self.config_file)

    def tokenizer(self):
        """The tokenizer of this run.

        Raises:
            DamagedFile: if it is not the one that the run began with.
        """
        content = self.tokenizer_file.read_bytes()
        if zlib.crc32(content) != self.checksums().get("tokenizer", zlib.crc32(content)):
            raise DamagedFile(f"{self.tokenizer_file} is damaged. {AGAIN}")
        try:
            return load_tokenizer(self.tokenizer_file)
        except DamagedFile as error:
            raise DamagedFile(f"{error} {AGAIN}") from None

    def model(self):
        """The finished model.

        Raises:
            ValueError: if the training has not finished, or the file is damaged.
        """
        self.config()
        if not self.model_file.exists():
            raise ValueError(
                f"{self.path} holds no finished model. Run its training command again: it goes on "
                "from the last checkpoint."
            )
        try:
            check_archive(self.model_file)
        except DamagedFile as error:
            raise DamagedFile(f"{error} {AGAIN}") from None
        return keras.saving.load_model(self.model_file, compile=False)

    def history(self):
        """The logs of all epochs so far: a dictionary from name to a list of numbers."""
        rows = [row for _, row in sorted(read_epochs(self.history_file).items())]
        # Those that an epoch lacks are not numbers of all of them.
        names = [name for name in rows[0] if all(name in row for row in rows)] if rows else []
        return {name: [row[name] for row in rows] for name in names}


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
    with contextlib.ExitStack() as lock:
        exists = run.check(config)
        check_workers_agree(strategy, int(exists), f"what {run.path} holds")
        if exists:
            lock.enter_context(locked(run, strategy))
            model = finished_model(run, task, is_chief)
            check_workers_agree(strategy, int(model is not None), f"what {run.path} holds")
            if model is not None:
                return model
        keras.utils.set_random_seed(config.seed)
        # The text is not tokenised again, and may even have changed.
        tokenizer, batches = data_of(run, task, is_chief) if exists else task.read()
        check_workers_agree(strategy, batches.checksum(), "the checksum of the tokenised text")
        validation = task.validation(tokenizer)
        with strategy.scope():
            model = task.build(tokenizer, batches)
        checkpoints = Checkpoints(run.checkpoints, model, config.checkpoint_every, config.average)
        if is_chief:
            if exists:
                run.record(config)
            else:
                run.create(config, tokenizer, batches)
            _report(config, model, task.describe(batches), batches.steps_per_epoch, strategy)
        from_all_workers(strategy, 0)  # the chief has made the folder
        if not exists:
            lock.enter_context(locked(run, strategy))
        callbacks = [StopOnNonFiniteLoss(), TokensPerSecond()]
        if validation is not None and config.patience:
            callbacks.append(StopWithoutProgress(config.patience))
        if is_chief:
            callbacks += [*task.callbacks(run, tokenizer), EpochLog(run.history_file)]
            if config.tensorboard:
                callbacks.append(keras.callbacks.TensorBoard(str(run.path / "tensorboard")))
        _fit(model, config, batches, validation, checkpoints, callbacks, int(is_chief))
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
    else:  # cosine
        rate = keras.optimizers.schedules.CosineDecay(
            initial_learning_rate=0.0,
            decay_steps=max(1, config.steps - config.warmup_steps),
            alpha=0.1,
            warmup_target=config.peak_rate,
            warmup_steps=config.warmup_steps,
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
    for callback in callbacks:
        if hasattr(callback, "memory"):  # of the epochs before, which another process has seen
            name = type(callback).__name__
            callback.memory[:] = checkpoints.notes.get(name, callback.memory)
            checkpoints.notes[name] = callback.memory
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
