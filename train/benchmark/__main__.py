import sys

from train.benchmark.comparison import main
from train.command import one_line_errors

with one_line_errors():
    sys.exit(main())
