"""The devices and workers that train a model, and what each replica has of its own.

A worker is one training process, with one replica of the model on each of its devices.
Worker 0 is the chief; only the chief writes files.
"""

import logging
import os
from collections import Counter
from typing import NamedTuple

from keras_transformer.training.internals import ON_TENSORFLOW, workers_on_split_cpus

if ON_TENSORFLOW:
    import tensorflow as tf

SEED_STRIDE = 1_000_003  # between the seeds of two replicas; a prime
STRATEGIES = ("auto", "one", "mirrored", "multiworker")


class Worker(NamedTuple):
    """One training process."""

    index: int  # 0 is the chief
    count: int  # number of all workers


def choose_strategy(name="auto"):
    """The strategy under which to create, compile and fit a model.

    Call it before any other use of TensorFlow, because workers cannot be connected later.

    Args:
        name: "one" trains on one device; "mirrored" on all GPUs of this machine or, without
            GPUs, on all CPU devices (see `split_cpu`); "multiworker" on the workers listed in
            the environment variable TF_CONFIG; "auto" on everything available: the workers of
            TF_CONFIG if there are several, otherwise this machine's GPUs or CPU devices.

    Returns:
        A `tf.distribute.Strategy`. The same global batches give the same numbers under each.

    Raises:
        ValueError: if the name is unknown, TF_CONFIG is malformed, or TensorFlow was used before.

    Examples:
        >>> import keras_transformer as kt
        >>> strategy = choose_strategy("one")
        >>> with strategy.scope():
        ...     model = kt.translation(11, size="tiny")
        ...     model.compile(kt.Adam(0.001), kt.TokenCrossentropy(), clip_norm=1.0)
    """
    if name not in STRATEGIES:
        raise ValueError(
            f"The strategy must be one of {', '.join(STRATEGIES)}. Received: {name!r}."
        )
    addresses, _ = cluster()
    if name == "multiworker" and len(addresses) < 2:
        raise ValueError(
            "The strategy 'multiworker' needs the environment variable TF_CONFIG with at least "
            "two workers. To start two on this machine, run `keras-transformer launch "
            f"--workers 2 -- COMMAND`. Received: TF_CONFIG={os.environ.get('TF_CONFIG', '')!r}."
        )
    if name == "multiworker" or (name == "auto" and len(addresses) > 1):
        return _connect_workers()
    if name == "one":
        return tf.distribute.get_strategy()
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    if name == "auto" and len(devices) == 1:
        return tf.distribute.get_strategy()
    return tf.distribute.MirroredStrategy([device.name for device in devices])


def split_cpu(count):
    """Splits the CPU into `count` devices, to try replicas on a machine without GPUs.

    The devices share the same cores, so training gets no faster. Call it before
    `choose_strategy`.

    Raises:
        ValueError: if `count` is below 1, or TensorFlow was used before.
    """
    if count < 1:
        raise ValueError(f"The number of CPU devices must be at least 1. Received: {count}.")
    cpu = tf.config.list_physical_devices("CPU")[0]
    try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * count
        )
    except RuntimeError as error:
        raise ValueError(
            f"The CPU must be split before TensorFlow is used. Received: {error}"
        ) from error


def check_devices(devices, models):
    """Refuses replicas on devices of different types, and warns if GPUs are of different models.

    All replicas of a step wait for the slowest. `devices` are a strategy's, such as
    "/device:GPU:0"; `models` are the names of this machine's GPUs, by index.
    """
    specs = [tf.DeviceSpec.from_string(device) for device in devices]
    if len({spec.device_type for spec in specs}) > 1:
        received = ", ".join(f"{spec.device_type}:{spec.device_index}" for spec in specs)
        raise ValueError(
            "The replicas of a strategy must be on devices of one type, because every step waits "
            f"for the slowest. Use choose_strategy(), which uses the GPUs. Received: {received}."
        )
    indices = [spec.device_index for spec in specs if spec.device_type == "GPU"]
    counts = Counter(models[index] for index in indices if index < len(models))
    if len(counts) > 1:
        present = ", ".join(f"{count} x {model}" for model, count in counts.items())
        logging.getLogger(__name__).warning(
            "The GPUs differ, and every step waits for the slowest: %s. Choose equal ones with the "
            "environment variable CUDA_VISIBLE_DEVICES.", present,
        )  # fmt: skip


def gpu_models():
    """The model name of each GPU that TensorFlow uses."""
    details = map(tf.config.experimental.get_device_details, tf.config.get_visible_devices("GPU"))
    return [each.get("device_name", "unknown") for each in details]


def has_workers(strategy):
    """Whether a strategy trains on several workers, which only TensorFlow's do."""
    return ON_TENSORFLOW and isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


