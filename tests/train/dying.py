"""The command `keras-transformer translation`, with workers that die.

The variable DIES says "worker:step:signal" of each start that one dies in, with spaces between
them; DIED names the file that remembers how many have died. A run with DIES does not show its
result: it is the weights that are compared.
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
            with open(os.environ["DIED"], "a") as died:
                died.write("x")
            os.kill(os.getpid(), self.number)


def read_no_text(experiment):
    raise AssertionError("Only the chief reads the training text, once.")


def main():
    dies = os.environ.get("DIES", "").split()
    died = 0
    if dies:
        TranslationExperiment.show_result = lambda experiment, run: None
        file = pathlib.Path(os.environ["DIED"])
        died = len(file.read_text()) if file.exists() else 0
    index = json.loads(os.environ.get("TF_CONFIG", '{"task": {"index": 0}}'))["task"]["index"]
    if dies[died:]:
        worker, step, number = map(int, dies[died].split(":"))
        if index == worker:
            train.loop.StopOnNonFiniteLoss = lambda: Die(step, number)
    if index or (dies and died):
        TranslationExperiment.read_texts = read_no_text
    translation.main(sys.argv[1:])


if __name__ == "__main__":
    main()
