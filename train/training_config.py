"""The settings that all experiments share, and which of them may change when a run resumes."""

import pathlib
from typing import ClassVar, Literal

from .deferred import kt
from .settings import Settings, flag_of, read_config, setting

SIZE = ("num_layers", "hidden_dim", "intermediate_dim", "num_heads")
DROPOUTS = ("dropout", "attention_dropout", "activation_dropout")
LARGEST_SEED = 2**32 - 1  # NumPy's limit
LEAST_PIECES = 261  # 4 control ids, 256 bytes and a piece
# An entry of `requirements` where --tokens may be something else than pieces.
ENOUGH_PIECES = {
    f"--vocabulary-size must be at least {LEAST_PIECES} with --tokens pieces": lambda config: (
        config.vocabulary_size >= LEAST_PIECES or config.tokens != "pieces"
    ),
}
TABLE = "a .parquet file, a pattern or folder of them, or a folder of Hugging Face datasets"

# Settings that are chosen for the devices when a run begins and then stay.
CHOSEN_AT_START = ("shapes", "row_multiple")

# Settings that may change when a stopped run resumes, and which changes are safe: a batch stays
# the same function of seed and step, and checkpoints and the columns of history.csv keep their
# shapes.
MAY_CHANGE = {
    **dict.fromkeys(
        ("peak_rate", "warmup_steps", "schedule", "weight_decay", "clip_norm")
        + ("average", "patience", "num_beams", "length_penalty", "scoring", "token_rules")
        + ("max_target_length",)
        + ("sampling", "tensorboard", "bleu_every")
        + ("prepared",),  # the folder may move
        lambda before, now: True,
    ),
    "steps": lambda before, now: now > before,
    "checkpoint_every": lambda before, now: before % now == 0,  # existing ones stay valid
}


def probability(default, help_text):
    return setting(default, help_text, ge=0, lt=1)


def blocks_setting():
    """What blocks are made of, for the commands whose models have a choice."""
    return setting(
        None,
        "what blocks are made of: transformer, as in the paper; llama: RMS normalisation, rotary "
        "positions, SwiGLU two thirds as wide, no biases; default: transformer",
    )


def left_to_pretrained(*names, beside=""):
    """An entry of `exclusive`: what the model of --pretrained has of its own.

    Args:
        *names: of further settings than those of all models.
        beside: settings that need --pretrained.
    """
    sentence = "The model of --pretrained has its own dimensions and vocabulary"
    return {sentence: (f"pretrained {beside}", " ".join((*SIZE, "attention", *names)))}


def fill_in(config, values):
    """Gives the settings of a new config that are None their values, a dictionary."""
    for name, value in values.items():
        if getattr(config, name) is None:
            object.__setattr__(config, name, value)  # it is frozen


def describe_changes(changes):
    """The differences between two configs, one setting after another."""
    return "; ".join(f"{flag_of(n)} was {old} and is {new}" for n, (old, new) in changes.items())


