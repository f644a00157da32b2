"""What reads the files of runs, exports and released folders: a sample of each, and its reader."""

import json
import pathlib
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from keras_transformer import convert
from keras_transformer.convert.folder import ModelFolder
from keras_transformer.convert.opennmt import OpenNMTSettings
from keras_transformer.convert.sentencepiece import read_model
from keras_transformer.convert.tokenizers import load_tokenizer_of
from keras_transformer.data import IdRows, LabelledBatches, PackedRows, Prepared, TokenBatches
from keras_transformer.data.prepared import PreparedWriter
from keras_transformer.files import check_archive, load_arrays, save_arrays, save_json
from keras_transformer.serving import RunFolder, run_folder
from keras_transformer.tokenizers import (
    BytePairTokenizer,
    SymbolTokenizer,
    load_tokenizer,
    train_byte_pairs,
    train_sentencepiece,
    train_word_pieces,
)
from keras_transformer.training import checkpoint_files

TEXTS = ["a dog runs", "ein Hund läuft", "dogs and dogs"]


class Reader(NamedTuple):
    """A kind of file.

    Attributes:
        make: writes a sample into an empty folder.
        read: reads what is in the folder.
        files: pattern of the files to forge.
        is_foreign: whether it needs a process of its own, because a library that is not Python
            parses the file.
    """

    make: Callable
    read: Callable
    files: str = "*"
    is_foreign: bool = False


def _arrays(folder):
    values = {"a": np.arange(6.0).reshape(2, 3), "b/c": np.int64(7), "text": np.array(["ä", "b"])}
    save_arrays(folder / "arrays.npz", values.items())


def _checkpoint(folder):
    arrays = {"format": checkpoint_files.FORMAT, "weights/0": np.ones(3, "float32")}
    save_arrays(folder / "step.npz", {**arrays, "notes/step": np.int64(5)}.items())


def _read_checkpoint(folder):
    if problem := checkpoint_files.problem_with(folder / "step.npz", {}, ()):
        raise ValueError(problem)  # a trainer looks for an older one


def _archive(folder):
    import keras

    inputs = keras.Input((3,))
    keras.Model(inputs, keras.layers.Dense(2)(inputs)).save(folder / "model.keras")


def _run(folder):
    labels = {"names": ["bad", "good"], "multi_label": False}
    save_json(folder / "labels.json", labels)
    config = {"format": run_folder.FORMAT, "max_length": 7, "num_beams": 3, "scoring": "gnmt"}
    (folder / "config.json").write_text(json.dumps(config))
    save_arrays(folder / "checksums.npz", [("tokenizer", np.int64(5)), ("ids", np.int64(7))])


def _read_run(folder):
    run = RunFolder(folder)
    run.checksums()
    run.settings()
    run.labels()


def _prepared(folder):
    ids = IdRows(np.array([4, 5, 6, 7, 8, 9, 4]), [3, 2, 2])
    with PreparedWriter(folder / "text", ["text"], 11, {"labels": ("float32", (2,))}) as writer:
        writer.append({"text": ids}, {"labels": np.array([[1, 0], [0, 1], [1, 0]])})
        writer.finish({"kind": "classification", "names": ["a", "b"]})
    _read_prepared(folder)


def _read_prepared(folder):
    prepared = Prepared(folder / "text")
    prepared.check()
    ids, labels = prepared.columns["text"], prepared.array("labels")
    plan = folder / "plan"
    LabelledBatches(ids, labels, prepared.manifest["names"], 40, plan_folder=plan)._plan.batch(0)
    plan = folder / "packed"
    TokenBatches(ids, ids, 40, 9, shapes=PackedRows(), plan_folder=plan)._plan.batch(0)


def _tokenizer(make):
    def read(folder):
        tokenizer = load_tokenizer(folder / "tokenizer.model")
        ids = tokenizer.tokenize(["a dog \x00 é \U0001f99c", ""])
        tokenizer.detokenize(ids).numpy()

    return make, read


def _save(make):
    return lambda folder: make().save(folder / "tokenizer.model")


