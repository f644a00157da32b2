"""The device that a benchmark measures: the CPU, or one NVIDIA GPU."""

import os

from ..command import without_start_up_notes
from ..gpus import gpu_count, visible_gpus, warn_of_idle_gpus

DEVICES = ["cpu", "gpu"]


def choose_device(wanted=None):
    """The device to measure, and its name if it is a GPU.

    Args:
        wanted: "cpu", "gpu", or None for a GPU if TensorFlow sees one.

    Returns:
        ("cpu", None), or "gpu" and its name.

    Raises:
        ValueError: if a GPU is wanted and there is none.
    """
    if wanted == "cpu":
        return "cpu", None
    gpus = visible_gpus(gpu_count(), os.environ)
    name = name_in_tensorflow() if gpus else None
    if name is not None:
        return "gpu", name
    if wanted == "gpu":
        received = f"{len(gpus)} NVIDIA GPUs that TensorFlow does not see" if gpus else "none"
        raise ValueError(
            "--device gpu needs an NVIDIA GPU that CUDA_VISIBLE_DEVICES does not hide, and "
            f"pip install -e '.[cuda]'. Received: {received}"
        )
    warn_of_idle_gpus()
    return "cpu", None


def name_in_tensorflow():
    """TensorFlow's name of its first GPU; None if it sees none. Allocates no GPU memory."""
    with without_start_up_notes():
        import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return None
    return tf.config.experimental.get_device_details(gpus[0]).get("device_name", "unknown GPU")


def first_gpu():
    """CUDA_VISIBLE_DEVICES for a process that should use one GPU."""
    return visible_gpus(gpu_count(), os.environ)[0]
