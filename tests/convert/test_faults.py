"""Single faults in sound folders of each format: equal results, or a line that names the file."""

import json
import random
import shutil

import h5py
import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_transformer as kt
from keras_transformer import convert
from keras_transformer.convert import ConversionError, opennmt
from keras_transformer.tokenizers.sentencepiece_format import Model
from tests.convert import test_mistakes
from tests.convert.folders import FAMILIES, TEXTS, a_llama
from tests.forged import readers

SHOWN = [*TEXTS.sources[:20], "naïve 日本 🦜 >>deu<<", ""]


def a_tokenizer_json(path):
    """GPT-2 with the tokenizer in one file."""
    FAMILIES["gpt2"](path)
    content = test_mistakes.byte_pair_file(path, 0)
    for name in ("vocab.json", "merges.txt"):
        (path / name).unlink()
    (path / "tokenizer.json").write_text(json.dumps(content), "utf-8")


def a_peft(path):
    (path / "base").mkdir()
    a_llama(path / "base")
    tuned = kt.add_lora(convert.read(path / "base").model, 2)
    for weight in tuned.trainable_weights:
        weight.assign(keras.random.normal(weight.shape, seed=3))
    convert.write_peft(tuned, path / "lora", "llama")


def read_all(path, name):
    """Everything that a folder of a format holds, arrays and others that can be compared."""
    if name == "PEFT":
        tuned = convert.read_peft(convert.read(path / "base").model, path / "lora", "llama")
        return [keras.ops.convert_to_numpy(weight) for weight in tuned.weights]
    if name.endswith("alone"):
        tokenizer, theirs = convert.load_tokenizer_of(path)
        return [np.asarray(theirs), tokenizer.tokenize(SHOWN).to_list()]
    found = convert.read(path / "avg" if name == "opennmt" else path)
    return [
        *(keras.ops.convert_to_numpy(weight) for weight in found.model.weights),
        *(t and t.tokenize(SHOWN).to_list() for t in (found.tokenizer, found.target_tokenizer)),
        repr(found.settings), found.labels, found.multi_label, repr(found.config),
    ]  # fmt: skip


def equal(ours, others):
    return len(ours) == len(others) and all(
        np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b
        for a, b in zip(ours, others, strict=True)
    )


FORMATS = {
    **FAMILIES,
    "tokenizer.json": a_tokenizer_json,
    "SentencePiece alone": readers._released_pieces,
    "word pieces alone": readers._word_file,
    "PEFT": a_peft,
}


def a_byte(content, draw):
    place = draw.randrange(len(content))
    return content[:place] + bytes([draw.randrange(256)]) + content[place + 1 :]


def no_utf8(content, draw):
    place = draw.randrange(len(content))
    return content[:place] + b"\xff" + content[place + 1 :]


# Of the bytes of any file.
OF_BYTES = {
    "a byte": a_byte,
    "cut off": lambda content, draw: content[: draw.randrange(len(content))],
    "empty": lambda content, draw: b"",
    "bytes behind": lambda content, draw: content + b"\x00\x01",
}


def of_lines(change):
    def changed(content, draw):
        lines = content.split(b"\n")
        change(lines, draw.randrange(max(1, len(lines) - 1)))
        return b"\n".join(lines)

    return changed


OF_LINES = {
    "no UTF-8": no_utf8,
    "a line removed": of_lines(lambda lines, i: lines.pop(i)),
    "a line twice": of_lines(lambda lines, i: lines.insert(i, lines[i])),
    "a blank line": of_lines(lambda lines, i: lines.insert(i, b"")),
    "a line emptied": of_lines(lambda lines, i: lines.__setitem__(i, b"")),
    "a line of spaces": of_lines(lambda lines, i: lines.__setitem__(i, b"  ")),
    "a carriage return": of_lines(lambda lines, i: lines.__setitem__(i, lines[i] + b"\r")),
    "a carriage return inside": of_lines(lambda lines, i: lines.__setitem__(i, b"a\r" + lines[i])),
}


def in_object(change):
    def changed(content, draw):
        values = json.loads(content)
        inner = values
        while isinstance(inner, dict) and inner:
            name = draw.choice([*inner])
            if not isinstance(inner[name], dict) or not inner[name] or draw.random() < 0.2:
                change(inner, name)
                break
            inner = inner[name]
        return json.dumps(values, indent=2).encode()

    return changed


