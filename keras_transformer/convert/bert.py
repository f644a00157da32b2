"""BERT, DistilBERT and RoBERTa in Hugging Face's format: the backbone and its heads."""

import dataclasses
import logging
from typing import Any

import keras
import numpy as np

from keras_transformer.convert.blocks import (
    ACTIVATIONS,
    activation_of,
    check_dense,
    check_equal,
    read_dimensions,
    written_dimensions,
)
from keras_transformer.convert.folder import (
    Converted,
    ModelFolder,
    num_padding_rows,
    write_json,
)
from keras_transformer.convert.tables import (
    ConversionError,
    Row,
    VocabularyPermutation,
    arrays_of,
    assign,
    check_shape,
    first_of,
    layer_at,
    rows_of,
)
from keras_transformer.convert.tokenizers import files_of, load_tokenizer_of
from keras_transformer.models.bert_models import (
    BertClassifierModel,
    BertModel,
    BertQuestionAnsweringModel,
    bert,
    bert_classifier,
    bert_pretraining,
    bert_question_answering,
    bert_token_labeller,
)
from keras_transformer.tokenizers.byte_pairs import BytePairTokenizer
from keras_transformer.tokenizers.control_ids import PAD_ID
from keras_transformer.tokenizers.word_pieces import WordPieceTokenizer

TOKEN_TYPES = "embeddings.token_type_embeddings.weight"
# The head of a masked language model predicts no next sentence.
NEXT_SENTENCE = {"cls.seq_relationship": "head for the next sentence"}
QUESTION_ANSWERING = "qa_outputs"
# Of a classifier of texts, by whether a text may have several labels; and of one that predicts a
# number.
PROBLEM_TYPES = {False: "single_label_classification", True: "multi_label_classification"}
REGRESSION = "regression"


@dataclasses.dataclass(frozen=True)
class Family:
    """The names that a relative of BERT gives its layers and settings, and how it differs.

    Args:
        name: for messages.
        prefix: what names of arrays may begin with, except those of heads.
        heads: {name in config.json: the function that adds this head to a backbone, or None}.
        blocks: what the names of all blocks begin with.
        block: {path of a layer of a block: their name}.
        layers: {name of a layer of a model: their name}.
        classifier: the names that differ in a classifier of texts.
        masked_token: their names for the bias and the projection of masked tokens.
        settings: {our name of a setting: theirs}.
        allowed: {setting: its supported values, the usual one first}.
        tokenizer: class of its tokenizer.
        head_dropout: default dropout before the labels; None for the blocks'.
        head_activation: activation of the head for masked tokens; None for the blocks'.
        pooler_activation: activation of the pooler.
        first_position: their position of the first token.
        segments: options of the `Row` of token types.
    """

    name: str
    prefix: str
    heads: dict
    blocks: str
    block: dict
    layers: dict
    masked_token: tuple[str, str]
    settings: dict
    allowed: dict
    tokenizer: type = WordPieceTokenizer
    classifier: dict = dataclasses.field(default_factory=dict)
    head_dropout: float | None = None
    head_activation: Any = None
    pooler_activation: str = "tanh"
    first_position: int = 0
    segments: dict = dataclasses.field(default_factory=dict)


