"""Trains a text classifier on your own texts; measures it, classifies with it, exports it.

Train, or resume a training that was stopped:

    python -m train.classification --folder aclImdb/train --hold-out 5000 --run runs/imdb

Use the trained run:

    python -m train.classification classify --run runs/imdb < texts.txt > labels.tsv
    python -m train.classification evaluate --run runs/imdb --folder aclImdb/test
    python -m train.classification export --run runs/imdb --name imdb

--pretrained fine-tunes the BERT of a train.pretraining run, or one that was fine-tuned before.

Texts come from a folder with a folder of .txt files for each label, from a file of two columns
(text TAB label, several labels joined by commas), or from TensorFlow Datasets.
"""

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.data import LabelledBatches, pack_segments, tokenize
from keras_transformer.data.labelled_text import (
    hold_out,
    labelled_files,
    read_labelled_dataset,
    read_labelled_folder,
    read_labelled_tsv,
)
from keras_transformer.models.bert_models import attention_scores as bert_attention_scores
from keras_transformer.models.bert_models import bert, bert_classifier
from keras_transformer.models.encoder_only import attention_scores, classifier
from keras_transformer.serving import ClassifierFunctions, ClassifierModule, with_dtype
from keras_transformer.tokenizers import train_sentencepiece
from train import experiment
from train.config import ClassificationConfig, PretrainingConfig
from train.experiment import RunOptions, read_options
from train.labels import (
    LABELS,
    check_names,
    check_number,
    has_several,
    labels_of,
    save_labels,
)
from train.lines import answer_lines, say_what_was_cut
from train.pictures import LONGEST, save_pictures, self_attention
from train.run import Run, Task, optimizer_of
from train.settings import setting, settings

NAME = "classification"
TEXTS_AT_A_TIME = 64
LOST_MIDDLE = "read without their middle"


def main(arguments=None):
    commands = {"classify": run_classify, "evaluate": run_evaluate, "export": run_export}
    experiment.run_command(arguments, run_train, commands)


def run_train(arguments):
    experiment.run_training(
        arguments, NAME, __doc__, ClassificationConfig, read_text, classification_task, show_result
    )


def show_result(run, config, model, train_text, valid_text):
    try:
        labels = labels_of(run)
    except ValueError:  # not there yet, or damaged
        save_labels(run)
        labels = labels_of(run)
    check_names(labels["names"], train_text)
    tokenizer = run.tokenizer()
    prepare, length = inputs_of(config, tokenizer)
    # Some texts may be empty; the longest of a few has something to show.
    text = max((valid_text or train_text).texts[:100], key=len)
    ids = tokenizer.tokenize([text])[:, : min(length, LONGEST)].to_tensor()
    if config.pretrained:
        inputs = prepare(ids)
        ids, scores = inputs["token_ids"], bert_attention_scores(model, **inputs)
    else:
        scores = attention_scores(model, ids)
    attention = self_attention(scores, tokenizer, ids[0].numpy())
    save_pictures(run, attention, title=f"{text[:LONGEST]}...")
    if valid_text is not None:
        print(report(model, tokenizer, valid_text, config, labels["several"]))


@settings
class EvaluateOptions(RunOptions):
    """Flags of `evaluate`."""

    folder: str = setting("", "folder with a folder of .txt files for each label")
    tsv: str = setting("", "instead: one file, text TAB label; may be .gz")


def run_classify(arguments):
    description = "Classifies standard input, one text per line, as label TAB probability."
    options = read_options(RunOptions, arguments, NAME, "classify", description)
    run = Run(options.run, ClassificationConfig)
    module = classifier_of(run)

    def answer(texts):
        rows, is_cut = [], []
        for start in range(0, len(texts), TEXTS_AT_A_TIME):
            some = tf.constant(texts[start : start + TEXTS_AT_A_TIME])
            found = module.endpoints["serving_default"](text=some)
            best = found["probabilities"].numpy().max(axis=1)
            labels = found["label"].numpy()
            rows += [f"{name.decode()}\t{p:.4f}" for name, p in zip(labels, best, strict=True)]
            is_cut += found["truncated"].numpy().tolist()
        return rows, is_cut

    answer_lines(answer, run.config().max_length, LOST_MIDDLE)


