"""The devices to train on, how they compute, and what a worker does when another has died."""

import contextlib
import os
import sys
import types

import keras
import tensorflow as tf

from keras_transformer.training.distribution import (
    choose_strategy,
    cluster,
    has_workers,
    split_cpu,
)
from keras_transformer.training.layouts import layout_map

from .gpus import warn_of_idle_gpus

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


def one_thread_each():
    """Has each operation compute in one thread, for batches that are answered side by side.

    A translation into 50 tokens by a base model took 0.7 times as long so, on two cores. GPUs
    compute as before, and so does a process that has begun to compute.
    """
    if keras.backend.backend() == "tensorflow" and not tf.config.list_physical_devices("GPU"):
        with contextlib.suppress(RuntimeError):
            tf.config.threading.set_intra_op_parallelism_threads(1)


def choose_devices(config, options):
    """The devices that `TrainOptions` name, as a strategy of `tf.distribute`.

    On JAX, Keras places models and batches on them, one program runs on all, and what is returned
    has only the attributes of a strategy that `train_run` uses.

    Raises:
        ValueError: for settings or options that the backend does not support, or if the devices
            do not divide evenly.
    """
    if keras.backend.backend() == "jax":
        return _choose_jax_devices(config, options)
    if options.model_parallel > 1:
        raise ValueError(
            "--model-parallel needs JAX: set KERAS_BACKEND=jax. "
            f"Received: --model-parallel {options.model_parallel}, backend tensorflow."
        )
    warn_of_idle_gpus()
    if options.virtual_devices:
        split_cpu(options.virtual_devices)  # before any other use of TensorFlow
    return choose_strategy(options.strategy)


def _choose_jax_devices(config, options):
    import jax

    if getattr(config, "bleu_every", 0):
        raise ValueError(
            "--bleu-every needs TensorFlow, because it decodes. Train with --bleu-every 0 on JAX, "
            "then run `evaluate` with KERAS_BACKEND=tensorflow. "
            f"Received: --bleu-every {config.bleu_every}, backend jax."
        )
    if config.dtype == "mixed_float16":
        raise ValueError(
            "On JAX --dtype must be float32 or mixed_bfloat16. "
            "Received: --dtype mixed_float16, backend jax."
        )
    tf.config.set_visible_devices([], "GPU")  # the data is made on the CPU, the GPUs are JAX's
    workers = len(cluster()[0])
    if options.strategy == "multiworker" or workers > 1:
        received = "--strategy multiworker" if workers < 2 else f"TF_CONFIG of {workers} workers"
        raise ValueError(
            "Several workers need TensorFlow. On JAX one process trains on all devices of a "
            "machine: leave --strategy out, and start one worker. "
            f"Received: {received}, backend jax."
        )
    if options.virtual_devices:
        try:
            jax.config.update("jax_num_cpu_devices", options.virtual_devices)
        except RuntimeError as error:
            raise ValueError(
                f"The CPU must be split before JAX is used. Received: {error}"
            ) from error
    devices = keras.distribution.list_devices()[: 1 if options.strategy == "one" else None]
    replicas, rest = divmod(len(devices), options.model_parallel)
    if rest:
        raise ValueError(
            "--model-parallel must divide the number of devices. "
            f"Received: --model-parallel {options.model_parallel}, {len(devices)} devices."
        )
    distribution = None
    if options.model_parallel > 1:
        shape = replicas, options.model_parallel
        mesh = keras.distribution.DeviceMesh(shape, ["batch", "model"], devices)
        distribution = keras.distribution.ModelParallel(
            layout_map=layout_map(mesh), batch_dim_name="batch"
        )
    elif replicas > 1:
        distribution = keras.distribution.DataParallel(devices=devices)
    keras.distribution.set_distribution(distribution)
    warn_of_idle_gpus()  # queries JAX's devices, after which the CPU can no longer be split
    return types.SimpleNamespace(num_replicas_in_sync=replicas, scope=contextlib.nullcontext)


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