class TrainingConfig(Settings):
    """Settings of all experiments; every field is also a flag of the experiment's command."""

    command: ClassVar[str]
    left_open: ClassVar[tuple] = ()  # settings that --pretrained, or a run that began, may decide
    of_pretrained: ClassVar[tuple] = ()  # those of them that must equal those of --pretrained
    further_dimensions: ClassVar[tuple] = ("blocks",)  # what its models take beside those of all
    training_text: ClassVar[dict]  # the entry of `exclusive`
    usual: ClassVar[dict] = {}  # values of settings that are None unless --pretrained has them
    exclusive: ClassVar[dict] = {
        "--packed makes batches of one shape. Leave --shapes out or set it to 0": (
            "packed", "shapes",
        ),
    }  # fmt: skip
    requirements: ClassVar[dict] = {
        "--warmup-steps must be at least 1 with --schedule inverse_sqrt": lambda config: (
            config.warmup_steps or config.schedule != "inverse_sqrt"
        ),
    }
    text_requirements: ClassVar[dict] = {}  # of a training that reads the texts that it names

    num_layers: int | None = setting(None, "blocks in a stack; default: set by --size", ge=1)
    hidden_dim: int | None = setting(
        None, "width of the token vectors; default: set by --size", ge=2, multiple_of=2
    )
    intermediate_dim: int | None = setting(
        None, "width inside the feed-forward networks; default: set by --size", ge=1
    )
    num_heads: int | None = setting(None, "attention heads; default: set by --size", ge=1)
    dropout: float | None = probability(
        None, "probability of dropping an element of a residual; default: set by --size"
    )
    attention_dropout: float | None = probability(
        None, "probability of dropping an attention weight; default: set by the model"
    )
    activation_dropout: float | None = probability(
        None, "probability of dropping a feed-forward activation; default: set by the model"
    )
    activation: str | None = setting(
        None, "Keras activation name, or gelu_tanh; default: the model's"
    )
    attention: str | None = setting(
        None,
        "registered name of the attention class, e.g. AdditiveAttention; --import brings your own; "
        "default: MultiHeadAttention",
    )
    normalize_first: bool = setting(True, "normalise before each sub-layer instead of after")
    # Weights in half precision would hardly change.
    dtype: Literal["float32", "mixed_bfloat16", "mixed_float16"] = setting(
        "float32", "Keras dtype policy"
    )
    remat: bool = setting(
        False, "save memory: recompute the activations of each block in the backward pass"
    )

    lora_rank: int = setting(
        0,
        "tune by LoRA: train only two matrices of this rank beside each of the --lora-targets; 0: "
        "train all weights",
        ge=0,
    )
    lora_alpha: float | None = setting(
        None, "LoRA's products are scaled by this / rank; default: twice the rank", gt=0
    )
    lora_targets: str = setting(
        "query,value",
        "projections to tune, separated by commas: query, key, value, output, gate, widen, narrow, "
        "key_value, query_key_value or gate_widen",
    )

    shapes: int | None = setting(
        None,
        "maximum number of batch shapes; 0: any shape, least padding; default: 16 where the step "
        "is compiled once for each, on GPUs and JAX, otherwise 0",
        ge=0,
    )
    row_multiple: int | None = setting(
        None,
        "with --shapes or --packed: make the rows of each batch a multiple of this; default: the "
        "number of replicas",
        ge=1,
    )
    steps: int = setting(8000, "optimizer steps", ge=1)
    peak_rate: float = setting(0.001, "peak learning rate", gt=0, le=1)
    warmup_steps: int = setting(2000, "steps until the learning rate peaks", ge=0)
    schedule: Literal["inverse_sqrt", "cosine"] = setting(
        "inverse_sqrt", "learning rate after the warm-up; cosine decays to a tenth of the peak"
    )
    optimizer: Literal["adam", "muon"] = setting(
        "adam",
        "muon: Keras's Muon for the kernels of blocks, which learns more in a step that takes a "
        "little longer, and Adam for the rest; needs Keras 3.13",
    )
    beta_2: float = setting(0.98, "decay rate of Adam's second moment", ge=0, lt=1)
    weight_decay: float = setting(0.0, "weight decay of all kernels and embeddings", ge=0)
    label_smoothing: float = setting(0.0, "share of the target spread over all labels", ge=0, lt=1)
    r_drop: float = setting(
        0.0,
        "weight of R-Drop, which draws two passes with different dropout together; 5 suits "
        "translation; 0 for none",
        ge=0,
    )
    clip_norm: float = setting(0.0, "clip the gradient to this norm; 0 to not clip", ge=0)
    accumulation_steps: int = setting(1, "parts to split a batch into, to save memory", ge=1)
    seed: int = setting(
        1, "seed of the weights, dropout and the order of the data", ge=0, le=LARGEST_SEED
    )

    checkpoint_every: int = setting(500, "steps between checkpoints", ge=1)
    average: int = setting(5, "number of newest checkpoints to average into the model", ge=1)
    patience: int = setting(
        0,
        "stop after this many epochs without a lower validation loss; 0 to disable",
        ge=0,
    )
    tensorboard: bool = setting(False, "write TensorBoard logs into the run's folder")

    def model_post_init(self, context):
        if not getattr(self, "pretrained", ""):
            fill_in(self, self.usual)
        super().model_post_init(context)

    @property
    def is_packed(self):
        """Whether rows hold several texts, which only some commands support."""
        return getattr(self, "packed", False)

    def has_validation(self):
        """Whether the settings name a validation text."""
        raise NotImplementedError

    def has_held_out(self):
        """Whether --prepared is a folder with rows that were held out."""
        return bool(self.prepared) and any(pathlib.Path(self.prepared).glob("held_out.*"))

    def needs(self):
        """The settings that only have an effect together with others.

        Returns:
            A dictionary from the name of a setting to the pair of whether it has an effect, and
            what it needs, in words.
        """
        few = bool(self.shapes) or self.is_packed
        return {
            "patience": (self.has_validation(), "a validation text"),
            "row_multiple": (few, "--shapes or --packed"),
            "lora_alpha": (bool(self.lora_rank), "--lora-rank"),
            "lora_targets": (bool(self.lora_rank), "--lora-rank"),
        }

    def without_effect(self):
        """The given settings that have no effect: a dictionary from name to what it needs."""
        usual = type(self)()
        return {
            name: words
            for name, (has_effect, words) in self.needs().items()
            if not has_effect and getattr(self, name) != getattr(usual, name)
        }

    def dimensions(self):
        """The arguments of the model's function that differ from the row of its size."""
        chosen = {"size": self.size, "normalize_first": self.normalize_first, "dtype": self.dtype}
        if self.activation == "gelu_tanh":  # no name of Keras
            chosen["activation"] = kt.layers.feed_forward.gelu_tanh
        elif self.activation is not None:
            chosen["activation"] = self.activation
        names = *SIZE, *DROPOUTS, "attention", *self.further_dimensions
        return {**chosen, "remat": self.remat, **self.given(names)}

    def batch_shapes(self):
        """The argument `shapes` of a class of batches."""
        if self.is_packed:
            return kt.data.PackedRows(self.row_multiple or 1)
        return kt.data.FewShapes(self.shapes, self.row_multiple or 1) if self.shapes else None

    def changes_from(self, earlier):
        """The changes: a dictionary from the name of a setting to the pair of before and now."""
        before, now = earlier.model_dump(), self.model_dump()
        return {name: (before[name], now[name]) for name in now if before[name] != now[name]}

    @classmethod
    def of_command(cls, flags, config=None):
        """The settings of a command line, whose flags are a dictionary.

        Args:
            flags: values by the names of settings.
            config: value of --config; None if it is not given.

        Raises:
            ValueError: if there is no such experiment, or if a setting is wrong.
        """
        if config is None:
            return cls(**flags)
        content = read_config(config, cls.command)
        if flags.get("pretrained"):  # which `completed` compares with what is left
            content = {n: v for n, v in content.items() if n not in cls.of_pretrained}
        return cls.merged(flags, content, f"--config {config}")

    @classmethod
    def load(cls, name):
        """The experiment in a YAML file, or in that of train/configs with a given name.

        Raises:
            ValueError: if there is none, or if a setting is wrong.
        """
        return cls(**read_config(name, cls.command))

    @classmethod
    def restored(cls, kept):
        """The settings in config.json, a dictionary.

        Raises:
            ValueError: if a setting is unknown, outside its limits or deleted.
        """
        config = cls(**kept)
        if missing := cls.model_fields.keys() - kept.keys():
            raise ValueError(f"Settings are missing: {', '.join(map(flag_of, sorted(missing)))}.")
        return config