def this_worker(strategy):
    """This process's `Worker` under a strategy; worker 0 of 1 if it is alone."""
    if not has_workers(strategy):
        return Worker(0, 1)
    addresses, index = _in_order(strategy.cluster_resolver)
    return Worker(index, len(addresses))


def from_all_workers(strategy, value):
    """An integer from each worker, in the order of their indices; waits for all workers."""
    worker = this_worker(strategy)
    if worker.count == 1:
        return [value]
    per_replica = strategy.run(lambda: tf.constant([value], tf.int64))
    values = strategy.gather(per_replica, axis=0).numpy()  # (all replicas,)
    return values[:: len(values) // worker.count].tolist()


def check_workers_agree(strategy, value, what):
    """Raises RuntimeError on all workers unless their integers, e.g. checksums, are equal."""
    values = from_all_workers(strategy, value)
    if len(set(values)) > 1:
        received = ", ".join(f"{value} on worker {index}" for index, value in enumerate(values))
        raise RuntimeError(f"The workers must agree on {what}. Received: {received}.")


class DropoutSeeds:
    """The random state of a model's dropout, different on each replica.

    Keras mirrors the state, so all replicas would drop the same units. A state is a pair of seed
    and counter; here the replica that gets part i of each batch adds i times a stride to its
    seed. Checkpoints hold the state for part 0, which is that of a single device. On JAX there
    are no replicas: all devices share the state.
    """

    def __init__(self, model):
        self._model = model
        self._strategy = model.distribute_strategy

    @property
    def variables(self):
        """Keras variables of the states; looked up each time, as a model may be built late."""
        return [v for v in self._model.variables if "seed_generator" in v.path]

    def spread(self):
        """Sets the seeds of this worker's replicas. Idempotent."""
        if not ON_TENSORFLOW or self._strategy.num_replicas_in_sync == 1:
            return
        worker = this_worker(self._strategy)
        for variable in self.variables:
            copies = _copies(variable)
            # Another model with these layers, or this one compiled before, may have spread it.
            seed, first = int(copies[0].numpy()[0]), getattr(variable, "first_seed", None)
            if first is None or seed != first + worker.index * SEED_STRIDE:
                variable.first_seed = first = seed
            for place, copy in enumerate(copies):
                part = place * worker.count + worker.index  # TensorFlow deals parts in turn
                counter = copy.numpy()[1]
                copy.assign(tf.constant([first + part * SEED_STRIDE, counter], copy.dtype))


def carried_variables(model):
    """The variables in which a model carries state from batch to batch, such as a memory.

    Each replica has its own, for its own rows: those on all of this worker's devices are listed.
    """
    carried = [v for v in model.variables if v.synchronization == "on_read"]
    return [copy for variable in carried for copy in _copies(variable)]


def _copies(variable):
    """The copies of a Keras variable on this worker's devices."""
    return getattr(variable.value, "values", [variable])


def cluster():
    """The addresses of the workers in TF_CONFIG, chief first, and the place of this one among them.

    An empty list and 0 without TF_CONFIG; ValueError if it is malformed, or lists other processes.
    """
    text = os.environ.get("TF_CONFIG", "")
    if not text:
        return [], 0
    import tensorflow as tf  # on JAX, too

    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    try:
        jobs = resolver.cluster_spec().as_dict()
        if not jobs:
            return [], 0
        this = resolver.task_type
        is_valid = this in ("chief", "worker") and resolver.task_id in range(len(jobs[this]))
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError):
        is_valid = False
    if not is_valid:
        raise ValueError(
            "TF_CONFIG must give the addresses of all workers and say which one this process is, "
            'e.g. {"cluster": {"worker": ["host0:2222", "host1:2222"]}, '
            f'"task": {{"type": "worker", "index": 0}}}}. Received: {text!r}.'
        )
    return _in_order(resolver)


def _in_order(resolver):
    """The addresses of all workers, chief first, and the place of this one among them."""
    jobs = resolver.cluster_spec().as_dict()
    chief, workers = jobs.get("chief", []), jobs.get("worker", [])
    is_chief = resolver.task_type == "chief"
    return [*chief, *workers], resolver.task_id + (0 if is_chief else len(chief))


def _connect_workers():
    implementation = tf.distribute.experimental.CommunicationImplementation
    gpus = tf.config.list_physical_devices("GPU")
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=implementation.NCCL if gpus else implementation.RING
    )
    [cpu, *_] = tf.config.list_physical_devices("CPU")
    parts = tf.config.get_logical_device_configuration(cpu) or []
    try:
        if len(parts) > 1 and not gpus:
            return workers_on_split_cpus(len(parts), options)
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    except RuntimeError as error:
        raise ValueError(
            "Workers must be connected before TensorFlow is used. Call choose_strategy first. "
            f"Received: {error}"
        ) from error
