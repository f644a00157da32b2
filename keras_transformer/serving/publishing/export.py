"""Publishes a served model as a checked version that TensorFlow Serving picks up."""

import contextlib
import glob
import os
import pathlib
import re
import secrets
import shutil

import numpy as np
import tensorflow as tf
from filelock import FileLock, Timeout

from keras_transformer.arguments import read_texts
from keras_transformer.files import flush, flush_all
from keras_transformer.serving.publishing.checks import (
    check_answers,
    check_graph,
    check_shapes,
    check_size,
)

EXAMPLES = ("A dog runs.", "It is ten past six.", "12,50 €")

PATTERN = set("[]*?\\")  # special characters in paths of TensorFlow's file system

# Texts that must not affect others in their batch: empty, not UTF-8, with a zero byte, with
# characters outside every vocabulary, and longer than any model reads.
HARD_TEXTS = (
    b"", b"  ", b"\xff\xfe dog \x80", b"a\x00b", b"<s>a</s><pad>",
    "🦜 日本".encode(), b"word " * 999,
)  # fmt: skip

# The first request takes seconds, because it chooses kernels and allocates buffers. TensorFlow
# Serving replays these requests before it accepts others (tensorflow_serving/apis/*.proto).
WARM_UP_FILE = "assets.extra/tf_serving_warmup_requests"

# Read with --enable_batching --enable_per_model_batching_parameters. A merged batch takes as long
# as its longest request, so batches stay moderate; rows of ids are padded to equal length.
BATCHING_FILE = "batching_params.pbtxt"
BATCHING = """\
max_batch_size { value: 32 }
batch_timeout_micros { value: 2000 }
max_enqueued_batches { value: 1000 }
num_batch_threads { value: 2 }
pad_variable_length_inputs: true
"""

_SUFFIX, _LOCK = ".export", ".lock"  # of a draft's folder


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
    examples = list(read_texts(examples, "examples", (str, bytes)))
    if not examples:
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
            pathlib.Path(draft, BATCHING_FILE).write_text(BATCHING)
            validate(draft, served, texts, timeout)
            flush_all(pathlib.Path(draft).parent)
            version = os.path.basename(_publish(draft, target))
            for renamed_in in {target, place}:
                flush(renamed_in)
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


def write_warm_up(path, name, requests):
    """Writes the requests that TensorFlow Serving replays when it loads the model.

    They are at most 1000 pairs of a signature and its input arrays. One that fails keeps the model
    from loading.
    """
    file = pathlib.Path(path) / WARM_UP_FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(file)) as writer:
        for signature, inputs in requests:
            writer.write(prediction_log(name, signature, inputs))


def prediction_log(name, signature, inputs):
    """A serialised tensorflow.serving.PredictionLog of a request, with its inputs {name: array}.

    It is encoded by hand, because tensorflow-serving-api would add gRPC as a dependency for four
    messages of two fields.

    Examples:
        >>> prediction_log("demo", "serving_default", {})
        b'2\\x1b\\n\\x19\\n\\x17\\n\\x04demo\\x1a\\x0fserving_default'
    """
    model_spec = _field(1, name.encode()) + _field(3, signature.encode())
    request = _field(1, model_spec)
    for key, values in inputs.items():
        tensor = tf.make_tensor_proto(values).SerializeToString()
        request += _field(2, _field(1, key.encode()) + _field(2, tensor))  # an entry of a map
    predict_log = _field(1, request)
    return _field(6, predict_log)


def _field(number, content):
    """A protobuf field of bytes: number and wire type 2, length, content."""
    length, encoded = len(content), b""
    while length > 127:
        encoded, length = encoded + bytes([length & 127 | 128]), length >> 7
    return bytes([number << 3 | 2]) + encoded + bytes([length]) + content


@contextlib.contextmanager
def draft_folder(directory, name):
    """Yields the path of a hidden, empty folder; removes it, and those of killed processes.

    It is on the file system of the final place, so that a rename publishes it. A lock file is next
    to the folder as long as the folder exists. The operating system releases the lock when the
    process dies, even by `kill -9`, so a folder whose lock is free has no owner.
    """
    for lock_file in glob.glob(os.path.join(glob.escape(directory), f".*{_SUFFIX}{_LOCK}")):
        # Timeout: it is in use. OSError: it belongs to another user.
        with contextlib.suppress(Timeout, OSError), FileLock(lock_file, blocking=False):
            _remove(lock_file.removesuffix(_LOCK))
    folder = os.path.join(directory, f".{name}-{secrets.token_hex(8)}{_SUFFIX}")
    with FileLock(folder + _LOCK):
        try:
            os.mkdir(folder)
            yield folder
        finally:
            _remove(folder)


def _remove(folder):
    shutil.rmtree(folder, ignore_errors=True)
    if not os.path.exists(folder):  # otherwise the next export tries again
        with contextlib.suppress(FileNotFoundError):
            os.unlink(folder + _LOCK)
