"""Writes our models in other libraries' formats, each checked with the foreign library."""

import importlib
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

import numpy as np

from keras_transformer.convert.tables import ConversionError
from keras_transformer.files import check_free, whole
from keras_transformer.models.lora import lora_of

# The module of each format: `write(text_model, draft, **options)` fills a folder, `LIBRARIES` are
# what must be installed to check it, and `example(text_model, **options)` gives the arrays,
# requests and expected answers, that a script of checks/ compares in a process of its own: `CHECK`,
# or else the one of the module's name.
WRITERS = {
    name: name for name in ("ctranslate2", "huggingface", "keras_hub", "litert", "onnx", "openvino")
}
TIMEOUT = 600  # seconds


def write(text_model, form, output, **options):
    """Writes a model in another format, to a folder that appears whole or not at all.

    A fresh process loads the draft with the foreign library and compares its answers with ours
    before the folder gets its name; if the library is not installed, a warning says that the
    folder is not checked.

    Args:
        text_model: a `serving.Translator`, `Generator` or `Classifier`.
        form: a key of `WRITERS`.
        output: path of the new folder, missing or empty.
        **options: options of the format.

    Returns:
        The path.

    Raises:
        ConversionError: if the format is unknown, cannot hold the model, or the foreign library
            gives other answers.
        ValueError: if the folder is not empty.
    """
    if form not in WRITERS:
        raise ConversionError(f"format must be one of {', '.join(WRITERS)}. Received: {form!r}.")
    if lora_of(text_model.model) is not None:
        raise ConversionError("The model has LoRA. Call merge_lora, or write_peft for LoRA alone.")
    output = pathlib.Path(output)
    check_free(output, "Choose another folder, or delete it.")
    writer = importlib.import_module(f"keras_transformer.convert.{WRITERS[form]}")
    with whole(output) as draft:
        draft.mkdir()
        writer.write(text_model, draft, **options)
        script = getattr(writer, "CHECK", WRITERS[form])
        check(script, writer.LIBRARIES, draft, lambda: writer.example(text_model, **options))
    return output


def check(name, libraries, draft, example):
    """Runs `checks/<name>.py`, which imports nothing of this library, on a draft.

    Args:
        name: of the script.
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
    script = pathlib.Path(__file__).with_name("checks") / f"{name}.py"
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "example.npz")
        np.savez(file, **arrays)
        # -P: do not search the script's folder, whose files have the names of libraries.
        command = [sys.executable, "-P", str(script), str(draft), str(file)]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT, env=environment
        )
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()
        reason = f"the check by {libraries[0]} failed: {lines[-1]}"
        raise ConversionError(f"Nothing was written: {reason}")
