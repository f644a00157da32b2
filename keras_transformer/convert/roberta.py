"""RoBERTa, a BERT of byte pairs, one token type and positions from 2 on, of Hugging Face."""

import numpy as np

from keras_transformer.convert import bert
from keras_transformer.convert.folder import ModelFolder
from keras_transformer.convert.settings import pieces_of
from keras_transformer.convert.tables import ConversionError
from keras_transformer.convert.tokenizers import load_tokenizer_of
from keras_transformer.models.bert_models import bert as bert_backbone
from keras_transformer.models.bert_models import (
    bert_classifier,
    bert_pretraining,
    bert_token_labeller,
)
from keras_transformer.tokenizers.byte_pairs import BytePairTokenizer
from keras_transformer.tokenizers.sentencepiece import PAD_ID

HEADS = {
    "RobertaModel": None,
    "RobertaForMaskedLM": bert_pretraining,
    "RobertaForSequenceClassification": bert_classifier,
    "RobertaForTokenClassification": bert_token_labeller,
}
MAY_BE_NEW = {"pooler.dense": "pooler", "cls.seq_relationship": "head for the next sentence"}
FIRST_POSITION = 2  # the rows before are of padding, and of nothing
# What it calls the parts of its heads that BERT names.
_HEADS = {
    "cls.predictions.transform.dense": "lm_head.dense",
    "cls.predictions.transform.LayerNorm": "lm_head.layer_norm",
    "cls.predictions.bias": "lm_head.bias",
    "cls.predictions.decoder": "lm_head.decoder",
}
# The head for labels of texts is a pooler and the projection to the labels.
_CLASSIFIER = {"classifier": "classifier.out_proj", "pooler.dense": "classifier.dense"}


def rows(model, ids, is_classifier):
    """The table of RoBERTa: that of BERT, with ids in our order and without unused positions.

    Args:
        ids: their id at each of ours; the rows of the table without a piece come last.
        is_classifier: whether there is a head for labels of texts.
    """
    names = _HEADS | (_CLASSIFIER if is_classifier else {})
    order = np.argsort(ids)
    mappings = {
        "embeddings.word_embeddings.weight": (lambda a: a[ids], lambda a: a[order]),
        "cls.predictions.bias": (lambda a: a[ids], lambda a: a[order]),
        "embeddings.position_embeddings.weight": (
            lambda a: a[FIRST_POSITION:],
            lambda a: np.concatenate([np.zeros_like(a[:1]).repeat(FIRST_POSITION, 0), a]),
        ),
        # Both texts of a pair have the one type.
        "embeddings.token_type_embeddings.weight": (lambda a: a.repeat(2, 0), lambda a: a[:1]),
    }
    for row in bert.rows(model):
        renamed, twins = (
            tuple(bert.renamed(name, names) for name in each) for each in (row.names, row.twins)
        )
        to_ours, to_theirs = mappings.get(row.names[0], (row.to_ours, row.to_theirs))
        yield row._replace(names=renamed, twins=twins, to_ours=to_ours, to_theirs=to_theirs)


def read(folder: ModelFolder):
    """Reads a folder of RoBERTa: the backbone with the head that its config.json names."""
    settings = folder.settings
    head = bert.head_of(folder, HEADS)
    settings.one_of("position_embedding_type", "absolute", None)
    settings.without_effect(["classifier_dropout", "tie_word_embeddings"])
    settings.one_of("is_encoder_decoder", False)
    settings.one_of("type_vocab_size", 1)
    settings.one_of("pad_token_id", 1)
    activation = bert.ACTIVATIONS[settings.one_of("hidden_act", *bert.ACTIVATIONS)]
    size = settings.count("vocab_size")
    longest = settings.count("max_position_embeddings", least=5) - FIRST_POSITION
    dimensions = bert.dimensions_of(settings)
    epsilon = settings.number("layer_norm_eps", 1e-12)
    weights = folder.arrays().renamed(lambda name: name.removeprefix("roberta."))
    bert.check(weights, "RoBERTa", size, longest + FIRST_POSITION, dimensions)
    tokenizer, ids = _byte_pairs(folder, size)
    backbone = bert_backbone(
        size, max_sequence_length=longest, activation=activation, norm_epsilon=epsilon, **dimensions
    )
    dropout = settings.share("classifier_dropout", dimensions["dropout"])
    model, labels = bert.with_head(folder, weights, backbone, head, dropout, "gelu")
    table = rows(model, ids, head is bert_classifier)
    bert.assign_with_new(folder, table, weights, MAY_BE_NEW, "RoBERTa")
    return bert.converted(model, tokenizer, labels, longest, dimensions)


def _byte_pairs(folder, size):
    """The tokenizer of a folder, and their id at each of ours for all rows of the table."""
    tokenizer, theirs = load_tokenizer_of(folder.path)
    if not isinstance(tokenizer, BytePairTokenizer) or theirs[PAD_ID] != 1:
        raise ConversionError(
            f"{folder.path} must hold byte pairs with <s>, <pad>, </s> and <unk>, <pad> the "
            f"second. Received: a {type(tokenizer).__name__} whose <pad> is {theirs[PAD_ID]}."
        )
    padding = pieces_of(folder.path, len(theirs), size)
    return tokenizer, np.array([*theirs, *range(size - padding, size)])
