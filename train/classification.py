"""Trains a text classifier or a regression on your own texts; evaluates, uses, exports it.

Train, or resume a run that was stopped:

    keras-transformer classification --folder aclImdb/train --hold-out 5000 --run runs/imdb

Use the trained run (each has its own --help):

    keras-transformer classification classify --run runs/imdb < texts.txt > labels.tsv
    keras-transformer classification evaluate --run runs/imdb --folder aclImdb/test
    keras-transformer classification export --run runs/imdb --name imdb

--pretrained fine-tunes the BERT of a keras-transformer pretraining run, or of a run that was
fine-tuned before.

Texts come from a folder with one subfolder of .txt files per label, from a file with two columns
(text TAB label, several labels joined by commas), from a table, or from TensorFlow Datasets.
With --task regression each label is a number, such as a rating.
"""

import itertools
from typing import ClassVar, Literal

import numpy as np

from .command import Command
from .deferred import Deferred, keras, kt, tf
from .experiment import Experiment, log_dropped, plan_in_words, publish
from .lines import report_cut_texts
from .options import ExportOptions, FilesOptions, RunOptions
from .pretrained import fine_tuned_classifier
from .scores import micro_f1, pearson, spearman
from .settings import one_of, setting
from .training_config import (
    ENOUGH_PIECES,
    TABLE,
    TrainingConfig,
    blocks_setting,
    left_to_pretrained,
    probability,
)

bulk = Deferred(f"{__package__}.bulk")
devices = Deferred(f"{__package__}.devices")
labelled_text = Deferred("keras_transformer.data.labelled_text")
pictures = Deferred(f"{__package__}.pictures")
token_ids = Deferred("keras_transformer.data.token_ids")

VALID = ("valid_folder", "valid_tsv", "valid_table")
LOST_MIDDLE = "read without their middle"


class ClassificationConfig(TrainingConfig):
    """One experiment of `keras-transformer classification`."""

    command: ClassVar[str] = "classification"
    training_text: ClassVar[dict] = one_of(
        "training text", "folder", "tsv", "table", "dataset", "prepared"
    )
    exclusive: ClassVar[dict] = {
        **TrainingConfig.exclusive,
        **training_text,
        **one_of("validation text", *VALID, "hold_out"),
        **left_to_pretrained(
            "size", "blocks", "activation", "normalize_first", "tokens", "vocabulary_size",
            beside="from_scratch",
        ),
        "--r-drop compares probabilities, which --task regression lacks": (
            "task=regression", "r_drop",
        ),
    }  # fmt: skip
    requirements: ClassVar[dict] = {
        **TrainingConfig.requirements,
        **ENOUGH_PIECES,
        "--from-scratch needs --pretrained, which it compares with": (
            lambda config: config.pretrained or not config.from_scratch
        ),
    }

    folder: str = setting("", "folder with one subfolder of .txt files per label, as in aclImdb")
    valid_folder: str = setting("", "the same for validation")
    tsv: str = setting("", "instead: one file, text TAB label; may be .gz")
    valid_tsv: str = setting("", "the same for validation")
    table: str = setting("", f"instead: {TABLE}")
    valid_table: str = setting("", "the same for validation")
    prepared: str = setting("", "instead: a folder of keras-transformer prepare --labelled")
    text_column: str = setting("text", "column of texts in a table")
    label_column: str = setting("label", "column of labels in a table")
    dataset: str = setting("", "instead: a TFDS name, e.g. imdb_reviews")
    data_dir: str = setting("", "folder where TFDS keeps its data")
    task: Literal["single_label", "multi_label", "regression"] | None = setting(
        None,
        "what each text has: one label; any number of labels; or a number. Default: multi_label if "
        "a training text has several labels or none, otherwise single_label",
    )
    hold_out: int = setting(
        0, "instead: examples to hold out at random for validation; 0 for none", ge=0
    )

    pretrained: str = setting(
        "",
        "fine-tune the model of a keras-transformer pretraining run, or a BERT from a folder of "
        "Hugging Face or KerasHub",
    )
    from_scratch: bool = setting(
        False, "with --pretrained: start from random weights, for comparison"
    )

    tokens: Literal["words", "pieces"] = setting("words", "kind of token")
    vocabulary_size: int = setting(20_000, "words or pieces", ge=5)
    size: Literal["small", "former"] = setting("small", "published dimensions to start from")
    blocks: Literal["transformer", "llama"] | None = blocks_setting()
    pooling: Literal["mean", "max", "first"] = setting(
        "mean", "how token vectors become one; first is [CLS] with --pretrained"
    )
    token_dropout: float = probability(0.0, "probability of dropping a token")
    tokens_per_batch: int = setting(8192, "maximum tokens in a batch", ge=1)
    max_length: int = setting(512, "maximum tokens of a text; longer texts lose their middle", ge=1)

    def has_validation(self):
        files = self.valid_folder or self.valid_tsv or self.valid_table
        own = self.dataset or self.hold_out
        return bool(files or (own and not self.prepared)) or self.has_held_out()

    def needs(self):
        has_table = (bool(self.table or self.valid_table), "--table or --valid-table")
        has_names = (self.task != "regression", "another --task than regression")
        return super().needs() | {
            "data_dir": (bool(self.dataset), "--dataset"),
            "hold_out": (not self.prepared, "a text that is not --prepared"),
            "vocabulary_size": (not self.prepared, "a text that is not --prepared"),
            "tokens": (not self.prepared, "a text that is not --prepared"),
            "text_column": has_table,
            "label_column": has_table,
            "label_smoothing": has_names,
        }


