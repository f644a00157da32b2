"""What the commands of all experiments share: flags, training on whatever devices, export."""

import sys
import textwrap
from typing import Literal

from keras_transformer.serving import export
from keras_transformer.training.distribution import from_all_workers, this_worker
from train.command import Parser, one_line_errors, read_flags
from train.config import add_settings, config_of
from train.devices import DeviceSettings, leaves_when_a_worker_is_lost, strategy_of
from train.run import Run, train
from train.settings import add_flags, flag_of, given_flags, required, setting, settings
from train.training_config import MAY_CHANGE

# What Ctrl-C means; commands that write as they go say it themselves.
STOPPED_TRAINING = "Stopped. The same command goes on from the last checkpoint."
STOPPED = {
    "evaluate": "Stopped. Nothing was measured.",
    "export": "Stopped. Nothing was published.",
}


@settings
class TrainOptions(DeviceSettings):
    """Flags of a training, beside its config."""

    run: str = required("folder of this run; made if missing")


@settings
class RunOptions:
    """Flags of a command that uses a trained run."""

    run: str = required("folder of a trained run")


@settings
class ExportOptions(RunOptions):
    """Flags of `export`."""

    directory: str = setting("saved_models", "folder of all served models")
    name: str = required("name of the served model, as requests will call it")
    dtype: Literal["float32", "bfloat16"] = setting("float32", "dtype of the served weights")


def run_command(arguments, train_command, commands):
    """Runs the command that the first argument names, or else the one that trains.

    Args:
        arguments: of the command line; None for those of this process.
        train_command: a function of a list of arguments.
        commands: dict from a name to another.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    name = arguments[0] if arguments else ""
    if name in commands:
        with one_line_errors(STOPPED.get(name, "")):
            commands[name](arguments[1:])
    else:
        with one_line_errors(STOPPED_TRAINING):
            train_command(arguments)


def run_training(arguments, name, description, config_class, read_text, task_of, show_result):
    """Trains the run that the arguments name, to its end, and has the chief show what came out.

    Args:
        arguments: a list of flags.
        name: of the experiment, as in `python -m train.<name>`.
        description: of its --help.
        config_class: of its settings.
        read_text: config -> the pair of texts to learn from and to measure on.
        task_of: config and both texts -> a `Task`.
        show_result: called by the chief with run, config, model and both texts.
    """
    may_change = ", ".join(map(flag_of, MAY_CHANGE))
    parser = Parser(
        prog=f"python -m train.{name}",
        description=description,
        epilog=textwrap.fill(f"A stopped run may resume with other values of {may_change}.", 90),
    )
    add_flags(parser, TrainOptions)
    add_settings(parser, config_class)
    flags = parser.parse_args(arguments)
    options = TrainOptions(**given_flags(flags, TrainOptions))
    config = config_of(flags, config_class)
    run = Run(options.run, config_class)
    run.check(config)  # before a long text is read
    strategy = strategy_of(options)
    texts = read_text(config)
    with leaves_when_a_worker_is_lost(strategy):
        train(run, config, task_of(config, *texts), strategy)
        if this_worker(strategy).index == 0:
            # Read again: one that was trained on several devices is bound to them.
            show_result(run, config, run.model(), *texts)
        from_all_workers(strategy, 0)  # the others stay until the chief is done


def read_options(cls, arguments, name, command, description):
    """The flags of a command that uses a trained run, as settings of the class `cls`."""
    return read_flags(cls, arguments, f"python -m train.{name} {command}", description)


def run_export(arguments, name, config_class, served_model, options_class=ExportOptions):
    """Publishes a trained run, or ends with the reason why nothing was published.

    Args:
        arguments: a list of flags.
        name: of the experiment.
        config_class: of its settings.
        served_model: run and `ExportOptions` -> what `export` takes.
        options_class: `ExportOptions`, or a subclass with more flags.
    """
    description = "Publishes a trained run as a SavedModel for TensorFlow Serving."
    options = read_options(options_class, arguments, name, "export", description)
    served = served_model(Run(options.run, config_class), options)
    try:
        print(f"Published {export(served, options.directory, options.name)}.")
    except RuntimeError as error:
        sys.exit(f"error: {error}")
