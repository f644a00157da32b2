"""The exported form of a classifier: a module from texts to labels and probabilities."""

import numpy as np
import tensorflow as tf

from keras_transformer.data.labelled_batches import check_max_length, cut_middle, fill_up
from keras_transformer.serving.reading import read_both_ends
from keras_transformer.serving.signatures import (
    IDS,
    NUMBER,
    TEXT,
    ServedModule,
    check_rows,
    signature,
)


class ClassifierModule(ServedModule):
    """A classifier as the signatures of a SavedModel: `serving_default`, `tokenize`, `logits`.

    Args:
        model: with the methods that `models.TextModel` documents.
        tokenizer: splits texts into tokens.
        labels: names of the labels, in the order of the logits.
        max_length: text limit in tokens; longer texts lose their middle.
        multi_label: whether a text may have any number of labels instead of exactly one.

    Raises:
        ValueError: if the model does not return one logit per label, a label is not a string, or
            `max_length` is below 1.
    """

    def __init__(self, model, tokenizer, labels, max_length=512, multi_label=False):
        check_max_length(max_length)
        if isinstance(labels, str) or not all(isinstance(label, str) for label in labels):
            raise ValueError(f"labels must be a list of strings. Received: labels={labels!r:.100}.")
        super().__init__(model, "classifier")
        self.tokenizer = tokenizer
        self.labels = tuple(labels)
        self.max_length = max_length
        self.multi_label = multi_label
        shape = tuple(model.logits(tf.zeros([1, 1], tf.int32)).shape)
        if shape != (1, len(self.labels)):
            raise ValueError(
                "The model must return one logit per label, (batch, labels). Received: "
                f"logits of shape {shape}, {len(self.labels)} labels."
            )
        self.endpoints = {
            "serving_default": signature(self.classify, text=TEXT),
            "tokenize": signature(self.tokenize, text=TEXT),
            "logits": signature(self.logits, token_ids=IDS, length=NUMBER),
        }

    def classify(self, text):
        """Labels texts.

        Args:
            text: (batch,) strings.

        Returns:
            label, (batch,) strings: the most probable label, or with `multi_label` those with a
            probability of at least 0.5, joined by commas; probabilities, (batch, labels), and
            labels, their names in the same shape; truncated, (batch,), whether the text lost its
            middle.
        """
        tokens = self.tokenize(text)
        logits = tf.cast(self.model.logits(tokens["token_ids"]), tf.float32)
        names = tf.broadcast_to(tf.constant(self.labels), tf.shape(logits))
        if self.multi_label:
            probabilities = tf.sigmoid(logits)
            chosen = tf.ragged.boolean_mask(names, probabilities >= 0.5)
            label = tf.strings.reduce_join(chosen, axis=1, separator=",")
        else:
            probabilities = tf.nn.softmax(logits)
            label = tf.gather(tf.constant(self.labels), tf.argmax(logits, axis=1))
        return {
            "label": label,
            "probabilities": probabilities,
            "labels": names,
            "truncated": tokens["truncated"],
        }

    def tokenize(self, text):
        """The tokens of texts, as `logits` expects them.

        Args:
            text: (batch,) strings.

        Returns:
            token_ids, (batch, length), padded with 0; length and truncated, (batch,).
        """
        ids, is_cut = read_both_ends(self.tokenizer, text, self.max_length)
        is_truncated = is_cut | (ids.row_lengths() > self.max_length)
        ids = cut_middle(ids, self.max_length)
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        return {"token_ids": fill_up(ids), "length": lengths, "truncated": is_truncated}

    def logits(self, token_ids, length):
        """The logits of tokenised texts.

        Args:
            token_ids: (batch, length); ids outside the vocabulary count as unknown.
            length: (batch,) in tokens; columns beyond it are not read.

        Returns:
            logits, (batch, labels).
        """
        check_rows(token_ids, length)
        is_known = (token_ids >= 0) & (token_ids < self.tokenizer.vocabulary_size)
        ids = tf.where(is_known, token_ids, self.tokenizer.unknown_id)
        ids = cut_middle(tf.RaggedTensor.from_tensor(ids, length), self.max_length)
        return {"logits": tf.cast(self.model.logits(fill_up(ids)), tf.float32)}

    def default_inputs(self, texts):
        return {"text": texts}

    def row_shapes(self):
        per_label = (len(self.labels),)
        return {
            "serving_default": {
                "label": (),
                "probabilities": per_label,
                "labels": per_label,
                "truncated": (),
            },
            "tokenize": {"token_ids": (None,), "length": (), "truncated": ()},
            "logits": {"logits": per_label},
        }

    def exercise(self, ask, texts, hard_texts):
        for batch in (np.concatenate([texts, hard_texts]), texts[:1]):
            ask("serving_default", text=batch)
            tokens = ask("tokenize", text=batch)
            ask("logits", token_ids=tokens["token_ids"], length=tokens["length"])