def _family(name, files, inside=""):
    def make(folder):
        from tests.convert.folders import FAMILIES

        FAMILIES[name](folder)

    return Reader(make, lambda folder: convert.read(folder / inside), files, True)


def _released_tokenizer(kind):
    """A tokenizer.json as Hugging Face's library writes it, without that library."""

    def make(folder):
        if kind == "WordPiece":
            pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdog", "##s", "dog"]
            content = {
                "added_tokens": [{"id": 0, "content": "[PAD]", "special": True}],
                "normalizer": {"type": "BertNormalizer", "clean_text": True, "lowercase": True,
                               "handle_chinese_chars": True, "strip_accents": None},
                "pre_tokenizer": {"type": "BertPreTokenizer"},
                "model": {"type": "WordPiece", "unk_token": "[UNK]",
                          "max_input_chars_per_word": 100,
                          "continuing_subword_prefix": "##",
                          "vocab": {piece: n for n, piece in enumerate(dict.fromkeys(pieces))}},
            }  # fmt: skip
        elif kind == "Unigram":
            vocab = [["<s>", 0.0], ["<pad>", 0.0], ["</s>", 0.0], ["<unk>", 0.0]]
            vocab += [
                [piece, -float(n)] for n, piece in enumerate(["\u2581", *"abcdog", "\u2581dog"])
            ]
            content = {
                "added_tokens": [
                    {"id": n, "content": vocab[n][0], "special": True} for n in range(4)
                ],
                "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
                "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581",
                                  "prepend_scheme": "always"},
                "model": {"type": "Unigram", "unk_id": 3, "vocab": vocab},
            }  # fmt: skip
        else:
            train_byte_pairs(TEXTS, 270).save_files(folder / "vocab.json", folder / "merges.txt")
            vocabulary = json.loads((folder / "vocab.json").read_text("utf-8"))
            merges = (folder / "merges.txt").read_text("utf-8").split("\n")[1:-1]
            for name in ("vocab.json", "merges.txt"):
                (folder / name).unlink()
            level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
            content = {
                "added_tokens": [{"id": 0, "content": "<pad>", "special": True}],
                "normalizer": None,
                "pre_tokenizer": level,
                "model": {"type": "BPE", "dropout": None, "ignore_merges": False,
                          "vocab": vocabulary, "merges": merges},
            }  # fmt: skip
        (folder / "tokenizer.json").write_text(json.dumps(content), "utf-8")

    return Reader(make, load_tokenizer_of, is_foreign=True)


def _released_pieces(folder):
    (folder / "tokenizer.model").write_bytes(train_sentencepiece(TEXTS, 280).model)
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')


def _word_file(folder):
    train_word_pieces(TEXTS, 35).save(folder / "vocab.txt")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}')


def _byte_pair_files(folder):
    train_byte_pairs(TEXTS, 270).save_files(folder / "vocab.json", folder / "merges.txt")


