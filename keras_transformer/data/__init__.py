"""Data: reads corpora, and cuts them into batches that depend on seed and step alone."""

from keras_transformer.data.batching import TokenBatches
from keras_transformer.data.corpora import ParallelText, read_dataset, read_files, read_tsv
from keras_transformer.data.documents import (
    PretrainingBatches,
    read_documents,
    split_sentences,
)
from keras_transformer.data.labelled import LabelledBatches, LabelledText
from keras_transformer.data.masking import mask_tokens
from keras_transformer.data.segments import pack_segments
from keras_transformer.data.windows import TextSegments, TextWindows, sliding_windows

__all__ = [
    "LabelledBatches",
    "LabelledText",
    "ParallelText",
    "PretrainingBatches",
    "TextSegments",
    "TextWindows",
    "TokenBatches",
    "mask_tokens",
    "pack_segments",
    "read_dataset",
    "read_documents",
    "read_files",
    "read_tsv",
    "sliding_windows",
    "split_sentences",
]
