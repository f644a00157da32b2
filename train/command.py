"""What the commands share: flags that become settings, and one clear line for each mistake."""

import argparse
import contextlib
import logging
import os
import sys

from train.settings import add_flags, given_flags

EXIT_CODE_MISTAKE = 2
EXIT_CODE_CTRL_C = 130  # 128 + SIGINT
EXIT_CODE_NO_READER = 141  # 128 + SIGPIPE


class Parser(argparse.ArgumentParser):
    """Answers a mistake with one line instead of the whole usage."""

    def __init__(self, **kwargs):
        super().__init__(
            allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs
        )

    def error(self, message):
        self.exit(EXIT_CODE_MISTAKE, f"{self.prog}: {message}. --help lists all flags.\n")


def read_flags(cls, arguments, prog, description):
    """The settings of a class that a list of arguments gives.

    Raises:
        ValueError: with one line for each value outside of its limits.
        SystemExit: for a flag that does not exist or is missing.
    """
    parser = Parser(prog=prog, description=description)
    add_flags(parser, cls)
    return cls(**given_flags(parser.parse_args(arguments), cls))


@contextlib.contextmanager
def one_line_errors(stopped=""):
    """Exits with the message of an error that its user can mend, without a traceback.

    Args:
        stopped: what to say after Ctrl-C; nothing if empty.
    """
    logging.basicConfig(format="%(message)s")
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:  # as of `| head -1`: whoever read our answers has had enough
        # Python flushes standard output once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_CODE_NO_READER)
    except (ValueError, OSError, FloatingPointError, ImportError) as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        sys.exit(EXIT_CODE_MISTAKE)
    except KeyboardInterrupt:
        if stopped:
            print(stopped, file=sys.stderr)
        sys.exit(EXIT_CODE_CTRL_C)
