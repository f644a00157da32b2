"""The settings of an experiment: a dataclass, short files that fill it, flags that override it."""

import argparse
import dataclasses
import importlib
import json
import pathlib

CONFIGS = pathlib.Path(__file__).parent / "configs"


def setting(default, help_text):
    return dataclasses.field(default=default, metadata={"help": help_text})


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """What all experiments have; every field is also a flag of the experiment's command."""

    num_layers: int = setting(0, "blocks of a stack; 0 as in the row of --size")
    hidden_dim: int = setting(0, "width of the token vectors; 0 as in the row")
    intermediate_dim: int = setting(0, "width inside the feed-forward network; 0 as in the row")
    num_heads: int = setting(0, "attention heads; 0 as in the row")
    dropout: float = setting(-1.0, "probability of dropping a residual; -1 as in the row")
    attention_dropout: float = setting(
        -1.0, "probability of dropping an attention weight; -1 as in the row"
    )
    activation_dropout: float = setting(
        -1.0, "probability of dropping a feed-forward activation; -1 as in the row"
    )
    activation: str = setting(
        "", "of the feed-forward networks, a name of Keras; none for that of the model"
    )
    pre_norm: bool = setting(True, "normalise before each sub-layer instead of after")
    dtype: str = setting("float32", "Keras dtype policy: float32 or mixed_bfloat16")
    remat: bool = setting(False, "save memory: compute the activations of each block twice")

    steps: int = setting(8000, "optimizer steps")
    peak_rate: float = setting(0.001, "highest learning rate")
    warmup_steps: int = setting(2000, "steps until the highest rate")
    schedule: str = setting(
        "inverse_sqrt", "of the rate after that: inverse_sqrt, or cosine to a tenth of the highest"
    )
    beta_2: float = setting(0.98, "decay of Adam's second moment")
    weight_decay: float = setting(0.0, "of all kernels and tables")
    label_smoothing: float = setting(0.0, "share of the target spread over all labels")
    clip_norm: float = setting(0.0, "largest norm of the gradient; 0 for no limit")
    accumulation_steps: int = setting(1, "parts into which a batch is cut to save memory")
    seed: int = setting(1, "of the initial weights, dropout and the order of the data")

    checkpoint_every: int = setting(500, "steps between two checkpoints")
    average: int = setting(5, "newest checkpoints whose mean becomes the model")
    patience: int = setting(
        0, "epochs without a better validation loss before stopping; 0 for none"
    )
    tensorboard: bool = setting(False, "write TensorBoard logs into the run's folder")

    def __post_init__(self):
        # Weights of half precision would stand still, and float16 needs its loss scaled.
        if self.dtype not in ("float32", "mixed_bfloat16"):
            raise ValueError(
                f"dtype of a training must be float32 or mixed_bfloat16. Received: {self.dtype!r}."
            )

    def dimensions(self):
        """The arguments of the model's function that differ from the row of its size."""
        chosen = {"size": self.size, "pre_norm": self.pre_norm, "dtype": self.dtype}
        chosen["remat"] = self.remat
        for name in ("num_layers", "hidden_dim", "intermediate_dim", "num_heads", "activation"):
            if getattr(self, name):
                chosen[name] = getattr(self, name)
        return chosen | self.dropouts()

    def dropouts(self):
        """The probabilities that are given."""
        names = ("dropout", "attention_dropout", "activation_dropout")
        return {name: getattr(self, name) for name in names if getattr(self, name) >= 0}

    def save(self, path):
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1) + "\n")

    @classmethod
    def load(cls, path):
        return cls(**json.loads(path.read_text()))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationConfig(TrainingConfig):
    """One experiment of `python -m train.translation`."""

    source: str = setting("", "file of source sentences, one a line; .gz is unpacked")
    target: str = setting("", "file of their translations")
    valid_source: str = setting("", "source sentences to measure on")
    valid_target: str = setting("", "their translations")
    tsv: str = setting("", "instead: one file, source TAB target")
    valid_tsv: str = setting("", "the same to measure on")
    dataset: str = setting("", "instead: a TFDS name, e.g. ted_hrlr_translate/pt_to_en")
    data_dir: str = setting("", "where TFDS keeps its data")
    distinct_sources: bool = setting(False, "train on the first translation of each source only")
    max_pairs: int = setting(0, "use the first so many training pairs; 0 for all")

    vocabulary_size: int = setting(8000, "number of pieces, in one vocabulary for both languages")
    size: str = setting("base", "row of keras_transformer.models.translation.SIZES")
    label_smoothing: float = setting(0.1, "share of the target spread over the vocabulary")
    tokens_per_batch: int = setting(4096, "most tokens of a batch on either side")
    max_length: int = setting(256, "longest sentence, in tokens; longer pairs are left out")
    bleu_every: int = setting(0, "epochs between two measurements of BLEU inside fit; 0 for none")
    num_beams: int = setting(5, "beams when translating")
    length_penalty: float = setting(1.0, "exponent alpha of the GNMT length penalty")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModelConfig(TrainingConfig):
    """One experiment of `python -m train.language_model`."""

    text: str = setting("", "file of text to learn from, .gz is unpacked; or a TFDS name")
    valid_text: str = setting("", "file of text to measure on")
    data_dir: str = setting("", "where TFDS keeps its data")
    hold_out: float = setting(0.0, "share at the end of the text to measure on instead")

    tokens: str = setting("characters", "what the text is cut into: characters, bytes or pieces")
    vocabulary_size: int = setting(2000, "number of pieces; characters and bytes have their own")
    model: str = setting(
        "transformer", "transformer, gpt2, or transformer_xl, which remembers earlier segments"
    )
    size: str = setting("small", "row of SIZES in keras_transformer/models/ of that model")
    memory_length: int = setting(-1, "tokens that transformer_xl remembers; -1 as in the row")
    context: int = setting(256, "length of the windows the model is trained on, in tokens")
    batch_size: int = setting(32, "windows in a batch")
    evaluate_every: int = setting(
        500, "steps of what is called an epoch; that of transformer_xl is one reading of the text"
    )
    stride: int = setting(0, "tokens by which the context slides in evaluation; 0 for half of it")
    schedule: str = setting("cosine", "of the rate after that: cosine, or inverse_sqrt")

    def dimensions(self):
        chosen = super().dimensions()
        if self.memory_length >= 0:
            chosen["memory_length"] = self.memory_length
        return chosen


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassificationConfig(TrainingConfig):
    """One experiment of `python -m train.classification`."""

    folder: str = setting("", "folder of folders of text files, one a label, as aclImdb has")
    valid_folder: str = setting("", "the same to measure on")
    tsv: str = setting("", "instead: one file, text TAB label; .gz is unpacked")
    valid_tsv: str = setting("", "the same to measure on")
    dataset: str = setting("", "instead: a TFDS name, e.g. imdb_reviews")
    data_dir: str = setting("", "where TFDS keeps its data")
    hold_out: int = setting(0, "examples, drawn with the seed, to measure on instead")

    pretrained: str = setting("", "run of train.pretraining, or tuned from one, to train on")
    from_scratch: bool = setting(False, "give that model new weights, to compare with")

    tokens: str = setting("words", "what texts are cut into: words or pieces")
    vocabulary_size: int = setting(20_000, "number of words or pieces")
    size: str = setting("small", "row of keras_transformer.models.classifier.SIZES")
    pooling: str = setting(
        "mean", "of the token vectors: mean, max or first, which is [CLS] with --pretrained"
    )
    token_dropout: float = setting(0.0, "probability of leaving a token out")
    tokens_per_batch: int = setting(8192, "most tokens of a batch")
    max_length: int = setting(512, "tokens that are read of a text; a longer one loses its middle")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PretrainingConfig(TrainingConfig):
    """One experiment of `python -m train.pretraining`."""

    documents: str = setting("", "folder of .txt files, or a file with an empty line between two")
    hold_out: int = setting(0, "documents, drawn with the seed, to measure on instead")

    vocabulary_size: int = setting(8000, "number of word pieces")
    size: str = setting("mini", "row of keras_transformer.models.bert.SIZES")
    pre_norm: bool = setting(False, "normalise before each sub-layer instead of after")
    batch_size: int = setting(32, "pairs of texts in a batch")
    max_length: int = setting(128, "tokens of a pair")
    masking_rate: float = setting(0.15, "share of the tokens to find again")
    positions: int = setting(512, "tokens of the longest text that the model can ever read")


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
    for field in dataclasses.fields(config_class):
        flag = "--" + field.name.replace("_", "-")
        shown = "" if field.default == "" else f" (default {field.default})"
        kind = {"type": field.type}
        if field.type is bool:
            kind = {"action": argparse.BooleanOptionalAction}
        parser.add_argument(
            flag, dest=field.name, default=None, help=field.metadata["help"] + shown, **kind
        )


def config_of(options, config_class):
    """The config that parsed flags ask for.

    Raises:
        ValueError: if --config names an experiment of another command, or none.
    """
    config = load_config(options.config) if options.config else config_class()
    if type(config) is not config_class:
        raise ValueError(
            f"--config must be an experiment of this command, a {config_class.__name__}. "
            f"Received: {options.config!r}, a {type(config).__name__}."
        )
    names = [field.name for field in dataclasses.fields(config_class)]
    given = {n: getattr(options, n) for n in names if getattr(options, n) is not None}
    return dataclasses.replace(config, **given)
