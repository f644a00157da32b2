"""BERT with Hugging Face's names: the backbone and its heads."""

import logging

import keras

from keras_transformer.convert.folder import ModelFolder
from keras_transformer.convert.loading import Converted
from keras_transformer.convert.settings import pieces_of
from keras_transformer.convert.tables import (
    ConversionError,
    Row,
    assign,
    check_shape,
    first_of,
    norm_rows,
    projection_rows,
)
from keras_transformer.layers.feed_forward import gelu_tanh
from keras_transformer.models.bert_models import (
    bert,
    bert_classifier,
    bert_pretraining,
    bert_token_labeller,
)
from keras_transformer.models.functions import layer_names

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "relu": "relu",
}
# Settings of released folders that the blocks never had, or that only other heads have.
_UNUSED = (
    "classifier_dropout directionality pooler_fc_size pooler_num_attention_heads "
    "pooler_num_fc_layers pooler_size_per_head pooler_type tie_word_embeddings".split()
)
# The name of each head in config.json, and the function that adds it to a backbone.
HEADS = {
    "BertModel": None,
    "BertForMaskedLM": bert_pretraining,
    "BertForPreTraining": bert_pretraining,
    "BertForSequenceClassification": bert_classifier,
    "BertForTokenClassification": bert_token_labeller,
}
# A folder may lack these: a masked language model needs no pooler and predicts no next sentence.
MAY_BE_NEW = {"pooler.dense": "pooler", "cls.seq_relationship": "head for the next sentence"}


def rows(model):
    """The table of BERT and of the heads that a model has, whose Dense kernels are transposed."""
    names = layer_names(model)
    tied = ("cls.predictions.decoder.weight",) if "masked_token_norm" in names else ()
    for name, layer, twins in (
        ("word", "token_embedding", tied),
        ("position", "positions", ()),
        ("token_type", "segment_embedding", ()),
    ):
        table, theirs = model.get_layer(layer).embeddings, f"embeddings.{name}_embeddings.weight"
        yield Row(table, (theirs,), twins=twins)
    yield from norm_rows(model.get_layer("embedding_norm"), "embeddings.LayerNorm")
    for index, block in enumerate(model.get_layer("encoder").blocks):
        name, attention, feed_forward = (
            f"encoder.layer.{index}",
            block.self_attention,
            block.feed_forward,
        )
        parts = [f"{name}.attention.self.{part}" for part in ("query", "key", "value")]
        yield from projection_rows(attention.query_key_value, parts)
        yield from projection_rows(attention.output_projection, (f"{name}.attention.output.dense",))
        yield from norm_rows(block.around_self_attention.norm, f"{name}.attention.output.LayerNorm")
        yield from projection_rows(feed_forward.widen, (f"{name}.intermediate.dense",))
        yield from projection_rows(feed_forward.narrow, (f"{name}.output.dense",))
        yield from norm_rows(block.around_feed_forward.norm, f"{name}.output.LayerNorm")
    for name, layer in (
        ("pooler.dense", "pooler"),
        ("cls.predictions.transform.dense", "masked_token_dense"),
        ("cls.seq_relationship", "next_sentence"),
        ("classifier", "head"),
    ):
        if layer in names:
            dense = model.get_layer(layer)
            yield from projection_rows((dense.kernel, dense.bias), (name,), transpose=True)
    if "masked_token_norm" in names:
        norm = model.get_layer("masked_token_norm")
        yield from norm_rows(norm, "cls.predictions.transform.LayerNorm")
        bias, twins = model.get_layer("masked_token_bias").bias, ("cls.predictions.decoder.bias",)
        yield Row(bias, ("cls.predictions.bias",), twins=twins)


def read(folder: ModelFolder):
    """Reads a folder of BERT: the backbone with the head that its config.json names."""
    settings = folder.settings
    head = head_of(folder, HEADS)
    settings.without_effect(_UNUSED)
    settings.one_of("position_embedding_type", "absolute", None)
    settings.one_of("is_encoder_decoder", False)
    settings.one_of("type_vocab_size", 2)
    settings.one_of("pad_token_id", 0)
    activation = settings.one_of("hidden_act", *ACTIVATIONS)
    size, longest = settings.count("vocab_size"), settings.count("max_position_embeddings", least=3)
    dimensions = dimensions_of(settings)
    weights = folder.arrays().renamed(_modern)
    check(weights, "BERT", size, longest, dimensions)
    tokenizer = word_pieces(folder, size)
    backbone = bert(
        size,
        max_sequence_length=longest,
        activation=ACTIVATIONS[activation],
        norm_epsilon=settings.number("layer_norm_eps", 1e-12),
        **dimensions,
    )
    dropout = settings.share("classifier_dropout", dimensions["dropout"])
    model, labels = with_head(folder, weights, backbone, head, dropout, ACTIVATIONS[activation])
    assign_with_new(folder, rows(model), weights, MAY_BE_NEW, "BERT")
    return converted(model, tokenizer, labels, longest, dimensions)


def head_of(folder, heads):
    """What adds the head that config.json names, of {name: function}; without one the first."""
    [usual, *_] = heads
    names = folder.settings.given("architectures") or [usual]
    if not isinstance(names, list) or names[0] not in [*heads]:
        raise ConversionError(
            f"{folder.settings.file}: architectures must be a list of one of {', '.join(heads)}. "
            f"Received: {names!r:.80}."
        )
    return heads[names[0]]


