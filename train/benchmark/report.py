"""The file of a benchmark: all runs that were told to write to it, in JSON."""

import datetime
import json
import os

from .tables import machine, report_table


def read_report(path):
    """The runs that a file has already, a list; none if there is no path or file.

    Raises:
        ValueError: if it has something else, or is to be in a folder that there is not.
    """
    if not path or not path.exists():
        if path and not path.parent.is_dir():
            raise ValueError(f"--json: there is no folder {path.parent} to write to")
        return []
    try:
        runs = json.loads(path.read_text("utf-8"))["runs"]
        report_table(runs)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise ValueError(
            f"--json: {path} is not a report of this version of train.benchmark. Choose another "
            "file"
        ) from None
    return runs


def new_run(options):
    """What a run begins with: date, machine, and no measurements."""
    return {
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M}Z",
        "machine": machine(options.threads, options.gpu),
        "measurements": [],
        "backend": options.backend,
        "toy": options.toy,
    }


def save(path, runs):
    """Replaces a file by a report, which is on the disk then.

    Raises:
        OSError: if it could not be written. What was there before stays.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(json.dumps({"runs": runs}, indent=1) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise OSError(f"{path} could not be written: {error.strerror}.") from error
