"""Answers requests from a SavedModel as TensorFlow Serving does: no Keras, no Python of TensorFlow.

It loads the SavedModel through the C API of the installed TensorFlow (the loader, session
and kernels that tensorflow_model_server is made of) with the standard library alone, and
with XLA switched off as it is there. A model that only works because Python code is
importable fails here, and fails with TensorFlow's own message.

    python keras_transformer/serving/c_api.py saved_models/demo/1 --text "It is ten past six."
    python keras_transformer/serving/c_api.py saved_models/demo/1 --signatures
    python keras_transformer/serving/c_api.py saved_models/demo/1 < requests.jsonl

A request and its answer are one line of JSON each, in the column form of TensorFlow Serving's
REST API: {"signature_name": "serving_default", "inputs": {"text": ["A dog.", {"b64": "/w=="}]}}
gives {"outputs": {"translation": [...], ...}} or {"error": "..."}. The process starts itself
again as `python -S -I` with an empty environment, so that no installed package can be imported.
"""

import argparse
import base64
import ctypes as C
import glob
import importlib.util
import json
import math
import os
import struct
import subprocess
import sys

FLOAT, STRING, STRING_SLOT = 1, 7, 24  # TF_DataType; bytes of one TF_TString
NUMBERS = {FLOAT: ("f", 4), 3: ("i", 4), 9: ("q", 8), 10: ("?", 1)}  # and int32, int64, bool
ERROR = "TensorFlow: "  # what TensorFlow says after this is no warning
POINTER, INT, CHARS, SIZE = C.c_void_p, C.c_int, C.c_char_p, C.c_size_t


class Buffer(C.Structure):
    _fields_ = [("data", POINTER), ("length", SIZE), ("deallocator", POINTER)]


class Endpoint(C.Structure):
    _fields_ = [("operation", POINTER), ("index", INT)]


C_FUNCTIONS = {
    "TF_NewStatus": (POINTER, []),
    "TF_GetCode": (INT, [POINTER]),
    "TF_Message": (CHARS, [POINTER]),
    "TF_LoadLibrary": (POINTER, [CHARS, POINTER]),
    "TF_NewGraph": (POINTER, []),
    "TF_NewSessionOptions": (POINTER, []),
    "TF_LoadSessionFromSavedModel": (
        POINTER,
        [POINTER, POINTER, CHARS, C.POINTER(CHARS), INT, POINTER, C.POINTER(Buffer), POINTER],
    ),
    "TF_GraphOperationByName": (POINTER, [POINTER, CHARS]),
    "TF_AllocateTensor": (POINTER, [INT, C.POINTER(C.c_int64), INT, SIZE]),
    "TF_DeleteTensor": (None, [POINTER]),
    "TF_TensorData": (POINTER, [POINTER]),
    "TF_TensorType": (INT, [POINTER]),
    "TF_NumDims": (INT, [POINTER]),
    "TF_Dim": (C.c_int64, [POINTER, INT]),
    "TF_StringInit": (None, [POINTER]),
    "TF_StringCopy": (None, [POINTER, CHARS, SIZE]),
    "TF_StringDealloc": (None, [POINTER]),
    "TF_StringGetDataPointer": (POINTER, [POINTER]),
    "TF_StringGetSize": (SIZE, [POINTER]),
    "TF_SessionRun": (
        None,
        [POINTER] * 4 + [INT] + [POINTER] * 2 + [INT, POINTER, INT, POINTER, POINTER],
    ),
}


