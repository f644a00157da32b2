import sys

from ..command import one_line_errors
from . import comparison


def main(arguments=None):
    with one_line_errors():
        sys.exit(comparison.main(arguments))


if __name__ == "__main__":
    main()
