"""Reads forged folders in a process of its own: python -m tests.forged.worker READER FOLDER."""

import logging
import sys

import train  # noqa: F401  # sets TensorFlow's variables before it is imported
from tests.forged.readers import READERS, attempt


def main():
    logging.disable(logging.WARNING)
    reader, answers = READERS[sys.argv[1]], sys.stdout
    sys.stdout = sys.stderr
    print("ready", file=answers, flush=True)
    for _ in sys.stdin:
        print(
            attempt(reader, sys.argv[2])
            .encode("ascii", "replace")
            .decode()[:2000]
            .replace("\n", " "),
            file=answers,
            flush=True,
        )


if __name__ == "__main__":
    main()
