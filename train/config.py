"""The settings of an experiment: classes, short files that fill them, flags that override them."""

import dataclasses
import importlib
import pathlib
from typing import ClassVar, Literal

from keras_transformer.models.bert_models import SIZES as BERT_SIZES
from keras_transformer.models.decoder_only import SIZES as LANGUAGE_MODEL_SIZES
from keras_transformer.models.encoder_decoder import SIZES as TRANSLATION_SIZES
from keras_transformer.models.encoder_only import SIZES as CLASSIFIER_SIZES
from keras_transformer.models.gpt2_model import SIZES as GPT2_SIZES
from keras_transformer.models.xl_model import SIZES as XL_SIZES
from train.settings import add_flags, flag_of, given_flags, setting, settings
from train.training_config import SIZE, TrainingConfig, probability

CONFIGS = pathlib.Path(__file__).parent / "configs"
LEAST_PIECES = 261  # 4 control ids, 256 bytes and a piece


@settings
class TranslationConfig(TrainingConfig):
    """One experiment of `python -m train.translation`."""

    SIZES: ClassVar[dict] = TRANSLATION_SIZES

    source: str = setting("", "file of source sentences, one per line; may be .gz")
    target: str = setting("", "file of their translations")
    valid_source: str = setting("", "file of source sentences for validation")
    valid_target: str = setting("", "file of their translations")
    tsv: str = setting("", "instead: one file, source TAB target")
    valid_tsv: str = setting("", "the same for validation")
    dataset: str = setting("", "instead: a TFDS name, e.g. ted_hrlr_translate/pt_to_en")
    source_language: str = setting("", "language of the --dataset to translate from")
    target_language: str = setting("", "language of the --dataset to translate to")
    data_dir: str = setting("", "folder where TFDS keeps its data")
    distinct_sources: bool = setting(False, "train on the first translation of each source only")
    max_pairs: int = setting(0, "train on this many pairs only, the first; 0 for all", ge=0)

    vocabulary_size: int = setting(8000, "pieces shared by both languages", ge=LEAST_PIECES)
    size: Literal[*TRANSLATION_SIZES] = setting("base", "published dimensions to start from")
    label_smoothing: float = setting(
        0.1, "share of the target spread over the vocabulary", ge=0, lt=1
    )
    tokens_per_batch: int = setting(4096, "most tokens of a batch on either side", ge=2)
    max_length: int = setting(256, "longest sentence in tokens; longer pairs are left out", ge=2)
    bleu_every: int = setting(
        0, "epochs between BLEU measurements during training; 0 for none", ge=0
    )
    num_beams: int = setting(5, "beams when translating", ge=1)
    length_penalty: float = setting(1.0, "exponent of the GNMT length penalty", ge=0)

    def __post_init__(self):
        super().__post_init__()
        if self.tokens_per_batch < self.max_length:
            raise ValueError(
                "--tokens-per-batch must be at least --max-length, so that any sentence fits into "
                f"a batch. Received: {self.tokens_per_batch} and {self.max_length}."
            )


def check_pieces(config):
    """Raises ValueError if the bytes alone fill a vocabulary of pieces."""
    if config.tokens == "pieces" and config.vocabulary_size < LEAST_PIECES:
        raise ValueError(
            f"--vocabulary-size must be at least {LEAST_PIECES} with --tokens pieces. "
            f"Received: {config.vocabulary_size}."
        )


@settings
class LanguageModelConfig(TrainingConfig):
    """One experiment of `python -m train.language_model`."""

    MODELS: ClassVar[dict] = {
        "transformer": LANGUAGE_MODEL_SIZES,
        "gpt2": GPT2_SIZES,
        "transformer_xl": XL_SIZES,
    }

    text: str = setting("", "file of text to learn from, may be .gz; or a TFDS name")
    valid_text: str = setting("", "file of text for validation")
    data_dir: str = setting("", "folder where TFDS keeps its data")
    hold_out: float = setting(
        0.0, "instead: share at the end of the text to validate on", ge=0, lt=1
    )

    tokens: Literal["characters", "bytes", "pieces"] = setting(
        "characters", "what to cut the text into"
    )
    vocabulary_size: int = setting(2000, "pieces, with --tokens pieces", ge=1)
    model: Literal["transformer", "gpt2", "transformer_xl"] = setting(
        "transformer", "kind of model; transformer_xl remembers earlier segments"
    )
    size: str = setting("small", "published dimensions of the --model to start from")
    memory_length: int | None = setting(
        None, "tokens that transformer_xl remembers; default: set by --size", ge=0
    )
    context: int = setting(256, "tokens of a training window", ge=2)
    batch_size: int = setting(32, "windows per batch", ge=1)
    evaluate_every: int = setting(
        500, "steps per epoch; an epoch of transformer_xl is one pass over the text", ge=1
    )
    stride: int | None = setting(
        None, "tokens that the window moves in evaluation; default: half of --context", ge=1
    )
    schedule: Literal["cosine", "inverse_sqrt"] = setting(
        "cosine", "learning rate after the warm-up; cosine ends at a tenth of the highest"
    )

    def __post_init__(self):
        if self.size not in self.MODELS[self.model]:
            raise ValueError(
                f"--size must be one of {', '.join(self.MODELS[self.model])} with --model "
                f"{self.model}. Received: {self.size}."
            )
        super().__post_init__()
        check_pieces(self)
        if self.stride is not None and self.stride > self.context:
            raise ValueError(
                "--stride must be at most --context, so that no token is left out. "
                f"Received: {self.stride} and {self.context}."
            )
        if self.model != "transformer_xl" and self.memory_length is not None:
            raise ValueError(
                f"--memory-length needs --model transformer_xl. Received: --model {self.model}."
            )
        if self.model == "transformer_xl" and self.accumulation_steps > 1:
            raise ValueError(
                "--accumulation-steps must be 1 with --model transformer_xl, whose memory is that "
                f"of a whole batch. Received: {self.accumulation_steps}."
            )

    def row(self):
        return self.MODELS[self.model][self.size]

    def dimensions(self):
        return super().dimensions() | self._given(("memory_length",))


