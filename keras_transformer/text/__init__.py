"""Text: reading it, tokenising it, cutting it into batches."""

from keras_transformer.files import DamagedFile
from keras_transformer.text.batching import TokenBatches
from keras_transformer.text.byte_pairs import BytePairTokenizer, train_byte_pairs
from keras_transformer.text.corpora import ParallelText, read_dataset, read_files, read_tsv
from keras_transformer.text.demo_corpus import demo_corpus, demo_split
from keras_transformer.text.documents import (
    PretrainingBatches,
    read_documents,
    split_sentences,
)
from keras_transformer.text.labelled import LabelledBatches, LabelledText
from keras_transformer.text.masking import mask_tokens
from keras_transformer.text.segments import pack_segments
from keras_transformer.text.symbols import SymbolTokenizer
from keras_transformer.text.tokenizers import (
    END_ID,
    PAD_ID,
    START_ID,
    UNKNOWN_ID,
    Tokenizer,
    train_tokenizer,
)
from keras_transformer.text.windows import TextSegments, TextWindows, sliding_windows
from keras_transformer.text.word_pieces import WordPieceTokenizer, train_word_pieces


def load_tokenizer(path):
    """The tokenizer that its `save` has written to a file, of whichever kind it is.

    Raises:
        DamagedFile: a ValueError with the path, if the file holds no tokenizer.
        OSError: if there is no such file, or it may not be read.
    """
    with open(path, "rb") as file:
        beginning = file.read(16)
    if beginning.startswith(b"[PAD]"):
        kind = WordPieceTokenizer
    elif not beginning.startswith(b"{"):
        kind = Tokenizer  # a SentencePiece model, which never begins so
    else:
        kind = SymbolTokenizer if b"characters" in beginning else BytePairTokenizer
    try:
        return kind.load(path)
    except OSError:
        raise
    except Exception as error:  # of a damaged file they raise many kinds
        raise DamagedFile(f"{path} is damaged, or holds no tokenizer: {error}") from error


__all__ = [
    "END_ID",
    "PAD_ID",
    "START_ID",
    "UNKNOWN_ID",
    "BytePairTokenizer",
    "LabelledBatches",
    "LabelledText",
    "ParallelText",
    "PretrainingBatches",
    "SymbolTokenizer",
    "TextSegments",
    "TextWindows",
    "TokenBatches",
    "Tokenizer",
    "WordPieceTokenizer",
    "demo_corpus",
    "demo_split",
    "load_tokenizer",
    "mask_tokens",
    "pack_segments",
    "read_dataset",
    "read_documents",
    "read_files",
    "read_tsv",
    "sliding_windows",
    "split_sentences",
    "train_byte_pairs",
    "train_tokenizer",
    "train_word_pieces",
]