class ClassifyOptions(FilesOptions):
    """Classifies standard input, one text per line, as label TAB probability, or files.

    A regression writes the number that it predicts.

    {command} --run runs/imdb < texts.txt > labels.tsv
    {command} --run runs/imdb --input 'in/*.gz' --output out --processes 2
    """


class EvaluateOptions(RunOptions):
    """Evaluates a trained run on other texts.

    Prints the accuracy; of several labels per text also the micro F1; and of a regression the mean
    squared error and the correlations of Pearson and Spearman.

    {command} --run runs/imdb --folder aclImdb/test
    {command} --run runs/imdb --tsv test.tsv
    """

    evaluation_text: ClassVar[dict] = one_of("evaluation text", "folder", "tsv", "table")
    exclusive: ClassVar[dict] = evaluation_text

    folder: str = setting("", "folder with one subfolder of .txt files per label")
    tsv: str = setting("", "instead: one file, text TAB label; may be .gz")
    table: str = setting("", f"instead: {TABLE}")
    text_column: str = setting("text", "column of texts in a table")
    label_column: str = setting("label", "column of labels in a table")

    def model_post_init(self, context):
        super().model_post_init(context)
        self.check_given(self.evaluation_text)


class ClassificationExperiment(Experiment):
    """Learns `LabelledText` with a new encoder or a pretrained BERT."""

    config_class = ClassificationConfig
    kind = "classification"
    pretrained_from = (
        "a keras-transformer pretraining run, a run fine-tuned from one, or a folder of BERT"
    )

    def pretrained_classes(self):
        return (kt.models.bert_models.BertModel,)

    def use_pretrained(self):
        positions = self.pretrained.model.positions.max_sequence_length
        if not 2 < self.config.max_length <= positions:
            raise ValueError(
                f"--max-length must be 3 to {positions} tokens, which the model of --pretrained "
                f"can read. Received: {self.config.max_length}."
            )

    def sizes(self):
        return kt.models.encoder_only.SIZES

    def check_texts(self):
        super().check_texts()
        config = self.config
        if config.prepared:
            if (config.task == "regression") == bool(self.prepared.manifest["names"]):
                raise ValueError(
                    "--task regression needs labels that are numbers, and only it: "
                    f"keras-transformer prepare --numbers. Received: {config.prepared}."
                )
            if config.task == "single_label":
                counts = self.prepared.array("labels").sum(axis=1)
                if len(other := np.flatnonzero(counts != 1)):
                    raise ValueError(
                        "--task single_label needs one label for each text. Received: "
                        f"{counts[other[0]]:g} labels for text {other[0] + 1:,} of "
                        f"{config.prepared}."
                    )

    def read_texts(self):
        config = self.config
        columns = config.text_column, config.label_column
        names = [] if config.task == "regression" else None
        if config.dataset:
            text = self._read_dataset("train", names)
        else:
            text = read_texts(config.folder, config.tsv, config.table, columns, names)
        if config.task == "single_label":
            check_one_label_each(text)
        if config.hold_out:
            text, held_out = kt.data.hold_out(text, config.hold_out, config.seed)
            return without_empty(text), held_out
        return without_empty(text), None

    def read_valid_text(self):
        config = self.config
        files = [getattr(config, name) for name in VALID]
        names = self._known_labels()["names"]
        if any(files):
            return read_texts(*files, (config.text_column, config.label_column), names)
        if config.dataset and not config.hold_out:
            return self._read_dataset("test", names)
        return None

    def _read_dataset(self, split, names):
        where = {"split": split, "data_dir": self.config.data_dir or None}
        return kt.data.LabelledStream(dataset=self.config.dataset, names=names, **where).read()

    def example(self):
        texts, labels, names = self.train_text
        row = max(range(min(len(texts), 100)), key=lambda row: len(texts[row]))
        return kt.data.LabelledText([texts[row]], [labels[row]], names)

    def from_json(self, content):
        texts, labels, names = content
        return kt.data.LabelledText(texts, list(map(tuple, labels)), names)

    def prepared_texts(self):
        text, held_out = self.prepared_example()
        names, labels = self.prepared.manifest["names"], self.prepared.array("labels")[0]
        labels = tuple(itertools.compress(names, labels)) if names else (float(labels[0]),)
        first = kt.data.LabelledText([text], [labels], names)
        return first, held_out and kt.data.LabelledStream(held_out, names=names).read()

    def learn_tokenizer(self):
        config = self.config
        return kt.tokenizers.train_sentencepiece(
            self.train_text.texts, config.vocabulary_size, config.tokens
        )

    def columns(self, tokenizer):
        text = self.train_text
        ids = token_ids.checked_ids(kt.data.tokenize(text.texts, tokenizer), "text")
        return {"text": ids}, {"labels": text.matrix()}, self._known_labels()

    def _known_labels(self):
        """The "names" of the labels, and whether a text is "multi_label", a dictionary."""
        if self.prepared is not None:
            return self.prepared.manifest
        return {"names": self.train_text.names, "multi_label": is_multi_label(self.train_text)}

    def make_batches(self, tokenizer, plan_folder=None):
        prepared = self.prepared
        ids, labels = prepared.columns["text"], prepared.array("labels")
        return self._batches(ids, labels, prepared.manifest["names"], tokenizer, plan_folder)

    def validation(self, tokenizer, replicas=1):
        text = self.valid_text
        if text is None:
            return None
        if not self.is_multi_label():
            check_one_label_each(text)
        ids = kt.data.tokenize(text.texts, tokenizer)
        return self._batches(ids, text.matrix(), text.names, tokenizer).epoch(replicas)

    def build(self, tokenizer, batches):
        config, num_outputs = self.config, len(batches.names) or 1
        if self.pretrained is not None:
            model = fine_tuned_classifier(config, self.pretrained.model, num_outputs)
        else:
            model = kt.classifier(
                tokenizer.vocabulary_size,
                num_outputs,
                pooling=config.pooling,
                token_dropout=config.token_dropout,
                **config.dimensions(),
            )
        if config.task == "regression":  # otherwise many steps would only learn the mean
            model.head.bias.assign(batches.mean_label)
        return model

    def new_layers(self, model):
        is_new = self.pretrained is not None and self.pretrained.model.pooler is None
        return ["head", "pooler"] if is_new and model.pooler is not None else ["head"]

    def objective(self, batches):
        smoothing = self.config.label_smoothing
        mean = "mean_with_sample_weight"  # the weight of an empty row is 0
        if self.config.task == "regression":
            error = keras.metrics.MeanAbsoluteError(name="absolute_error")
            return {"loss": keras.losses.MeanSquaredError(mean), "weighted_metrics": [error]}
        if self.is_multi_label():
            loss = keras.losses.BinaryCrossentropy(True, smoothing, reduction=mean)
            accuracy = keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0)
        else:
            loss = keras.losses.CategoricalCrossentropy(True, smoothing, reduction=mean)
            accuracy = keras.metrics.CategoricalAccuracy(name="accuracy")
        return {"loss": loss, "weighted_metrics": [accuracy]}

    def is_multi_label(self):
        """Whether a text may have any number of labels, by --task or by the training text."""
        task = self.config.task
        if task is not None:
            return task == "multi_label"
        if self.has_own_data:
            return self._known_labels()["multi_label"]
        return bool((self.prepared.array("labels").sum(axis=1) != 1).any())

    def describe(self, batches):
        size = f"{batches.num_texts:,} texts, {batches.num_tokens:,} tokens"
        return f"{size}; {plan_in_words(batches)}"

    def finish(self, run):
        """Writes the names of the labels next to the model, unless they exist."""
        try:
            run.labels()
        except ValueError:  # not there yet, or damaged
            if self.prepared is None:
                raise
            run.save_labels(self.prepared.manifest["names"], self.is_multi_label())

    def show_result(self, run):
        model = served_model(run.path)
        # Some texts may be empty; the longest of a few has something to show.
        text = max(self.shown_text.texts[:100], key=len)
        pictures.save_pictures(
            run,
            model.attention(pictures.beginning(model.tokenizer, text, model.max_length)),
            loss_unit(model),
        )
        if self.valid_text is not None:
            print(report_of(model, self.valid_text)[0])

    @staticmethod
    def classify(options):
        bulk.answer_input(answering, options, _max_length(options), LOST_MIDDLE)

    @staticmethod
    def evaluate(options):
        model = served_model(options.run, weights=options.weights)
        columns = options.text_column, options.label_column
        text = read_texts(options.folder, options.tsv, options.table, columns, model.labels)
        report, is_cut = report_of(model, text)
        print(report)
        places = (
            labelled_text.files_of_labels(options.folder)
            if options.folder
            else range(1, len(is_cut) + 1)
        )
        cut = [place for place, was_cut in zip(places, is_cut, strict=True) if was_cut]
        cut = list(map(str if options.folder else "{:,}".format, cut))
        word = "files" if options.folder else "rows" if options.table else "lines"
        report_cut_texts(cut, len(is_cut), _max_length(options), LOST_MIDDLE, word)

    @staticmethod
    def export(options):
        publish(served_model(options.run, options.dtype, options.weights), options)

    def _batches(self, ids, labels, names, tokenizer, plan_folder=None):
        prepare, longest = self._inputs(tokenizer)
        config = self.config
        sizes = config.tokens_per_batch, longest, config.seed, prepare, config.batch_shapes()
        return kt.data.LabelledBatches(ids, labels, names, *sizes, plan_folder)

    def _inputs(self, tokenizer):
        """A function from token ids, (batch, length), to the model's inputs, and their limit."""
        config = self.config
        if not config.pretrained:
            return lambda ids: ids, config.max_length

        def with_special_tokens(ids):
            rows = tf.RaggedTensor.from_tensor(ids, padding=tokenizer.pad_id)
            packed = kt.data.pack_segments(tokenizer, rows, max_length=config.max_length)
            missing = [[0, 0], [0, tf.shape(ids)[1] + 2 - tf.shape(packed["token_ids"])[1]]]
            return {name: tf.pad(part, missing) for name, part in packed.items()}

        return with_special_tokens, config.max_length - 2  # [CLS] and [SEP]


