"""Text: reading it, tokenising it, cutting it into batches."""

from keras_transformer.text.batching import TokenBatches
from keras_transformer.text.corpora import ParallelText, read_dataset, read_files, read_tsv
from keras_transformer.text.demo_corpus import demo_corpus, demo_split
from keras_transformer.text.labelled import LabelledBatches, LabelledText
from keras_transformer.text.symbols import SymbolTokenizer
from keras_transformer.text.tokenizers import (
    END_ID,
    PAD_ID,
    START_ID,
    UNKNOWN_ID,
    Tokenizer,
    train_tokenizer,
)
from keras_transformer.text.windows import TextWindows, sliding_windows


def load_tokenizer(path):
    """The tokenizer that its `save` has written to a file, of whichever kind it is."""
    with open(path, "rb") as file:
        is_json = file.read(1) == b"{"  # which no SentencePiece model begins with
    return (SymbolTokenizer if is_json else Tokenizer).load(path)


__all__ = [
    "END_ID",
    "PAD_ID",
    "START_ID",
    "UNKNOWN_ID",
    "LabelledBatches",
    "LabelledText",
    "ParallelText",
    "SymbolTokenizer",
    "TextWindows",
    "TokenBatches",
    "Tokenizer",
    "demo_corpus",
    "demo_split",
    "load_tokenizer",
    "read_dataset",
    "read_files",
    "read_tsv",
    "sliding_windows",
    "train_tokenizer",
]
