"""A command line: flags that become settings, and one clear line per error.

Flags are read before TensorFlow is imported, so that --help and errors are answered at once.
"""

import contextlib
import dataclasses
import importlib
import inspect
import logging
import os
import sys
import tempfile
import textwrap

from .deferred import Deferred
from .gpus import gpu_count, warn_of_idle_gpus
from .options import TrainOptions
from .settings import (
    EXIT_CODE_MISTAKE,
    Parser,
    config_as_yaml,
    flag_of,
    import_modules,
)
from .training_config import MAY_CHANGE

loop = Deferred(f"{__package__}.loop")
runs = Deferred(f"{__package__}.run")

EXIT_CODE_CTRL_C = 130  # 128 + SIGINT
EXIT_CODE_NO_READER = 141  # 128 + SIGPIPE

SEVERITIES = (b"I0000 ", b"W0000 ", b"E0000 ")  # of TensorFlow's notes, as its log levels count

# Messages after Ctrl-C; commands that write line by line print their own.
STOPPED_TRAINING = "Stopped. The same command resumes from the last checkpoint."
STOPPED = {
    "evaluate": "Stopped. Nothing was measured.",
    "export": "Stopped. Nothing was published.",
}


@dataclasses.dataclass(frozen=True)
class Command:
    """`keras-transformer NAME`: trains an experiment, or does something with a trained run.

    Args:
        description: description in --help.
        experiment: the subclass of `Experiment`, whose `config_class` names the command.
        subcommands: dict from a name to a class of settings, whose docstring is the --help of
            the subcommand. They are passed to the experiment's static method of that name.
    """

    description: str
    experiment: type
    subcommands: dict = dataclasses.field(default_factory=dict)

    def main(self, arguments=None):
        """Runs the subcommand that the first argument names; without one, trains.

        Args:
            arguments: arguments of the command line, a list; None for those of this process.
        """
        arguments = sys.argv[1:] if arguments is None else arguments
        name = arguments[0] if arguments else ""
        if name in self.subcommands:
            self._use(name, arguments[1:])
        else:
            self._train(arguments)

    @property
    def prog(self):
        """The command, as help names it."""
        return f"keras-transformer {self.experiment.config_class.command.replace('_', '-')}"

    def _use(self, name, arguments):
        """Runs a subcommand."""
        options_class = self.subcommands[name]
        prog = f"{self.prog} {name}"
        description = inspect.getdoc(options_class).replace("{command}", prog)
        parser = Parser(prog=prog, description=description)
        given_in = parser.add_settings(options_class)
        parser.add_imports()
        with one_line_errors(STOPPED.get(name, "")):
            flags = parser.parse_args(arguments)
            options = options_class(**given_in(flags))
            start_tensorflow(name)
            import_modules(flags.imports)
            runs.Run(options.run, self.experiment.config_class).config()  # raises for a wrong one
            getattr(self.experiment, name)(options)

    def _train(self, arguments):
        config_class = self.experiment.config_class
        may_change = [flag_of(name) for name in MAY_CHANGE if name in config_class.model_fields]
        epilog = f"You may resume a stopped run with another {', '.join(may_change)}."
        parser = Parser(
            prog=self.prog,
            usage="%(prog)s --run RUN [flags]",
            description=self.description,
            epilog=textwrap.fill(epilog, 90, break_on_hyphens=False),
        )
        options_in = parser.add_settings(TrainOptions, enforce_required=False)  # see --print-config
        parser.add_argument(
            "--config", help="YAML file of settings, or the name of an example: multi30k"
        )
        parser.add_argument(
            "--print-config",
            action="store_true",
            help="print the settings as such a file, and exit",
        )
        parser.add_imports()
        config_in = parser.add_settings(config_class)
        with one_line_errors(STOPPED_TRAINING):
            flags = parser.parse_args(arguments)
            config = config_class.of_command(config_in(flags), flags.config)
            if flags.print_config:
                print(config_as_yaml(config), end="")
                return
            options = TrainOptions(**options_in(flags))
            start_tensorflow()
            import_modules(flags.imports)
            loop.train_on_devices(self.experiment, config, options)


def start_tensorflow(subcommand=None):
    """Imports Keras with its backend, without TensorFlow's notes.

    Args:
        subcommand: what is to be done with a trained run; None for a training.

    Raises:
        ValueError: if Keras has another backend than this needs.
    """
    with without_start_up_notes():
        import keras

        backend = keras.backend.backend()
        if subcommand and backend != "tensorflow":
            raise ValueError(
                f"`{subcommand}` needs TensorFlow, even for a run trained on JAX: set "
                f"KERAS_BACKEND=tensorflow. Received: {backend}."
            )
        if backend not in ("tensorflow", "jax"):
            raise ValueError(
                "Training needs TensorFlow or JAX: set KERAS_BACKEND=tensorflow. "
                f"Received: {backend}."
            )
        importlib.import_module("keras_transformer.serving")
    if subcommand:  # a training warns when it has chosen its devices
        warn_of_idle_gpus()


@contextlib.contextmanager
def one_line_errors(stopped=""):
    """Exits with the message of an error that the user can fix, without a traceback.

    Args:
        stopped: message after Ctrl-C; none if empty.
    """
    open_closed_streams()
    logging.basicConfig(format="%(message)s")
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:  # as with `| head -1`: the reader has closed the pipe
        sys.exit(EXIT_CODE_NO_READER)
    except (ValueError, OSError, FloatingPointError, ImportError) as error:
        _say("".join(f"error: {line}\n" for line in str(error).splitlines()))
        sys.exit(EXIT_CODE_MISTAKE)
    except KeyboardInterrupt:
        _say(f"{stopped}\n" if stopped else "")
        sys.exit(EXIT_CODE_CTRL_C)
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:  # Python flushes once more when it ends
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _say(text):
    with contextlib.suppress(OSError):  # nobody may be reading
        sys.stderr.write(text)


def open_closed_streams():
    """Opens the null device for each standard stream that is closed, as by `2>&-`.

    The next file would get its number otherwise, and what is printed would be written into it.
    """
    for number, (name, mode) in enumerate({"stdin": "r", "stdout": "w", "stderr": "w"}.items()):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
            os.set_inheritable(null, True)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


@contextlib.contextmanager
def without_start_up_notes():
    """Hides the notes below TF_CPP_MIN_LOG_LEVEL that TensorFlow writes while it starts.

    It writes them to standard error before it reads that level. A machine without an NVIDIA GPU
    does not need the error that CUDA does not start either.
    """
    level = os.environ["TF_CPP_MIN_LOG_LEVEL"]
    if "tensorflow" in sys.modules or level not in ("1", "2", "3"):
        yield
        return
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), 2)
        try:
            yield
            if "tensorflow" in sys.modules:
                sys.modules["tensorflow"].config.list_physical_devices()
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            written.seek(0)
            hidden = (b"WARNING: All log messages before absl", *SEVERITIES[: int(level)])
            lines = [line for line in written if not line.startswith(hidden)]
            if not gpu_count():
                lines = [line for line in lines if b"failed call to cuInit" not in line]
            os.write(2, b"".join(lines))
