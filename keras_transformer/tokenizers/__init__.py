"""Tokenizers: text to ids and back, inside the TensorFlow graph.

TensorFlow is imported with the first tokenizer. The ids below need none.
"""

import importlib
from typing import TYPE_CHECKING

from keras_transformer.tokenizers.control_ids import END_ID, PAD_ID, START_ID, UNKNOWN_ID

if TYPE_CHECKING:  # for editors and the documentation; see `__getattr__`
    from keras_transformer.tokenizers.byte_pairs import BytePairTokenizer, train_byte_pairs
    from keras_transformer.tokenizers.load import load_tokenizer
    from keras_transformer.tokenizers.sentencepiece import (
        SentencePieceTokenizer,
        train_sentencepiece,
    )
    from keras_transformer.tokenizers.symbols import SymbolTokenizer
    from keras_transformer.tokenizers.word_pieces import WordPieceTokenizer, train_word_pieces

__all__ = [
    "END_ID",
    "PAD_ID",
    "START_ID",
    "UNKNOWN_ID",
    "BytePairTokenizer",
    "SentencePieceTokenizer",
    "SymbolTokenizer",
    "WordPieceTokenizer",
    "load_tokenizer",
    "train_byte_pairs",
    "train_sentencepiece",
    "train_word_pieces",
]

_MODULES = {
    "BytePairTokenizer": "byte_pairs",
    "SentencePieceTokenizer": "sentencepiece",
    "SymbolTokenizer": "symbols",
    "WordPieceTokenizer": "word_pieces",
    "load_tokenizer": "load",
    "train_byte_pairs": "byte_pairs",
    "train_sentencepiece": "sentencepiece",
    "train_word_pieces": "word_pieces",
}


def __getattr__(name):
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return [*globals(), *_MODULES]
