"""What training shows while it runs, the log of its epochs, and early stopping."""

import contextlib
import csv
import io
import logging
import math
import pathlib
import sys
import time

import keras
import numpy as np

from keras_transformer.files import atomic_path, check_writable
from keras_transformer.training.internals import loss_tracker
from keras_transformer.training.optimizers import batches_taken

LINE_EVERY = 100  # steps
ROWS_OF_A_RUN = 100


class ProgressBar(keras.callbacks.ProgbarLogger):
    """Keras's progress bar, which counts the epochs of the whole run.

    A run that was interrupted calls `fit` several times, and Keras counts those of each.

    Args:
        epochs: number of epochs of the run.
    """

    async_safe = True

    def __init__(self, epochs):
        super().__init__()
        self._epochs = epochs

    def set_params(self, params):
        super().set_params({**params, "verbose": 1, "epochs": self._epochs})

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, measured(logs))


class ProgressLines(keras.callbacks.Callback):
    """Writes one plain line every hundred steps and one after each epoch, for a log.

    Args:
        steps: number of steps of the run.
        per_epoch: number of steps of an epoch.
        files: text files to write to.
    """

    async_safe = True

    def __init__(self, steps, per_epoch, files):
        super().__init__()
        self._steps, self._per_epoch, self._files = steps, per_epoch, files

    def on_epoch_begin(self, epoch, logs=None):
        # An interrupted epoch is not begun again.
        self._before, self._batch = batches_taken(self.model), -1
        self._start = time.perf_counter()

    def on_train_batch_end(self, batch, logs=None):
        self._batch = batch
        step = self._before + batch + 1
        if step % LINE_EVERY == 0:
            self._write(f"step {step:,} of {self._steps:,}", logs)

    def on_epoch_end(self, epoch, logs=None):
        step, seconds = self._before + self._batch + 1, time.perf_counter() - self._start
        epochs = -(-self._steps // self._per_epoch)
        place = f"epoch {epoch + 1:,} of {epochs:,}, step {step:,} of {self._steps:,}"
        self._write(f"{place}, {seconds:,.0f} s", logs)

    def _write(self, place, logs):
        shown = measured(logs).items()
        numbers = ", ".join(f"{name} {_in_short(value)}" for name, value in shown)
        for file in self._files:
            print(f"{place}: {numbers}", file=file, flush=True)


def measured(logs):
    """The logs without NaN, which marks what an epoch did not measure."""
    return {name: value for name, value in logs.items() if not math.isnan(value)}


def _in_short(number):
    """Four digits, or all before the point: 0.01234, 1.234, 12,345."""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"


def check_log(path):
    """Raises OSError if a file could not be appended to; "" is no file."""
    if path and pathlib.Path(path).exists():
        open(path, "a").close()
    elif path:
        check_writable(path)


@contextlib.contextmanager
def opened_log(path):
    """Yields a file to append lines to; None if the path is empty."""
    if not path:
        yield None
        return
    pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        yield file


def progress(steps, per_epoch, log):
    """The callbacks that show how far a run is: a bar on a terminal, lines everywhere else.

    Args:
        steps: number of steps of the run.
        per_epoch: number of steps of an epoch.
        log: a text file that gets the lines, too; None for none.
    """
    callbacks = [ProgressBar(-(-steps // per_epoch))] if sys.stdout.isatty() else []
    return [*callbacks, ProgressLines(steps, per_epoch, line_files(log))]


def line_files(log):
    """The text files that get plain lines: a log, if any, and standard output off a terminal."""
    return [file for file in (None if sys.stdout.isatty() else sys.stdout, log) if file]


class EpochLog(keras.callbacks.Callback):
    """Writes the logs of each epoch to a CSV file.

    Args:
        path: path of the file; earlier epochs in it are kept.
    """

    def __init__(self, path):
        super().__init__()
        self._path = pathlib.Path(path)

    def on_epoch_end(self, epoch, logs=None):
        _add_row(self._path, "epoch", epoch, measured(logs))


class StepLog(keras.callbacks.Callback):
    """Writes the training loss within epochs to a CSV file, about a hundred times in a run.

    A row holds the step, the epochs until then, a fraction, and the mean loss since the row before
    or the beginning of the epoch. For one worker of TensorFlow: several would have to read the loss
    together, and on JAX `fit` publishes it when the epoch ends.

    Args:
        path: path of the file; earlier rows in it are kept.
        steps: number of steps of the run.
        per_epoch: number of steps of an epoch.

    Attributes:
        saved_state: sum and count of the loss at the last row, a list kept with each checkpoint.
    """

    async_safe = True

    def __init__(self, path, steps, per_epoch):
        super().__init__()
        self._path, self._per_epoch = pathlib.Path(path), per_epoch
        self._every = max(1, steps // ROWS_OF_A_RUN)
        self.saved_state = [0.0, 0.0]

    def on_train_begin(self, logs=None):
        self._loss = loss_tracker(self.model)

    def on_epoch_begin(self, epoch, logs=None):
        self._before = batches_taken(self.model)
        if not self._loss.count.numpy():  # else an interrupted epoch resumes
            self.saved_state[:] = [0.0, 0.0]

    def on_train_batch_end(self, batch, logs=None):
        if (self._before + batch + 1) % self._every:
            return
        step = batches_taken(self.model)  # the next one may run already, with its loss
        sums = [float(self._loss.total.numpy()), float(self._loss.count.numpy())]
        total, count = (now - before for now, before in zip(sums, self.saved_state, strict=True))
        self.saved_state[:] = sums
        if count > 0:
            row = {"epochs": step / self._per_epoch, "loss": total / count}
            _add_row(self._path, "step", step, row)


def _add_row(path, key, number, row):
    """Replaces a CSV file by one with the rows of lower numbers and a new one.

    Keras's `CSVLogger` appends: a full disk leaves half a row, and an epoch that is repeated
    after an interruption appears twice.
    """
    rows = {each: row for each, row in read_log(path).items() if each < number} | {number: row}
    names = sorted(set().union(*rows.values()))
    text = io.StringIO()
    writer = csv.DictWriter(text, [key, *names], restval="NA", lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: each, **row} for each, row in sorted(rows.items()))
    with atomic_path(path) as draft:
        draft.write_text(text.getvalue())


class EpochSums(keras.callbacks.Callback):
    """Resumes an interrupted epoch with what its metrics have added up so far.

    Args:
        model: the compiled model.
        begun: `sums()` of the epoch that an earlier process began; empty if it began none.
    """

    def __init__(self, model, begun=()):
        super().__init__()
        self._trained, self._begun, self._before_validation = model, begun, None

    def sums(self):
        """What the metrics have added up since the epoch began, an array; all workers call it."""
        if self._before_validation is not None:
            return self._before_validation
        values = [variable.numpy() for variable in metric_variables(self._trained)]
        return np.array(values, "float64")

    def on_epoch_begin(self, epoch, logs=None):  # after `fit` has reset the metrics
        self._before_validation = None
        variables, begun = metric_variables(self._trained), self._begun
        if len(begun) == len(variables):  # Keras makes those of some metrics with their first batch
            for variable, value in zip(variables, begun, strict=True):
                variable.assign(value)
        self._begun = ()

    def on_test_begin(self, logs=None):  # before validation uses the same metrics
        self._before_validation = self.sums()


def metric_variables(model):
    """The states of a model's metrics; on JAX, `metrics_variables` also hold averages and seeds."""
    return [variable for metric in model.metrics for variable in metric.variables]


class StopWithoutProgress(keras.callbacks.Callback):
    """Stops when a number of epochs in a row have not lowered the validation loss.

    Keras's `EarlyStopping` forgets the epochs before its `fit`, and a run that was interrupted
    calls `fit` several times.

    Args:
        patience: number of epochs; 0 only keeps the losses, for a process that goes on with others.
        losses: validation losses of the epochs that earlier processes finished.

    Attributes:
        saved_state: validation losses of all epochs so far, a list kept with each checkpoint.
    """

    def __init__(self, patience, losses=()):
        super().__init__()
        self._patience = patience
        self.saved_state = list(losses)

    def on_epoch_end(self, epoch, logs=None):
        self.saved_state[epoch:] = [logs["val_loss"]]
        if self.is_due(epoch + 1):  # others may have stopped it for another reason
            self.model.stop_training = True

    def is_due(self, epochs):
        """Whether training ends after this many epochs."""
        losses = self.saved_state[:epochs]
        return bool(losses and 0 < self._patience <= len(losses) - 1 - np.argmin(losses))


def read_log(path):
    """Reads what `EpochLog` or `StepLog` wrote: {number of epoch, from 0, or of step: its logs}.

    Rows that cannot be read are skipped with a warning: only the pictures need them.
    """
    if not path.exists():
        return {}
    header, *lines = path.read_bytes().decode(errors="replace").split("\n")
    names, rows, damaged = header.strip().split(",")[1:], {}, 0
    for line in filter(None, map(str.strip, lines)):
        number, *values = line.split(",")
        try:
            pairs = zip(names, values, strict=True)
            row = {name: float(value) for name, value in pairs if value != "NA"}
            rows[int(number)] = row
        except ValueError:
            damaged += 1
    if damaged:
        logging.getLogger(__name__).warning(
            "%s is damaged: %d of its rows cannot be read and are skipped.", path, damaged
        )
    return rows
