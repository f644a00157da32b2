"""`python -m train.benchmark`: see `command`, `device` and `collect`."""

import time

BEGUN = time.monotonic()  # before anything else is imported

import sys  # noqa: E402

from . import collect  # noqa: E402


def main(arguments=None):
    """Runs the command, or says which packages it lacks, before it imports any."""
    arguments = sys.argv[1:] if arguments is None else arguments
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
    from . import command

    command.main(arguments, BEGUN)


if __name__ == "__main__":
    main()
