"""Pretrains BERT on plain documents: masked word pieces, and whether one text follows another.

Train, or resume a training that was stopped:

    python -m train.pretraining --documents aclImdb/train --hold-out 5000 --run runs/bert

Fine-tune the result; with the same count and seed, the same documents are held out:

    python -m train.classification --pretrained runs/bert --folder aclImdb/train --hold-out 5000 \\
        --run runs/imdb_bert
"""

import itertools

import tensorflow as tf

from keras_transformer.data import (
    PretrainingBatches,
    pack_segments,
    read_documents,
    split_sentences,
    tokenize_documents,
)
from keras_transformer.data.labelled_text import labelled_files, split_rows
from keras_transformer.models.bert_models import attention_scores, bert, bert_pretraining
from keras_transformer.tokenizers import train_word_pieces
from keras_transformer.training import PretrainingLoss, TokenAccuracy
from train import experiment
from train.config import PretrainingConfig
from train.pictures import LONGEST, save_pictures, self_attention
from train.run import Task, optimizer_of


def main(arguments=None):
    experiment.run_command(arguments, run_train, commands={})


def run_train(arguments):
    experiment.run_training(
        arguments,
        "pretraining",
        __doc__,
        PretrainingConfig,
        read_texts,
        pretraining_task,
        show_result,
    )


def pretraining_task(config, train_texts, valid_texts):
    """How a `Run` learns to fill in what is masked.

    Args:
        config: its settings.
        train_texts: a list of documents.
        valid_texts: those to measure on, an empty list for none.
    """
    sizes = (config.batch_size, config.max_length, config.seed, config.masking_rate)

    def read():
        documents = split_sentences(train_texts)
        sentences = list(itertools.chain.from_iterable(documents))
        tokenizer = train_word_pieces(sentences, config.vocabulary_size)
        return tokenizer, PretrainingBatches(
            tokenize_documents(documents, tokenizer), tokenizer, *sizes
        )

    def validation(tokenizer):
        if not valid_texts:
            return None
        documents = tokenize_documents(split_sentences(valid_texts), tokenizer)
        batches = PretrainingBatches(documents, tokenizer, *sizes)
        count = batches.steps_per_epoch
        # Keras warns of a dataset that ends and had not said when.
        return batches.dataset().take(count).apply(tf.data.experimental.assert_cardinality(count))

    return Task(
        read=read,
        load=lambda path, tokenizer: PretrainingBatches.load(path, tokenizer, *sizes),
        build=lambda tokenizer, batches: compiled(model_of(config, batches.token_counts()), config),
        describe=lambda batches: (
            f"{batches.num_tokens:,} word pieces, {batches.num_passages:,} passages"
        ),
        validation=validation,
    )


def show_result(run, config, model, train_texts, valid_texts):
    tokenizer, length = run.tokenizer(), min(config.max_length, LONGEST)
    text = max((valid_texts or train_texts)[:100], key=len)
    inputs = pack_segments(tokenizer, tokenizer.tokenize([text]), max_length=length)
    scores = attention_scores(model, **inputs)
    attention = self_attention(scores, tokenizer, inputs["token_ids"][0].numpy())
    save_pictures(run, attention, title=f"{text[:LONGEST]}...")
    if valid_texts:
        task = pretraining_task(config, train_texts, valid_texts)
        print(report(compiled(model, config), task.validation(tokenizer)))


def model_of(config, token_counts):
    backbone = bert(len(token_counts), max_sequence_length=config.positions, **config.dimensions())
    return bert_pretraining(backbone, token_counts)


def compiled(model, config):
    model.compile(
        optimizer=optimizer_of(config),
        loss=PretrainingLoss(),
        # In the order of the names; a next sentence has no padding.
        metrics=[[TokenAccuracy(name="accuracy")], [TokenAccuracy(pad_id=-1, name="accuracy")]],
        clip_norm=config.clip_norm or None,
        accumulation_steps=config.accumulation_steps,
    )
    return model


def report(model, batches):
    """A line of how well masked pieces and following texts are told."""
    logs = model.evaluate(batches, verbose=0, return_dict=True)
    return (
        f"Masked pieces found: {logs['masked_tokens_accuracy']:.2%}. "
        f"Next texts told from random ones: {logs['next_sentence_accuracy']:.2%}. "
        f"Loss of both: {logs['loss']:.4f} nats."
    )


def read_texts(config):
    """The documents to learn from and those held out, which may be none.

    Raises:
        ValueError: if the config names no documents, or as many are held out.
    """
    if not config.documents:
        raise ValueError("Give documents to learn from: --documents, a folder or a file.")
    texts = read_documents(config.documents)
    # Of a folder of labels the same are drawn as for classification; `unsup` is learned from.
    some = len(labelled_files(config.documents)) or len(texts)
    # A random text comes from another document: one alone can be neither learned nor measured.
    if config.hold_out > some - 2:
        raise ValueError(
            f"--hold-out must leave two documents to learn from, of {some}. "
            f"Received: {config.hold_out}."
        )
    others, held_out = split_rows(some, config.hold_out, config.seed)
    learned = [*others, *range(some, len(texts))]
    return tuple([texts[i] for i in part] for part in (learned, held_out))


if __name__ == "__main__":
    main()
