"""What the commands of all experiments share: flags, training on whatever devices, export."""

import sys

from keras_transformer.serving import export
from keras_transformer.training.distribution import from_all_workers, this_worker
from train.command import Parser, one_line_errors
from train.config import add_settings, config_of
from train.devices import add_device_flags, leaves_when_a_worker_is_lost, strategy_of
from train.run import Run, train


def run_command(arguments, train_command, commands):
    """Runs the command that the first argument names, or else the one that trains.

    Args:
        arguments: of the command line; None for those of this process.
        train_command: a function of a list of arguments.
        commands: dict from a name to another.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    command = commands.get(arguments[0]) if arguments else None
    with one_line_errors():
        if command is None:
            train_command(arguments)
        else:
            command(arguments[1:])


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
    parser = Parser(prog=f"python -m train.{name}", description=description)
    parser.add_argument("--run", required=True, help="folder of this run; made if missing")
    add_device_flags(parser)
    add_settings(parser, config_class)
    options = parser.parse_args(arguments)
    strategy = strategy_of(options)
    config = config_of(options, config_class)
    texts = read_text(config)
    run = Run(options.run, config_class)
    with leaves_when_a_worker_is_lost(strategy):
        train(run, config, task_of(config, *texts), strategy)
        if this_worker(strategy).index == 0:
            # Read again: one that was trained on several devices is bound to them.
            show_result(run, config, run.model(), *texts)
        from_all_workers(strategy, 0)  # the others stay until the chief is done


def run_parser(name, command, description):
    """A parser of a command that uses a trained run."""
    parser = Parser(prog=f"python -m train.{name} {command}", description=description)
    parser.add_argument("--run", required=True, help="folder of a trained run")
    return parser


def run_export(arguments, name, config_class, served_model):
    """Publishes a trained run, or ends with the reason why nothing was published.

    Args:
        arguments: a list of flags.
        name: of the experiment.
        config_class: of its settings.
        served_model: run and dtype of the weights -> what `export` takes.
    """
    parser = run_parser(name, "export", "Publishes a trained run as a SavedModel.")
    parser.add_argument("--directory", default="saved_models", help="folder of served models")
    parser.add_argument("--name", required=True, help="of the served model")
    parser.add_argument("--dtype", default="float32", help="of the weights: float32 or bfloat16")
    options = parser.parse_args(arguments)
    served = served_model(Run(options.run, config_class), options.dtype)
    try:
        print(f"Published {export(served, options.directory, options.name)}.")
    except RuntimeError as error:
        sys.exit(f"error: {error}")
