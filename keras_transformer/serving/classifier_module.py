"""What is exported of a classifier: a module from texts to labels and their probabilities."""

import numpy as np
import tensorflow as tf

from keras_transformer.data.labelled_batches import check_max_length, cut_middle, fill_up
from keras_transformer.serving.signatures import (
    IDS,
    NUMBER,
    TEXT,
    ServedModule,
    check_rows,
    signature,
)


class ClassifierModule(ServedModule):
    """Text in, label and probabilities out, as the signatures of a SavedModel.

    Args:
        functions: the model.
        tokenizer: cuts texts.
        labels: their names, in the order of the logits.
        max_length: tokens that are read of a text; a longer one loses its middle.
        multi_label: whether a text may have several labels, or none, instead of exactly one.

    Raises:
        ValueError: if the model has another number of logits, or `max_length` is below 1.
    """

    def __init__(self, functions, tokenizer, labels, max_length=512, multi_label=False):
        check_max_length(max_length)
        super().__init__(functions.weights, "classifier")
        self.functions = functions  # a dataclass: not tracked, so no layer is saved
        self.tokenizer = tokenizer
        self.labels = tuple(labels)
        self.max_length = max_length
        self.multi_label = multi_label
        found = functions.logits(tf.zeros([1, 1], tf.int32)).shape[-1]
        if found != len(self.labels):
            raise ValueError(
                f"The model must have a logit for each label. Received: {found} logits, "
                f"{len(self.labels)} labels."
            )
        self.endpoints = {
            "serving_default": signature(self.classify, TEXT),
            "tokenize": signature(self.tokenize, TEXT),
            "logits": signature(self.logits, IDS, NUMBER),
        }

    def classify(self, text):
        """The label of each text and the probability of every label.

        Returns:
            label, (batch,) strings, the most probable one; with `multi_label` those of at least
            one half, joined by commas; probabilities, (batch, labels), and labels, the same
            shape, their names; truncated, (batch,), whether its middle was not read.
        """
        tokens = self.tokenize(text)
        logits = tf.cast(self.functions.logits(tokens["token_ids"]), tf.float32)
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
        """token_ids, (batch, length), filled up with 0; length and truncated, (batch,)."""
        ids = self.tokenizer.tokenize(text)
        is_cut = ids.row_lengths() > self.max_length
        ids = cut_middle(ids, self.max_length)
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        return {"token_ids": fill_up(ids), "length": lengths, "truncated": is_cut}

    def logits(self, token_ids, length):
        """logits, (batch, labels), of token ids, (batch, length), and their lengths, (batch,)."""
        check_rows(token_ids, length)
        is_known = (token_ids >= 0) & (token_ids < self.tokenizer.vocabulary_size)
        ids = tf.where(is_known, token_ids, self.tokenizer.unknown_id)
        ids = cut_middle(tf.RaggedTensor.from_tensor(ids, length), self.max_length)
        return {"logits": tf.cast(self.functions.logits(fill_up(ids)), tf.float32)}

    def default_inputs(self, texts):
        return {"text": texts}

    def row_shapes(self):
        each = (len(self.labels),)
        return {
            "serving_default": {
                "label": (),
                "probabilities": each,
                "labels": each,
                "truncated": (),
            },
            "tokenize": {"token_ids": (None,), "length": (), "truncated": ()},
            "logits": {"logits": each},
        }

    def try_out(self, ask, texts, hard_texts):
        for some in (np.concatenate([texts, hard_texts]), texts[:1]):
            ask("serving_default", text=some)
            tokens = ask("tokenize", text=some)
            ask("logits", token_ids=tokens["token_ids"], length=tokens["length"])