class ServedModel:
    """A loaded SavedModel that answers one request after another.

    Args:
        path: folder of the SavedModel.
        tensorflow_folder: the one with libtensorflow_cc.so.2.
        op_libraries: paths of libraries with further operations, those of tensorflow-text.

    Raises:
        RuntimeError: if TensorFlow cannot load the model; its own message.
    """

    def __init__(self, path, tensorflow_folder, op_libraries=()):
        C.CDLL(os.path.join(tensorflow_folder, "libtensorflow_framework.so.2"), C.RTLD_GLOBAL)
        self.lib = C.CDLL(os.path.join(tensorflow_folder, "libtensorflow_cc.so.2"), C.RTLD_GLOBAL)
        for name, (result, arguments) in C_FUNCTIONS.items():
            function = getattr(self.lib, name)
            function.restype, function.argtypes = result, arguments
        self.status = self.lib.TF_NewStatus()
        for library in op_libraries:
            self.lib.TF_LoadLibrary(library.encode(), self.status)
            self._check()
        # tensorflow::DisableXlaCompilation(), which tensorflow_model_server calls at its start.
        self.lib["_ZN10tensorflow21DisableXlaCompilationEv"]()
        self.graph, meta_graph = self.lib.TF_NewGraph(), Buffer()
        options, tags = self.lib.TF_NewSessionOptions(), (CHARS * 1)(b"serve")
        self.session = self.lib.TF_LoadSessionFromSavedModel(
            options, None, os.fsencode(path), tags, 1, self.graph, C.byref(meta_graph), self.status
        )
        self._check()
        self.signatures = read_signatures(C.string_at(meta_graph.data, meta_graph.length))

    def answer(self, request):
        """One request, as in the docstring of this file, to its answer.

        Raises:
            ValueError: if the request does not fit the signature.
            RuntimeError: if TensorFlow cannot answer; its own message.
        """
        if not isinstance(request, dict):
            raise ValueError(f"A request is a JSON object. Received: {request!r}.")
        name = request.get("signature_name", "serving_default")
        if name not in self.signatures:
            known = ", ".join(sorted(self.signatures))
            raise ValueError(f"The model's signatures are {known}. Received: {name!r}.")
        signature, given = self.signatures[name], request.get("inputs", {})
        if given.keys() != signature["inputs"].keys():
            raise ValueError(
                f"The inputs of {name} are {', '.join(sorted(signature['inputs']))}. "
                f"Received: {', '.join(sorted(given))}."
            )
        feeds = {
            info["name"]: self._write(given[key], info) for key, info in signature["inputs"].items()
        }
        try:
            fetches = [info["name"] for info in signature["outputs"].values()]
            answers = self._run(feeds, fetches)
            return {"outputs": dict(zip(signature["outputs"], answers, strict=True))}
        finally:
            for tensor in feeds.values():
                self._delete(tensor)

    def _run(self, feeds, fetches):
        inputs = (Endpoint * len(feeds))(*map(self._endpoint, feeds))
        outputs = (Endpoint * len(fetches))(*map(self._endpoint, fetches))
        values, results = (POINTER * len(feeds))(*feeds.values()), (POINTER * len(fetches))()
        self.lib.TF_SessionRun(
            self.session, None, inputs, values, len(feeds), outputs, results, len(fetches),
            None, 0, None, self.status,
        )  # fmt: skip
        self._check()
        answers = [self._read(tensor) for tensor in results]
        for tensor in results:
            self.lib.TF_DeleteTensor(tensor)
        return answers

    def _check(self):
        if self.lib.TF_GetCode(self.status):
            raise RuntimeError(self.lib.TF_Message(self.status).decode("utf-8", "replace"))

    def _endpoint(self, tensor_name):
        name, _, index = tensor_name.partition(":")
        operation = self.lib.TF_GraphOperationByName(self.graph, name.encode())
        return Endpoint(operation, int(index or 0))

    def _write(self, nested, info):
        """Nested lists to a new tensor of the signature's dtype and rank."""
        shape = shape_of(nested, info["shape"])
        values = flatten(nested, len(shape))
        sizes = (C.c_int64 * len(shape))(*shape)
        if info["dtype"] != STRING:
            code, _ = NUMBERS[info["dtype"]]
            data = struct.pack(f"<{len(values)}{code}", *values)
            tensor = self.lib.TF_AllocateTensor(info["dtype"], sizes, len(shape), len(data))
            C.memmove(self.lib.TF_TensorData(tensor), data, len(data))
            return tensor
        texts = [to_bytes(value) for value in values]
        tensor = self.lib.TF_AllocateTensor(STRING, sizes, len(shape), STRING_SLOT * len(texts))
        for slot, text in zip(self._slots(tensor, len(texts)), texts, strict=True):
            self.lib.TF_StringInit(slot)
            self.lib.TF_StringCopy(slot, text, len(text))
        return tensor

    def _read(self, tensor):
        """A tensor to nested lists; strings must be UTF-8, since JSON cannot hold others."""
        shape = self._shape(tensor)
        count, dtype = math.prod(shape), self.lib.TF_TensorType(tensor)
        if dtype == STRING:
            values = [
                C.string_at(
                    self.lib.TF_StringGetDataPointer(slot), self.lib.TF_StringGetSize(slot)
                ).decode("utf-8")
                for slot in self._slots(tensor, count)
            ]
        else:
            code, width = NUMBERS[dtype]
            data = C.string_at(self.lib.TF_TensorData(tensor), count * width)
            values = list(struct.unpack(f"<{count}{code}", data))
        return nest(values, shape)

    def _delete(self, tensor):
        if self.lib.TF_TensorType(tensor) == STRING:
            for slot in self._slots(tensor, math.prod(self._shape(tensor))):
                self.lib.TF_StringDealloc(slot)
        self.lib.TF_DeleteTensor(tensor)

    def _shape(self, tensor):
        return [self.lib.TF_Dim(tensor, axis) for axis in range(self.lib.TF_NumDims(tensor))]

    def _slots(self, tensor, count):
        start = self.lib.TF_TensorData(tensor)
        return [start + STRING_SLOT * index for index in range(count)]


def read_signatures(meta_graph):
    """The signatures in a serialised MetaGraphDef.

    Returns:
        {signature: {"inputs": {key: {"name", "dtype", "shape"}}, "outputs": the same}}.
    """
    signatures = {}
    for number, value in fields(meta_graph):
        if number == 5:  # signature_def, a map
            entry = dict(fields(value))
            signature = {"inputs": {}, "outputs": {}}
            for kind, item in fields(entry[2]):
                if kind in (1, 2):  # maps from key to TensorInfo
                    pair = dict(fields(item))
                    side = signature["inputs" if kind == 1 else "outputs"]
                    side[pair[1].decode()] = read_tensor_info(pair[2])
            signatures[entry[1].decode()] = signature
    return {name: parts for name, parts in signatures.items() if not name.startswith("__")}


