"""`python -m train.benchmark`: see `command`, `device` and `collect`."""

import time

BEGUN = time.monotonic()  # before anything else is imported

import argparse  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402

from . import collect  # noqa: E402


def main(arguments=None, begun=None):
    """Runs the command for the backend that it names, or says which packages it lacks.

    Args:
        arguments: of the command line, a list; None for those of the process.
        begun: when the process began, in seconds of `time.monotonic`; None for now.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    begun = time.monotonic() if begun is None else begun
    if arguments[:1] == ["collect"]:
        collect.main(arguments[1:])
        return
    if missing := collect.missing_packages():
        print(
            f"error: train.benchmark needs packages that are not here: {', '.join(missing)}. "
            "Install them, or bring those that `python -m train.benchmark collect` collects.",
            file=sys.stderr,
        )
        sys.exit(2)
    from ..command import one_line_errors
    from . import command, device

    # So that the processes of the engines end, too, and leave the GPU to what comes next.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    which = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    which.add_argument("--backend", nargs="?")
    with one_line_errors():
        if which.parse_known_args(arguments)[0].backend == "jax":
            sys.exit(device.run(arguments, begun))
        sys.exit(command.run(arguments))


if __name__ == "__main__":
    main(begun=BEGUN)
