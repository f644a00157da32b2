"""Pretrains BERT on plain documents: masked word pieces, and whether one text follows another.

Train, or resume a run that was stopped:

    keras-transformer pretraining --documents aclImdb/train --hold-out 5000 --run runs/bert

Fine-tune the result; with the same count and seed, the same documents are held out:

    keras-transformer classification --pretrained runs/bert --folder aclImdb/train \\
        --hold-out 5000 --run runs/imdb_bert
"""

import functools
import itertools
import os
from typing import ClassVar, Literal

import numpy as np

from .command import Command
from .deferred import Deferred, kt
from .experiment import Experiment
from .settings import one_of, setting
from .training_config import TrainingConfig

attention = Deferred("keras_transformer.figures.attention")
labelled_text = Deferred("keras_transformer.data.labelled_text")
pictures = Deferred(f"{__package__}.pictures")
token_ids = Deferred("keras_transformer.data.token_ids")


class PretrainingConfig(TrainingConfig):
    """One experiment of `keras-transformer pretraining`."""

    command: ClassVar[str] = "pretraining"
    training_text: ClassVar[dict] = one_of("training text", "documents", "prepared")
    exclusive: ClassVar[dict] = TrainingConfig.exclusive | training_text
    requirements: ClassVar[dict] = {
        **TrainingConfig.requirements,
        "--max-length must be at most --positions, the tokens that the model can ever read": (
            lambda config: config.max_length <= config.positions
        ),
        "--label-smoothing must be 0: the loss of pretraining has none": (
            lambda config: not config.label_smoothing
        ),
        "--r-drop must be 0: it needs a loss of one output, and pretraining has two": (
            lambda config: not config.r_drop
        ),
        "--hold-out must be 0 or at least 2 documents, because random texts come from another "
        "document": lambda config: config.hold_out != 1,
    }
    further_dimensions: ClassVar[tuple] = ()

    documents: str = setting("", "folder of .txt files, or a file with empty lines between them")
    prepared: str = setting("", "instead: a folder of keras-transformer prepare --kind pretraining")
    hold_out: int = setting(
        0, "documents to hold out at random for validation, at least 2; 0 for none", ge=0
    )

    vocabulary_size: int = setting(8000, "word pieces", ge=6)
    size: Literal["tiny", "mini", "small", "base", "large"] = setting(
        "mini", "published dimensions to start from"
    )
    normalize_first: bool = setting(False, "normalise before each sub-layer instead of after")
    batch_size: int = setting(32, "maximum pairs of texts per batch", ge=1)
    max_length: int = setting(128, "maximum tokens of a pair", ge=5)
    masking_rate: float = setting(0.15, "share of the tokens to mask", gt=0, le=1)
    positions: int = setting(512, "longest text in tokens that the model can ever read", ge=5)

    def has_validation(self):
        return bool(self.hold_out and not self.prepared) or self.has_held_out()

    def needs(self):
        raw = (not self.prepared, "a text that is not --prepared")
        return super().needs() | {"vocabulary_size": raw, "hold_out": raw}


