"""On which devices a command trains: its flags, and what becomes of a worker left alone."""

import contextlib
import os
import sys

import tensorflow as tf

from keras_transformer.training import choose_strategy, split_cpu
from keras_transformer.training.distribution import STRATEGIES, has_workers

# A worker that lost another cannot go on; all must be started again.
EXIT_CODE_LOST_WORKER = 76


def add_device_flags(parser):
    parser.add_argument(
        "--strategy",
        choices=STRATEGIES,
        default="auto",
        help="devices to train on: one; mirrored, all GPUs; multiworker, the workers of TF_CONFIG; "
        "auto, what there is. The numbers are the same on all (default auto)",
    )
    parser.add_argument(
        "--virtual-devices",
        type=int,
        default=0,
        help="split the CPU into so many devices, to try replicas without GPUs",
    )


def strategy_of(options):
    """The strategy that parsed flags ask for; call it before anything else of TensorFlow."""
    if options.virtual_devices:
        split_cpu(options.virtual_devices)
    return choose_strategy(options.strategy)


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
