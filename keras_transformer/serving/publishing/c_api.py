"""Queries a SavedModel the way TensorFlow Serving does: without Keras or TensorFlow's Python.

A fresh process loads the SavedModel through the C API of the installed TensorFlow, with the same
loader, session and kernels as tensorflow_model_server, and with XLA disabled like there. The
process imports nothing but the standard library, so a model that depends on Python code fails
here, with TensorFlow's own message.

    python keras_transformer/serving/publishing/c_api.py saved_models/demo/1 \\
        --text "It is ten past six."
    python keras_transformer/serving/publishing/c_api.py saved_models/demo/1 --signatures
    python keras_transformer/serving/publishing/c_api.py saved_models/demo/1 < requests.jsonl

A request and its answer are one line of JSON each, in the column form of TensorFlow Serving's
REST API: {"signature_name": "serving_default", "inputs": {"text": ["A dog.", {"b64": "/w=="}]}}
gives {"outputs": {"translation": [...], ...}} or {"error": "..."}. With "shapes": true in the
request, the answer also has the shape of each output, which an empty list does not show.

The process runs `python -S -I` with an empty environment, so that it cannot import any installed
package. With `--packages FOLDER` it loads the libraries of another TensorFlow, such as the older
one of a server (`.ci/older_tensorflow` installs one).
"""

import argparse
import base64
import glob
import importlib.util
import json
import os
import subprocess
import sys

ERROR = "TensorFlow: "  # marks the error of c_session.py among the warnings on stderr


def to_json(value):
    """Bytes in the JSON form of TensorFlow Serving."""
    return {"b64": base64.b64encode(value).decode()}


def find_libraries(packages=None):
    """Finds TensorFlow and the operation libraries of tensorflow-text.

    Args:
        packages: folder of both packages; defaults to the installed ones.

    Returns:
        The pair of the folder of TensorFlow and a list of paths of libraries.

    Raises:
        FileNotFoundError: if there is no TensorFlow in `packages`.
    """
    if packages is None:
        tensorflow_folder, text_folder = map(_installed, ("tensorflow", "tensorflow_text"))
    else:
        tensorflow_folder = os.path.abspath(os.path.join(packages, "tensorflow"))
        text_folder = os.path.abspath(os.path.join(packages, "tensorflow_text"))
    if not os.path.isdir(tensorflow_folder or ""):
        raise FileNotFoundError(
            "packages must be a folder with the packages tensorflow and tensorflow_text, made "
            f"e.g. by `pip install --target`. Received: packages={packages!r}."
        )
    operations = os.path.join(text_folder or "", "python", "ops", "_*.so")
    return tensorflow_folder, sorted(glob.glob(operations)) if text_folder else []


def bare_command(path, *arguments, packages=None):
    """The command and environment of a Python process that cannot import installed packages.

    Args:
        path: folder of the SavedModel.
        *arguments: further arguments of c_session.py.
        packages: as for `find_libraries`.

    Returns:
        The pair of a list of strings and a dictionary.
    """
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "c_session.py")
    libraries = ["--libraries", json.dumps(find_libraries(packages))]
    command = [sys.executable, "-S", "-I", script, os.fspath(path), *arguments, *libraries]
    # No GPU: the calling process usually occupies all of its memory.
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", "LANG": "C.UTF-8", "CUDA_VISIBLE_DEVICES": "-1"}
    return command, environment


def ask(path, requests, timeout=600, packages=None):
    """Sends requests to a SavedModel in a fresh process.

    Args:
        path: folder of the SavedModel.
        requests: a list of requests; strings may be bytes.
        timeout: for all requests together, in seconds.
        packages: folder of another TensorFlow, as for `find_libraries`.

    Returns:
        The answers, in the order of the requests: {"outputs": ...} or {"error": message}.

    Raises:
        RuntimeError: if the model cannot be loaded, the process dies, or the time is up.
        FileNotFoundError: if there is no TensorFlow in `packages`.
    """
    command, environment = bare_command(path, packages=packages)
    lines = "".join(json.dumps(request, default=to_json) + "\n" for request in requests)
    try:
        process = subprocess.run(
            command, input=lines.encode(), env=environment, capture_output=True, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"No answer from {path} within {timeout} seconds.") from None
    if process.returncode:
        noise, _, reason = process.stderr.decode("utf-8", "replace").rpartition(ERROR)
        raise RuntimeError(f"Exit code {process.returncode}: {(reason or noise).strip()}")
    return [json.loads(line) for line in process.stdout.splitlines()]


def _installed(package):
    spec = importlib.util.find_spec(package)
    return spec and os.path.dirname(spec.origin)


def main():
    """Replaces this process by one that answers the requests."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog="With neither --text nor --signatures, reads requests from standard input, one "
        "line of JSON each.",
    )
    parser.add_argument("model", help="folder of the SavedModel, NAME/VERSION")
    parser.add_argument(
        "--text", action="append", default=[], help="text for serving_default; may be repeated"
    )
    parser.add_argument("--signatures", action="store_true", help="print all signatures")
    parser.add_argument(
        "--packages",
        help="folder of another tensorflow and tensorflow_text",
    )
    options = parser.parse_args()
    arguments = [f"--text={text}" for text in options.text]
    arguments += ["--signatures"] * options.signatures
    try:
        command, environment = bare_command(options.model, *arguments, packages=options.packages)
    except FileNotFoundError as error:
        sys.exit(str(error))
    os.execve(command[0], command, environment)


if __name__ == "__main__":
    main()
