"""Publishes a served model as a checked version that TensorFlow Serving picks up."""

import contextlib
import os
import re

import numpy as np
import tensorflow as tf

from keras_transformer.serving.publishing.checks import (
    check_answers,
    check_graph,
    check_shapes,
    check_size,
)
from keras_transformer.serving.publishing.draft_folder import draft_folder
from keras_transformer.serving.publishing.warmup import write_batching, write_warm_up

EXAMPLES = ("A dog runs.", "It is ten past six.", "12,50 €")

PATTERN = set("[]*?\\")  # special characters in paths of TensorFlow's file system

# Texts that must not affect others in their batch: empty, not UTF-8, with a zero byte, with
# characters outside every vocabulary, and longer than any model reads.
HARD_TEXTS = (
    b"", b"  ", b"\xff\xfe dog \x80", b"a\x00b", b"<s>a</s><pad>",
    "🦜 日本".encode(), b"word " * 999,
)  # fmt: skip


def export(served, directory, name, examples, timeout):
    """Publishes a `ServedModel` as its next version; `ServedModel.export` documents it."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        raise ValueError(
            "name must be a plain folder name of letters, digits, '_', '-' and '.'. "
            f"Received: name={name!r}."
        )
    if PATTERN & set(os.path.abspath(directory)):
        raise ValueError(
            "directory must be a path without [, ], *, ? and \\: TensorFlow reads the path of a "
            "SavedModel as a pattern, and no server could load it from there. "
            f"Received: {os.path.abspath(directory)!r}."
        )
    if isinstance(examples, (str, bytes)) or not examples:
        raise ValueError(f"examples must be a list of at least one text. Received: {examples!r}.")
    os.makedirs(directory, exist_ok=True)
    target = os.path.realpath(os.path.join(directory, name))
    # A rename stays within a file system.
    place = target if os.path.ismount(target) else os.path.dirname(target)
    try:
        with draft_folder(place, name) as folder:
            draft = os.path.join(folder, name, "1")
            options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
            tf.saved_model.save(served.saved_module(), draft, served.signatures, options)
            texts = np.array([tf.compat.as_bytes(text) for text in examples], object)
            write_warm_up(draft, name, served.warm_up_requests(texts))
            write_batching(draft)
            validate(draft, served, texts, timeout)
            version = os.path.basename(_publish(draft, target))
            return os.path.join(directory, name, version)
    except RuntimeError as error:
        raise RuntimeError(f"{name} was not published. {error}") from error


def validate(path, served, examples=EXAMPLES, timeout=600):
    """Checks that a SavedModel runs in TensorFlow Serving and answers like the served model.

    `timeout` limits the fresh process that answers, in seconds. Raises RuntimeError with the first
    failed check.
    """
    check_graph(path)
    check_size(path, served.weights)
    texts = np.array([tf.compat.as_bytes(text) for text in examples], object)
    requests, expected = golden_answers(served, texts)
    check_shapes(requests, expected, served.row_shapes)
    exact = all(weight.dtype != tf.bfloat16 for weight in served.weights)
    check_answers(path, requests, expected, 1e-4 if exact else 2e-2, timeout)


def golden_answers(served, texts):
    """Requests to every signature: without rows, with one, and with hard ones among the texts.

    Returns:
        The pair of requests, a list of (signature, {input: array}), and the answers of this
        process, a list of {output: array}.
    """
    texts = np.concatenate([texts, np.array(HARD_TEXTS, object)])
    requests, expected = [], []
    for signature, function in served.signatures.items():
        inputs = {
            spec.name: np.roll(_values(spec, texts), index, axis=0)
            for index, spec in enumerate(function.input_signature)
        }
        for rows in (0, 1, len(texts)):
            some = {name: values[:rows] for name, values in inputs.items()}
            with tf.device("CPU:0"):  # like the fresh process
                outputs = function(**some)
            requests.append((signature, some))
            expected.append({key: value.numpy() for key, value in outputs.items()})
    return requests, expected


def _values(spec, texts):
    """An input's values for each text: the texts, numbers, or ids in and outside a vocabulary."""
    row = np.arange(len(texts), dtype=np.int32)
    if spec.shape.rank == 2:
        return np.concatenate([row[:, None] * 5 + row[:6] * 13 - 3, row[:, None] + 2**30], axis=1)
    return {tf.string: texts, tf.int32: row % 7, tf.float32: np.float32(row / len(row))}[spec.dtype]


def _publish(draft, target):
    """Renames the draft to the next version, even if another export takes that number first.

    The first version is renamed together with the model's folder, which never appears empty.
    """
    with contextlib.suppress(OSError):
        os.rename(os.path.dirname(draft), target)  # fails if there are versions
        return os.path.join(target, os.path.basename(draft))
    while True:
        versions = [int(entry) for entry in os.listdir(target) if entry.isdecimal()]
        path = os.path.join(target, str(max(versions, default=0) + 1))
        try:
            os.rename(draft, path)
            return path
        except OSError:
            if not os.path.exists(path):
                raise
