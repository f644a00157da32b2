"""Runs, prepared texts and checkpoints have a number of their format; others are refused."""

import re

import numpy as np
import pytest

from keras_transformer.data import IdRows, Prepared
from keras_transformer.data.prepared import PreparedWriter
from keras_transformer.files import load_arrays, load_json, save_arrays, save_json
from keras_transformer.training import checkpoint_files
from train.run import Run
from train.translation import TranslationConfig


def run(folder):
    Run(folder, TranslationConfig).save_config(TranslationConfig())
    return folder / "config.json", Run(folder, TranslationConfig).config


def prepared_text(folder):
    with PreparedWriter(folder, ["text"], 11) as writer:
        writer.append({"text": IdRows(np.array([4, 5, 6]), [2, 1])})
        writer.finish({"kind": "documents"})
    return folder / "manifest.json", lambda: Prepared(folder)


def checkpoint(folder):
    file = folder / "step-3.npz"
    checkpoint_files.write(file, {"weights/0": np.ones(5)}, {})
    return file, lambda: checkpoint_files.problem_with(file, {}, ())


@pytest.mark.parametrize("number", [None, 0, 3])
@pytest.mark.parametrize("make", [run, prepared_text, checkpoint])
def test_another_format_is_refused_in_one_line(make, number, tmp_path):
    file, read = make(tmp_path)
    read()
    is_json = file.suffix == ".json"
    content = load_json(file, "") if is_json else load_arrays(file)
    expected = content.pop("format")
    assert expected == (2 if make is prepared_text else 1)
    if number is not None:
        content["format"] = number
    if is_json:
        save_json(file, content)
    else:
        save_arrays(file, content.items())
    said = rf"^{re.escape(str(file))} must have the format {expected}\. Received: {number!r}\.$"
    with pytest.raises(ValueError, match=said):
        read()
