"""Loads a tokenizer of any kind."""

from keras_transformer.files import DamagedFile, in_one_line
from keras_transformer.tokenizers.byte_pairs import BytePairTokenizer
from keras_transformer.tokenizers.sentencepiece import SentencePieceTokenizer
from keras_transformer.tokenizers.symbols import SymbolTokenizer
from keras_transformer.tokenizers.word_pieces import WordPieceTokenizer


def load_tokenizer(path):
    """Loads the tokenizer that `save` wrote to a file, whatever its kind.

    Args:
        path: path of the file.

    Returns:
        A `SentencePieceTokenizer`, `BytePairTokenizer`, `WordPieceTokenizer` or `SymbolTokenizer`.

    Raises:
        DamagedFile: a ValueError with the path, if the file holds no tokenizer.
        OSError: if the file is missing or cannot be read.
    """
    with open(path, "rb") as file:
        beginning = file.read(16)
    if beginning.startswith(b"[PAD]"):
        kind = WordPieceTokenizer
    elif not beginning.startswith(b"{"):
        kind = SentencePieceTokenizer  # its protocol buffer never begins with a brace
    else:
        kind = SymbolTokenizer if b"characters" in beginning else BytePairTokenizer
    try:
        return kind.load(path)
    except (OSError, DamagedFile):
        raise
    except Exception as error:  # a damaged file makes them raise many kinds
        message = f"{path} is damaged, or holds no tokenizer: {in_one_line(error)}"
        raise DamagedFile(message) from error