OF_JSON = {
    "another name": in_object(lambda inner, name: inner.update({f"{name}x": inner.pop(name)})),
    "no name": in_object(lambda inner, name: inner.pop(name)),
    "null": in_object(lambda inner, name: inner.update({name: None})),
    "a text": in_object(lambda inner, name: inner.update({name: "eight"})),
    "a list": in_object(lambda inner, name: inner.update({name: [1]})),
    "a negative number": in_object(lambda inner, name: inner.update({name: -3})),
    "no object": lambda content, draw: b"[1, 2]",
}


def in_arrays(change):
    """Changes the arrays of a file: of safetensors or of Keras."""

    def changed(file, draw):
        if file.suffix == ".safetensors":
            arrays = load_file(file)
            change(arrays, draw.choice([*arrays]))
            save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, file)
            return
        with h5py.File(file, "r+") as opened:
            arrays = {}
            opened.visititems(
                lambda name, part: (
                    arrays.update({name: np.array(part)})
                    if isinstance(part, h5py.Dataset) and part.size
                    else None
                )
            )
            before = dict(arrays)
            change(arrays, draw.choice([*arrays]))
            for name in before:
                if name not in arrays or arrays[name] is not before[name]:
                    del opened[name]
            for name, array in arrays.items():
                if name not in opened:
                    opened[name] = array

    return changed


def cast(dtype):
    return in_arrays(lambda arrays, name: arrays.update({name: arrays[name].astype(dtype)}))


def add(name, array):
    return in_arrays(lambda arrays, _: arrays.update({name: array}))


IDS = np.arange(6)[None]
OF_ARRAYS = {
    "another name": in_arrays(lambda arrays, name: arrays.update({f"{name}x": arrays.pop(name)})),
    "no array": in_arrays(lambda arrays, name: arrays.pop(name)),
    "int64": cast("int64"),
    "bool": cast("bool"),
    "int8": cast("int8"),
    "a row less": in_arrays(
        lambda arrays, name: arrays.update({name: np.atleast_1d(arrays[name])[:-1]})
    ),
    "an axis more": in_arrays(lambda arrays, name: arrays.update({name: arrays[name][None]})),
    "not a number": in_arrays(lambda arrays, name: arrays.update({name: arrays[name] * np.nan})),
    "ids beside": add("embeddings.token_type_ids", IDS),
    "a mask beside": add("encoder.mask", IDS > 2),
    "numbers beside": add("more", IDS / 7),
    "another version's ids": add("embeddings.position_ids", IDS),
}
HARMLESS = ("ids beside", "a mask beside", "numbers beside", "another version's ids")


def in_pieces(change):
    def changed(content, draw):
        model = Model.FromString(content)
        change(model.pieces, draw.randrange(4, len(model.pieces)))
        return model.SerializeToString()

    return changed


def rename(name):
    return in_pieces(lambda pieces, i: setattr(pieces[i], "piece", name or pieces[i - 1].piece))


OF_PIECES = {
    "a piece removed": in_pieces(lambda pieces, i: pieces.pop(i)),
    "a piece twice": rename(None),
    "a piece without text": rename(""),
    "a piece of another type": in_pieces(lambda pieces, i: setattr(pieces[i], "type", 3)),
    "a score that is no number": in_pieces(
        lambda pieces, i: setattr(pieces[i], "score", float("nan"))
    ),
}
TEXT_FILES = (".txt", ".vocab", ".yml", ".py", ".json")


def faults_of(file):
    """The faults that a file may have, {name: function of its path and a source of chance}."""

    def of_content(change):
        return lambda path, draw: path.write_bytes(change(path.read_bytes(), draw))

    faults = {"absent": lambda path, draw: path.unlink()}
    changes = dict(OF_BYTES)
    if file.suffix in TEXT_FILES:
        changes |= OF_LINES
    if file.suffix == ".json":
        changes |= OF_JSON
    if file.suffix in (".model", ".spm"):
        changes |= OF_PIECES
    faults |= {name: of_content(change) for name, change in changes.items()}
    return faults | (OF_ARRAYS if file.suffix in (".safetensors", ".h5") else {})


