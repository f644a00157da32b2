"""What a machine has, and processes of their own on it."""

import concurrent.futures
import importlib.metadata
import importlib.util
import multiprocessing
import os
import shutil
import subprocess

from ..benchmark.engines import SIZES, Workload
from ..benchmark.tables import machine
from ..gpus import HIDDEN, gpu_count, visible_gpus

NEEDED = ("jax", "keras", "keras_hub", "optree", "namex", "h5py", "rich", "filelock", "yaml")
VERSIONS = ("jax", "jaxlib", "keras", "keras-hub", "torch", "numpy")
SMI = (
    "name,driver_version,power.limit,power.draw,clocks.sm,clocks.max.sm,clocks.mem,temperature.gpu"
)


def in_process(options, function, workload, *arguments, environment=None):
    """What a function returns in a process of its own, with the environment of a workload."""
    on_gpu = options.device == "gpu"
    visible = ",".join(visible_gpus(gpu_count(), os.environ)) if on_gpu else HIDDEN
    variables = {**workload.environment(visible), **(environment or {})}
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(
        1, context, initializer=_set_environment, initargs=(variables,)
    ) as pool:
        return pool.submit(function, workload, *arguments).result()


def _set_environment(variables):
    os.environ.update(variables)


def kind_of_device(_):
    """The platform and the name of JAX's first device."""
    import jax

    device = jax.devices()[0]
    return device.platform, device.device_kind


def check_machine(options):
    """The name of the device that will be measured.

    Raises:
        ValueError: in one line, if something is missing.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(
            f"these packages are not installed: {', '.join(missing)}. `python -m "
            "train.device.carry` collects them on a machine with a network; put the folder that "
            "they are unpacked into on PYTHONPATH"
        )
    if options.device == "gpu" and not gpu_count():
        raise ValueError("this machine has no NVIDIA GPU. Try it on a CPU: --device cpu --toy")
    workload = Workload(SIZES["toy"], "float32", 1, 1, options.device, backend="jax")
    try:
        platform, kind = in_process(options, kind_of_device, workload)
    except Exception as error:  # of JAX and CUDA: such as a driver that is too old
        message = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"JAX cannot use the {options.device}: {message}") from None
    if (platform == "gpu") != (options.device == "gpu"):
        raise ValueError(
            f"--device {options.device} is wanted, and JAX sees only: {platform}, {kind}. "
            "For a GPU, JAX needs its CUDA plugin and a driver that is new enough"
        )
    if options.gpu and options.gpu.lower() not in kind.lower():
        raise ValueError(f"--gpu {options.gpu} is wanted, and this machine has: {kind}")
    return kind


def describe_machine(options):
    """What must be known of a machine to compare its numbers with others."""
    versions = {}
    for name in VERSIONS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return {
        **machine(options.threads, options.kind),
        "versions": versions,
        "gpu_state": nvidia_smi(),
    }


def nvidia_smi():
    """Driver, power, clocks and temperature of the first GPU; None without nvidia-smi."""
    if not shutil.which("nvidia-smi"):
        return None
    command = ["nvidia-smi", f"--query-gpu={','.join(SMI)}", "--format=csv,noheader", "--id=0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    return dict(zip(SMI, map(str.strip, done.stdout.split(",")), strict=False))
