"""An experiment defines data, model and evaluation; `train_run` trains any of them."""

import functools
import inspect
import json
import logging
import sys

import numpy as np

from .deferred import Deferred, keras, kt
from .pretrained import completed, pretrained_of
from .training_config import SIZE

folders = Deferred("keras_transformer.data.prepared")
token_ids = Deferred("keras_transformer.data.token_ids")

LOG = logging.getLogger(__name__)

# Muon is for matrices inside a network: not tables, nor the outputs behind the last block.
ADAM_BESIDE_MUON = [r"^(?!.*block_)"]

TEXTS = "texts.json"  # in the folder of a run's data: an example, and what was held out


class Experiment:
    """What differs between translation, classification, language models and pretraining.

    Batches are objects with `dataset(step)`, `steps_per_epoch` and `checksum()`. They are made of
    `prepared`, a folder of token ids: that of --prepared, or that which `prepare` writes. Texts
    are read when they are needed: a run that goes on does not read the training text.

    Args:
        config: its settings, a subclass of `TrainingConfig`.
        texts: the pair of training and validation text, the latter empty or None if there is
            none; None reads those that the config names.
        run: the `Run` if it has begun: with a checkpoint it replaces --pretrained.

    Attributes:
        config: as given, with what was left to --pretrained.
        pretrained: what --pretrained holds, as `convert.Converted`; None without it.
        prepared: the `Prepared` folder; None until there is one.
        target_tokenizer: of a model whose two sides have one each; otherwise None.

    Raises:
        ValueError: if settings are invalid, or the names of texts.
    """

    def __init__(self, config, texts=None, run=None):
        classes = self.pretrained_classes()
        self.pretrained = pretrained_of(config, classes, self.pretrained_from, run)
        self.config = self.completed(config, pretrained=self.pretrained)
        check_model_settings(self.config, self.sizes())
        if texts is None:
            self.check_texts()
        else:
            train_text, self.valid_text = texts
            self._texts = train_text, None
        if self.pretrained is not None:
            self.use_pretrained()

    config_class: type  # its subclass of `TrainingConfig`
    kind: str  # of its prepared folders
    pretrained_from = ""  # where models of --pretrained come from, in words
    target_tokenizer = prepared = None

    @classmethod
    def completed(cls, config, before=None, pretrained=None):
        """A config with the settings that are left to --pretrained.

        Args:
            config: of a command.
            before: that of the run, if it has begun.
            pretrained: what --pretrained holds, if it has been read.
        """
        return completed(config, before, pretrained)

    # Every experiment has these.

    def sizes(self):
        """The table of published dimensions that --size chooses from."""
        raise NotImplementedError

    def check_texts(self):
        """Raises ValueError unless the config names the texts that a training needs.

        Opens the folder of --prepared.
        """
        self.config.check_given(self.config.training_text)
        self.config.require(self.config.text_requirements)
        if self.config.prepared:
            self.prepared = self._open_prepared()

    def read_texts(self):
        """The training text that the config names, and what was held out of it, or None."""
        raise NotImplementedError

    def read_valid_text(self):
        """The validation text that the config names; None if it names none."""
        raise NotImplementedError

    def example(self):
        """A small part of the training text, to be shown at the end."""
        raise NotImplementedError

    def learn_tokenizer(self):
        """A new tokenizer for the training text."""
        raise NotImplementedError

    def columns(self, tokenizer):
        """The ids of the training text.

        Returns:
            The columns of a prepared folder, {name: `IdRows`}; its arrays, {name: array}; and
            what its manifest says besides the kind, a dictionary.
        """
        raise NotImplementedError

    def make_batches(self, tokenizer, plan_folder=None):
        """Batches of `prepared`, whose order is kept in a folder, or in memory."""
        raise NotImplementedError

    def validation(self, tokenizer, replicas=1):
        """A dataset for evaluation after each epoch; None without a validation text."""
        raise NotImplementedError

    def build(self, tokenizer, batches):
        """The model, not compiled."""
        raise NotImplementedError

    def objective(self, batches):
        """The loss and the metrics, as arguments of `compile`."""
        raise NotImplementedError

    def describe(self, batches):
        """A description of the training text, to be printed."""
        raise NotImplementedError

    def show_result(self, run):
        """Prints the finished run's scores on the validation text, and draws pictures."""
        raise NotImplementedError

    def prepared_texts(self):
        """The first text of the folder of --prepared, and what it held out, or None."""
        raise NotImplementedError

    # Some have these.

    def pretrained_classes(self):
        """Classes that a model of --pretrained may have, a tuple."""
        return ()

    def use_pretrained(self):
        """Adapts to the model of --pretrained; raises ValueError if it does not fit the config."""

    def to_json(self, text):
        """A text as JSON."""
        return text

    def from_json(self, content):
        """The text that `to_json` has made JSON of."""
        return content

    def callbacks(self, run, tokenizer):
        """Further callbacks that measure and write during training, on the chief only."""
        return []

    def new_layers(self, model):
        """Names of the layers that --pretrained lacks, which are trained in full beside LoRA."""
        return []

    def finish(self, run):
        """Completes the folder of a run that has its model; called again at each later start."""

    # All share these.

    @functools.cached_property
    def _texts(self):
        return self.read_texts()

    @property
    def train_text(self):
        """The training text, which is read now if it has not been."""
        return self._texts[0]

    @functools.cached_property
    def valid_text(self):
        """The validation text, or what was held out; empty or None if there is none."""
        text = self.read_valid_text()
        if text is None:
            return self._texts[1] if self.prepared is None else self._kept_texts[1]
        return text

    @property
    def shown_text(self):
        """What is shown at the end: the validation text, or a part of the training text."""
        if self.valid_text or self.prepared is None:
            return self.valid_text or self.train_text
        return self._kept_texts[0]

    @property
    def has_own_data(self):
        """Whether the run's folder holds the data, not the folder of --prepared."""
        return not self.config.prepared

    def make_tokenizer(self):
        """That of --pretrained or --prepared, or else a new one for the training text."""
        if self.pretrained is not None:
            return self.pretrained.tokenizer
        return self.learn_tokenizer() if self.has_own_data else self.prepared.tokenizer()

    def prepare(self, path, tokenizer):
        """Writes the training text as a prepared folder, which becomes `prepared`."""
        columns, arrays, manifest = self.columns(tokenizer)
        tokenizers = tokenizer, self.target_tokenizer or tokenizer
        size = max(each.vocabulary_size for each in tokenizers)
        rows = {name: (array.dtype, array.shape[1:]) for name, array in arrays.items()}
        with folders.PreparedWriter(path, columns, size, rows) as writer:
            writer.append(columns, arrays)
            texts = self.example(), self._texts[1]
            texts = [text and self.to_json(text) for text in texts]
            (writer.draft / TEXTS).write_text(json.dumps(texts))
            writer.finish({"kind": self.kind, **manifest})
        self.prepared = kt.data.Prepared(path)

    def _open_prepared(self):
        """The folder of --prepared.

        Raises ValueError unless it is of this kind, and of the tokenizer of --pretrained.
        """
        prepared = kt.data.Prepared(self.config.prepared)
        if prepared.kind != self.kind:
            raise ValueError(
                f"--prepared must be of the kind {self.kind}. "
                f"Received: {self.config.prepared}, of the kind {prepared.kind}."
            )
        tokenizer = getattr(self.pretrained, "tokenizer", None)
        if getattr(tokenizer, "languages", None):
            raise ValueError(
                "--prepared does not go with a --pretrained model of many languages, whose texts "
                f"begin with the name of one. Received: {self.config.pretrained}."
            )
        if tokenizer is not None and (
            self.pretrained.target_tokenizer is not None
            or token_ids.tokenizer_checksum(tokenizer)
            != token_ids.tokenizer_checksum(prepared.tokenizer())
        ):
            raise ValueError(
                "--prepared must be a text that was prepared with the tokenizer of --pretrained: "
                f"keras-transformer prepare --tokenizer. Received: {self.config.prepared} and "
                f"{self.config.pretrained}."
            )
        return prepared

    def prepared_example(self):
        """The first text of a folder of --prepared, and the path of what it held out, or None."""
        ids = self.prepared[0]["text"][None]
        first = self.prepared.tokenizer().detokenize(ids).numpy()[0].decode()
        names = [name for name in self.prepared.manifest["files"] if name.startswith("held_out.")]
        return first, self.prepared.checked(names[0]) if names else None

    @property
    def _kept_texts(self):
        """What `prepared` has kept of the texts, an example and what was held out, or None."""
        if not self.has_own_data:
            return self.prepared_texts()
        texts = json.loads(self.prepared.checked(TEXTS).read_text())
        return [text and self.from_json(text) for text in texts]

    def compiled_model(self, tokenizer, batches):
        config = self.config
        model = self.build(tokenizer, batches)
        if config.lora_rank:
            targets = [name.strip() for name in config.lora_targets.split(",")]
            new = self.new_layers(model)
            model = kt.add_lora(model, config.lora_rank, config.lora_alpha, targets, new)
        self.compile(model, batches)
        return model

    def compile(self, model, batches):
        model.compile(
            optimizer=optimizer_of(self.config),
            clip_norm=self.config.clip_norm or None,
            accumulation_steps=self.config.accumulation_steps,
            r_drop=self.config.r_drop or None,
            **self.objective(batches),
        )


