"""Classifies texts with a trained model, from Python."""

import tensorflow as tf

from keras_transformer.data.segments import pack_segments
from keras_transformer.figures.attention import Attention, names_of
from keras_transformer.models import bert_models, encoder_only
from keras_transformer.models.functions import ClassifierFunctions
from keras_transformer.serving.classifier_module import ClassifierModule
from keras_transformer.serving.run_folder import RunFolder
from keras_transformer.serving.text_model import TextModel, warn_of_cut

LOST_MIDDLE = "were read without their middle"


class Classifier(TextModel):
    """Gives texts labels.

    Args:
        model: of `kt.classifier` or `kt.bert_classifier`, as built or reloaded; or
            `ClassifierFunctions`.
        tokenizer: cuts texts; a `WordPieceTokenizer` for BERT.
        labels: their names, in the order of the logits.
        max_length: tokens that are read of a text, those that BERT adds included; a longer text
            loses its middle.
        multi_label: whether a text may have several labels, or none, instead of exactly one.

    Raises:
        ValueError: if the model is of another kind or has another number of logits, or
            `max_length` leaves no room for text.

    Examples:
        >>> import keras_transformer as kt
        >>> tokenizer = kt.tokenizers.SymbolTokenizer("abc")
        >>> model = kt.classifier(tokenizer.vocabulary_size, num_labels=2, num_layers=1)
        >>> Classifier(model, tokenizer, ["bad", "good"]).probabilities(["abba", "c"]).shape
        (2, 2)
    """

    def __init__(self, model, tokenizer, labels, max_length=512, multi_label=False):
        if isinstance(model, ClassifierFunctions):
            functions = model
        elif bert_models.is_bert(model):
            functions = _bert_functions(model, tokenizer, max_length)
            max_length -= 2  # [CLS] and [SEP]
        else:
            functions = encoder_only.functions(model)
        module = ClassifierModule(functions, tokenizer, labels, max_length, multi_label)
        super().__init__(model, tokenizer, module)

    @classmethod
    def load(cls, run, dtype=None):
        """Loads the model of a finished run of `python -m train.classification`.

        Args:
            run: path of its folder.
            dtype: "float32" or "bfloat16" converts the weights; None keeps them as trained.

        Returns:
            A `Classifier`.

        Raises:
            ValueError: if the folder holds no finished run of this kind, or a file is damaged.
        """
        folder = RunFolder(run)
        names, multi_label = folder.labels()
        max_length = folder.settings()["max_length"]
        return cls(folder.model(dtype), folder.tokenizer(), names, max_length, multi_label)

    @property
    def labels(self):
        """The names of the labels, in the order of the columns of `probabilities`."""
        return self.module.labels

    def __call__(self, texts):
        """The most probable label of each text, a list of strings.

        With `multi_label`, those of probability at least one half, joined by commas.

        Args:
            texts: a list of strings.
        """
        return [label.decode() for label in self._answer(texts)["label"]]

    def probabilities(self, texts):
        """The probability of every label, float32 (texts, labels).

        Args:
            texts: a list of strings.
        """
        return self._answer(texts)["probabilities"]

    def attention(self, text):
        """Where each token of a text looks.

        Args:
            text: a string.

        Returns:
            `figures.Attention` of the kind "encoder".
        """
        ids = self.module.tokenize(tf.constant([text]))["token_ids"]
        read, scores = self.module.functions.attention_scores(ids)
        tokens = {"encoder": names_of(self.tokenizer, read[0].numpy())}
        return Attention.of_first_example(scores, tokens, tokens, title=text)

    def _answer(self, texts):
        answer = self.answer(texts)
        warn_of_cut(answer["truncated"], self.module.max_length, LOST_MIDDLE)
        return answer


def _bert_functions(model, tokenizer, max_length):
    if max_length < 3:
        raise ValueError(
            "max_length must be at least 3 tokens with BERT, which adds [CLS] and [SEP]. "
            f"Received: max_length={max_length}."
        )

    def inputs(ids):
        rows = tf.RaggedTensor.from_tensor(ids, padding=tokenizer.pad_id)
        return pack_segments(tokenizer, rows, max_length=max_length)

    def attention_scores(ids):
        read = inputs(ids)
        return read["token_ids"], bert_models.attention_scores(model, **read)

    return ClassifierFunctions(
        model.weights, lambda ids: model(inputs(ids), training=False), attention_scores
    )
