"""Writes our models in other libraries' formats, each checked with the foreign library."""

import functools
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from keras_transformer.convert import ctranslate2, graphs, huggingface, keras_hub
from keras_transformer.convert.tables import ConversionError
from keras_transformer.files import atomic_path, check_free
from keras_transformer.models.lora import lora_of


class Format(NamedTuple):
    """How models are written in a format, and how this is checked.

    Args:
        write: `write(text_model, draft)` fills the folder with the path `draft`, or raises
            `ConversionError`; if there are several dtypes, it takes the `dtype`, too.
        example: `example(text_model)` returns the arrays, requests and expected answers, that the
            function of the format in checks.py compares in a process of its own.
        libraries: what must be installed to check it.
        dtypes: those that the weights may have.
    """

    write: Callable
    example: Callable
    libraries: tuple[str, ...]
    dtypes: tuple[str, ...] = ("float32",)


def _graph_writer(write_file):
    return functools.partial(graphs.write, write_file=write_file)


WRITERS = {
    "ctranslate2": Format(
        ctranslate2.write, ctranslate2.example, ("ctranslate2",), ctranslate2.DTYPES
    ),
    "huggingface": Format(huggingface.write, huggingface.example, ("transformers", "torch")),
    "keras_hub": Format(keras_hub.write, keras_hub.example, ("keras_hub",)),
    "litert": Format(_graph_writer(graphs.write_litert), graphs.example, ("ai_edge_litert",)),
    "onnx": Format(_graph_writer(graphs.write_onnx), graphs.example, ("onnxruntime",)),
    "openvino": Format(_graph_writer(graphs.write_openvino), graphs.example, ("openvino",)),
}
TIMEOUT = 600  # seconds


def write(text_model, format, output, dtype="float32"):
    """Writes a model in another format, to a folder that appears once it is complete.

    A fresh process loads the draft with the foreign library and compares its answers with ours
    before the folder gets its name; if the library is not installed, a warning says that the
    folder is not checked.

    Args:
        text_model: a `serving.Translator`, `Generator`, `Classifier` or `Answerer`.
        format: a key of `WRITERS`.
        output: path of the new folder, missing or empty.
        dtype: dtype of the weights, "float32"; for CTranslate2 also "int8", "int16", "bfloat16" or
            "float16".

    Returns:
        The path.

    Raises:
        ConversionError: if the format or its dtype is unknown, it cannot hold the model, or the
            foreign library gives other answers.
        ValueError: if the folder is not empty.
    """
    if format not in WRITERS:
        raise ConversionError(f"format must be one of {', '.join(WRITERS)}. Received: {format!r}.")
    if lora_of(text_model.model) is not None:
        raise ConversionError("The model has LoRA. Call merge_lora, or write_peft for LoRA alone.")
    writer = WRITERS[format]
    if dtype not in writer.dtypes:
        raise ConversionError(
            f"dtype must be {' or '.join(writer.dtypes)} in this format. Received: {dtype!r}."
        )
    options = {"dtype": dtype} if len(writer.dtypes) > 1 else {}
    output = pathlib.Path(output)
    check_free(output, "Choose another folder, or delete it.")

    def example():
        return writer.example(text_model) | {"dtype": np.array(dtype)}

    with atomic_path(output) as draft:
        draft.mkdir()
        writer.write(text_model, draft, **options)
        check(format, writer.libraries, draft, example)
    return output


def check(name, libraries, draft, example):
    """Runs a function of checks.py, which imports nothing of this library, on a draft.

    Args:
        name: of the function.
        libraries: without one of which a warning says that nothing is checked.
        draft: path of the folder.
        example: returns the arrays that the script compares, a dictionary.

    Raises:
        ConversionError: if the script finds a different answer.
    """
    for library in libraries:
        if not importlib.util.find_spec(library):
            warning = f"The output is not checked: {library} is not installed."
            warnings.warn(warning, stacklevel=3)
            return
    arrays = example()
    script = pathlib.Path(__file__).with_name("checks.py")
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "example.npz")
        np.savez(file, **arrays)
        # -P: do not search the script's folder, whose files may have the names of libraries.
        command = [sys.executable, "-P", str(script), name, str(draft), str(file)]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT, env=environment
        )
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()
        reason = f"the check by {libraries[0]} failed: {lines[-1]}"
        raise ConversionError(f"Nothing was written: {reason}")