def read_tensor_info(message):
    info = dict(fields(message))
    dims = [dict(fields(value)) for number, value in fields(info.get(3, b"")) if number == 2]
    # An unknown size is written as -1, a 64-bit number; a size of 0 is not written at all.
    shape = [-1 if dim.get(1, 0) >> 63 else dim.get(1, 0) for dim in dims]
    return {"name": info.get(1, b"").decode(), "dtype": info.get(2, 0), "shape": shape}


def fields(message):
    """Yields the pairs of field number and value of one protobuf message, nested ones as bytes."""
    position = 0

    def varint():
        nonlocal position
        value = shift = 0
        while True:
            byte = message[position]
            position += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while position < len(message):
        number, wire = divmod(varint(), 8)
        if wire == 0:
            yield number, varint()
            continue
        length = {1: 8, 5: 4}.get(wire)
        length = varint() if length is None else length
        yield number, message[position : position + length]
        position += length


def shape_of(nested, signature_shape):
    """The shape of nested lists; sizes that an empty list hides come from the signature."""
    shape, level = [], nested
    for size in signature_shape:
        if level is not None and not isinstance(level, list):
            break
        shape.append(max(size, 0) if level is None else len(level))
        level = level[0] if level else None
    if len(shape) < len(signature_shape) or isinstance(level, list):
        raise ValueError(
            f"An input must be lists in lists, {len(signature_shape)} deep. Received: {nested!r}."
        )
    return shape


def flatten(nested, depth):
    for _ in range(depth - 1):
        if any(len(inner) != len(nested[0]) for inner in nested):
            raise ValueError("The rows of one input must be equally long.")
        nested = [value for inner in nested for value in inner]
    return nested


def nest(values, shape):
    for size in reversed(shape[1:]):
        count = len(values) // size if size else 0
        values = [values[row * size : (row + 1) * size] for row in range(count)]
    # An axis of size 0 leaves no values from which to count the rows before it.
    return values if len(values) == shape[0] else [[] for _ in range(shape[0])]


def to_bytes(value):
    return base64.b64decode(value["b64"]) if isinstance(value, dict) else os.fsencode(value)


def to_json(value):
    """How JSON carries what it cannot write: bytes as TensorFlow Serving takes them."""
    return {"b64": base64.b64encode(value).decode()}


def find_libraries():
    """The folder of the installed TensorFlow, and the libraries of tensorflow-text's operations."""
    tensorflow_folder = os.path.dirname(importlib.util.find_spec("tensorflow").origin)
    text = importlib.util.find_spec("tensorflow_text")
    pattern = text and os.path.join(os.path.dirname(text.origin), "python", "ops", "_*.so")
    return tensorflow_folder, sorted(glob.glob(pattern)) if text else []


def bare_command(path, *arguments):
    """Command and environment of a Python process that can import nothing that is installed."""
    libraries = ["--libraries", json.dumps(find_libraries())]
    command = [sys.executable, "-S", "-I", os.path.abspath(__file__), os.fspath(path), *arguments]
    # No GPU: the asking process usually holds all of its memory.
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", "LANG": "C.UTF-8", "CUDA_VISIBLE_DEVICES": "-1"}
    return command + libraries, environment


def ask(path, requests, timeout=600):
    """Sends requests to a SavedModel in a fresh process.

    Args:
        path: folder of the SavedModel.
        requests: a list of requests; strings may be bytes.
        timeout: seconds the process may take for all of them.

    Returns:
        The answers, in the order of the requests: {"outputs": ...} or {"error": message}.

    Raises:
        RuntimeError: if the model cannot be loaded, the process dies, or time is up.
    """
    command, environment = bare_command(path)
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder of the SavedModel, NAME/VERSION")
    parser.add_argument("--text", action="append", help="text for serving_default; repeatable")
    parser.add_argument("--signatures", action="store_true", help="print inputs and outputs")
    parser.add_argument("--libraries", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.libraries is None:
        command, environment = bare_command(*sys.argv[1:])
        os.execve(command[0], command, environment)
    try:
        model = ServedModel(options.model, *json.loads(options.libraries))
    except RuntimeError as error:
        sys.exit(f"{ERROR}{error}")
    assert not {"tensorflow", "keras", "numpy"} & set(sys.modules)
    if options.signatures:
        print(json.dumps(model.signatures, indent=1))
        return
    lines = sys.stdin
    if options.text:
        known = model.signatures.get("serving_default", {"inputs": {}})["inputs"]
        name = "prompt" if "prompt" in known else "text"
        texts = [os.fsencode(text) for text in options.text]  # bytes stay bytes
        lines = [json.dumps({"inputs": {name: texts}}, default=to_json)]
    for line in lines:
        try:
            answer = model.answer(json.loads(line))
        except (RuntimeError, ValueError, struct.error, TypeError) as error:
            answer = {"error": str(error)}
        print(json.dumps(answer, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
