"""Callbacks that watch training: finite losses, speed, the best score."""

import math
import pathlib
import time

import keras
import numpy as np

from keras_transformer.arguments import check_integer
from keras_transformer.files import atomic_path
from keras_transformer.training.distribution import has_workers
from keras_transformer.training.internals import loss_tracker
from keras_transformer.training.losses import TokenCrossentropy
from keras_transformer.training.optimizers import batches_taken


class LateLogs(keras.callbacks.CallbackList):
    """Passes on the logs of a step after the next step has started, so that no step waits.

    A number can be read from a GPU only when everything queued before it has been computed. All
    callbacks must accept late logs, see `accepts_late_logs`; other arguments are those of `fit`.
    """

    def __init__(self, callbacks, verbose, epochs, steps, model):
        shown = {"add_history": True, "add_progbar": verbose != 0, "verbose": verbose}
        super().__init__(callbacks, **shown, epochs=epochs, steps=steps, model=model)
        self._late = None

    def on_train_batch_end(self, batch, logs=None):
        self._hand_over()
        self._late = batch, logs

    def on_test_begin(self, logs=None):
        self._hand_over()
        super().on_test_begin(logs)

    def on_epoch_end(self, epoch, logs=None):
        self._hand_over()
        super().on_epoch_end(epoch, logs)

    def _hand_over(self):
        if self._late is not None:
            late, self._late = self._late, None
            super().on_train_batch_end(*late)


def accepts_late_logs(callback):
    """Whether a callback may get the logs of a step while the next one runs.

    As in Keras, a callback allows it with the attribute `async_safe`, or by ignoring steps;
    TensorBoard's, which is told of steps, writes only epochs by default.
    """
    if isinstance(callback, keras.callbacks.TensorBoard) and callback.update_freq == "epoch":
        return True
    reads_steps = any(  # through the instance, on which a LambdaCallback sets functions
        getattr(getattr(callback, name), "__func__", None)
        is not getattr(keras.callbacks.Callback, name)
        for name in ("on_batch_end", "on_train_batch_end")
    )
    return getattr(callback, "async_safe", False) or not reads_steps


class StopOnNonFiniteLoss(keras.callbacks.Callback):
    """Stops training with a clear error at the first step whose loss is not finite.

    Raises:
        FloatingPointError: with the step and what to try.
    """

    async_safe = True

    def on_epoch_begin(self, epoch, logs=None):
        self._steps_before = batches_taken(self.model)

    def on_train_batch_end(self, batch, logs=None):
        loss = float(logs["loss"])
        if not math.isfinite(loss):
            raise FloatingPointError(
                f"The loss is not finite at step {self._steps_before + batch + 1}. Lower the "
                "learning rate, lengthen the warm-up, or set clip_norm; the last checkpoint is "
                f"from before. Received: loss={loss}."
            )


def check_finite(values, what):
    """Raises FloatingPointError, `what` first, for an infinity or NaN in (path, array) pairs."""
    for path, array in values:
        if not np.isfinite(array).all():
            raise FloatingPointError(
                f"{what}, so nothing is saved. Lower the learning rate, lengthen the warm-up, or "
                f"set clip_norm. Received: {path} of shape {array.shape}."
            )


class TokensPerSecond(keras.callbacks.Callback):
    """Logs the training speed of each epoch, in real target tokens per second.

    During an epoch the speed is measured once a second, for the first time after a second. With a
    loss that counts rows, such as a classifier's, logs examples per second instead.
    """

    async_safe = True

    def on_train_begin(self, logs=None):
        losses = keras.tree.flatten(self.model.loss)
        counts_tokens = any(isinstance(loss, TokenCrossentropy) for loss in losses)
        self._name = "tokens_per_second" if counts_tokens else "examples_per_second"
        self._loss = loss_tracker(self.model)

    def on_epoch_begin(self, epoch, logs=None):
        self._start = self._measured = time.perf_counter()
        # Of an interrupted epoch, an earlier process has counted the beginning.
        self._counted = float(self._loss.count.numpy())
        self._rate, self._is_training = None, True

    def on_train_batch_end(self, batch, logs=None):
        if keras.backend.backend() == "jax":
            return  # `fit` does not publish the count until the epoch ends
        # Once a second, because reading the count waits for the step, and for all workers.
        now = time.perf_counter()
        if now - self._measured >= 1 and not has_workers(self.model.distribute_strategy):
            self._measure(now)
        if self._rate is not None:
            logs[self._name] = self._rate

    def on_test_begin(self, logs=None):
        self._measure(time.perf_counter())  # before validation counts its own tokens
        self._is_training = False

    def on_epoch_end(self, epoch, logs=None):
        if self._is_training:
            self._measure(time.perf_counter())
        logs[self._name] = self._rate

    def _measure(self, now):
        # The tracker averages the loss over tokens, so it has counted them.
        counted = float(self._loss.count.numpy()) - self._counted
        self._rate = round(counted / (now - self._start))
        self._measured = now


class BestScore(keras.callbacks.Callback):
    """Measures a score every few epochs and saves the model with the highest one.

    For translation use BLEU with beam search, which the loss per token does not predict.

    Args:
        score: a function from the model to a number; higher is better.
        path: file for the best model, ending in `.keras`; None saves nothing.
        every: number of epochs between two measurements, at least 1.
        name: name of the score in the logs; NaN in epochs in which it is not measured.

    Attributes:
        best: the highest score so far.
        saved_state: the same in a list, kept with each checkpoint.
    """

    def __init__(self, score, path=None, every=1, name="val_score"):
        super().__init__()
        check_integer("every", every)
        self.score = score
        self.path = None if path is None else pathlib.Path(path)
        self.every = every
        self.name = name
        self.saved_state = [-math.inf]

    @property
    def best(self):
        return self.saved_state[0]

    def on_epoch_end(self, epoch, logs=None):
        if (epoch + 1) % self.every:
            # Keras's CSVLogger takes its columns from the first epoch.
            logs[self.name] = math.nan
            return
        logs[self.name] = score = float(self.score(self.model))
        if score > self.best:
            if self.path is not None:
                save_model(self.model, self.path)
            self.saved_state[:] = [score]


def save_model(model, path):
    """Saves a model atomically: a reader of `path` never sees half a file.

    Raises FloatingPointError if its weights are not finite, OSError if there is no room for it.
    """
    values = ((variable.path, variable.numpy()) for variable in model.trainable_variables)
    check_finite(values, f"The weights of the model for {path} are not finite")
    with atomic_path(path) as draft:
        model.save(draft)
