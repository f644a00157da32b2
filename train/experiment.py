"""An experiment defines data, model and evaluation; `train_run` trains any of them."""

import logging
import sys

import numpy as np

from .deferred import Deferred, keras, kt
from .training_config import SIZE

block = Deferred("keras_transformer.layers.block")

loop = Deferred(f"{__package__}.loop")
runs = Deferred(f"{__package__}.run")

LOG = logging.getLogger(__name__)


class Experiment:
    """What differs between translation, classification, language models and pretraining.

    Batches are objects with `dataset(step)`, `steps_per_epoch`, `checksum()` and `save(path)`.

    Args:
        config: its settings, a subclass of `TrainingConfig`.
        texts: the pair of training and validation text, the latter empty or None if there is
            none; None reads those that the config names.
        run: the `Run` if it has begun: with a checkpoint it replaces --pretrained.

    Raises:
        ValueError: if settings or texts are invalid.
    """

    def __init__(self, config, texts=None, run=None):
        self.config = config
        check_model_settings(config, self.sizes())
        self.train_text, self.valid_text = self.read_texts() if texts is None else texts

    config_class: type  # its subclass of `TrainingConfig`
    target_tokenizer = None  # of a model whose two sides have one each
    pretrained = None  # what --pretrained holds, as `convert.Converted`
    prepared = None  # the `Prepared` folder of --prepared

    @classmethod
    def completed(cls, config, before=None, pretrained=None):
        """Fills in the settings that are left to --pretrained.

        Args:
            config: of a command.
            before: that of the run, if it has begun.
            pretrained: what --pretrained holds, if it has been read.
        """
        return config

    # Every experiment has these.

    def sizes(self):
        """The table of published dimensions that --size chooses from."""
        raise NotImplementedError

    def read_texts(self):
        """The pair of texts that the config names."""
        raise NotImplementedError

    def make_tokenizer(self):
        """A tokenizer for the training text."""
        raise NotImplementedError

    def make_batches(self, tokenizer):
        """Batches of the training text."""
        raise NotImplementedError

    def validation(self, tokenizer):
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

    # Some have these.

    def batches(self, tokenizer):
        """The class of the batches, and its arguments after the token ids."""
        raise NotImplementedError

    def load_batches(self, path, tokenizer):
        """The batches of the training text, from the file that they were saved to."""
        batches, settings = self.batches(tokenizer)
        return batches.load(path, *settings)

    def prepared_batches(self, tokenizer, plan_folder):
        """Batches of `prepared`, whose order is kept in a folder."""
        raise NotImplementedError

    def callbacks(self, run, tokenizer):
        """Further callbacks that measure and write during training, on the chief only."""
        return []

    def new_layers(self, model):
        """Names of the layers that --pretrained lacks, which are trained in full beside LoRA."""
        return []

    def finish(self, run):
        """Completes the folder of a run that has its model; called again at each later start."""

    # All share these.

    def make_data(self):
        """The pair of tokenizer and batches, from the text."""
        tokenizer = self.make_tokenizer()
        return tokenizer, self.make_batches(tokenizer)

    def compiled_model(self, tokenizer, batches):
        model, config = self.build(tokenizer, batches), self.config
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
            **self.objective(batches),
        )

    @classmethod
    def check_run(cls, path):
        """Raises ValueError unless a folder holds a run of this command with valid settings."""
        runs.Run(path, cls.config_class).config()

    @classmethod
    def train(cls, config, options):
        """Trains the run named by `TrainOptions` to its end."""
        if config.attention is not None:
            own = block.registered_attention(config.attention)
            config = config.replace(attention=keras.saving.get_registered_name(own))
        loop.train_on_devices(cls, config, options)


def check_model_settings(config, sizes):
    """Raises ValueError if Keras has no such activation, or num_heads does not divide the width."""
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
    """Adam with the schedule chosen in the settings."""
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
    optimizer = kt.Adam(rate, beta_2=config.beta_2, weight_decay=config.weight_decay or None)
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
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
