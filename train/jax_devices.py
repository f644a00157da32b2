"""The devices of a training on JAX."""

import contextlib

import keras
import tensorflow as tf

from keras_transformer.training.layouts import layout_map


class JaxDevices:
    """What `train_run` asks of a `tf.distribute` strategy, where one program reaches over all.

    Args:
        replicas: groups of devices, among which each batch is divided.
    """

    def __init__(self, replicas):
        self.num_replicas_in_sync = replicas

    def scope(self):
        """Nothing to enter: `choose_devices` has set the distribution for all models."""
        return contextlib.nullcontext()


def choose_devices(strategy="auto", virtual_devices=None, model_parallel=1):
    """Has Keras place models and batches on devices of JAX; TensorFlow keeps to the CPU.

    Args:
        strategy: "one" for the first device, or "auto" or "mirrored" for all.
        virtual_devices: CPU devices to rehearse with; None for those there are.
        model_parallel: devices that keep one copy of the model, each a part of every large
            weight.

    Returns:
        `JaxDevices`.

    Raises:
        ValueError: for what JAX cannot do, or if the devices do not divide.
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
