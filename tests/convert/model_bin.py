"""Folders of CTranslate2 with random weights, made without CTranslate2."""

import json
import struct

import ml_dtypes
import numpy as np

import keras_transformer as kt
from keras_transformer.convert.ctranslate2 import rows
from keras_transformer.convert.tables import VocabularyPermutation, arrays_of

TYPES = ["float32", "int8", "int16", "int32", "float16", "bfloat16"]
OLD_SIZES = {"float32": 4, "int16": 2, "int8": 1}
SOURCE = ["<blank>", "<s>", "</s>", "\u0628", "\u0627", "\u064e", "\u200c", "."]
TARGET = ["<blank>", "<s>", "</s>", "b", "a", "sh", "'"]
CONFIG = {
    "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "decoder_start_token": "<s>",
    "add_source_bos": False, "add_source_eos": False, "layer_norm_epsilon": 1e-4,
}  # fmt: skip
SINES = {"interleaved": False, "first_position": 1, "max_wavelength": 10000 ** (16 / 14)}
SIZES = {"num_layers": 1, "hidden_dim": 16, "num_heads": 2, "intermediate_dim": 12}


def text(string):
    return struct.pack("<H", len(string.encode()) + 1) + string.encode() + b"\0"


def content_of(variables, aliases=(), version=6, specification="TransformerSpec", revision=7):
    """The bytes of a model.bin.

    Args:
        variables: {name: NumPy array or number}.
        aliases: pairs of an alias and the name of a variable.
        version: of the file.
        specification: of the model.
        revision: of the specification.
    """
    parts = [struct.pack("<I", version), text(specification)]
    parts.append(struct.pack("<II", revision, len(variables)))
    for name, array in variables.items():
        array = np.asarray(array)
        parts += [text(name), struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)]
        kind, count = TYPES.index(array.dtype.name), array.nbytes
        if version < 4:
            kind, count = OLD_SIZES[array.dtype.name], array.size
        parts += [struct.pack("<BI", kind, count), array.tobytes()]
    if version > 2:
        parts.append(struct.pack("<I", len(aliases)))
        parts += [text(alias) + text(name) for alias, name in aliases]
    return b"".join(parts)


def variables_of(model, *orders):
    """All variables of a translation model, of the target's order and the source's."""
    table = list(rows(model, *orders))
    found = arrays_of(table)
    for row in table:
        found |= dict.fromkeys(row.twins, found[row.names[0]])
    for side in ("encoder", "decoder"):
        stack = getattr(model, side)
        found |= {
            f"{side}/num_heads": np.int16(stack.num_heads),
            f"{side}/pre_norm": np.int8(stack.normalize_first),
            f"{side}/activation": np.int8(0),
            f"{side}/scale_embeddings": np.int8(bool(model.target_embedding.scale)),
        }
    return found


def an_order(words):
    """Of words whose unknown one is appended."""
    size = len(words) + 1
    return VocabularyPermutation([0, size - 1, 1, 2, *range(3, size - 1)])


def a_model(**options):
    """A model of the vocabularies SOURCE and TARGET whose weights all matter."""
    options = {
        "tie_output": False, "output_bias": True, "positions": SINES, "source_end": False,
        "norm_epsilon": 1e-4, "dropout": 0.1, **SIZES, **options,
    }  # fmt: skip
    model = kt.translation(len(SOURCE) + 1, len(TARGET) + 1, **options)
    draw = np.random.default_rng(3)
    for weight in sorted(model.weights, key=lambda weight: weight.path):
        if "seed" not in weight.path:
            weight.assign(weight.path.endswith("gamma") + 0.3 * draw.normal(size=weight.shape))
    return model


def a_ctranslate2(path, model=None, config=(), variables=(), without=(), **options):
    """Makes a folder whose tokens are separated by spaces.

    Args:
        path: of the folder.
        model: of the vocabularies SOURCE and TARGET; None for `a_model`.
        config: what replaces settings of CONFIG; None for no config.json.
        variables: what replaces variables of model.bin.
        without: names of variables to leave out.
        **options: of `content_of`.

    Returns:
        The model.
    """
    model = model or a_model()
    found = variables_of(model, an_order(TARGET), an_order(SOURCE)) | dict(variables)
    found = {name: array for name, array in found.items() if name not in without}
    path.mkdir(exist_ok=True)
    (path / "model.bin").write_bytes(content_of(found, **options))
    for side, words in (("source", SOURCE), ("target", TARGET)):
        (path / f"{side}_vocabulary.txt").write_text("".join(f"{w}\n" for w in words), "utf-8")
    if config is not None:
        (path / "config.json").write_text(json.dumps(CONFIG | dict(config)), "utf-8")
    return model


def in_bfloat16(array):
    return array.astype(ml_dtypes.bfloat16)
