"""Flags that several commands share, besides the settings of an experiment."""

from typing import ClassVar, Literal

from .settings import Settings, both, required, setting


class TrainOptions(Settings):
    """The folder of a run and the devices to train on, which do not change the numbers."""

    requirements: ClassVar[dict] = {
        "--virtual-devices needs another --strategy: one trains on the first device only": (
            lambda options: options.strategy != "one" or (options.virtual_devices or 1) == 1
        ),
    }

    run: str = required("folder of this run; created if missing")
    strategy: Literal["auto", "one", "mirrored", "multiworker"] = setting(
        "auto",
        "devices to train on: one; mirrored, all GPUs; multiworker, the workers of TF_CONFIG; "
        "auto, all that are available",
    )
    virtual_devices: int | None = setting(
        None, "split the CPU into this many devices, to try replicas without GPUs", ge=1
    )
    deterministic: bool = setting(
        False, "give the same bits in every run, on GPUs too: slower, without TF32"
    )
    model_parallel: int = setting(
        1, "on JAX: number of devices that share each large weight, for large models", ge=1
    )
    log_file: str = setting(
        "", "also append the progress to this file, one plain line every 100 steps and each epoch"
    )


# The docstrings below are what --help shows.
class RunOptions(Settings):
    """Uses a trained run."""

    run: str = required("folder of a trained run")
    weights: Literal["averaged", "best"] = setting(
        "averaged",
        "weights to use: averaged, the mean of the newest checkpoints; best, of a translation "
        "trained with --bleu-every, those with the best --metric",
    )


class FilesOptions(RunOptions):
    """Answers files instead of standard input."""

    requirements: ClassVar[dict] = {
        **both("input", "output"),
        "--processes needs --input": lambda options: options.input or not options.processes,
        "--runner ray needs --input": lambda options: options.input or options.runner != "ray",
    }

    input: str = setting(
        "",
        "instead of standard input: a file, or a quoted pattern of files, plain, .gz or .zst; each "
        "is answered in a file of the same name",
    )
    output: str = setting("", "with --input: folder of the answers; files that are there stay")
    processes: int | None = setting(
        None,
        "with --input: processes, which each hold the model; default: one for each GPU, or else "
        "one, with --runner ray one on each machine",
        ge=1,
    )
    runner: Literal["local", "ray"] = setting(
        "local",
        "with --input: where processes run: local, on this machine; ray, as actors on the cluster "
        "of RAY_ADDRESS, or without one, of a cluster of this machine",
    )


class DecodingOptions(RunOptions):
    """Decodes with a trained run."""

    cache: Literal["auto", "growing", "static"] = setting(
        "auto",
        "cache of keys and values: growing; static, compiled once for each bucket of lengths; "
        "auto, static on GPUs",
    )


class ExportOptions(RunOptions):
    """Publishes a trained run as a SavedModel for TensorFlow Serving.

    {command} --run runs/mine --name mine
    """

    directory: str = setting("saved_models", "folder of all served models")
    name: str = required("name of the served model in requests")
    dtype: Literal["float32", "bfloat16"] = setting("float32", "dtype of the served weights")