def _weights(folder):
    from safetensors.numpy import save_file

    (folder / "config.json").write_text('{"model_type": "bert"}')
    save_file(
        {"a": np.ones((2, 3), "float32"), "b": np.ones(5, "float16")}, folder / "1.safetensors"
    )
    index = {
        "metadata": {"total_size": 34},
        "weight_map": {"a": "1.safetensors", "b": "1.safetensors"},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _opennmt_settings(folder):
    train_sentencepiece(TEXTS, 280).save(folder / "sp.model")
    (folder / "words.txt").write_text("<blank>\n<s>\n</s>\na\ndog\n")
    (folder / "data.yml").write_text(
        "data:\n  source_vocabulary: words.txt\n  target_vocabulary: words.txt\n"
        "  source_tokenization:\n    type: SentencePieceTokenizer\n    params: {model: sp.model}\n"
        "params: {beam_width: 3, length_penalty: 0.6, maximum_decoding_length: 20}\n"
    )


def _read_opennmt(folder):
    settings = OpenNMTSettings(folder)
    settings.words("source", {"table": np.zeros(6)}, "table")
    settings.source_end(True)
    settings.search()


def _export(folder):
    from tests.serving.exporting import Echo

    Echo().export(folder, "echo")


def _read_export(folder):
    from train.serve.__main__ import newest_versions
    from train.serve.saved_model import load_models

    load_models(newest_versions(folder))


def _trained(folder):
    from keras_transformer import classifier
    from tests.serving.conftest import SMALL

    classifier(280, 2, **SMALL).save(folder / "model.keras")
    config = {"format": run_folder.FORMAT, "max_length": 7}
    (folder / "config.json").write_text(json.dumps(config))


BYTE_PAIRS = _tokenizer(_save(lambda: train_byte_pairs(TEXTS, 270)))
PIECES = _tokenizer(_save(lambda: train_sentencepiece(TEXTS, 280)))
WORDS = _tokenizer(_save(lambda: train_word_pieces(TEXTS, 35)))
SYMBOLS = _tokenizer(_save(lambda: SymbolTokenizer("abc dog")))

# Our own parsers, of which each file takes milliseconds.
PARSERS = {
    "arrays": Reader(_arrays, lambda folder: load_arrays(folder / "arrays.npz")),
    "checkpoint": Reader(_checkpoint, _read_checkpoint),
    "archive": Reader(_archive, lambda folder: check_archive(folder / "model.keras")),
    "run": Reader(_run, _read_run),
    "prepared text": Reader(_prepared, _read_prepared, "*/*"),
    "fields of SentencePiece": Reader(
        lambda folder: train_sentencepiece(TEXTS, 280).save(folder / "a.model"),
        lambda folder: read_model(folder / "a.model"),
    ),
    "weights": Reader(_weights, lambda folder: dict(ModelFolder(folder).arrays())),
    "settings of OpenNMT": Reader(_opennmt_settings, _read_opennmt, "[dw]*"),
    "symbols": Reader(*SYMBOLS),
    "byte pairs": Reader(*BYTE_PAIRS, is_foreign=True),
    "word pieces": Reader(*WORDS, is_foreign=True),
    "SentencePiece": Reader(*PIECES, is_foreign=True),
    "tokenizer.json of byte pairs": _released_tokenizer("BPE"),
    "tokenizer.json of word pieces": _released_tokenizer("WordPiece"),
    "tokenizer.json of Unigram": _released_tokenizer("Unigram"),
    "released pieces": Reader(_released_pieces, load_tokenizer_of, is_foreign=True),
    "vocab.txt": Reader(_word_file, load_tokenizer_of, is_foreign=True),
    "vocab.json and merges.txt": Reader(_byte_pair_files, load_tokenizer_of, is_foreign=True),
    "byte pairs from files": Reader(
        _byte_pair_files,
        lambda folder: BytePairTokenizer.from_files(folder / "vocab.json", folder / "merges.txt"),
        is_foreign=True,
    ),
}

# What builds a model, a tenth of a second each.
MODELS = {
    "model.keras": Reader(_trained, lambda folder: RunFolder(folder).model(), "model*", True),
    "SavedModel": Reader(_export, _read_export, "**/*", True),
    "a folder of Marian": _family("marian", "*"),
    "a folder of BERT": _family("bert", "*"),
    "a folder of GPT-2": _family("gpt2", "*"),
    "a folder of M2M100": _family("m2m100", "*"),
    "a folder of BART": _family("bart", "*"),
    "a folder of T5": _family("t5", "*"),
    "a preset of KerasHub": _family("preset of bert", "**/*"),
    "a run of OpenNMT-tf": _family("opennmt", "**/*", "avg"),
}
READERS = PARSERS | MODELS


def attempt(reader, folder):
    """Reads a folder.

    Returns:
        "read"; "refused", for a ValueError with a message of one line; or what came out instead.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader.read(pathlib.Path(folder))
    except ValueError as error:
        said = str(error)
        return "refused" if said and "\n" not in said and len(said) < 3000 else f"unclear: {said!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "read"