BERT = Family(
    "BERT",
    "bert.",
    heads={
        "BertModel": None,
        "BertForMaskedLM": bert_pretraining,
        "BertForPreTraining": bert_pretraining,
        "BertForSequenceClassification": bert_classifier,
        "BertForTokenClassification": bert_token_labeller,
        "BertForQuestionAnswering": bert_question_answering,
    },
    blocks="encoder.layer",
    block={
        "self_attention.query_key_value": (
            "attention.self.query attention.self.key attention.self.value"
        ),
        "self_attention.output_projection": "attention.output.dense",
        "around_self_attention.norm": "attention.output.LayerNorm",
        "feed_forward.widen": "intermediate.dense",
        "feed_forward.narrow": "output.dense",
        "around_feed_forward.norm": "output.LayerNorm",
    },
    layers={
        "embedding_norm": "embeddings.LayerNorm",
        "pooler": "pooler.dense",
        "masked_token_dense": "cls.predictions.transform.dense",
        "masked_token_norm": "cls.predictions.transform.LayerNorm",
        "next_sentence": "cls.seq_relationship",
        "head": "classifier",
    },
    masked_token=("cls.predictions.bias", "cls.predictions.decoder"),
    settings={
        "vocabulary_size": "vocab_size",
        "max_sequence_length": "max_position_embeddings",
        "num_layers": "num_hidden_layers",
        "hidden_dim": "hidden_size",
        "num_heads": "num_attention_heads",
        "intermediate_dim": "intermediate_size",
        "dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
        "activation": "hidden_act",
        "norm_epsilon": "layer_norm_eps",
        "head_dropout": "classifier_dropout",
    },
    allowed={"type_vocab_size": (2,), "pad_token_id": (0,)},
)
# It has no token types, and its classifier has a pooler with ReLU in place of tanh.
DISTILBERT = Family(
    "DistilBERT",
    "distilbert.",
    heads={
        "DistilBertModel": None,
        "DistilBertForMaskedLM": bert_pretraining,
        "DistilBertForSequenceClassification": bert_classifier,
    },
    blocks="transformer.layer",
    block={
        "self_attention.query_key_value": "attention.q_lin attention.k_lin attention.v_lin",
        "self_attention.output_projection": "attention.out_lin",
        "around_self_attention.norm": "sa_layer_norm",
        "feed_forward.widen": "ffn.lin1",
        "feed_forward.narrow": "ffn.lin2",
        "around_feed_forward.norm": "output_layer_norm",
    },
    layers=BERT.layers
    | {
        "pooler": "pre_classifier",
        "masked_token_dense": "vocab_transform",
        "masked_token_norm": "vocab_layer_norm",
    },
    masked_token=("vocab_projector.bias", "vocab_projector"),
    settings={
        "num_layers": "n_layers",
        "hidden_dim": "dim",
        "num_heads": "n_heads",
        "intermediate_dim": "hidden_dim",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "activation": "activation",
        "head_dropout": "seq_classif_dropout",
    },
    allowed={"pad_token_id": (0,)},
    head_dropout=0.2,
    pooler_activation="relu",
    segments={"missing": 0.0},
)
# It has byte pairs, one token type, and positions from 2 on: the rows before are of padding, and of
# nothing. The head for labels of texts is a pooler and the projection to the labels.
ROBERTA = dataclasses.replace(
    BERT,
    name="RoBERTa",
    prefix="roberta.",
    heads={
        "RobertaModel": None,
        "RobertaForMaskedLM": bert_pretraining,
        "RobertaForSequenceClassification": bert_classifier,
        "RobertaForTokenClassification": bert_token_labeller,
    },
    layers=BERT.layers
    | {"masked_token_dense": "lm_head.dense", "masked_token_norm": "lm_head.layer_norm"},
    classifier={"head": "classifier.out_proj", "pooler": "classifier.dense"},
    masked_token=("lm_head.bias", "lm_head.decoder"),
    allowed={"type_vocab_size": (1,), "pad_token_id": (1,)},
    tokenizer=BytePairTokenizer,
    head_activation="gelu",
    first_position=2,
    # Both texts of a pair have the one type.
    segments={"to_ours": lambda array: array.repeat(2, 0), "to_theirs": lambda array: array[:1]},
)
FAMILIES = {"bert": BERT, "distilbert": DISTILBERT, "roberta": ROBERTA}


def rows(model, family=BERT, order=None):
    """The table of BERT or a relative, and of the heads that a model has.

    Args:
        model: of `bert` or of one of its heads.
        family: a `Family`.
        order: the `VocabularyPermutation` of the tokens; None if their ids are ours.
    """
    token, bias = model.token_embedding, layer_at(model, "masked_token_bias.bias")
    if order is None:
        order = VocabularyPermutation(range(token.vocabulary_size))
    bias_name, decoder_name = family.masked_token
    tied = [] if bias is None else [f"{decoder_name}.weight"]
    yield order.row(token.embeddings, "embeddings.word_embeddings.weight", *tied)
    first = family.first_position
    yield Row(
        model.positions.embeddings,
        ("embeddings.position_embeddings.weight",),
        to_ours=lambda array: array[first:],
        to_theirs=lambda array: np.pad(array, ((first, 0), (0, 0))),
    )
    yield Row(model.segment_embedding.embeddings, (TOKEN_TYPES,), **family.segments)
    for index, block in enumerate(model.encoder.blocks):
        yield from rows_of(block, family.block, f"{family.blocks}.{index}.")
    layers = family.layers | (family.classifier if labels_texts(model) else {})
    if isinstance(model, BertQuestionAnsweringModel):
        layers |= {"head": QUESTION_ANSWERING}
    yield from rows_of(model, layers, transpose=True)
    if bias is not None:
        yield order.row(bias, bias_name, f"{decoder_name}.bias")


