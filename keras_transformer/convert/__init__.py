"""Reads other people's models, and writes ours in other formats.

`load` reads the folder of a released model; `write` writes one of our models in another format.
Each family has one table that says which array belongs to which variable, for both directions.
"""

from keras_transformer.convert.folder import Converted, ModelFolder
from keras_transformer.convert.gpt2 import load_gpt2
from keras_transformer.convert.keras_hub import read_keras_hub
from keras_transformer.convert.loading import load, read
from keras_transformer.convert.peft import read_peft, write_peft
from keras_transformer.convert.tables import ConversionError, Row, arrays_of, assign
from keras_transformer.convert.tokenizers import load_tokenizer_of
from keras_transformer.convert.writing import write

__all__ = [
    "Converted",
    "ConversionError",
    "ModelFolder",
    "Row",
    "arrays_of",
    "assign",
    "load",
    "load_gpt2",
    "load_tokenizer_of",
    "read",
    "read_keras_hub",
    "read_peft",
    "write",
    "write_peft",
]
