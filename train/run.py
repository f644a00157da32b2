"""The folder of a run: what it holds, how training fills it, and how a model comes out of it."""

import dataclasses
import os
import pathlib
import shutil

import keras

from keras_transformer.models.translation import translation
from keras_transformer.text import TokenBatches, Tokenizer, train_tokenizer
from keras_transformer.training import (
    Adam,
    InverseSqrtWarmup,
    Perplexity,
    TokenAccuracy,
    TokenCrossentropy,
)
from keras_transformer.training.callbacks import StopOnNonFiniteLoss, TokensPerSecond
from keras_transformer.training.checkpoints import Checkpoints, average_checkpoints
from train.config import TranslationConfig


class Run:
    """A folder with config.json, tokenizer.model, checkpoints/, history.csv and model.keras."""

    def __init__(self, path):
        self.path = pathlib.Path(path)
        self.config_file = self.path / "config.json"
        self.tokenizer_file = self.path / "tokenizer.model"
        self.checkpoints = self.path / "checkpoints"
        self.model_file = self.path / "model.keras"
        self.history_file = self.path / "history.csv"

    def begin(self, config, train_text):
        """Creates the folder whole, or checks that an earlier one is of the same experiment.

        Raises:
            ValueError: if the folder holds another experiment, or something else.
        """
        if self.config_file.exists():
            earlier = TranslationConfig.load(self.config_file)
            changed = [
                f"{field.name}: {getattr(earlier, field.name)!r} there, "
                f"{getattr(config, field.name)!r} now"
                for field in dataclasses.fields(config)
                if getattr(earlier, field.name) != getattr(config, field.name)
            ]
            if changed:
                raise ValueError(
                    f"{self.path} holds a run with other settings. Choose another --run, or delete "
                    f"it. Received: {'; '.join(changed)}."
                )
            return
        if self.path.exists() and any(self.path.iterdir()):
            raise ValueError(f"{self.path} is not empty and holds no run. Choose another --run.")
        tokenizer = train_tokenizer(
            [*train_text.sources, *train_text.targets], config.vocabulary_size
        )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        temporary.mkdir()
        tokenizer.save(temporary / self.tokenizer_file.name)
        config.save(temporary / self.config_file.name)
        if self.path.exists():
            self.path.rmdir()
        temporary.rename(self.path)

    def config(self):
        """The settings of this run.

        Raises:
            ValueError: if the folder holds no run.
        """
        if not self.config_file.exists():
            raise ValueError(f"{self.path} holds no run: there is no {self.config_file.name}.")
        return TranslationConfig.load(self.config_file)

    def tokenizer(self):
        return Tokenizer.load(self.tokenizer_file)

    def model(self):
        """The finished model.

        Raises:
            ValueError: if the training has not finished.
        """
        if not self.model_file.exists():
            raise ValueError(
                f"{self.path} holds no finished model. Run its training command again: it goes on "
                "from the last checkpoint."
            )
        return keras.saving.load_model(self.model_file, compile=False)


def train(run, config, train_text, valid_text=None, callbacks=()):
    """Trains a run to its end, from its last checkpoint if it has one.

    Args:
        run: a `Run` that has begun.
        config: its settings.
        train_text: `ParallelText` to learn from.
        valid_text: `ParallelText` to measure on after each epoch, or None.
        callbacks: further Keras callbacks.

    Returns:
        The model, with the mean of the weights of its newest checkpoints.
    """
    keras.utils.set_random_seed(config.seed)
    tokenizer = run.tokenizer()
    batches = TokenBatches(
        *train_text, tokenizer, tokenizer, config.tokens_per_batch, config.max_length, config.seed
    )
    valid = None
    if valid_text is not None:
        valid = TokenBatches(
            *valid_text, tokenizer, tokenizer, config.tokens_per_batch, config.max_length
        ).epoch()
    model = compiled_model(config, tokenizer.vocabulary_size)
    checkpoints = Checkpoints(
        run.checkpoints, model, config.checkpoint_every, max(config.average, 1)
    )
    callbacks = [
        StopOnNonFiniteLoss(),
        TokensPerSecond(),
        checkpoints,
        keras.callbacks.CSVLogger(str(run.history_file), append=True),
        *callbacks,
    ]
    step = checkpoints.restore()
    if step:
        print(f"Going on from step {step} of {config.steps}.")
    per_epoch = batches.steps_per_epoch
    while step < config.steps and not model.stop_training:
        # A broken epoch is finished first; after it epochs are whole, but for the last.
        epoch, done = divmod(step, per_epoch)
        whole_epochs = 1 if done else max(1, (config.steps - step) // per_epoch)
        steps = min(per_epoch - done, config.steps - step)
        model.fit(
            batches.dataset(step),
            initial_epoch=epoch,
            epochs=epoch + whole_epochs,
            steps_per_epoch=steps,
            validation_data=valid,
            callbacks=callbacks,
        )
        step += steps * whole_epochs
    averaged = average_checkpoints(run.checkpoints, model, config.average)
    print(f"The model is the mean of the checkpoints at steps {', '.join(map(str, averaged))}.")
    _save_whole(model, run.model_file)
    return model


def compiled_model(config, vocabulary_size):
    model = translation(vocabulary_size, **config.dimensions())
    model.compile(
        optimizer=Adam(InverseSqrtWarmup(config.peak_rate, config.warmup_steps)),
        loss=TokenCrossentropy(config.label_smoothing),
        metrics=[TokenAccuracy(), Perplexity()],
        clip_norm=config.clip_norm or None,
        accumulation_steps=config.accumulation_steps,
    )
    return model


def _save_whole(model, path):
    temporary = path.with_name(f".{os.getpid()}.{path.name}")
    model.save(temporary)
    shutil.move(temporary, path)
