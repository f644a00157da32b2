"""Servers are older than trainers: what is exported here answers in their TensorFlow too."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from keras_transformer.serving.publishing import c_api
from keras_transformer.serving.publishing.checks import check_answers
from keras_transformer.serving.publishing.export import golden_answers

from .conftest import SENTENCES, SMALL_MODULES

OLDER = [folder for folder in os.environ.get("OLDER_TENSORFLOW", "").split(os.pathsep) if folder]


@pytest.fixture(scope="module", params=SMALL_MODULES)
def served(request, exported):
    module, path = exported(request.param)
    return path, golden_answers(module, np.array([text.encode() for text in SENTENCES], object))


@pytest.mark.skipif(
    not OLDER,
    reason="needs folders in OLDER_TENSORFLOW; `.ci/older_tensorflow 2.19 FOLDER` makes one",
)
@pytest.mark.parametrize("packages", OLDER)
def test_every_signature_answers_in_an_older_tensorflow(served, packages):
    path, (requests, expected) = served
    if "word-pieces" in path and list(pathlib.Path(packages).glob("tensorflow_text-2.19.0.*")):
        pytest.skip("tensorflow-text 2.19.0 was published with libraries that cannot be loaded")
    check_answers(path, requests, expected, packages=packages)


def test_a_folder_without_tensorflow_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"packages must be a folder .* Received: packages"):
        c_api.find_libraries(tmp_path)
    command = [sys.executable, c_api.__file__, str(tmp_path), "--packages", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("packages must be a folder")
    assert done.stderr.count("\n") == 1, "one line, no traceback"
