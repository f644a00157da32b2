"""The devices for training on JAX."""

import contextlib

import keras
import tensorflow as tf

from keras_transformer.training.layouts import layout_map


class JaxDevices:
    """Stands in for a `tf.distribute` strategy in `train_run`; one program runs on all devices.

    Args:
        replicas: groups of devices, among which each batch is divided.
    """

    def __init__(self, replicas):
        self.num_replicas_in_sync = replicas

    def scope(self):
        """An empty context: `choose_devices` has set the distribution for all models."""
        return contextlib.nullcontext()


def choose_devices(strategy="auto", virtual_devices=None, model_parallel=1):
    """Makes Keras place models and batches on JAX devices; TensorFlow uses only the CPU.

    Args:
        strategy: "one" for the first device, or "auto" or "mirrored" for all.
        virtual_devices: number of CPU devices to simulate; None for the real ones.
        model_parallel: number of devices that share a copy of the model, each with a part of
            every large weight.

    Returns:
        `JaxDevices`.

    Raises:
        ValueError: for options that JAX does not support, or if the devices do not divide evenly.
    """
    tf.config.set_visible_devices([], "GPU")  # the data is made on the CPU, the GPUs are JAX's
    if strategy == "multiworker":
        raise ValueError(
            "--strategy multiworker needs TensorFlow. On JAX one process trains on all devices of "
            "a machine: leave --strategy out. Received: --strategy multiworker, backend jax."
        )
    if virtual_devices:
        _split_cpu(virtual_devices)
    devices = keras.distribution.list_devices()[: 1 if strategy == "one" else None]
    replicas, rest = divmod(len(devices), model_parallel)
    if rest:
        raise ValueError(
            "--model-parallel must divide the number of devices. "
            f"Received: --model-parallel {model_parallel}, {len(devices)} devices."
        )
    distribution = None
    if model_parallel > 1:
        mesh = keras.distribution.DeviceMesh(
            (replicas, model_parallel), ["batch", "model"], devices
        )
        distribution = keras.distribution.ModelParallel(
            layout_map=layout_map(mesh), batch_dim_name="batch"
        )
    elif replicas > 1:
        distribution = keras.distribution.DataParallel(devices=devices)
    keras.distribution.set_distribution(distribution)
    return JaxDevices(replicas)


def _split_cpu(count):
    import jax

    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError as error:
        raise ValueError(f"The CPU must be split before JAX is used. Received: {error}") from error