# Files that say something else, as they may, where they say less or other things.
SETTINGS = ("config.json", "generation_config.json", "tokenizer_config.json", "task.json",
            "data.yml", "model_description.py", "adapter_config.json")  # fmt: skip
OTHER_PIECES = ("a byte", "no UTF-8", "a line removed", "cut off", "a piece removed",
                "a piece of another type", "a carriage return inside", "empty")  # fmt: skip


def may_differ(file, kind):
    """Whether a changed file is a sound one of another model, as far as anyone can tell."""
    if file.name in SETTINGS:
        return kind != "a byte" or file.suffix == ".json"
    if file.name in ("vocab.json", "tokenizer.json") and kind == "another name":
        return True
    if file.name == "merges.txt" and kind == "a line emptied":  # which their library skips, too
        return True
    is_of_pieces = file.suffix in (".txt", ".vocab", ".model", ".spm", ".json")
    return kind == "a byte" or (is_of_pieces and kind in OTHER_PIECES)


def names_it(message, file):
    """Whether a message names a file, or what stands for it."""
    others = {"checkpoint": "ckpt", "data.yml": "YAML"}
    name = "ckpt-" if file.name.startswith("ckpt-") else file.name
    return name in message or others.get(name, name) in message


@pytest.mark.usefixtures("unchecked")  # the sound folder
@pytest.mark.parametrize(
    ("name", "count"),
    [
        *((name, 5) for name in ("bert", "opennmt", "word pieces alone")),
        *(pytest.param(name, 6, marks=pytest.mark.slow) for name in FORMATS),
        *(pytest.param(name, 70, marks=pytest.mark.soak) for name in FORMATS),
    ],
)
def test_a_single_fault_is_named(name, count, tmp_path, monkeypatch, caplog):
    test_mistakes.build_once(monkeypatch)
    sound, faulty = tmp_path / "sound", tmp_path / "faulty"
    sound.mkdir()
    FORMATS[name](sound)
    for file in sound.rglob("*.json"):  # one value a line, as other libraries write it
        file.write_text(json.dumps(json.loads(file.read_text("utf-8")), indent=2), "utf-8")
    expected = read_all(sound, name)
    files = [file for file in sorted(sound.rglob("*")) if file.is_file()]
    if name == "PEFT":
        files = [file for file in files if file.parent.name == "lora"]
    cases = [(file, kind) for file in files for kind in faults_of(file)]
    draw, results = random.Random(f"{name} {count}"), []
    for file, kind in draw.sample(cases, min(count, len(cases))):
        shutil.rmtree(faulty, ignore_errors=True)
        shutil.copytree(sound, faulty)
        place = faulty / file.relative_to(sound)
        faults_of(file)[kind](place, draw)
        caplog.clear()
        try:
            found = read_all(faulty, name)
        except ConversionError as error:
            said = str(error)
            assert names_it(said, file) and "\n" not in said, (file.name, kind, said)
            assert kind not in HARMLESS or name == "PEFT", (file.name, kind, said)
            results.append("named")
            continue
        is_equal = equal(found, expected)
        assert is_equal or may_differ(file, kind), (file.name, kind)
        if kind in ("ids beside", "a mask beside", "numbers beside"):
            assert "has no place for these arrays" in caplog.text, (file.name, kind)
        results.append("equal" if is_equal else "other")
    print(f"{name}: {', '.join(f'{results.count(one)} {one}' for one in sorted(set(results)))}")
    assert "named" in results


@pytest.mark.parametrize("line", ["", " ", "a\rb", "\r"])
def test_a_line_of_an_opennmt_vocabulary_without_a_word_is_named(line, tmp_path):
    readers._opennmt_settings(tmp_path)
    (tmp_path / "words.txt").write_bytes(f"<blank>\n<s>\n</s>\na\n{line}\ndog\n".encode())
    with pytest.raises(ConversionError, match=r"words\.txt: line 5 must be a word.* Received: '"):
        opennmt.OpenNMTSettings(tmp_path).words("source", {"table": np.zeros(7)}, "table")


def test_ids_beside_the_weights_are_named_in_a_warning(tmp_path, caplog):
    FAMILIES["bert"](tmp_path)
    OF_ARRAYS["ids beside"](tmp_path / "model.safetensors", random)
    convert.read(tmp_path)
    assert "has no place for these arrays, which were not read: embeddings.token_type_ids" in (
        caplog.text
    )
