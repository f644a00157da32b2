"""On which devices a command trains: its flags, and what becomes of a worker left alone."""

import contextlib
import os
import sys
from typing import Literal

import tensorflow as tf

from keras_transformer.training import choose_strategy, split_cpu
from keras_transformer.training.distribution import STRATEGIES, has_workers
from train.settings import setting, settings

# A worker that lost another cannot go on; all must be started again.
EXIT_CODE_LOST_WORKER = 76


@settings
class DeviceSettings:
    """Flags that choose devices; the numbers of a training are the same on all."""

    strategy: Literal[*STRATEGIES] = setting(
        "auto",
        "devices to train on: one; mirrored, all GPUs; multiworker, the workers of TF_CONFIG; "
        "auto, whatever there is",
    )
    virtual_devices: int | None = setting(
        None, "split the CPU into this many devices, to try replicas without GPUs", ge=1
    )


def strategy_of(devices):
    """The strategy that `DeviceSettings` ask for; call it before anything else of TensorFlow."""
    if devices.virtual_devices:
        split_cpu(devices.virtual_devices)
    return choose_strategy(devices.strategy)


@contextlib.contextmanager
def leaves_when_a_worker_is_lost(strategy):
    """Ends this process with a line if another worker is lost, instead of waiting for ever."""
    try:
        yield
    except tf.errors.OpError as error:
        if not has_workers(strategy):
            raise
        reason = error.message.splitlines()[0]
        print(f"Another worker is lost: {reason}", file=sys.stderr)
        print(
            "Start all workers again, with the same command: they go on from the last checkpoint.",
            file=sys.stderr,
            flush=True,
        )
        os._exit(EXIT_CODE_LOST_WORKER)  # an ordinary exit would wait for the lost one
