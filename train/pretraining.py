"""Pretrains BERT on plain documents: masked word pieces, and whether one text follows another.

Train, or resume a run that was stopped:

    python -m train.pretraining --documents aclImdb/train --hold-out 5000 --run runs/bert

Fine-tune the result; with the same count and seed, the same documents are held out:

    python -m train.classification --pretrained runs/bert --folder aclImdb/train --hold-out 5000 \\
        --run runs/imdb_bert
"""

from typing import Literal

from train.command import Command
from train.settings import setting, settings
from train.training_config import TrainingConfig


@settings
class PretrainingConfig(TrainingConfig):
    """One experiment of `python -m train.pretraining`."""

    documents: str = setting("", "folder of .txt files, or a file with empty lines between them")
    hold_out: int = setting(
        0, "documents to hold out at random for validation, at least 2; 0 for none", ge=0
    )

    vocabulary_size: int = setting(8000, "word pieces", ge=6)
    size: Literal["tiny", "mini", "small", "base", "large"] = setting(
        "mini", "published dimensions to start from"
    )
    pre_norm: bool = setting(False, "normalise before each sub-layer instead of after")
    batch_size: int = setting(32, "pairs of texts per batch", ge=1)
    max_length: int = setting(128, "maximum tokens of a pair", ge=5)
    masking_rate: float = setting(0.15, "share of the tokens to mask", gt=0, le=1)
    positions: int = setting(512, "longest text in tokens that the model can ever read", ge=5)

    def __post_init__(self):
        super().__post_init__()
        if self.max_length > self.positions:
            raise ValueError(
                "--max-length must be at most --positions, the tokens that the model can ever "
                f"read. Received: {self.max_length} and {self.positions}."
            )
        if self.label_smoothing:
            raise ValueError(
                "--label-smoothing must be 0: the loss of pretraining has none. "
                f"Received: {self.label_smoothing}."
            )
        if self.hold_out == 1:
            raise ValueError(
                "--hold-out must be 0 or at least 2 documents, because random texts come from "
                "another document. Received: 1."
            )

    def has_validation(self):
        return bool(self.hold_out)

    def needs(self):
        return super().needs() | {"row_multiple": (False, "batches of varying rows")}


def experiment():
    from train.experiments.pretraining import Pretraining

    return Pretraining


main = Command("pretraining", __doc__, PretrainingConfig, experiment).main

if __name__ == "__main__":
    from train.pretraining import main  # configs/ must fill this class, not that of __main__

    main()
