"""What the benchmarks measure: engines, each created for a workload in its own process.

Frameworks are imported inside functions, so that a process has only the one that it needs.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

FIRST_WORD_ID = 4  # below it: padding, unknown, start, end


class Size(NamedTuple):
    """Dimensions of a model, and of the batches it is trained with."""

    num_layers: int  # of the encoder, and again of the decoder
    hidden_dim: int
    intermediate_dim: int
    num_heads: int
    vocabulary_size: int
    batch_size: int
    length: int  # tokens of every source and every target

    @property
    def dimensions(self):
        """The arguments of `translation`, except for the vocabulary."""
        names = ("num_layers", "hidden_dim", "intermediate_dim", "num_heads")
        return {name: getattr(self, name) for name in names}

    def describe(self):
        return (
            f"{self.num_layers}+{self.num_layers} layers, {self.hidden_dim} wide, "
            f"{self.intermediate_dim} inside, {self.num_heads} heads, "
            f"vocabulary {self.vocabulary_size}"
        )


SIZES = {
    "toy": Size(1, 16, 32, 2, 50, 3, 7),
    "tiny": Size(4, 128, 256, 4, 6000, 128, 16),
    "small": Size(3, 256, 1024, 8, 8000, 64, 32),
    "base": Size(6, 512, 2048, 8, 32000, 32, 32),
    "big": Size(6, 1024, 4096, 16, 32000, 32, 32),
    "gpt2": Size(12, 768, 3072, 12, 50257, 1, 512),
}
# 16,384 and 8,192 tokens on each side: fewer leave a GPU idle.
GPU_BATCH_SIZES = {"small": 512, "base": 256, "big": 256}


def size_on(device, name):
    """The size of a name, with batches that fill the device."""
    size = SIZES[name]
    if device == "gpu":
        return size._replace(batch_size=GPU_BATCH_SIZES.get(name, size.batch_size))
    return size


class Workload(NamedTuple):
    """What an engine is to train or decode: how large, how precise, how many at once, where."""

    size: Size
    dtype: str  # "float32" or "bfloat16"; in decoding also "int8"
    batch_size: int  # sentence pairs of a step, or sentences decoded at once
    threads: int
    device: str = "cpu"  # or "gpu"
    compiled: bool = False  # whether XLA or torch.compile fuses the training step
    backend: str = "tensorflow"  # of Keras; or "jax"

    @property
    def parts(self):
        """How many threads of a CPU decode parts of a batch: that is faster than to share it."""
        return self.threads if self.device == "cpu" and self.batch_size >= self.threads else 1

    def environment(self, visible):
        """Variables of the process that does the work.

        Args:
            visible: the value of CUDA_VISIBLE_DEVICES.
        """
        return {
            "KERAS_BACKEND": self.backend,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": visible,
            "OMP_NUM_THREADS": str(self.threads),
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # several processes share the GPU
            "JAX_PLATFORMS": "cuda,cpu" if self.device == "gpu" else "cpu",
        }


class Engine(NamedTuple):
    """One engine, ready to run."""

    name: str  # with the version measured
    unit: Callable  # begins one unit of work, and returns its result, which may not be there yet
    num_parameters: int = 0
    finish: Callable = lambda result: result  # waits for all work; what to report of a result
    prepare: Callable = lambda: None  # moves everything to the device, and may compile
    details: Callable = tuple  # what else to report at the end, dictionaries one after the other


class Candidate(NamedTuple):
    """An engine that may be measured, if it is installed."""

    label: str
    build: Callable  # makes an `Engine` of a `Workload`
    workload: Workload


def import_torch(workload):
    """PyTorch, set to the threads of the workload, and the name of its device."""
    import torch

    torch.set_num_threads(workload.threads)
    torch.manual_seed(0)
    if workload.device == "gpu":
        torch.set_float32_matmul_precision("high")  # TF32, as in TensorFlow
        return torch, "cuda"
    return torch, "cpu"


def wait_for_torch(device):
    """Waits until a device of PyTorch has done all that was begun."""
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def wait_for_tensorflow():
    """Waits until all devices of TensorFlow have done all that was begun."""
    import tensorflow

    tensorflow.test.experimental.sync_devices()


def import_keras(workload, mixed=False, decoding=False):
    """TensorFlow and Keras, set to the threads and, with `mixed`, to the dtype of the workload.

    For `decoding`, operations have the threads that the parts of a batch leave them.

    On another backend, None takes the place of TensorFlow, which need not be installed.
    """
    tensorflow = None
    if workload.backend == "tensorflow":
        import tensorflow

        threads = workload.threads // (workload.parts if decoding else 1)
        tensorflow.config.threading.set_intra_op_parallelism_threads(threads)
        tensorflow.config.threading.set_inter_op_parallelism_threads(workload.threads)
    import keras

    keras.utils.set_random_seed(0)
    if mixed and workload.dtype == "bfloat16":
        keras.config.set_dtype_policy("mixed_bfloat16")
    return tensorflow, keras


class NoDevice(RuntimeError):
    """A framework does not compute on the device that was asked for."""


def import_jax(workload):
    """JAX, which computes on the device of the workload.

    Raises:
        NoDevice: if it does not, with what JAX says, such as that a driver is too old: left alone,
            it would go on with the CPU.
    """
    import jax

    said = []
    notes = logging.Handler(logging.WARNING)
    notes.emit = lambda record: said.append(
        record.exc_info[1] if record.exc_info else record.getMessage()
    )
    logging.getLogger("jax").addHandler(notes)
    try:
        platform = jax.devices()[0].platform
    except RuntimeError as error:
        raise NoDevice(error) from None
    if workload.device == "gpu" and platform != "gpu":
        raise NoDevice(said[0] if said else f"it computes on {platform}")
    return jax


def name_of_gpu(workload):
    """The name of the first GPU that the backend of a workload sees; "" if TensorFlow sees none.

    Raises:
        NoDevice: if JAX sees none.
    """
    if workload.backend == "jax":
        return import_jax(workload).devices()[0].device_kind
    import tensorflow

    seen = tensorflow.config.list_physical_devices("GPU")
    details = tensorflow.config.experimental.get_device_details
    return details(seen[0]).get("device_name", "GPU") if seen else ""
