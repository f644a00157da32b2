"""The log of a run's epochs, and early stopping; both survive a restart."""

import csv
import io
import logging
import pathlib

import keras
import numpy as np

from keras_transformer.files import whole


class EpochLog(keras.callbacks.Callback):
    """Writes the logs of each epoch to a CSV file, which it replaces as a whole each time.

    Keras's `CSVLogger` appends: a full disk leaves half a row, and an epoch that is repeated
    after an interruption appears twice.

    Args:
        path: path of the file; earlier epochs in it are kept.
    """

    def __init__(self, path):
        super().__init__()
        self._path = pathlib.Path(path)

    def on_epoch_end(self, epoch, logs=None):
        rows = {number: row for number, row in read_epochs(self._path).items() if number < epoch}
        rows[epoch] = logs
        names = sorted(set().union(*rows.values()))
        text = io.StringIO()
        writer = csv.DictWriter(text, ["epoch", *names], restval="NA", lineterminator="\n")
        writer.writeheader()
        writer.writerows({"epoch": number, **row} for number, row in sorted(rows.items()))
        with whole(self._path) as draft:
            draft.write_text(text.getvalue())


class StopWithoutProgress(keras.callbacks.Callback):
    """Stops when a number of epochs in a row have not lowered the validation loss.

    Keras's `EarlyStopping` forgets the epochs before its `fit`, and a run that was interrupted
    calls `fit` several times.

    Args:
        patience: number of epochs.
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
        return bool(losses) and len(losses) - 1 - np.argmin(losses) >= self._patience


def read_epochs(path):
    """Reads what `EpochLog` wrote: a dict from the number of an epoch, from 0, to its logs.

    Rows that cannot be read are skipped with a warning: only the pictures need them.
    """
    if not path.exists():
        return {}
    header, *lines = path.read_bytes().decode(errors="replace").split("\n")
    names, epochs, damaged = header.strip().split(",")[1:], {}, 0
    for line in filter(None, map(str.strip, lines)):
        number, *values = line.split(",")
        try:
            pairs = zip(names, values, strict=True)
            row = {name: float(value) for name, value in pairs if value != "NA"}
            epochs[int(number)] = row
        except ValueError:
            damaged += 1
    if damaged:
        logging.getLogger(__name__).warning(
            "%s is damaged: %d of its rows cannot be read and are skipped.", path, damaged
        )
    return epochs