@settings
class ClassificationConfig(TrainingConfig):
    """One experiment of `python -m train.classification`."""

    SIZES: ClassVar[dict] = CLASSIFIER_SIZES

    folder: str = setting("", "folder with a folder of .txt files for each label, as in aclImdb")
    valid_folder: str = setting("", "the same for validation")
    tsv: str = setting("", "instead: one file, text TAB label; may be .gz")
    valid_tsv: str = setting("", "the same for validation")
    dataset: str = setting("", "instead: a TFDS name, e.g. imdb_reviews")
    data_dir: str = setting("", "folder where TFDS keeps its data")
    hold_out: int = setting(0, "instead: examples to draw for validation; 0 for none", ge=0)

    pretrained: str = setting("", "fine-tune the model of a run of train.pretraining")
    from_scratch: bool = setting(False, "with --pretrained: new weights, for comparison")

    tokens: Literal["words", "pieces"] = setting("words", "what to cut texts into")
    vocabulary_size: int = setting(20_000, "words or pieces", ge=5)
    size: Literal[*CLASSIFIER_SIZES] = setting("small", "published dimensions to start from")
    pooling: Literal["mean", "max", "first"] = setting(
        "mean", "how token vectors become one; first is [CLS] with --pretrained"
    )
    token_dropout: float = probability(0.0, "probability of leaving out a token")
    tokens_per_batch: int = setting(8192, "most tokens of a batch", ge=1)
    max_length: int = setting(512, "tokens read of a text; a longer one loses its middle", ge=1)

    def __post_init__(self):
        super().__post_init__()
        check_pieces(self)
        if self.from_scratch and not self.pretrained:
            raise ValueError("--from-scratch compares with --pretrained: give both.")
        if self.pretrained:
            self._check_left_to_pretrained()

    def _check_left_to_pretrained(self):
        names = (*SIZE, "size", "activation", "pre_norm", "tokens", "vocabulary_size")
        usual = ClassificationConfig()
        if given := [name for name in names if getattr(self, name) != getattr(usual, name)]:
            raise ValueError(
                "The model of --pretrained has its own dimensions and vocabulary. "
                f"Received: {', '.join(f'{flag_of(n)} {getattr(self, n)}' for n in given)}."
            )


@settings
class PretrainingConfig(TrainingConfig):
    """One experiment of `python -m train.pretraining`."""

    SIZES: ClassVar[dict] = BERT_SIZES

    documents: str = setting("", "folder of .txt files, or a file with an empty line between two")
    hold_out: int = setting(0, "documents to draw for validation, at least 2; 0 for none", ge=0)

    vocabulary_size: int = setting(8000, "word pieces", ge=6)
    size: Literal[*BERT_SIZES] = setting("mini", "published dimensions to start from")
    pre_norm: bool = setting(False, "normalise before each sub-layer instead of after")
    batch_size: int = setting(32, "pairs of texts per batch", ge=1)
    max_length: int = setting(128, "tokens of a pair", ge=5)
    masking_rate: float = setting(0.15, "share of the tokens to mask", gt=0, le=1)
    positions: int = setting(512, "tokens of the longest text that the model can ever read", ge=5)

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
                "--hold-out must be 0 or at least 2 documents, since a random text comes from "
                "another one. Received: 1."
            )


def load_config(name):
    """The `CONFIG` of train/configs/<name>.py.

    Raises:
        ValueError: if there is no such file.
    """
    known = sorted(path.stem for path in CONFIGS.glob("[a-z]*.py"))
    if name not in known:
        raise ValueError(f"--config must be one of {', '.join(known)}. Received: {name!r}.")
    return importlib.import_module(f"train.configs.{name}").CONFIG


def add_settings(parser, config_class):
    """A flag for each setting; one that is not given leaves the config's value."""
    parser.add_argument("--config", help="an experiment of train/configs, e.g. multi30k")
    add_flags(parser, config_class)


def config_of(options, config_class):
    """The config that parsed flags ask for.

    Raises:
        ValueError: if --config names an experiment of another command, or none, or a setting is
            outside of its limits.
    """
    given = given_flags(options, config_class)
    if not options.config:
        return config_class(**given)
    config = load_config(options.config)
    if type(config) is not config_class:
        raise ValueError(
            f"--config must be an experiment of this command, a {config_class.__name__}. "
            f"Received: {options.config!r}, a {type(config).__name__}."
        )
    return dataclasses.replace(config, **given)
