"""The command `train.translation`, with one worker that dies once.

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


read_texts = TranslationExperiment.read_texts


def read_turned(experiment):
    """The text with its sources for targets: what a worker with other files would see."""
    train_text, valid_text = read_texts(experiment)
    return type(train_text)(train_text.targets, train_text.sources), valid_text


def main():
    dies = os.environ.get("DIES")
    if dies:
        TranslationExperiment.show_result = lambda experiment, run: None
    index = json.loads(os.environ.get("TF_CONFIG", '{"task": {"index": 0}}'))["task"]["index"]
    if dies and not pathlib.Path(os.environ["DIED"]).exists():
        worker, step, number = dies.split(":")
        if index == int(worker) and step.isdigit():
            train.loop.StopOnNonFiniteLoss = lambda: Die(int(step), int(number))
        elif index == int(worker):
            TranslationExperiment.read_texts = read_turned
    translation.main(sys.argv[1:])


if __name__ == "__main__":
    main()
