"""What the commands share: mistakes are answered with one clear line."""

import argparse
import contextlib
import logging
import sys

EXIT_CODE_MISTAKE = 2


class Parser(argparse.ArgumentParser):
    """Answers a mistake with one line instead of the whole usage."""

    def __init__(self, **kwargs):
        super().__init__(
            allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs
        )

    def error(self, message):
        self.exit(EXIT_CODE_MISTAKE, f"{self.prog}: {message}. --help lists what there is.\n")


@contextlib.contextmanager
def one_line_errors():
    """Exits with the message of an error that its user can mend, without a traceback."""
    logging.basicConfig(format="%(message)s")
    try:
        yield
    except (ValueError, OSError, FloatingPointError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_CODE_MISTAKE)
    except KeyboardInterrupt:
        sys.exit("Stopped. The same command goes on from the last checkpoint.")
