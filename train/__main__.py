"""Trains a translator on an embedded corpus, evaluates it, draws pictures, exports and queries it.

    python -m train

It needs no network and takes a few minutes on two cores. Everything goes into runs/demo and
saved_models/demo; a second call finds the trained run and publishes the next version.
"""

from train.command import STOPPED_TRAINING, Parser, one_line_errors, without_start_up_notes


def main():
    parser = Parser(prog="python -m train", description=__doc__)
    parser.add_argument("--run", default="runs/demo", help="folder of the run")
    parser.add_argument("--directory", default="saved_models", help="folder of all served models")
    options = parser.parse_args()
    with one_line_errors(STOPPED_TRAINING):
        with without_start_up_notes():
            from train.experiments.demo import run_demo
        run_demo(options.run, options.directory)


if __name__ == "__main__":
    main()
