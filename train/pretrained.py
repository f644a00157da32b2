"""The model of --pretrained: of a finished run, or of a folder of another library."""

from .deferred import Deferred, kt
from .settings import flag_of
from .training_config import DROPOUTS, fill_in

opennmt = Deferred("keras_transformer.convert.opennmt")


def read_pretrained(path):
    """The model of a finished run or of a released folder, as `convert.Converted`.

    The `config` of a run is its settings.

    Raises:
        ValueError: if there is no finished run and no such folder.
    """
    settings = _settings_of_run(path)
    if settings is None:
        return kt.convert.read(path)
    run = kt.serving.RunFolder(path)
    return kt.convert.Converted(
        "", run.model(), run.tokenizer(), run.target_tokenizer(), config=settings
    )


def _settings_of_run(path):
    """The settings of a run of our own; None for a folder of another library."""
    if opennmt.is_run(path):
        return None
    run = kt.serving.RunFolder(path)
    return None if {"model_type", "class_name"} & run.content().keys() else run.settings()


def pretrained_of(config, model_classes, what, run=None):
    """What the --pretrained of a config holds; None without it.

    Args:
        config: of a command.
        model_classes: those that the model may have, a tuple.
        what: where such models come from, for the message.
        run: the `Run` if it has begun.

    Raises:
        ValueError: as of `read_pretrained`, or if the model is of another kind.
    """
    if not getattr(config, "pretrained", ""):
        return None
    pretrained = (run and run.pretrained()) or read_pretrained(config.pretrained)
    if not isinstance(pretrained.model, model_classes):
        raise ValueError(
            f"--pretrained must be {what}. Received: {config.pretrained}, whose model is a "
            f"{getattr(pretrained.model, 'kind', 'model of another library')}."
        )
    return pretrained


def completed(config, before=None, pretrained=None):
    """A config whose `left_open` settings are those of its run or, when it begins, of --pretrained.

    Those that are missing there, too, are the usual ones.

    Args:
        config: of a command.
        before: the config of the run; None if it has not begun.
        pretrained: of `read_pretrained`, if it has been read.

    Raises:
        ValueError: if one of `of_pretrained` is set to another value.
    """
    if not (config.left_open and config.pretrained):
        return config
    values = {name: getattr(config, name) for name in config.left_open}
    fields = type(config).model_fields
    missing = [name for name, value in values.items() if value == fields[name].default]
    if before is not None:
        theirs = before.model_dump()
    elif pretrained is not None:
        theirs = pretrained.config
    else:
        theirs = _settings_of_run(config.pretrained) or read_pretrained(config.pretrained).config
    for name in config.of_pretrained:
        if name not in missing and values[name] != theirs.get(name, values[name]):
            raise ValueError(
                f"{flag_of(name)} must be {theirs[name]}, as of --pretrained. "
                f"Received: {values[name]}."
            )
    known = {name for name in missing if theirs.get(name) not in (None, "")}
    config = config.replace(**{name: theirs[name] for name in known})
    fill_in(config, config.usual)
    return config


def for_training(model, config, **changes):
    """A copy of a model with the dtype, `remat` and dropouts of a config, within a strategy.

    Args:
        model: of a function of `models`.
        config: of its training.
        **changes: of further settings of layers, by name.
    """
    changes |= {"dtype": config.dtype, "remat": config.remat, **config.given(DROPOUTS)}
    if config.dropout is not None:
        changes["rate"] = config.dropout
    return kt.models.copies.copy_with(model, **changes)


def fine_tuned_classifier(config, model, num_labels):
    """The backbone of a model with a new head, in the dtype and with the dropout of this config.

    If a pooler is requested and the model has none, it is new.
    """
    trained = {layer.name: layer for layer in model.layers}
    encoder, table = model.encoder, model.token_embedding
    options = {"num_layers": encoder.num_layers, **encoder.block_config()}
    for name in DROPOUTS:
        del options[name]
    options |= {name: getattr(config, name) for name in ("token_dropout", "dtype", "remat")}
    if model.pooler is not None:
        options["pooler_activation"] = model.pooler.activation
    backbone = kt.bert(
        table.vocabulary_size,
        max_sequence_length=model.positions.max_sequence_length,
        hidden_dim=table.hidden_dim,
        **options,
        **config.given(DROPOUTS),
    )
    if not config.from_scratch:
        for layer in backbone.layers:
            if layer.weights and layer.name in trained:
                layer.set_weights(trained[layer.name].get_weights())
    dropout = backbone.embedding_dropout.rate
    return kt.bert_classifier(backbone, num_labels, dropout, config.pooling)
