"""Work on blocks that kills its process once, as a lack of memory does."""

import os
import pathlib
import signal

from keras_transformer.data import block_work


def read_block(*arguments):
    return _dying_once("read_block", arguments)


def tokenise_block(*arguments):
    return _dying_once("tokenise_block", arguments)


def _dying_once(name, arguments):
    block, mark = arguments[3 - (name == "read_block")], pathlib.Path(os.environ["DIED"], name)
    if block.first > 100 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return getattr(block_work, name)(*arguments)