class PretrainingExperiment(Experiment):
    """Learns lists of documents, and is measured by the share of masked pieces it predicts."""

    config_class = PretrainingConfig
    kind = "pretraining"

    def sizes(self):
        return kt.models.bert_models.SIZES

    def check_texts(self):
        super().check_texts()
        if self.config.prepared:
            tokenizer = self.prepared.tokenizer()
            if not isinstance(tokenizer, kt.tokenizers.WordPieceTokenizer):
                raise ValueError(
                    "--prepared must hold word pieces. Received: "
                    f"{self.config.prepared}, of a {type(tokenizer).__name__}."
                )

    def read_texts(self):
        config = self.config
        texts = read_documents(config.documents)
        # From a folder of labels, draws the same as for classification; `unsup` is for training.
        some = len(labelled_text.labelled_files(config.documents)) or len(texts)
        # Random texts come from another document, so one alone is no use in either part.
        if config.hold_out > some - 2:
            raise ValueError(
                f"--hold-out must leave two documents for training, of {some}. "
                f"Received: {config.hold_out}."
            )
        others, held_out = labelled_text.split_rows(some, config.hold_out, config.seed)
        learned = [*others, *range(some, len(texts))]
        return tuple([texts[i] for i in part] for part in (learned, held_out))

    def read_valid_text(self):
        return None  # it is held out

    def example(self):
        return [max(self.train_text[:100], key=len)]

    @functools.cached_property
    def train_documents(self):
        """The training text, a list of sentences per document."""
        return kt.data.split_sentences(self.train_text)

    def prepared_texts(self):
        first, held_out = self.prepared_example()
        return [first], held_out and read_documents(held_out)

    def learn_tokenizer(self):
        sentences = list(itertools.chain.from_iterable(self.train_documents))
        return kt.tokenizers.train_word_pieces(sentences, self.config.vocabulary_size)

    def columns(self, tokenizer):
        documents = self.train_documents
        ids = kt.data.tokenize(list(itertools.chain.from_iterable(documents)), tokenizer)
        # Of each sentence, a row, which document it belongs to; some documents have none.
        numbers = np.repeat(np.arange(len(documents), dtype=np.uint32), list(map(len, documents)))
        manifest = {"num_documents": len(documents)}
        return {"text": token_ids.checked_ids(ids, "text")}, {"documents": numbers}, manifest

    def make_batches(self, tokenizer, plan_folder=None):
        prepared = self.prepared
        count = prepared.manifest["num_documents"]
        lengths = np.bincount(prepared.array("documents"), minlength=count)
        documents = kt.data.IdRows(prepared.columns["text"], lengths)
        return self._batches(documents, tokenizer, plan_folder)

    def validation(self, tokenizer, replicas=1):
        if not self.valid_text:
            return None
        documents = kt.data.split_sentences(self.valid_text)
        ids = kt.data.tokenize_documents(documents, tokenizer)
        return self._batches(ids, tokenizer).epoch(replicas)

    def build(self, tokenizer, batches):
        counts, config = batches.token_counts(), self.config
        backbone = kt.bert(len(counts), max_sequence_length=config.positions, **config.dimensions())
        return kt.bert_pretraining(backbone, counts)

    def objective(self, batches):
        # In the order of the names; a next sentence has no padding.
        metrics = [
            [kt.TokenAccuracy(name="accuracy")],
            [kt.TokenAccuracy(pad_id=-1, name="accuracy")],
        ]
        return {"loss": kt.PretrainingLoss(), "metrics": metrics}

    def describe(self, batches):
        return f"{batches.num_tokens:,} word pieces, {batches.num_passages:,} passages"

    def show_result(self, run):
        model, tokenizer = run.model(), run.tokenizer()
        text = max(self.shown_text[:100], key=len)
        length = min(self.config.max_length, pictures.LONGEST)
        inputs = kt.data.pack_segments(tokenizer, tokenizer.tokenize([text]), max_length=length)
        tokens = {"encoder": attention.token_labels(tokenizer, inputs["token_ids"][0].numpy())}
        scores = model.attention_scores(**inputs)
        title = f"{text[: pictures.LONGEST]}..."
        pictures.save_pictures(
            run, attention.Attention.of_first_example(scores, tokens, tokens, title)
        )
        if self.valid_text:
            self.compile(model, batches=None)
            logs = model.evaluate(self.validation(tokenizer), verbose=0, return_dict=True)
            print(
                f"Masked pieces found: {logs['masked_tokens_accuracy']:.2%}. "
                f"Next texts told from random ones: {logs['next_sentence_accuracy']:.2%}. "
                f"Loss of both: {logs['loss']:.4f} nats."
            )

    def _batches(self, documents, tokenizer, plan_folder=None):
        config = self.config
        sizes = config.batch_size, config.max_length, config.seed, config.masking_rate
        settings = *sizes, config.batch_shapes(), plan_folder
        return kt.data.PretrainingBatches(documents, tokenizer, *settings)


def read_documents(path):
    """The files of a folder, or the documents of a file; ValueError if there are fewer than two."""
    documents = kt.data.DocumentStream(path, kind="pretraining").read()
    if not os.path.isdir(path):
        documents = [text for text in documents if text.strip()]
    if len(documents) < 2:
        raise ValueError(
            "Expected at least two documents: a folder of .txt files, or a file with an empty line "
            f"between them. Received: {path} with {len(documents)}."
        )
    return documents


main = Command(__doc__, PretrainingExperiment).main

if __name__ == "__main__":
    main()
