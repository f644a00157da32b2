"""Trains a text classifier on your own texts; evaluates it, classifies with it, exports it.

Train, or resume a run that was stopped:

    python -m train.classification --folder aclImdb/train --hold-out 5000 --run runs/imdb

Use the trained run (each has its own --help):

    python -m train.classification classify --run runs/imdb < texts.txt > labels.tsv
    python -m train.classification evaluate --run runs/imdb --folder aclImdb/test
    python -m train.classification export --run runs/imdb --name imdb

--pretrained fine-tunes the BERT of a train.pretraining run, or of a run that was fine-tuned before.

Texts come from a folder with one subfolder of .txt files per label, from a file with two columns
(text TAB label, several labels joined by commas), or from TensorFlow Datasets.
"""

from typing import Literal

from train.command import Command
from train.options import ExportOptions, RunOptions
from train.settings import setting, settings
from train.training_config import (
    TrainingConfig,
    check_left_to_pretrained,
    check_pieces,
    probability,
)


@settings
class ClassificationConfig(TrainingConfig):
    """One experiment of `python -m train.classification`."""

    folder: str = setting("", "folder with one subfolder of .txt files per label, as in aclImdb")
    valid_folder: str = setting("", "the same for validation")
    tsv: str = setting("", "instead: one file, text TAB label; may be .gz")
    valid_tsv: str = setting("", "the same for validation")
    dataset: str = setting("", "instead: a TFDS name, e.g. imdb_reviews")
    data_dir: str = setting("", "folder where TFDS keeps its data")
    hold_out: int = setting(
        0, "instead: examples to hold out at random for validation; 0 for none", ge=0
    )

    pretrained: str = setting(
        "",
        "fine-tune the model of a train.pretraining run, or a BERT from a folder of Hugging Face "
        "or KerasHub",
    )
    from_scratch: bool = setting(
        False, "with --pretrained: start from random weights, for comparison"
    )

    tokens: Literal["words", "pieces"] = setting("words", "kind of token")
    vocabulary_size: int = setting(20_000, "words or pieces", ge=5)
    size: Literal["small", "former"] = setting("small", "published dimensions to start from")
    pooling: Literal["mean", "max", "first"] = setting(
        "mean", "how token vectors become one; first is [CLS] with --pretrained"
    )
    token_dropout: float = probability(0.0, "probability of dropping a token")
    tokens_per_batch: int = setting(8192, "maximum tokens in a batch", ge=1)
    max_length: int = setting(512, "maximum tokens of a text; longer texts lose their middle", ge=1)

    def __post_init__(self):
        super().__post_init__()
        check_pieces(self)
        if self.from_scratch and not self.pretrained:
            raise ValueError("--from-scratch needs --pretrained, which it compares with.")
        if self.pretrained:
            names = ("size", "activation", "pre_norm", "tokens", "vocabulary_size")
            check_left_to_pretrained(self, names)

    def has_validation(self):
        return bool(self.valid_folder or self.valid_tsv or self.dataset or self.hold_out)

    def needs(self):
        return super().needs() | {"data_dir": (bool(self.dataset), "--dataset")}


@settings
class ClassifyOptions(RunOptions):
    """Classifies standard input, one text per line, as label TAB probability.

    {command} --run runs/imdb < texts.txt > labels.tsv
    """


@settings
class EvaluateOptions(RunOptions):
    """Evaluates the accuracy of a trained run on other texts.

    {command} --run runs/imdb --folder aclImdb/test
    {command} --run runs/imdb --tsv test.tsv
    """

    folder: str = setting("", "folder with one subfolder of .txt files per label")
    tsv: str = setting("", "instead: one file, text TAB label; may be .gz")


def experiment():
    from train.experiments.classification import Classification

    return Classification


SUBCOMMANDS = {"classify": ClassifyOptions, "evaluate": EvaluateOptions, "export": ExportOptions}
main = Command("classification", __doc__, ClassificationConfig, experiment, SUBCOMMANDS).main

if __name__ == "__main__":
    from train.classification import main  # configs/ must fill this class, not that of __main__

    main()