def check_model_settings(config, sizes):
    """Raises ValueError if Keras lacks what is set, or num_heads does not divide the width."""
    muon = inspect.signature(keras.optimizers.Muon).parameters
    if config.optimizer == "muon" and "rms_rate" not in muon:
        raise ValueError(
            "--optimizer muon needs Keras 3.13 or newer, whose steps suit Adam's rates. "
            f"Received: Keras {keras.version()}."
        )
    if config.activation not in (None, "gelu_tanh"):
        try:
            keras.activations.get(config.activation)
        except ValueError:
            raise ValueError(
                "--activation must be a Keras activation name, e.g. relu or gelu, or gelu_tanh. "
                f"Received: {config.activation}."
            ) from None
    row = {**sizes[config.size], **config.given(SIZE)}
    if row["hidden_dim"] % row["num_heads"]:
        raise ValueError(
            "--hidden-dim must be divisible by --num-heads so that every head gets the same "
            f"width. Received: {row['hidden_dim']} and {row['num_heads']}."
        )


def optimizer_of(config):
    """Adam, or Muon with Adam for what Muon is not made for, with the schedule of the settings.

    Sources: Jordan et al. 2024 (https://kellerjordan.github.io/posts/muon/); the size of a step,
    which suits Adam's rates: Liu et al. 2025 (https://arxiv.org/abs/2502.16982).
    """
    if config.schedule == "inverse_sqrt":
        rate = kt.InverseSqrtWarmup(config.peak_rate, config.warmup_steps)
    else:  # cosine
        rate = keras.optimizers.schedules.CosineDecay(
            initial_learning_rate=0.0,
            decay_steps=max(1, config.steps - config.warmup_steps),
            alpha=0.1,
            warmup_target=config.peak_rate,
            warmup_steps=config.warmup_steps,
        )
    weight_decay = config.weight_decay or None
    if config.optimizer == "muon":
        optimizer = keras.optimizers.Muon(
            rate,
            adam_beta_2=config.beta_2,
            epsilon=1e-9,
            weight_decay=weight_decay,
            adam_weight_decay=weight_decay,
            exclude_layers=ADAM_BESIDE_MUON,
        )
    else:
        optimizer = kt.Adam(rate, beta_2=config.beta_2, weight_decay=weight_decay)
    # At the end: TensorFlow's names begin with those of layers, such as "position_bias".
    optimizer.exclude_from_weight_decay(var_names=[r"(bias|gamma|beta|scale)(_\d+)?(:\d+)?$"])
    return optimizer


def log_dropped(dropped, count, what):
    """Logs in one line how much of a training text is left out, if anything.

    Args:
        dropped: how many, of `count`.
        what: they are, in words.
    """
    if dropped:
        LOG.warning("Dropped %s of %s training examples: %s.", f"{dropped:,}", f"{count:,}", what)


def plan_in_words(batches):
    """The number of batch shapes, unless it is unlimited, and the share of padding."""
    shapes = len(np.unique(batches.shapes, axis=0))
    counted = "" if batches.shapes.min() < 0 else f"{shapes} shape{'s' * (shapes > 1)}, "
    return f"{counted}{batches.padding:.1%} padding"


def publish(text_model, options):
    """Exports a `ServedModel` according to `ExportOptions`, or exits with the reason."""
    try:
        print(f"Published {text_model.export(options.directory, options.name)}.")
    except RuntimeError as error:
        sys.exit(f"error: {error}")
