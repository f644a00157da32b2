"""How the devices compute, and what a worker does when another has died."""

import contextlib
import os
import sys

import keras
import tensorflow as tf

from keras_transformer.training.distribution import has_workers

# A worker that lost another cannot continue; all must be started again.
EXIT_CODE_LOST_WORKER = 76


def make_deterministic():
    """Makes all devices give the same bits in every run. Call it before they are used.

    By default, GPUs add up in varying order, and round the factors of float32 products to TF32.
    """
    if keras.backend.backend() == "jax":
        import jax

        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_deterministic_ops=true".strip()
        jax.config.update("jax_default_matmul_precision", "float32")
    else:
        tf.config.experimental.enable_op_determinism()
        tf.config.experimental.enable_tensor_float_32_execution(False)


@contextlib.contextmanager
def exit_when_a_worker_is_lost(strategy):
    """Exits with one line if another worker is lost, instead of waiting forever."""
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
