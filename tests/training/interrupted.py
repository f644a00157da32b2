"""Trains with checkpoints, to its end or until it kills itself.

python -m tests.training.interrupted DIRECTORY OUTPUT [STEP_TO_DIE_AT]
"""

import os
import signal
import sys

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.training import Adam, InverseSqrtWarmup, TokenCrossentropy
from keras_transformer.training.checkpoints import Checkpoints

from .conftest import language_model

STEPS_PER_EPOCH, EPOCHS, EVERY = 5, 3, 2


class Die(keras.callbacks.Callback):
    """Kills this process after a step, once the checkpoints before it are written."""

    def __init__(self, step, checkpoints):
        super().__init__()
        self.step, self.checkpoints = step, checkpoints

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations.numpy()) == self.step:
            self.checkpoints.wait()
            os.kill(os.getpid(), signal.SIGKILL)


def dataset(start_step):
    """Batch number k is a function of k alone."""

    def batch(step):
        ids = tf.random.stateless_uniform((5, 7), [3, step], 1, 11, tf.int32)
        length = tf.random.stateless_uniform((5, 1), [5, step], 1, 7, tf.int32)
        ids = tf.where(tf.range(7) < length, ids, 0)
        return ids, ids

    return tf.data.Dataset.counter(start_step).map(batch)


def main(directory, output, die_at=None):
    model = language_model(dropout=0.5)
    model.compile(Adam(InverseSqrtWarmup(0.1, 3)), TokenCrossentropy(), ema_momentum=0.75)
    checkpoints = Checkpoints(directory, model, every=EVERY)
    step = checkpoints.restore()
    print("restored step", step)
    callbacks = [checkpoints, Die(int(die_at), checkpoints)] if die_at else [checkpoints]
    while step < STEPS_PER_EPOCH * EPOCHS:
        epoch, done = divmod(step, STEPS_PER_EPOCH)
        model.fit(
            dataset(step),
            initial_epoch=epoch,
            epochs=epoch + 1,
            steps_per_epoch=STEPS_PER_EPOCH - done,
            callbacks=callbacks,
            verbose=0,
        )
        step += STEPS_PER_EPOCH - done
    values = [v.value for v in [*model.trainable_variables, *model.optimizer.variables]]
    np.savez(output, *values, *model._step.average.values)


if __name__ == "__main__":
    main(*sys.argv[1:])
