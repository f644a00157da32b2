"""The processors of a machine: its cores, and its NVIDIA GPUs.

It finds GPUs, warns if they are unused, and assigns them to workers. Nothing here imports
TensorFlow unless there is a GPU.
"""

import logging
import os
import pathlib

LOG = logging.getLogger(__name__)
HIDDEN = "-1"  # value of CUDA_VISIBLE_DEVICES: no GPU
ROOT = pathlib.Path("/")  # which contains dev/ and proc/


def cores():
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def gpu_count():
    """The number of NVIDIA GPUs in this machine, whether or not a library can use them.

    It counts the driver's devices: TensorFlow takes seconds to answer, and may see none of them.
    """
    devices = list((ROOT / "dev").glob("nvidia[0-9]*"))
    on_windows = ROOT / "usr/lib/wsl/lib/nvidia-smi"  # WSL 2 does not say how many
    return len(devices) or int(on_windows.exists())


def visible_gpus(count, environment):
    """The ids of the GPUs that CUDA shows to a process, as in CUDA_VISIBLE_DEVICES.

    Like CUDA, it reads that variable up to the first entry that names no GPU.

    Args:
        count: number of GPUs in the machine.
        environment: environment of the process, a dictionary.
    """
    if "CUDA_VISIBLE_DEVICES" not in environment or not count:
        return [str(index) for index in range(count)]
    ids = []
    for entry in environment["CUDA_VISIBLE_DEVICES"].split(","):
        entry = entry.strip()
        exists = int(entry) < count if entry.isdecimal() else entry.startswith(("GPU-", "MIG-"))
        if not exists or entry in ids:
            break
        ids.append(entry)
    return ids


def divide(gpus, workers, each=None):
    """Divides the GPUs of a machine among its workers.

    Args:
        gpus: ids of the GPUs, a list.
        workers: number of workers.
        each: number of GPUs per worker; None for equal shares.

    Returns:
        A list of ids for each worker; None if there is nothing to divide.

    Raises:
        ValueError: if there are too few GPUs.
    """
    if each is None and not gpus:
        return None
    count = len(gpus)
    if count < workers * (1 if each is None else each):
        wanted = "one" if each is None else f"--gpus-per-worker {each}"
        raise ValueError(
            f"There are too few GPUs for {wanted} each. Start fewer workers, or train on the CPU "
            f"with --gpus-per-worker 0. Received: {workers} workers, {count} GPUs."
        )
    if each is None:
        each = count // workers
        if unused := count % workers:
            LOG.warning(
                f"{count} GPUs do not divide equally among {workers} workers: each gets {each}, "
                f"{unused} stay{'s' if unused == 1 else ''} unused."
            )
    return [gpus[index * each : (index + 1) * each] for index in range(workers)]


def warn_of_idle_gpus():
    """Warns if this machine has an NVIDIA GPU and the backend of Keras sees none.

    It ignores GPUs that CUDA_VISIBLE_DEVICES hides. Of several workers on a machine, only the first
    warns.
    """
    if not _is_first_worker_of_machine():
        return
    count = gpu_count()
    if visible_gpus(count, os.environ):
        hardware = "an NVIDIA GPU" if count == 1 else f"{count} NVIDIA GPUs"
    elif not count and (ROOT / "proc/driver/nvidia/version").exists():
        hardware = "an NVIDIA driver"
    else:
        return
    backend, extra = "TensorFlow", "pip install 'keras-transformer-toolkit[cuda]'"
    if os.environ.get("KERAS_BACKEND") == "jax":
        import jax

        backend, extra = "JAX", "pip install 'jax[cuda12]'"
        seen = any(device.platform == "gpu" for device in jax.local_devices())
    else:
        import tensorflow as tf

        seen = tf.config.list_physical_devices("GPU")
    if not seen:
        LOG.warning(
            f"This machine has {hardware}, but {backend} sees no GPU and will use the CPU. Install "
            f"the CUDA libraries: {extra}. If you have them, see GPUs in docs/install.md."
        )


def _is_first_worker_of_machine():
    if not os.environ.get("TF_CONFIG"):
        return True
    from keras_transformer.training.distribution import cluster

    try:
        addresses, index = cluster()
    except ValueError:
        return True  # TF_CONFIG is malformed, which `choose_strategy` reports
    hosts = [address.rpartition(":")[0] for address in addresses]
    return not hosts or hosts.index(hosts[index]) == index
