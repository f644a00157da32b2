"""Classifies texts with a trained model, from Python."""

import tensorflow as tf

from keras_transformer.data.segments import pack_segments
from keras_transformer.figures.attention import Attention, names_of
from keras_transformer.models import bert_models, encoder_only
from keras_transformer.models.functions import ClassifierFunctions, check_layers
from keras_transformer.serving.classifier_module import ClassifierModule
from keras_transformer.serving.run_folder import RunFolder
from keras_transformer.serving.text_model import (
    TextModel,
    check_string,
    check_vocabulary,
    warn_truncated,
)

NUM_SPECIAL_TOKENS = 2  # [CLS] and [SEP]


class Classifier(TextModel):
    """Labels texts.

    Args:
        model: of `kt.classifier` or `kt.bert_classifier`, as built or reloaded; or
            `ClassifierFunctions`.
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
        if isinstance(model, ClassifierFunctions):
            functions = model
        elif bert_models.is_bert(model):
            functions = _bert_functions(model, tokenizer, max_length)
            max_length -= NUM_SPECIAL_TOKENS
        else:
            functions = encoder_only.functions(model)
            check_vocabulary(model.get_layer("embedding"), tokenizer)
        module = ClassifierModule(functions, tokenizer, labels, max_length, multi_label)
        super().__init__(model, tokenizer, module)

    @classmethod
    def load(cls, run, dtype=None):
        """Loads a finished run of `python -m train.classification`.

        Args:
            run: path of the run folder.
            dtype: "float32" or "bfloat16" converts the weights; None keeps them as trained.

        Returns:
            A `Classifier`.

        Raises:
            ValueError: if the folder does not hold a finished run of this kind, or a file is
                damaged.
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
            ValueError: if `text` is not a string, or the functions of the model return no
                attention weights.
        """
        check_string(text, "text")
        ids = self.module.tokenize(tf.constant([text]))["token_ids"]
        read_ids, scores = self.attention_scores(ids)
        tokens = {"encoder": names_of(self.tokenizer, read_ids[0].numpy())}
        return Attention.of_first_example(scores, tokens, tokens, title=text)

    def _checked_answer(self, texts):
        answer = self.answer(texts)
        limit = self.module.max_length
        warn_truncated(answer["truncated"], limit, "read without their middle", stacklevel=4)
        return answer


def _bert_functions(model, tokenizer, max_length):
    check_layers(model, ("token_embedding", "positions", "head"), "bert_classifier()")
    check_vocabulary(model.get_layer("token_embedding"), tokenizer)
    num_positions = model.get_layer("positions").max_sequence_length
    if not NUM_SPECIAL_TOKENS < max_length <= num_positions:
        raise ValueError(
            f"max_length must be at least 3 tokens with BERT, which adds [CLS] and [SEP], and at "
            f"most its {num_positions} positions. Received: max_length={max_length}."
        )

    def inputs(ids):
        rows = tf.RaggedTensor.from_tensor(ids, padding=tokenizer.pad_id)
        return pack_segments(tokenizer, rows, max_length=max_length)

    def attention_scores(ids):
        packed = inputs(ids)
        return packed["token_ids"], bert_models.attention_scores(model, **packed)

    return ClassifierFunctions(
        model.weights, lambda ids: model(inputs(ids), training=False), attention_scores
    )