def answering(options):
    """A function from texts to their answers, and whether each lost its middle."""
    model = served_model(options.run, weights=options.weights)

    def answer(texts):
        found = model.answer(texts)
        if "value" in found:
            return list(map(str, found["value"])), found["truncated"]
        best = found["probabilities"].max(axis=1)
        pairs = zip(found["label"], best, strict=True)
        return [f"{name.decode()}\t{p:.4f}" for name, p in pairs], found["truncated"]

    return answer


def without_empty(text):
    """The texts that are not empty, of which a model would only learn how often a label occurs."""
    kept = [i for i, each in enumerate(text.texts) if each.strip()]
    log_dropped(len(text.texts) - len(kept), len(text.texts), "empty texts")
    return kt.data.labelled(
        [text.texts[i] for i in kept], [text.labels[i] for i in kept], text.names
    )


def served_model(run, dtype=None, weights="averaged"):
    """The `Classifier` of a run; the arguments are those of its `load`."""
    devices.one_thread_each()
    return kt.serving.Classifier.load(run, dtype, weights)


def loss_unit(model):
    """The unit of the loss of a `Classifier`; Keras averages over labels, too."""
    if not model.labels:
        return "squared error"
    return "nats per label" if model.multi_label else "nats per text"


def report_of(model, text):
    """Measures a model on all texts at once.

    A classifier is right if a text gets its label, or exactly all of its labels.

    Args:
        model: a `Classifier`.
        text: a `LabelledText` with its labels.

    Returns:
        The pair of a line of text, and an array of whether each text was too long.
    """
    count = len(text.texts)
    if not model.labels:
        answer = model.answer(text.texts)
        predicted, expected = answer["value"].astype(float), np.array(text.labels)[:, 0]
        error = np.mean((predicted - expected) ** 2)
        report = (
            f"Mean squared error: {error:.4g}. Correlation: {pearson(predicted, expected):.4f} "
            f"(Pearson), {spearman(predicted, expected):.4f} (Spearman). {count:,} texts."
        )
        return report, answer["truncated"]
    if not model.multi_label:
        check_one_label_each(text)
    answer = model.answer(text.texts)
    expected = [",".join(n for n in model.labels if n in labels) for labels in text.labels]
    right = sum(
        found.decode() == label for found, label in zip(answer["label"], expected, strict=True)
    )
    report = f"Accuracy: {right / count:.2%} ({right:,} of {count:,} texts)."
    if model.multi_label:
        report += f" Micro F1: {micro_f1(answer['probabilities'] >= 0.5, text.matrix()):.4f}."
    return report, answer["truncated"]


def is_multi_label(text):
    """Whether there are texts with several labels, or none."""
    return any(len(labels) != 1 for labels in text.labels)


def check_one_label_each(text):
    """Raises ValueError if a text does not have exactly one label."""
    if is_multi_label(text):
        wrong = next(i for i, labels in enumerate(text.labels) if len(labels) != 1)
        raise ValueError(
            "Texts must each have exactly one label, in training and in evaluation, unless a model "
            "is trained with --task multi_label. "
            f"Received: {len(text.labels[wrong])} labels of {text.texts[wrong][:80]!r}."
        )


def read_texts(folder, tsv, table, columns, names=None):
    """The `LabelledText` of the one that is given, with the allowed labels."""
    return kt.data.LabelledStream(tsv, folder, table, columns, names).read()


def _max_length(options):
    """The maximum tokens that a run reads of a text, including those that BERT adds."""
    return kt.serving.RunFolder(options.run).settings()["max_length"]


SUBCOMMANDS = {"classify": ClassifyOptions, "evaluate": EvaluateOptions, "export": ExportOptions}
main = Command(__doc__, ClassificationExperiment, SUBCOMMANDS).main

if __name__ == "__main__":
    main()
