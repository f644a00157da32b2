"""Data: reads corpora and makes batches that depend only on seed and step.

Batches are made with NumPy. Without TensorFlow, everything that needs no tokenizer works;
`pack_segments` imports TensorFlow when it is first used.
"""

from typing import TYPE_CHECKING

from keras_transformer.data.batch_plans import FewShapes, PackedRows
from keras_transformer.data.documents import split_sentences
from keras_transformer.data.labelled_batches import LabelledBatches
from keras_transformer.data.labelled_text import LabelledText, hold_out, labelled
from keras_transformer.data.masking import mask_tokens
from keras_transformer.data.packed_documents import PackedDocuments
from keras_transformer.data.preparation import prepare
from keras_transformer.data.prepared import Prepared
from keras_transformer.data.pretraining_batches import PretrainingBatches
from keras_transformer.data.streams import (
    DocumentStream,
    LabelledStream,
    PairStream,
    ParallelText,
)
from keras_transformer.data.token_batches import TokenBatches
from keras_transformer.data.token_ids import IdRows, tokenize, tokenize_documents
from keras_transformer.data.windows import TextSegments, TextWindows, sliding_windows

if TYPE_CHECKING:  # for editors and the documentation; see `__getattr__`
    from keras_transformer.data.segments import pack_segments

__all__ = [
    "DocumentStream",
    "FewShapes",
    "IdRows",
    "LabelledBatches",
    "LabelledStream",
    "LabelledText",
    "PackedDocuments",
    "PackedRows",
    "PairStream",
    "ParallelText",
    "Prepared",
    "PretrainingBatches",
    "TextSegments",
    "TextWindows",
    "TokenBatches",
    "hold_out",
    "labelled",
    "mask_tokens",
    "pack_segments",
    "prepare",
    "sliding_windows",
    "split_sentences",
    "tokenize",
    "tokenize_documents",
]


def __getattr__(name):
    if name == "pack_segments":
        from keras_transformer.data.segments import pack_segments

        return pack_segments
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return [*globals(), "pack_segments"]
