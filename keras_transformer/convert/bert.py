"""BERT with Hugging Face's names: the backbone and its heads."""

import logging

from keras_transformer.convert.folder import ModelFolder
from keras_transformer.convert.loading import Converted
from keras_transformer.convert.tables import (
    ConversionError,
    Row,
    assign,
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
    for name, layer in (
        ("word", "token_embedding"), ("position", "positions"), ("token_type", "segment_embedding")
    ):  # fmt: skip
        yield Row(model.get_layer(layer).embeddings, (f"embeddings.{name}_embeddings.weight",))
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
        yield Row(model.get_layer("masked_token_bias").bias, ("cls.predictions.bias",))


def read(folder: ModelFolder):
    """Reads a folder of BERT: the backbone with the head that its config.json names."""
    config = folder.config
    [name, *_] = config.get("architectures") or ["BertModel"]
    if name not in HEADS:
        raise ConversionError(
            f"{folder.path}: the architecture must be one of {', '.join(HEADS)}. Received: {name}."
        )
    folder.setting("position_embedding_type", "absolute", None)
    folder.setting("is_decoder", False)
    folder.setting("type_vocab_size", 2)
    folder.setting("pad_token_id", 0)
    if HEADS[name] is bert_pretraining:
        folder.setting("tie_word_embeddings", True)
    activation = folder.setting("hidden_act", *ACTIVATIONS)
    longest = config["max_position_embeddings"]
    dimensions = {
        "num_layers": config["num_hidden_layers"],
        "hidden_dim": config["hidden_size"],
        "intermediate_dim": config["intermediate_size"],
        "num_heads": config["num_attention_heads"],
        "dropout": config.get("hidden_dropout_prob", 0.1),
        "attention_dropout": config.get("attention_probs_dropout_prob", 0.1),
    }
    backbone = bert(
        config["vocab_size"],
        max_sequence_length=longest,
        activation=ACTIVATIONS[activation],
        norm_epsilon=config.get("layer_norm_eps", 1e-12),
        **dimensions,
    )
    labels, model = (), backbone
    if name in ("BertForSequenceClassification", "BertForTokenClassification"):
        labels = _labels(folder)
        dropout = config.get("classifier_dropout") or dimensions["dropout"]
        model = HEADS[name](backbone, len(labels), dropout=dropout)
    elif HEADS[name]:
        model = HEADS[name](backbone, activation=ACTIVATIONS[activation])
    arrays = {_modern(key): array for key, array in folder.arrays().items()}
    new = {key: what for key, what in MAY_BE_NEW.items() if f"{key}.weight" not in arrays}
    table = [row for row in rows(model) if row.names[0].rpartition(".")[0] not in new]
    assign(table, arrays, "BERT")
    if missing := [new[key] for key in new if any(key in row.names[0] for row in rows(model))]:
        logging.getLogger(__name__).warning(
            "%s has no %s: it starts with random weights.", folder.path, " and no ".join(missing)
        )
    command = "classification" if name == "BertForSequenceClassification" else "pretraining"
    return converted(command, model, word_pieces(folder), labels, longest, dimensions)


def converted(command, model, tokenizer, labels, longest, dimensions):
    """A BERT with the settings of the runs of its command."""
    run = {"max_length": min(longest, 512), **dimensions}
    if command == "pretraining":
        run |= {"positions": longest, "max_length": min(longest, 128)}
    return Converted(command, model, tokenizer, labels=labels, config=run)


def word_pieces(folder):
    """The `WordPieceTokenizer` of a folder, from tokenizer.json or vocab.txt."""
    from keras_transformer.convert.tokenizers import load_tokenizer_of
    from keras_transformer.tokenizers.word_pieces import WordPieceTokenizer

    tokenizer, theirs = load_tokenizer_of(folder.path)
    if not isinstance(tokenizer, WordPieceTokenizer) or theirs[0] != 0:
        raise ConversionError(
            f"{folder.path} must hold BERT's word pieces, starting with [PAD]. Received: a "
            f"{type(tokenizer).__name__} whose first id is {theirs[0]}."
        )
    return tokenizer


def _modern(name):
    """The name of an array without the prefix, as newer versions write it."""
    name = name.removeprefix("bert.")
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
        "LayerNorm.beta", "LayerNorm.bias"
    )


def _labels(folder):
    config = folder.config
    named = config.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    labels = tuple(named[key] for key in sorted(named, key=int))
    kind = config.get("problem_type") or "single_label_classification"
    if kind != "single_label_classification" or len(labels) < 2:
        raise ConversionError(
            f"{folder.path}: a classifier must choose one of at least two labels. "
            f"Received: problem_type={kind!r}, {len(labels)} labels."
        )
    return labels
