"""A worker whose peer has died."""

import contextlib
import os
import sys

import tensorflow as tf

from keras_transformer.training.distribution import has_workers

# A worker that lost another cannot go on; all must be started again.
EXIT_CODE_LOST_WORKER = 76


@contextlib.contextmanager
def exit_when_a_worker_is_lost(strategy):
    """Exits with one line if another worker is lost, instead of waiting for ever."""
    try:
        yield
    except tf.errors.OpError as error:
        if not has_workers(strategy):
            raise
        reason = error.message.splitlines()[0]
        print(f"Another worker was lost: {reason}", file=sys.stderr)
        print(
            "Start all workers again with the same command: they resume from the last checkpoint.",
            file=sys.stderr,
            flush=True,
        )
        os._exit(EXIT_CODE_LOST_WORKER)  # an ordinary exit would wait for the lost one