def run_evaluate(arguments):
    description = "Measures the accuracy of a trained run on other texts."
    options = read_options(EvaluateOptions, arguments, NAME, "evaluate", description)
    run = Run(options.run, ClassificationConfig)
    labels, config, tokenizer = labels_of(run), run.config(), run.tokenizer()
    text = read_one(options.folder, options.tsv, labels["names"])
    print(report(run.model(), tokenizer, text, config, labels["several"]))
    where = labelled_files(options.folder) if options.folder else []
    where = [str(file) for file in where] or [f"{n:,}" for n in range(1, len(text.texts) + 1)]
    cut = [where[row] for row in too_long(config, tokenizer, text.texts)]
    word = "files" if options.folder else "lines"
    say_what_was_cut(cut, len(text.texts), config.max_length, LOST_MIDDLE, word)


def run_export(arguments):
    experiment.run_export(arguments, NAME, ClassificationConfig, exported_classifier)


def exported_classifier(run, options):
    return classifier_of(run, options.dtype)


def too_long(config, tokenizer, texts):
    """The rows of the texts that lose their middle."""
    _, length = inputs_of(config, tokenizer)
    counts = tokenize(texts, tokenizer).row_lengths().numpy()
    return np.flatnonzero(counts > length)


def classifier_of(run, dtype="float32"):
    """The served `Classifier` of a trained run."""
    config, tokenizer = run.config(), run.tokenizer()
    model, labels = with_dtype(run.model(), dtype), labels_of(run)
    prepare, length = inputs_of(config, tokenizer)
    functions = ClassifierFunctions(model.weights, lambda ids: model(prepare(ids), training=False))
    return ClassifierModule(functions, tokenizer, labels["names"], length, labels["several"])


def inputs_of(config, tokenizer):
    """A function from token ids, (batch, length), to what the model reads, and their most."""
    if not config.pretrained:
        return lambda ids: ids, config.max_length

    def with_special_tokens(ids):
        rows = tf.RaggedTensor.from_tensor(ids, padding=tokenizer.pad_id)
        return pack_segments(tokenizer, rows, max_length=config.max_length)

    return with_special_tokens, config.max_length - 2  # [CLS] and [SEP]


def classification_task(config, train_text, valid_text=None):
    """How a `Run` learns to classify: `LabelledText` to learn from, and to measure on or None."""
    pretrained_tokenizer, pretrained_model = pretrained_of(config)

    def read():
        tokenizer = pretrained_tokenizer
        if tokenizer is None:
            tokenizer = train_sentencepiece(train_text.texts, config.vocabulary_size, config.tokens)
        return tokenizer, batches_of(config, tokenizer, train_text)

    def load(path, tokenizer):
        prepare, _ = inputs_of(config, tokenizer)
        batches = LabelledBatches.load(path, config.tokens_per_batch, config.seed, prepare)
        check_names(batches.names, train_text)
        return batches

    def validation(tokenizer):
        if valid_text is None:
            return None
        check_number(valid_text, has_several(train_text))
        return batches_of(config, tokenizer, valid_text).epoch()

    def build(tokenizer, batches):
        if pretrained_model:
            model = pretrained_classifier(config, pretrained_model, train_text)
        else:
            model = new_classifier(config, tokenizer.vocabulary_size, train_text)
        return compiled(model, config, batches.multi_label)

    return Task(
        read=read,
        load=load,
        build=build,
        describe=lambda batches: f"{batches.num_texts:,} texts, {batches.num_tokens:,} tokens",
        validation=validation,
    )


def batches_of(config, tokenizer, text):
    prepare, length = inputs_of(config, tokenizer)
    ids = tokenize(text.texts, tokenizer)
    sizes = (config.tokens_per_batch, length, config.seed)
    return LabelledBatches(ids, text.matrix(), text.names, *sizes, prepare)


def pretrained_of(config):
    """The tokenizer and the model that a config wants to go on from; a pair of None without.

    Raises:
        ValueError: if the run holds no finished BERT, or one that cannot read as many tokens.
    """
    if not config.pretrained:
        return None, None
    run = Run(config.pretrained, PretrainingConfig)
    if (run.path / LABELS).exists():
        run = Run(config.pretrained, ClassificationConfig)
    model = run.model()
    if "token_embedding" not in [layer.name for layer in model.layers]:
        raise ValueError(
            "--pretrained must be a run of train.pretraining, or one that has gone on from such a "
            f"run. Received: {config.pretrained}, whose model is no BERT."
        )
    positions = model.get_layer("positions").max_sequence_length
    if not 2 < config.max_length <= positions:
        raise ValueError(
            f"max_length must be 3 to {positions} tokens, which the model of --pretrained can "
            f"read. Received: max_length={config.max_length}."
        )
    return run.tokenizer(), model


