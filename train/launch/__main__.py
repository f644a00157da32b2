"""Starts several workers that train together, and restarts all of them when one is lost.

    keras-transformer launch --workers 2 -- \\
        keras-transformer translation --config multi30k --run runs/multi30k ...

Every worker runs the same command, with an environment variable TF_CONFIG that lists them all. By
default they are processes on this machine that communicate over the loopback device and share its
GPUs (CUDA_VISIBLE_DEVICES); with --launcher ray (pip install 'keras-transformer-toolkit[ray]'), Ray
places them on the machines of its cluster.

After two exit codes of a worker there is no restart: 2 means invalid arguments or data; 75 means
that it was told to stop and has saved its step. The launcher exits with the code of the first
worker that failed, or 0.
"""

import argparse
import sys
from typing import ClassVar, Literal

from ..command import one_line_errors
from ..settings import Parser, Settings, required, setting
from .local import run_here


class LaunchOptions(Settings):
    """Flags of the launcher."""

    requirements: ClassVar[dict] = {
        "--start-timeout needs --launcher local: Ray itself waits for the workers": (
            lambda options: options.launcher == "local" or options.start_timeout == 300
        ),
        "--min-workers needs --launcher ray, because one machine is not lost in part": (
            lambda options: options.launcher == "ray" or not options.min_workers
        ),
        "--min-workers must be at most --workers": (
            lambda options: (options.min_workers or 0) <= options.workers
        ),
    }

    workers: int = required("number of workers", ge=1)
    restarts: int = setting(3, "how many times to restart all workers", ge=0)
    start_timeout: float = setting(300, "seconds for every worker to connect", gt=0)
    gpus_per_worker: int | None = setting(
        None,
        "GPUs per worker, 0 for none; default: an equal share of this machine's GPUs, or one of "
        "Ray's",
        ge=0,
    )
    min_workers: int | None = setting(
        None,
        "with --launcher ray, how many workers are enough after a machine was lost; default: all",
        ge=1,
    )
    launcher: Literal["local", "ray"] = setting("local", "what starts the workers")


def main(arguments=None):
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = Parser(prog="keras-transformer launch", description=__doc__)
    given_in = parser.add_settings(LaunchOptions)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what each worker runs, after --")
    flags = parser.parse_args(arguments)
    command = flags.command[1:] if flags.command[:1] == ["--"] else flags.command
    if not command:
        parser.error("no command given. Write it after --")
    with one_line_errors():
        options = LaunchOptions(**given_in(flags))
        count, restarts, gpus = options.workers, options.restarts, options.gpus_per_worker
        if options.launcher == "ray":
            from .on_ray import run_on_ray

            sys.exit(run_on_ray(command, count, restarts, gpus, options.min_workers))
        sys.exit(run_here(command, count, restarts, options.start_timeout, gpus))


if __name__ == "__main__":
    main()
