"""Tokenizers: text to ids and back, inside the TensorFlow graph."""

from keras_transformer.tokenizers.byte_pairs import BytePairTokenizer, train_byte_pairs
from keras_transformer.tokenizers.load import load_tokenizer
from keras_transformer.tokenizers.sentencepiece import (
    END_ID,
    PAD_ID,
    START_ID,
    UNKNOWN_ID,
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
