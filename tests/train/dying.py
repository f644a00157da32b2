"""The command `keras-transformer translation`, with one worker that dies once.

The variable DIES says "worker:step:signal" and DIED names the file that remembers it. A run with
DIES does not show its result: it is the weights that are compared.
"""

import json
import os
import pathlib
import sys
import time

import keras

import train.loop
from train import translation
from train.translation import TranslationExperiment


class Die(keras.callbacks.Callback):
    def __init__(self, step, number):
        super().__init__()
        self.step, self.number = step, number

    def on_epoch_begin(self, epoch, logs=None):
        self.before = int(self.model.optimizer.iterations.numpy())

    def on_train_batch_end(self, batch, logs=None):
        if self.before + batch + 1 == self.step:
            time.sleep(1)  # until the last checkpoint is written
            pathlib.Path(os.environ["DIED"]).touch()
            os.kill(os.getpid(), self.number)


def read_no_text(experiment):
    raise AssertionError("Only the chief reads the training text, once.")


def main():
    dies = os.environ.get("DIES")
    if dies:
        TranslationExperiment.show_result = lambda experiment, run: None
    index = json.loads(os.environ.get("TF_CONFIG", '{"task": {"index": 0}}'))["task"]["index"]
    if dies and not pathlib.Path(os.environ["DIED"]).exists():
        worker, step, number = dies.split(":")
        if index == int(worker):
            train.loop.StopOnNonFiniteLoss = lambda: Die(int(step), int(number))
    if index or (dies and pathlib.Path(os.environ["DIED"]).exists()):
        TranslationExperiment.read_texts = read_no_text
    translation.main(sys.argv[1:])


if __name__ == "__main__":
    main()
