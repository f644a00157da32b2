"""Trains a translation model on your own text; evaluates it, translates with it, exports it.

Train, or resume a run that was stopped:

    python -m train.translation --source train.en --target train.de \\
        --valid-source val.en --valid-target val.de --run runs/mine

All GPUs of this machine are used without a flag. On several workers, with the same numbers:

    python -m train.launch --workers 2 -- python -m train.translation --source ...

--pretrained tunes the model of another run, or of a released folder such as opus-mt-en-de.

Use the trained run (each has its own --help):

    python -m train.translation translate --run runs/mine < in.txt > out.txt
    python -m train.translation evaluate --run runs/mine --source test.en --target test.de
    python -m train.translation export --run runs/mine --name mine
"""

from typing import Literal

from train.command import Command
from train.options import DecodingOptions, ExportOptions, RunOptions
from train.settings import required, setting, settings
from train.training_config import (
    LEAST_PIECES,
    TrainingConfig,
    check_left_to_pretrained,
    check_packed,
    fill_in,
)

USUAL_SEARCH = {"num_beams": 5, "length_penalty": 1.0, "scoring": "gnmt", "token_rules": "{}"}


@settings
class TranslationConfig(TrainingConfig):
    """One experiment of `python -m train.translation`."""

    earlier = {"token_rules": USUAL_SEARCH["token_rules"]}

    source: str = setting("", "file of source sentences, one per line; may be .gz")
    target: str = setting("", "file of their translations")
    valid_source: str = setting("", "file of source sentences for validation")
    valid_target: str = setting("", "file of their translations")
    tsv: str = setting("", "instead: one file, source TAB target")
    valid_tsv: str = setting("", "the same for validation")
    dataset: str = setting("", "instead: a TFDS name, e.g. ted_hrlr_translate/pt_to_en")
    source_language: str = setting(
        "", "language to translate from, with --dataset or a multilingual model"
    )
    target_language: str = setting(
        "", "language to translate to, with --dataset or a multilingual model"
    )
    data_dir: str = setting("", "folder where TFDS keeps its data")
    distinct_sources: bool = setting(False, "train only on the first translation of each source")
    max_pairs: int = setting(0, "train only on this many pairs, the first ones; 0 for all", ge=0)

    pretrained: str = setting(
        "",
        "tune the model of a finished run, or of a folder of Marian, M2M100, NLLB or OpenNMT-tf",
    )
    vocabulary_size: int = setting(8000, "pieces shared by both languages", ge=LEAST_PIECES)
    size: Literal["tiny", "base", "big"] = setting("base", "published dimensions to start from")
    label_smoothing: float = setting(
        0.1, "share of the target spread over the vocabulary", ge=0, lt=1
    )
    tokens_per_batch: int = setting(4096, "maximum tokens in a batch on either side", ge=2)
    max_length: int = setting(256, "longest sentence in tokens; longer pairs are dropped", ge=2)
    packed: bool = setting(
        False,
        "pack several pairs into each row of --max-length tokens: one shape, little padding",
    )
    bleu_every: int = setting(
        0, "epochs between BLEU measurements during training; 0 for none", ge=0
    )
    num_beams: int | None = setting(
        None, "beams when translating; default: 5, or those of --pretrained", ge=1
    )
    length_penalty: float | None = setting(
        None, "exponent of the length penalty; default: 1, or that of --pretrained", ge=0
    )
    scoring: (
        Literal["gnmt", "huggingface", "huggingface_early_stopping", "huggingface_never"] | None
    ) = setting(
        None,
        "rules of the beam search; huggingface, for models converted from there; default: gnmt, or "
        "those of --pretrained",
    )
    token_rules: str | None = setting(
        None,
        'which tokens the search may choose, as JSON, e.g. {"no_repeat_ngram_size": 3}; default: '
        "any, or those of --pretrained",
    )

    def __post_init__(self):
        super().__post_init__()
        if self.pretrained:
            check_left_to_pretrained(self, ("size", "activation", "pre_norm", "vocabulary_size"))
        else:
            fill_in(self, USUAL_SEARCH)
        check_packed(self)
        if self.tokens_per_batch < self.max_length:
            raise ValueError(
                "--tokens-per-batch must be at least --max-length, so that any sentence fits into "
                f"a batch. Received: {self.tokens_per_batch} and {self.max_length}."
            )

    def has_validation(self):
        return bool(self.valid_source or self.valid_target or self.valid_tsv or self.dataset)

    def needs(self):
        return super().needs() | {
            "data_dir": (bool(self.dataset), "--dataset"),
            "bleu_every": (self.has_validation(), "a validation text"),
        }


@settings
class SearchOptions(RunOptions):
    """Decodes with a trained run by beam search."""

    num_beams: int | None = setting(None, "beams; default: the run's", ge=1)
    length_penalty: float | None = setting(
        None, "exponent of the length penalty; default: the run's", ge=0
    )
    no_repeat_ngram_size: int | None = setting(
        None,
        "never translate to the same N tokens in a row twice; 0 allows it; default: the run's",
        ge=0,
    )
    min_length: int | None = setting(
        None, "fewest tokens of a translation, end token included; default: the run's", ge=0
    )
    repetition_penalty: float | None = setting(
        None, "above 1 makes tokens that have occurred less likely; default: the run's", gt=0
    )
    source_language: str = setting(
        "", "with a multilingual model: language of the texts, e.g. en; default: the run's"
    )
    target_language: str = setting("", "likewise language to translate to; default: the run's")


@settings
class EngineOptions(SearchOptions, DecodingOptions):
    """Translates with a trained run."""

    engine: Literal["tensorflow", "ctranslate2", "ctranslate2-int8"] = setting(
        "tensorflow",
        "engine; ctranslate2 must be installed, ends its search in its own way and divides scores "
        "by n ** exponent, so some translations differ; int8 is faster and less precise",
    )

    def __post_init__(self):
        if self.engine != "tensorflow" and self.cache != "auto":
            raise ValueError(
                "--cache needs --engine tensorflow: CTranslate2 has a cache of its own. "
                f"Received: --engine {self.engine}, --cache {self.cache}."
            )


@settings
class TranslateOptions(EngineOptions):
    """Translates standard input, one sentence per line, to standard output.

    {command} --run runs/mine < in.txt > out.txt
    """


@settings
class EvaluateOptions(EngineOptions):
    """Evaluates the BLEU of a trained run on other text.

    {command} --run runs/mine --source test.en --target test.de
    """

    source: str = required("file of sentences, one per line; may be .gz")
    target: str = required("file of their translations")


@settings
class TranslationExportOptions(SearchOptions, ExportOptions):
    """Publishes a trained run as a SavedModel for TensorFlow Serving, which fixes its search.

    {command} --run runs/mine --name mine --num-beams 4
    """


def experiment():
    from train.experiments.translation import Translation

    return Translation


SUBCOMMANDS = {
    "translate": TranslateOptions,
    "evaluate": EvaluateOptions,
    "export": TranslationExportOptions,
}
main = Command("translation", __doc__, TranslationConfig, experiment, SUBCOMMANDS).main

if __name__ == "__main__":
    from train.translation import main  # configs/ must fill this class, not that of __main__

    main()
