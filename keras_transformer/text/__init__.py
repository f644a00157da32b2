"""Parallel text: reading it, tokenising it, cutting it into batches."""

from keras_transformer.text.batching import TokenBatches
from keras_transformer.text.corpora import ParallelText, read_dataset, read_files, read_tsv
from keras_transformer.text.demo_corpus import demo_corpus, demo_split
from keras_transformer.text.tokenizers import (
    END_ID,
    PAD_ID,
    START_ID,
    UNKNOWN_ID,
    Tokenizer,
    train_tokenizer,
)

__all__ = [
    "END_ID",
    "PAD_ID",
    "START_ID",
    "UNKNOWN_ID",
    "ParallelText",
    "TokenBatches",
    "Tokenizer",
    "demo_corpus",
    "demo_split",
    "read_dataset",
    "read_files",
    "read_tsv",
    "train_tokenizer",
]
