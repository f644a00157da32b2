"""A classifier from a pretrained BERT."""

from keras_transformer.models.bert_models import BertModel, bert, bert_classifier
from train.experiments.pretrained import read_pretrained
from train.training_config import DROPOUTS


def pretrained_of(config, run=None):
    """What a config fine-tunes, as `convert.Converted`; None without --pretrained.

    Args:
        config: of a classification.
        run: the `Run` if it has begun.

    Raises:
        ValueError: if the run holds no finished BERT, or one that cannot read so many tokens.
    """
    if not config.pretrained:
        return None
    pretrained = (run and run.pretrained()) or read_pretrained(config.pretrained)
    model = pretrained.model
    if not isinstance(model, BertModel):
        raise ValueError(
            "--pretrained must be a train.pretraining run, a run that was fine-tuned from one, or "
            f"a folder of BERT. Received: {config.pretrained}, whose model is not a BERT."
        )
    positions = model.positions.max_sequence_length
    if not 2 < config.max_length <= positions:
        raise ValueError(
            f"--max-length must be 3 to {positions} tokens, which the model of --pretrained can "
            f"read. Received: {config.max_length}."
        )
    return pretrained


def fine_tuned_classifier(config, model, num_labels):
    """The backbone of a model with a new head, in the dtype and with the dropout of this config.

    If a pooler is requested and the model has none, it is new.
    """
    trained = {layer.name: layer for layer in model.layers}
    encoder, table = model.encoder, model.token_embedding
    sizes = ("num_layers", "intermediate_dim", "num_heads", "activation", "pre_norm")
    given = {name: getattr(encoder, name) for name in (*sizes, "norm_epsilon")}
    given |= {name: getattr(config, name) for name in ("token_dropout", "dtype", "remat")}
    if model.pooler is not None:
        given["pooler_activation"] = model.pooler.activation
    backbone = bert(
        table.vocabulary_size,
        max_sequence_length=model.positions.max_sequence_length,
        hidden_dim=table.hidden_dim,
        **given,
        **config.given(DROPOUTS),
    )
    if not config.from_scratch:
        for layer in backbone.layers:
            if layer.weights and layer.name in trained:
                layer.set_weights(trained[layer.name].get_weights())
    dropout = backbone.embedding_dropout.rate
    return bert_classifier(backbone, num_labels, dropout, config.pooling)
