"""DistilBERT, a BERT without token types and without a pooler of its own, of Hugging Face."""

from keras_transformer.convert import bert
from keras_transformer.convert.folder import ModelFolder
from keras_transformer.models.bert_models import bert as bert_backbone
from keras_transformer.models.bert_models import bert_classifier, bert_pretraining

HEADS = {
    "DistilBertModel": None,
    "DistilBertForMaskedLM": bert_pretraining,
    "DistilBertForSequenceClassification": bert_classifier,
}
MAY_BE_NEW = {"pre_classifier": "pooler", "cls.seq_relationship": "head for the next sentence"}
TOKEN_TYPES = "embeddings.token_type_embeddings"
# What it calls the parts that BERT names, in this order.
_NAMES = {
    "encoder.layer.": "transformer.layer.",
    "attention.self.query": "attention.q_lin",
    "attention.self.key": "attention.k_lin",
    "attention.self.value": "attention.v_lin",
    "attention.output.dense": "attention.out_lin",
    "attention.output.LayerNorm": "sa_layer_norm",
    "intermediate.dense": "ffn.lin1",
    "output.dense": "ffn.lin2",
    "output.LayerNorm": "output_layer_norm",
    "pooler.dense": "pre_classifier",
    "cls.predictions.transform.dense": "vocab_transform",
    "cls.predictions.transform.LayerNorm": "vocab_layer_norm",
    "cls.predictions.bias": "vocab_projector.bias",
    "cls.predictions.decoder": "vocab_projector",
}
# The positions are stored, sinusoidal or not; there is no head for questions.
_UNUSED = "qa_dropout seq_classif_dropout sinusoidal_pos_embds tie_weights_ tie_word_embeddings"


def rows(model):
    """The table of DistilBERT: that of BERT by other names; its token types count nothing."""
    for row in bert.rows(model):
        missing = 0.0 if row.names[0].startswith(TOKEN_TYPES) else None
        names = tuple(bert.renamed(name, _NAMES) for name in row.names)
        twins = tuple(bert.renamed(name, _NAMES) for name in row.twins)
        yield row._replace(names=names, missing=missing, twins=twins)


def read(folder: ModelFolder):
    """Reads a folder of DistilBERT. Its classifier has a pooler with ReLU, in place of tanh."""
    settings = folder.settings
    head = bert.head_of(folder, HEADS)
    settings.without_effect(_UNUSED.split())
    settings.one_of("is_encoder_decoder", False)
    settings.one_of("pad_token_id", 0)
    activation = bert.ACTIVATIONS[settings.one_of("activation", *bert.ACTIVATIONS)]
    size, longest = settings.count("vocab_size"), settings.count("max_position_embeddings", least=3)
    dimensions = {
        "num_layers": settings.count("n_layers"),
        **settings.heads_of("dim", "n_heads"),
        "intermediate_dim": settings.count("hidden_dim"),
        "dropout": settings.share("dropout", 0.1),
        "attention_dropout": settings.share("attention_dropout", 0.1),
    }
    weights = folder.arrays().renamed(lambda name: name.removeprefix("distilbert."))
    bert.check(weights, "DistilBERT", size, longest, dimensions, _NAMES)
    tokenizer = bert.word_pieces(folder, size)
    backbone = bert_backbone(
        size, max_sequence_length=longest, activation=activation, pooler_activation="relu",
        **dimensions,
    )  # fmt: skip
    dropout = settings.share("seq_classif_dropout", 0.2)
    model, labels = bert.with_head(folder, weights, backbone, head, dropout, activation)
    bert.assign_with_new(folder, rows(model), weights, MAY_BE_NEW, "DistilBERT")
    return bert.converted(model, tokenizer, labels, longest, dimensions)
