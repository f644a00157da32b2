"""Pretraining of BERT: documents, word pieces, masked pieces and next texts."""

import functools
import itertools

import tensorflow as tf

from keras_transformer.data import (
    PretrainingBatches,
    pack_segments,
    read_documents,
    split_sentences,
    tokenize_documents,
)
from keras_transformer.data.labelled_text import labelled_files, split_rows
from keras_transformer.figures.attention import Attention, names_of
from keras_transformer.models.bert_models import SIZES, bert, bert_pretraining
from keras_transformer.tokenizers import train_word_pieces
from keras_transformer.training import PretrainingLoss, TokenAccuracy
from train.experiment import Experiment
from train.pictures import LONGEST, save_pictures


class Pretraining(Experiment):
    """Learns lists of documents, and is measured by the share of masked pieces it predicts."""

    def sizes(self):
        return SIZES

    def read_texts(self):
        config = self.config
        if not config.documents:
            raise ValueError("Give training documents: --documents, a folder or a file.")
        texts = read_documents(config.documents)
        # From a folder of labels, draws the same as for classification; `unsup` is for training.
        some = len(labelled_files(config.documents)) or len(texts)
        # Random texts come from another document, so one alone is no use in either part.
        if config.hold_out > some - 2:
            raise ValueError(
                f"--hold-out must leave two documents for training, of {some}. "
                f"Received: {config.hold_out}."
            )
        others, held_out = split_rows(some, config.hold_out, config.seed)
        learned = [*others, *range(some, len(texts))]
        return tuple([texts[i] for i in part] for part in (learned, held_out))

    @functools.cached_property
    def train_documents(self):
        """The training text, a list of sentences per document."""
        return split_sentences(self.train_text)

    def make_tokenizer(self):
        sentences = list(itertools.chain.from_iterable(self.train_documents))
        return train_word_pieces(sentences, self.config.vocabulary_size)

    def make_batches(self, tokenizer):
        return self._batches(self.train_documents, tokenizer)

    def load_batches(self, path, tokenizer):
        return PretrainingBatches.load(path, tokenizer, *self._sizes())

    def validation(self, tokenizer):
        if not self.valid_text:
            return None
        batches = self._batches(split_sentences(self.valid_text), tokenizer)
        count = batches.steps_per_epoch
        # Keras warns if a dataset of unknown length ends.
        return batches.dataset().take(count).apply(tf.data.experimental.assert_cardinality(count))

    def build(self, tokenizer, batches):
        counts, config = batches.token_counts(), self.config
        backbone = bert(len(counts), max_sequence_length=config.positions, **config.dimensions())
        return bert_pretraining(backbone, counts)

    def objective(self, batches):
        # In the order of the names; a next sentence has no padding.
        metrics = [[TokenAccuracy(name="accuracy")], [TokenAccuracy(pad_id=-1, name="accuracy")]]
        return {"loss": PretrainingLoss(), "metrics": metrics}

    def describe(self, batches):
        return f"{batches.num_tokens:,} word pieces, {batches.num_passages:,} passages"

    def show_result(self, run):
        model, tokenizer = run.model(), run.tokenizer()
        text = max((self.valid_text or self.train_text)[:100], key=len)
        length = min(self.config.max_length, LONGEST)
        inputs = pack_segments(tokenizer, tokenizer.tokenize([text]), max_length=length)
        tokens = {"encoder": names_of(tokenizer, inputs["token_ids"][0].numpy())}
        scores = model.attention_scores(**inputs)
        title = f"{text[:LONGEST]}..."
        save_pictures(run, Attention.of_first_example(scores, tokens, tokens, title))
        if self.valid_text:
            self.compile(model, batches=None)
            logs = model.evaluate(self.validation(tokenizer), verbose=0, return_dict=True)
            print(
                f"Masked pieces found: {logs['masked_tokens_accuracy']:.2%}. "
                f"Next texts told from random ones: {logs['next_sentence_accuracy']:.2%}. "
                f"Loss of both: {logs['loss']:.4f} nats."
            )

    def _batches(self, documents, tokenizer):
        ids = tokenize_documents(documents, tokenizer)
        return PretrainingBatches(ids, tokenizer, *self._sizes())

    def _sizes(self):
        config = self.config
        sizes = config.batch_size, config.max_length, config.seed, config.masking_rate
        return *sizes, bool(config.shapes)
