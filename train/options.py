"""Flags that several commands have, beside the settings of an experiment."""

from typing import Literal

from train.settings import required, setting, settings


@settings
class TrainOptions:
    """Where a training keeps its run, and on which devices; its numbers are the same on all."""

    run: str = required("folder of this run; made if missing")
    strategy: Literal["auto", "one", "mirrored", "multiworker"] = setting(
        "auto",
        "devices to train on: one; mirrored, all GPUs; multiworker, the workers of TF_CONFIG; "
        "auto, whatever there is",
    )
    virtual_devices: int | None = setting(
        None, "split the CPU into this many devices, to try replicas without GPUs", ge=1
    )
    deterministic: bool = setting(
        False, "the same bits at every run also on GPUs: slower, without TF32"
    )
    model_parallel: int = setting(
        1, "on JAX: devices among which each large weight is divided, for large models", ge=1
    )


# The docstrings below are what --help shows.
@settings
class RunOptions:
    """Uses a trained run."""

    run: str = required("folder of a trained run")


@settings
class DecodingOptions(RunOptions):
    """Decodes with a trained run."""

    cache: Literal["auto", "growing", "static"] = setting(
        "auto",
        "of keys and values: growing; static, compiled once for each bucket of lengths; auto, "
        "static on GPUs",
    )


@settings
class ExportOptions(RunOptions):
    """Publishes a trained run as a SavedModel for TensorFlow Serving.

    {command} --run runs/mine --name mine
    """

    directory: str = setting("saved_models", "folder of all served models")
    name: str = required("name of the served model, as requests will call it")
    dtype: Literal["float32", "bfloat16"] = setting("float32", "dtype of the served weights")