def dimensions_of(settings):
    """The dimensions of BERT and RoBERTa, as arguments of `bert`."""
    return {
        "num_layers": settings.count("num_hidden_layers"),
        **settings.heads_of("hidden_size", "num_attention_heads"),
        "intermediate_dim": settings.count("intermediate_size"),
        "dropout": settings.share("hidden_dropout_prob", 0.1),
        "attention_dropout": settings.share("attention_probs_dropout_prob", 0.1),
    }


def check(weights, family, size, longest, dimensions, names=()):
    """Compares the dimensions with the arrays of BERT or a relative, before a model is built.

    Args:
        weights: `Weights` of the folder.
        family: name of the family, for messages.
        size: rows of the table of tokens.
        longest: rows of that of positions.
        dimensions: as from `dimensions_of`.
        names: {part of a name: what the family calls it}.
    """
    hidden, last = dimensions["hidden_dim"], f"encoder.layer.{dimensions['num_layers'] - 1}"
    shapes = {
        f"{last}.intermediate.dense.weight": (dimensions["intermediate_dim"], hidden),
        "embeddings.word_embeddings.weight": (size, hidden),
        "embeddings.position_embeddings.weight": (longest, hidden),
    }
    weights.check({renamed(name, dict(names)): shapes[name] for name in shapes}, family)


def with_head(folder, weights, backbone, head, dropout, activation):
    """A backbone with a head, and the names of its labels.

    Args:
        folder: whose config.json names the labels.
        weights: its `Weights`.
        backbone: of `bert`.
        head: one of the functions of `HEADS`.
        dropout: of a head for labels.
        activation: of a head for masked tokens.
    """
    if head is None:
        return backbone, ()
    if head is bert_pretraining:
        folder.settings.one_of("tie_word_embeddings", True)
        return head(backbone, activation=activation), ()
    labels = _labels(folder, weights)
    return head(backbone, len(labels), dropout=dropout), labels


def assign_with_new(folder, table, arrays, may_be_new, family):
    """Assigns a table; a warning names the parts that a folder lacks, which stay random.

    Args:
        may_be_new: {name of a layer: what it is} of those parts.
    """
    table = list(table)
    new = {key: what for key, what in may_be_new.items() if f"{key}.weight" not in arrays}
    assign([row for row in table if row.names[0].rpartition(".")[0] not in new], arrays, family)
    if missing := [new[key] for key in new if any(key in row.names[0] for row in table)]:
        logging.getLogger(__name__).warning(
            "%s has no %s: it starts with random weights.", folder.path, " and no ".join(missing)
        )


def converted(model, tokenizer, labels, longest, dimensions):
    """A BERT with the settings of the runs of its command: a classifier's, or of pretraining."""
    is_classifier = bool(labels) and len(model.output_shape) == 2
    run = {"max_length": min(longest, 512), **dimensions}
    if not is_classifier:
        run |= {"positions": longest, "max_length": min(longest, 128)}
    command = "classification" if is_classifier else "pretraining"
    return Converted(command, model, tokenizer, labels=labels, config=run)


def word_pieces(folder, size):
    """The `WordPieceTokenizer` of a folder, from tokenizer.json or vocab.txt.

    Args:
        size: rows of the table, at least one for each piece.
    """
    from keras_transformer.convert.tokenizers import load_tokenizer_of
    from keras_transformer.tokenizers.word_pieces import WordPieceTokenizer

    tokenizer, theirs = load_tokenizer_of(folder.path)
    if not isinstance(tokenizer, WordPieceTokenizer) or theirs[0] != 0:
        raise ConversionError(
            f"{folder.path} must hold BERT's word pieces, starting with [PAD]. Received: a "
            f"{type(tokenizer).__name__} whose first id is {theirs[0]}."
        )
    pieces_of(folder.path, tokenizer.vocabulary_size, size)
    return tokenizer


def check_word_pieces(text_model):
    """Raises ConversionError if the tokenizer of a BERT is not BERT's, e.g. that of RoBERTa."""
    from keras_transformer.tokenizers.word_pieces import WordPieceTokenizer

    if not isinstance(text_model.tokenizer, WordPieceTokenizer):
        raise ConversionError(
            "A BERT of another library has a WordPieceTokenizer. "
            f"Received: a {type(text_model.tokenizer).__name__}."
        )


def pooler_of(model):
    """The activation of the pooler, which DistilBERT has another of; that of BERT without one."""
    if "pooler" not in layer_names(model):
        return "tanh"
    return keras.activations.serialize(model.get_layer("pooler").activation)


def renamed(name, parts):
    """A name in which the parts that are keys become their values, one after the other."""
    for part, theirs in parts.items():
        name = name.replace(part, theirs)
    return name


def _modern(name):
    """The name of an array without the prefix, as newer versions write it."""
    name = name.removeprefix("bert.")
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
        "LayerNorm.beta", "LayerNorm.bias"
    )


def _labels(folder, weights):
    head = first_of(("classifier.weight", "classifier.out_proj.weight"), weights, folder.path)
    count = weights.rows(head)
    settings, kind = folder.settings, "single_label_classification"
    settings.one_of("problem_type", kind, None)
    named = settings.given("id2label") or {str(i): f"LABEL_{i}" for i in range(count)}
    known = named if isinstance(named, dict) else {}
    labels = [known.get(str(index)) for index in range(len(known))]
    if len(labels) < 2 or not all(isinstance(label, str) for label in labels):
        raise ConversionError(
            f"{settings.file}: id2label must name at least two labels, those of 0, 1 and so on. "
            f"Received: {named!r:.80}."
        )
    check_shape(head, (len(labels), *weights.shape(head)[1:]), weights.shape(head))
    return tuple(labels)
