"""Classifies texts with a trained model, from Python."""

import tensorflow as tf

from keras_transformer.data.segments import pack_segments
from keras_transformer.figures.attention import Attention, names_of
from keras_transformer.models.bert_models import BertClassifierModel
from keras_transformer.models.encoder_only import ClassifierModel
from keras_transformer.models.text_model import check_kind
from keras_transformer.serving.classifier_module import ClassifierModule
from keras_transformer.serving.run_folder import RunFolder
from keras_transformer.serving.text_model import (
    ServedModel,
    check_string,
    check_vocabulary,
    warn_truncated,
)

NUM_SPECIAL_TOKENS = 2  # [CLS] and [SEP]


class Classifier(ServedModel):
    """Labels texts.

    Args:
        model: of `kt.classifier` or `kt.bert_classifier`, as built or reloaded; or
            another classifier with the methods that `models.TextModel` documents.
        tokenizer: splits texts into tokens; a `WordPieceTokenizer` for BERT, a
            `BytePairTokenizer` for RoBERTa.
        labels: names of the labels, in the order of the logits.
        max_length: text limit in tokens, including the special tokens of BERT; longer texts lose
            their middle.
        multi_label: whether a text may have any number of labels instead of exactly one.

    Raises:
        ValueError: if the model is of another kind, does not return one logit per label or has
            fewer ids than the tokenizer, or `max_length` is out of range.

    Examples:
        >>> import keras_transformer as kt
        >>> tokenizer = kt.tokenizers.SymbolTokenizer("abc")
        >>> model = kt.classifier(tokenizer.vocabulary_size, num_labels=2, num_layers=1)
        >>> Classifier(model, tokenizer, ["bad", "good"]).probabilities(["abba", "c"]).shape
        (2, 2)
    """

    def __init__(self, model, tokenizer, labels, max_length=512, multi_label=False):
        builders = "classifier() or bert_classifier()"
        check_kind(model, (ClassifierModel, BertClassifierModel), ("logits",), builders)
        read = model
        if isinstance(model, BertClassifierModel):
            read = _OfOneText(model, tokenizer, max_length)
            max_length -= NUM_SPECIAL_TOKENS
        elif isinstance(model, ClassifierModel):
            check_vocabulary(model.embedding, tokenizer)
        module = ClassifierModule(read, tokenizer, labels, max_length, multi_label)
        super().__init__(model, tokenizer, module)

    @classmethod
    def load(cls, run, dtype=None, weights="averaged"):
        """Loads a finished run of `python -m train.classification`.

        Args:
            run: path of the run folder.
            dtype: "float32" or "bfloat16" converts the weights; None keeps them as trained.
            weights: "averaged" or "best", as for `RunFolder.model`.

        Returns:
            A `Classifier`.

        Raises:
            ValueError: if the folder does not hold a finished run of this kind, or a file is
                damaged.
        """
        folder = RunFolder(run)
        names, multi_label = folder.labels()
        max_length = folder.settings()["max_length"]
        return cls(folder.model(dtype, weights), folder.tokenizer(), names, max_length, multi_label)

    @property
    def labels(self):
        """The names of the labels, in the order of the columns of `probabilities`."""
        return self.module.labels

    def __call__(self, texts):
        """Labels texts. Warns if texts are longer than `max_length` and lose their middle.

        Args:
            texts: a list of strings.

        Returns:
            A list with the most probable label of each text; with `multi_label`, all labels with
            a probability of at least 0.5, joined by commas.

        Raises:
            ValueError: if `texts` is not a list of strings.
        """
        return [label.decode() for label in self._checked_answer(texts)["label"]]

    def probabilities(self, texts):
        """The probability of every label. Warns like a call.

        Args:
            texts: a list of strings.

        Returns:
            A float32 array (texts, labels).

        Raises:
            ValueError: if `texts` is not a list of strings.
        """
        return self._checked_answer(texts)["probabilities"]

    def attention(self, text):
        """The attention between the tokens of a text.

        Args:
            text: a string.

        Returns:
            `figures.Attention` of the kind "encoder".

        Raises:
            ValueError: if `text` is not a string, or the model has no
                `attention_scores`.
        """
        check_string(text, "text")
        ids = self.module.tokenize(tf.constant([text]))["token_ids"]
        scores = self.attention_scores(ids)
        if isinstance(self.module.model, _OfOneText):
            ids = self.module.model.inputs(ids)["token_ids"]
        tokens = {"encoder": names_of(self.tokenizer, ids[0].numpy())}
        return Attention.of_first_example(scores, tokens, tokens, title=text)

    def _checked_answer(self, texts):
        answer = self.answer(texts)
        limit = self.module.max_length
        warn_truncated(answer["truncated"], limit, "read without their middle", stacklevel=4)
        return answer


class _OfOneText:
    """A BERT with a head that reads the ids of one text, between [CLS] and [SEP]."""

    def __init__(self, model, tokenizer, max_length):
        check_vocabulary(model.token_embedding, tokenizer)
        num_positions = model.positions.max_sequence_length
        if not NUM_SPECIAL_TOKENS < max_length <= num_positions:
            raise ValueError(
                f"max_length must be at least 3 tokens with BERT, which adds [CLS] and [SEP], and "
                f"at most its {num_positions} positions. Received: max_length={max_length}."
            )
        self.weights = model.weights
        self._model, self._tokenizer, self._max_length = model, tokenizer, max_length

    def inputs(self, ids):
        rows = tf.RaggedTensor.from_tensor(ids, padding=self._tokenizer.pad_id)
        return pack_segments(self._tokenizer, rows, max_length=self._max_length)

    def logits(self, ids):
        return self._model.logits(**self.inputs(ids))

    def attention_scores(self, ids):
        return self._model.attention_scores(**self.inputs(ids))
