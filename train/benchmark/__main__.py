"""`python -m train.benchmark`: see `command`."""

import sys

from .collect import missing_packages


def main(arguments=None):
    """Runs the command, or says which packages it lacks, before it imports any."""
    if missing := missing_packages():
        print(
            f"error: train.benchmark needs packages that are not here: {', '.join(missing)}. "
            "Install them, or bring those that `python -m train.benchmark.collect` collects.",
            file=sys.stderr,
        )
        sys.exit(2)
    from . import command

    command.main(arguments)


if __name__ == "__main__":
    main()