def read(folder: ModelFolder):
    """Reads a folder of BERT or a relative, with the head that its config.json names."""
    settings = folder.settings
    family = FAMILIES[settings.raw("model_type")]
    head = folder.head(family.heads)
    settings.one_of("is_encoder_decoder", False)
    settings.one_of("position_embedding_type", "absolute", None)
    settings.check(family.allowed)
    names, first = family.settings, family.first_position
    activations = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu")
    activation = ACTIVATIONS[settings.one_of(names["activation"], *activations)]
    size = settings.count("vocab_size")
    longest = settings.count("max_position_embeddings", least=3 + first) - first
    dimensions = read_dimensions(settings, names)
    epsilon = 1e-12
    if "norm_epsilon" in names:
        epsilon = settings.number(names["norm_epsilon"], epsilon)
    weights = folder.arrays().renamed(lambda name: _current_name(name.removeprefix(family.prefix)))
    last = f"{family.blocks}.{dimensions['num_layers'] - 1}."
    hidden_dim, widen = dimensions["hidden_dim"], family.block["feed_forward.widen"]
    weights.check(
        {
            f"{last}{widen}.weight": (dimensions["intermediate_dim"], hidden_dim),
            "embeddings.word_embeddings.weight": (size, hidden_dim),
            "embeddings.position_embeddings.weight": (longest + first, hidden_dim),
        },
        family.name,
    )
    tokenizer, order = _tokenizer(folder, family, size)
    backbone = bert(
        size,
        max_sequence_length=longest,
        activation=activation,
        norm_epsilon=epsilon,
        pooler_activation=family.pooler_activation,
        **dimensions,
    )
    dropout = family.head_dropout or dimensions["dropout"]
    dropout = settings.number(names["head_dropout"], dropout, below=1)
    activation = family.head_activation or activation
    model, labels, multi_label = _with_head(folder, weights, backbone, head, dropout, activation)
    _assign(folder, rows(model, family, order), weights, family)
    return converted(model, tokenizer, labels, longest, dimensions, multi_label)


def _current_name(name):
    """The name that newer versions give to an array."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
        "LayerNorm.beta", "LayerNorm.bias"
    )


def _with_head(folder, weights, backbone, head, dropout, activation):
    """A backbone with a head, the names of its labels, and whether a text may have several.

    Args:
        folder: whose config.json names the labels.
        weights: its `Weights`.
        backbone: of `bert`.
        head: one of the functions of `Family.heads`.
        dropout: of a head for labels.
        activation: of a head for masked tokens.
    """
    if head is None:
        return backbone, (), False
    if head is bert_question_answering:
        weights.check({f"{QUESTION_ANSWERING}.weight": (2, backbone.token_embedding.hidden_dim)},
                      "BERT")  # fmt: skip
        return head(backbone), (), False
    if head is bert_pretraining:
        folder.settings.one_of("tie_word_embeddings", True)
        return head(backbone, activation=activation), (), False
    name = first_of(("classifier.weight", "classifier.out_proj.weight"), weights, folder.path)
    one = PROBLEM_TYPES[False]
    allowed = (*PROBLEM_TYPES.values(), REGRESSION) if head is bert_classifier else (one,)
    kind = folder.settings.one_of("problem_type", None, *allowed)
    # Without a type, transformers takes one output for a number.
    if kind == REGRESSION or (kind is None and head is bert_classifier and weights.rows(name) == 1):
        check_shape(name, (1, *weights.shape(name)[1:]), weights.shape(name))
        return head(backbone, 1, dropout=dropout), (), False
    labels = _labels(folder, weights, name)
    return head(backbone, len(labels), dropout=dropout), labels, kind == PROBLEM_TYPES[True]


def _labels(folder, weights, head):
    count, settings = weights.rows(head), folder.settings
    named = settings.raw("id2label") or {str(i): f"LABEL_{i}" for i in range(count)}
    known = named if isinstance(named, dict) else {}
    labels = [known.get(str(index)) for index in range(len(known))]
    if len(labels) < 2 or not all(isinstance(label, str) for label in labels):
        settings.refuse("id2label", "names of at least two labels, of 0, 1 and so on", named)
    check_shape(head, (len(labels), *weights.shape(head)[1:]), weights.shape(head))
    return tuple(labels)


def _assign(folder, table, arrays, family):
    """Assigns a table; a warning names the parts that a folder lacks, which stay random."""
    table = list(table)
    may_be_new = {family.layers["pooler"]: "pooler"} | NEXT_SENTENCE
    new = {name: what for name, what in may_be_new.items() if f"{name}.weight" not in arrays}
    kept = [row for row in table if row.names[0].rpartition(".")[0] not in new]
    assign(kept, arrays, family.name)
    if missing := [new[name] for name in new if any(name in row.names[0] for row in table)]:
        logging.getLogger(__name__).warning(
            "%s has no %s: it starts with random weights.", folder.path, " and no ".join(missing)
        )


def converted(model, tokenizer, labels, longest, dimensions, multi_label=False):
    """A BERT with the settings of the runs of its command: a classifier's, or of pretraining."""
    is_classifier = labels_texts(model)
    run = {"max_length": min(longest, 512), **dimensions}
    if is_classifier and not labels:
        run |= {"task": "regression"}
    elif is_classifier and multi_label:
        run |= {"task": "multi_label"}
    if not is_classifier:
        run |= {"positions": longest, "max_length": min(longest, 128)}
    command = "classification" if is_classifier else "pretraining"
    return Converted(command, model, tokenizer, labels=labels, multi_label=multi_label, config=run)


