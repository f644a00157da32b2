"""Labels texts, or predicts a number for each, from Python or as a SavedModel."""

import tensorflow as tf

from keras_transformer.arguments import check_integer, read_text
from keras_transformer.data.segments import cut_middle, fill_up, pack_segments
from keras_transformer.figures.attention import Attention, token_labels
from keras_transformer.models.bert_models import BertClassifierModel
from keras_transformer.models.encoder_only import ClassifierModel
from keras_transformer.models.text_model import TextModel, check_kind
from keras_transformer.serving.reading import read_part
from keras_transformer.serving.run_folder import RunFolder
from keras_transformer.serving.served_model import (
    IDS,
    NUMBER,
    TEXT,
    ServedModel,
    Signature,
    check_rows,
    check_vocabulary,
    warn_truncated,
)

NUM_SPECIAL_TOKENS = 2  # [CLS] and [SEP]


class Classifier(ServedModel):
    """Labels texts, or predicts a number for each, e.g. a rating.

    Its signatures are `serving_default`, `tokenize` and `logits`.

    Args:
        model: of `kt.classifier` or `kt.bert_classifier`, as built or reloaded; or
            another classifier with the methods that `models.TextModel` documents.
        tokenizer: splits texts into tokens; a `WordPieceTokenizer` for BERT, a
            `BytePairTokenizer` for RoBERTa.
        labels: names of the labels, in the order of the logits; none for a regression, whose model
            returns one number per text.
        max_length: text limit in tokens, including the special tokens of BERT; longer texts lose
            their middle.
        multi_label: whether a text may have any number of labels instead of exactly one.

    Attributes:
        labels: names of the labels, in the order of the columns of `probabilities`; empty for a
            regression.
        max_length: text limit in tokens, without the special tokens of BERT.
        multi_label: as given.

    Raises:
        ValueError: if the model is of another kind, does not return one logit per label (a model
            of your own: when it is first called) or has fewer ids than the tokenizer, a label is
            not a string, or `max_length` is out of range.

    Examples:
        >>> import keras_transformer as kt
        >>> tokenizer = kt.tokenizers.SymbolTokenizer("abc")
        >>> model = kt.classifier(tokenizer.vocabulary_size, num_labels=2, num_layers=1)
        >>> Classifier(model, tokenizer, ["bad", "good"]).probabilities(["abba", "c"]).shape
        (2, 2)
        >>> model = kt.classifier(tokenizer.vocabulary_size, num_labels=1, num_layers=1)
        >>> len(Classifier(model, tokenizer)(["abba", "c"]))
        2
    """

    def __init__(self, model, tokenizer, labels=(), max_length=512, multi_label=False):
        if isinstance(labels, str) or not all(isinstance(label, str) for label in labels):
            raise ValueError(f"labels must be a list of strings. Received: labels={labels!r:.100}.")
        builders = "classifier() or bert_classifier()"
        check_kind(model, (ClassifierModel, BertClassifierModel), ("logits",), builders)
        self._is_bert = isinstance(model, BertClassifierModel)
        if self._is_bert:
            check_vocabulary(model.token_embedding.vocabulary_size, tokenizer)
            num_positions = model.positions.max_sequence_length
            if not NUM_SPECIAL_TOKENS < max_length <= num_positions:
                raise ValueError(
                    "max_length must be at least 3 tokens with BERT, which adds [CLS] and [SEP], "
                    f"and at most its {num_positions} positions. Received: "
                    f"max_length={max_length}."
                )
            max_length -= NUM_SPECIAL_TOKENS
        elif isinstance(model, ClassifierModel):
            check_vocabulary(model.embedding.vocabulary_size, tokenizer)
        check_integer("max_length", max_length)
        self.labels, self.max_length, self.multi_label = tuple(labels), max_length, multi_label
        if isinstance(model, TextModel):
            self._check_logits(model.output_shape)
        super().__init__(model, tokenizer)

    @classmethod
    def load(cls, run, dtype=None, weights="averaged"):
        """Loads a finished run of `keras-transformer classification`.

        Args:
            run: path of the run folder.
            dtype: "float32" or "bfloat16" converts the weights; None keeps them as trained.
            weights: "averaged" or "best", as for `RunFolder.model`.

        Returns:
            A `Classifier`; that of a run of `--task regression` has no labels.

        Raises:
            ValueError: if the folder does not hold a finished run of this kind, or a file is
                damaged.
        """
        folder = RunFolder(run)
        labels, multi_label = folder.labels()
        max_length = folder.settings(["max_length"])["max_length"]
        model, tokenizer = folder.model(dtype, weights), folder.tokenizer()
        return cls(model, tokenizer, labels, max_length, multi_label)

    def __call__(self, texts):
        """Answers texts. Warns if texts are longer than `max_length` and lose their middle.

        Args:
            texts: a list of strings.

        Returns:
            A list with the answer to each text: its most probable label; with `multi_label`, all
            labels with a probability of at least 0.5, joined by commas; of a regression, a number.

        Raises:
            ValueError: if `texts` is not a list of strings.
        """
        answer = self._checked_answer(texts)
        if not self.labels:
            return answer["value"].tolist()
        return [label.decode() for label in answer["label"]]

    def probabilities(self, texts):
        """The probability of every label. Warns like a call.

        Args:
            texts: a list of strings.

        Returns:
            A float32 array (texts, labels).

        Raises:
            ValueError: if `texts` is not a list of strings, or there are no labels.
        """
        if not self.labels:
            raise ValueError(
                "A regression has no probabilities: call the classifier itself for its numbers. "
                "Received: labels=()."
            )
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
        text = read_text(text, "text")
        inputs = self._model_inputs(self._tokenize(tf.constant([text]))["token_ids"])
        tokens = {"encoder": token_labels(self.tokenizer, inputs[0][0].numpy())}
        scores = self._attention_scores(*inputs)
        return Attention.of_first_example(scores, tokens, tokens, title=text)

    def _signatures(self):
        answer, outputs = self._predict, {"value": ()}
        if self.labels:
            of_labels = dict.fromkeys(("probabilities", "labels"), (len(self.labels),))
            answer, outputs = self._classify, {"label": (), **of_labels}
        return {
            "serving_default": Signature(answer, {"text": TEXT}, {**outputs, "truncated": ()}),
            "tokenize": Signature(
                self._tokenize,
                {"text": TEXT},
                {"token_ids": (None,), "length": (), "truncated": ()},
            ),
            "logits": Signature(
                self._logits,
                {"token_ids": IDS, "length": NUMBER},
                {"logits": (len(self.labels) or 1,)},
            ),
        }

    def _classify(self, text):
        """Labels texts.

        Args:
            text: (batch,) strings.

        Returns:
            label, (batch,) strings: the most probable label, or with `multi_label` those with a
            probability of at least 0.5, joined by commas; probabilities, (batch, labels), and
            labels, their names in the same shape; truncated, (batch,), whether the text lost its
            middle.
        """
        tokens = self._tokenize(text)
        logits = self._logits_of(tokens["token_ids"])
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

    def _predict(self, text):
        """Predicts numbers.

        Args:
            text: (batch,) strings.

        Returns:
            value, (batch,); truncated, (batch,), whether the text lost its middle.
        """
        tokens = self._tokenize(text)
        value = self._logits_of(tokens["token_ids"])[:, 0]
        return {"value": value, "truncated": tokens["truncated"]}

    def _tokenize(self, text):
        """The tokens of texts, as the signature `logits` expects them.

        Args:
            text: (batch,) strings.

        Returns:
            token_ids, (batch, length), padded with 0; length and truncated, (batch,).
        """
        ids, is_cut = read_part(self.tokenizer, text, self.max_length, end=True)
        is_truncated = is_cut | (ids.row_lengths() > self.max_length)
        ids = cut_middle(ids, self.max_length)
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        return {"token_ids": fill_up(ids), "length": lengths, "truncated": is_truncated}

    def _logits(self, token_ids, length):
        """The logits of tokenised texts.

        Args:
            token_ids: (batch, length); ids outside the vocabulary count as unknown.
            length: (batch,) in tokens; columns beyond it are not read.

        Returns:
            logits, (batch, labels); of a regression its numbers, (batch, 1).
        """
        check_rows(token_ids, length)
        is_known = (token_ids >= 0) & (token_ids < self.tokenizer.vocabulary_size)
        ids = tf.where(is_known, token_ids, self.tokenizer.unknown_id)
        ids = cut_middle(tf.RaggedTensor.from_tensor(ids, length), self.max_length)
        return {"logits": self._logits_of(fill_up(ids))}

    def _logits_of(self, ids):
        """The logits of texts, float32 (batch, outputs), from their ids, padded with 0."""
        logits = self.model.logits(*self._model_inputs(ids))
        self._check_logits(logits.shape)
        return tf.cast(logits, tf.float32)

    def _model_inputs(self, ids):
        """What the model reads: the ids; a BERT, those between [CLS] and [SEP], and segments."""
        if not self._is_bert:
            return (ids,)
        rows = tf.RaggedTensor.from_tensor(ids, padding=self.tokenizer.pad_id)
        max_length = self.max_length + NUM_SPECIAL_TOKENS
        inputs = pack_segments(self.tokenizer, rows, max_length=max_length)
        return inputs["token_ids"], inputs["segment_ids"]

    def _check_logits(self, shape):
        count = len(self.labels)
        if not tf.TensorShape(shape).is_compatible_with((None, count or 1)):
            raise ValueError(
                "The model must return one logit per label, (batch, labels), or without labels "
                f"one number per text, (batch, 1). Received: logits of shape {tuple(shape)}, "
                f"{count or 'no'} {'label' if count == 1 else 'labels'}."
            )

    def _checked_answer(self, texts):
        answer = self.answer(texts)
        warn_truncated(
            answer["truncated"], self.max_length, "read without their middle", stacklevel=4
        )
        return answer
