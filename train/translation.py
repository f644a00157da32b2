"""Trains a translation model on your text, and translates with it.

    python -m train.translation --source train.en --target train.de \
        --valid-source val.en --valid-target val.de --run runs/mine
"""

import argparse
import sys

from keras_transformer.text import read_files, read_tsv
from train.config import add_settings, config_of
from train.run import Run, train


def read_text(config):
    """The training and the validation text that a config names; None without the latter.

    Raises:
        ValueError: if the config names no text, or more than one.
    """
    if config.tsv:
        train_text = read_tsv(config.tsv)
        return train_text, read_tsv(config.valid_tsv) if config.valid_tsv else None
    train_text = read_files(config.source, config.target)
    valid_text = None
    if config.valid_source:
        valid_text = read_files(config.valid_source, config.valid_target)
    return train_text, valid_text


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", required=True)
    add_settings(parser)
    options = parser.parse_args()
    config = config_of(options)
    run = Run(options.run)
    train_text, valid_text = read_text(config)
    run.begin(config, train_text)
    train(run, config, train_text, valid_text)


if __name__ == "__main__":
    sys.exit(main())
