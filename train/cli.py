"""The program `keras-transformer NAME`; in a clone `python -m train.NAME` does the same."""

import importlib
import sys

MODULES = {
    "demo": "__main__",
    "translation": "translation",
    "language-model": "language_model",
    "classification": "classification",
    "pretraining": "pretraining",
    "prepare": "prepare",
    "convert": "convert",
    "launch": "launch.__main__",
    "serve": "serve.__main__",
}


def main(arguments=None):
    """Runs the command that the first argument names with the others."""
    try:
        from .settings import Parser
    except ModuleNotFoundError as error:  # pydantic, where only the library is installed
        print(
            f"error: {error}. The commands need the extra `train`: "
            "pip install 'keras-transformer-toolkit[train]'",
            file=sys.stderr,
        )
        sys.exit(2)
    arguments = sys.argv[1:] if arguments is None else arguments
    name = arguments[0].replace("_", "-") if arguments else "--help"
    if name not in MODULES:
        parser = Parser(
            "keras-transformer",
            f"Runs a command: {', '.join(MODULES)}. Each has its own --help.",
            usage="%(prog)s COMMAND [flags]",
        )
        parser.add_argument("command", choices=MODULES)
        parser.parse_args([name])
    importlib.import_module(f".{MODULES[name]}", __package__).main(arguments[1:])