def pretrained_classifier(config, model, text):
    """The backbone of a model with a new head, in the dtype and with the dropout of this config.

    A pooler, if asked for, is new where the model has none.
    """
    encoder, table = model.get_layer("encoder"), model.get_layer("token_embedding")
    sizes = ("num_layers", "intermediate_dim", "num_heads", "activation", "pre_norm")
    given = {name: getattr(encoder, name) for name in (*sizes, "norm_epsilon")}
    given |= {name: getattr(config, name) for name in ("token_dropout", "dtype", "remat")}
    backbone = bert(
        table.vocabulary_size,
        max_sequence_length=model.get_layer("positions").max_sequence_length,
        hidden_dim=table.hidden_dim,
        **given,
        **config.dropouts(),
    )
    if not config.from_scratch:
        trained = {layer.name: layer for layer in model.layers}
        for layer in backbone.layers:
            if layer.weights and layer.name in trained:
                layer.set_weights(trained[layer.name].get_weights())
    dropout = backbone.get_layer("embedding_dropout").rate
    return bert_classifier(backbone, len(text.names), dropout, config.pooling)


def new_classifier(config, vocabulary_size, text):
    return classifier(
        vocabulary_size,
        len(text.names),
        pooling=config.pooling,
        token_dropout=config.token_dropout,
        **config.dimensions(),
    )


def compiled(model, config, several):
    if several:
        loss = keras.losses.BinaryCrossentropy(True, config.label_smoothing)
        accuracy = keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0)
    else:
        loss = keras.losses.CategoricalCrossentropy(True, config.label_smoothing)
        accuracy = keras.metrics.CategoricalAccuracy(name="accuracy")
    model.compile(
        optimizer=optimizer_of(config),
        loss=loss,
        weighted_metrics=[accuracy],
        clip_norm=config.clip_norm or None,
        accumulation_steps=config.accumulation_steps,
    )
    return model


def report(model, tokenizer, text, config, several):
    """A line of how many texts got their label, or all of their labels and no other."""
    check_number(text, several)
    batches = batches_of(config, tokenizer, text)
    logits_of = tf.function(lambda ids: model(ids, training=False), reduce_retracing=True)
    right = 0
    for ids, labels in batches.epoch():
        logits = logits_of(ids)
        if several:
            is_right = tf.reduce_all((logits >= 0) == (labels > 0), axis=1)
        else:
            is_right = tf.equal(tf.argmax(logits, axis=1), tf.argmax(labels, axis=1))
        right += int(tf.math.count_nonzero(is_right))
    return f"Accuracy: {right / len(text.texts):.2%} ({right:,} of {len(text.texts):,} texts)."


def read_text(config):
    """The training texts that a config names, and those to measure on; None without.

    Raises:
        ValueError: if the config names no texts, or several.
    """
    names = ("folder", "tsv", "dataset")
    if sum(bool(getattr(config, name)) for name in names) != 1:
        raise ValueError("Give texts to learn from: one of --folder, --tsv and --dataset.")
    if config.hold_out and (config.valid_folder or config.valid_tsv):
        raise ValueError("Give one kind of texts to measure on: --hold-out, or a second text.")
    if config.dataset:
        where = config.data_dir or None
        text = read_labelled_dataset(config.dataset, "train", data_dir=where)
        if not (config.hold_out or config.valid_folder or config.valid_tsv):
            return text, read_labelled_dataset(config.dataset, "test", text.names, where)
    else:
        text = read_one(config.folder, config.tsv)
    if config.hold_out:
        return hold_out(text, config.hold_out, config.seed)
    if config.valid_folder or config.valid_tsv:
        return text, read_one(config.valid_folder, config.valid_tsv, text.names)
    return text, None


def read_one(folder, tsv, names=None):
    if bool(folder) == bool(tsv):
        raise ValueError("Give texts to measure on: a folder or a TSV file.")
    return read_labelled_folder(folder, names) if folder else read_labelled_tsv(tsv, names)


if __name__ == "__main__":
    main()