def _tokenizer(folder, family, size):
    """The tokenizer, and the order of all rows of the table: those without a piece last."""
    tokenizer, their_id_of = load_tokenizer_of(folder.path)
    [pad_id] = family.allowed["pad_token_id"]
    if not isinstance(tokenizer, family.tokenizer) or their_id_of[PAD_ID] != pad_id:
        raise ConversionError(
            f"{files_of(folder)} must hold a {family.tokenizer.__name__} that pads with id "
            f"{pad_id}. Received: a {type(tokenizer).__name__} with id {their_id_of[PAD_ID]}."
        )
    num_unused = num_padding_rows(files_of(folder), len(their_id_of), size)
    return tokenizer, VocabularyPermutation([*their_id_of, *range(size - num_unused, size)])


def full_name(model, name):
    """The name in a checkpoint of BERT of what the table calls `name`."""
    if type(model) is BertModel:
        return name  # a backbone alone has no prefix
    heads = ("cls.", "classifier", QUESTION_ANSWERING)
    return name if name.startswith(heads) else BERT.prefix + name


def labels_texts(model):
    """Whether a BERT has the head for labels of whole texts."""
    return isinstance(model, BertClassifierModel)


def pooler_of(model):
    """The name of the pooler's activation; "tanh" if there is no pooler."""
    pooler = model.pooler
    return "tanh" if pooler is None else keras.activations.serialize(pooler.activation)


def hugging_face_folder(text_model, draft):
    """Writes the tokenizer, and returns the config and the arrays of a BERT."""
    model = text_model.model
    encoder, positions = model.encoder, model.positions
    dense, head = getattr(model, "masked_token_dense", None), getattr(model, "head", None)
    check_dense(encoder)
    activation = encoder.activation
    check_equal("Hugging Face's BERT", {
        "tokenizer": (type(text_model.tokenizer), WordPieceTokenizer),
        "normalize_first": (encoder.normalize_first, False),
        "pooling": (getattr(model, "pooling", None), None),
        "pooler of": (pooler_of(model), "tanh"),
        "activation in its head": (getattr(dense, "activation", activation), activation),
    })  # fmt: skip
    name, labels = "BertModel" if dense is None else "BertForPreTraining", {}
    if isinstance(model, BertQuestionAnsweringModel):
        name = "BertForQuestionAnswering"
    elif head is not None:
        name = f"BertFor{'Sequence' if labels_texts(model) else 'Token'}Classification"
        known = getattr(text_model, "labels", ())
        names = known or range(model.output_shape[-1])
        is_number = labels_texts(model) and not known and len(names) == 1
        if len(names) == 1 and not is_number:
            raise ConversionError(
                "Hugging Face's BERT needs at least two labels: a head for one is a regression. "
                f"Received: labels={tuple(names)!r}."
            )
        labels = {"id2label": {str(i): str(label) for i, label in enumerate(names)}}
        if labels_texts(model):
            several = getattr(text_model, "multi_label", False)
            labels["problem_type"] = REGRESSION if is_number else PROBLEM_TYPES[several]
        labels["label2id"] = {label: int(i) for i, label in labels["id2label"].items()}
    arrays = {full_name(model, key): array for key, array in arrays_of(rows(model)).items()}
    text_model.tokenizer.save_vocabulary(draft / "vocab.txt")
    write_json(draft / "tokenizer_config.json", {
        "tokenizer_class": "BertTokenizer", "do_lower_case": text_model.tokenizer.lowercase,
        "model_max_length": positions.max_sequence_length,
    })  # fmt: skip
    return {
        "model_type": "bert",
        "architectures": [name],
        **written_dimensions(model, encoder, model.token_embedding, BERT.settings),
        "hidden_act": activation_of(encoder),
        "type_vocab_size": 2,
        "pad_token_id": 0,
        "position_embedding_type": "absolute",
        **labels,
    }, arrays
