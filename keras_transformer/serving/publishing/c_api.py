"""Queries a SavedModel the way TensorFlow Serving does: without Keras or TensorFlow's Python.

A fresh process loads the SavedModel through the C API of the installed TensorFlow, with the same
loader, session and kernels as tensorflow_model_server, and with XLA disabled like there. The
process imports nothing but the standard library, so a model that depends on Python code fails
here, with TensorFlow's own message.

    python keras_transformer/serving/publishing/c_api.py saved_models/demo/1 \\
        --text "It is ten past six."
    python keras_transformer/serving/publishing/c_api.py saved_models/demo/1 --signatures
    python keras_transformer/serving/publishing/c_api.py saved_models/demo/1 < requests.jsonl

A request and its answer are one line of JSON each, as in TensorFlow Serving's REST API, by column:
{"signature_name": "serving_default", "inputs": {"text": ["A dog.", {"b64": "/w=="}]}} gives
{"outputs": {"translation": [...], ...}} or {"error": "..."}. With "shapes": true in the request,
the answer also has the shape of each output, which an empty list does not show.

The process runs `python -S -I` with an empty environment, so that it cannot import any installed
package. With `--packages FOLDER` it loads the libraries of another TensorFlow, such as the older
one of a server (`.ci/older_tensorflow` installs one).
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

ERROR = "TensorFlow: "  # marks the error of the bare process among the warnings on stderr

STRING, STRING_SLOT = 7, 24  # a TF_DataType; bytes of one TF_TString
NUMBERS = {1: ("f", 4), 3: ("i", 4), 9: ("q", 8), 10: ("?", 1)}
DTYPES = {1: "float32", 3: "int32", 7: "strings", 9: "int64", 10: "booleans"}
POINTER, INT, CHARS, SIZE = C.c_void_p, C.c_int, C.c_char_p, C.c_size_t


class Buffer(C.Structure):  # TF_Buffer
    _fields_ = [("data", POINTER), ("length", SIZE), ("deallocator", POINTER)]


class Endpoint(C.Structure):  # TF_Input and TF_Output
    _fields_ = [("operation", POINTER), ("index", INT)]


C_FUNCTIONS = {
    "TF_NewStatus": (POINTER, []),
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


def to_json(value):
    """Bytes as TensorFlow Serving writes them in JSON."""
    return {"b64": base64.b64encode(value).decode()}


def find_libraries(packages=None):
    """The folder of TensorFlow, and the paths of tensorflow-text's operation libraries.

    Both are in the folder `packages`, or installed. Raises FileNotFoundError without TensorFlow.
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

    It runs this file with a SavedModel and further arguments; `packages` as for `find_libraries`.
    """
    libraries = ["--libraries", json.dumps(find_libraries(packages))]
    script = os.path.abspath(__file__)
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


class Session:
    """A loaded SavedModel that answers requests.

    A library of operations that cannot be loaded only matters if the model needs it: then the
    RuntimeError has TensorFlow's own message, and those about libraries that it could not load.
    """

    def __init__(self, path, tensorflow_folder, op_libraries=()):
        C.CDLL(os.path.join(tensorflow_folder, "libtensorflow_framework.so.2"), C.RTLD_GLOBAL)
        self.lib = C.CDLL(os.path.join(tensorflow_folder, "libtensorflow_cc.so.2"), C.RTLD_GLOBAL)
        for name, (result, arguments) in C_FUNCTIONS.items():
            function = getattr(self.lib, name)
            function.restype, function.argtypes = result, arguments
        self.status = self.lib.TF_NewStatus()
        faults = ""
        for library in op_libraries:
            self.lib.TF_LoadLibrary(library.encode(), self.status)
            faults += self._fault() and f"\n{self._fault()}"
        # tensorflow::DisableXlaCompilation(), like tensorflow_model_server at startup.
        self.lib["_ZN10tensorflow21DisableXlaCompilationEv"]()
        self.graph, meta_graph = self.lib.TF_NewGraph(), Buffer()
        options, tags = self.lib.TF_NewSessionOptions(), (CHARS * 1)(b"serve")
        self.session = self.lib.TF_LoadSessionFromSavedModel(
            options, None, os.fsencode(path), tags, 1, self.graph, C.byref(meta_graph), self.status
        )
        if self._fault():
            raise RuntimeError(self._fault() + faults)
        self.signatures = read_signatures(C.string_at(meta_graph.data, meta_graph.length))

    def answer(self, request):
        """Answers one request; both are in the format of the module's docstring.

        Raises ValueError if it does not match the signature, RuntimeError with TensorFlow's
        message.
        """
        if not isinstance(request, dict):
            raise ValueError(f"A request is a JSON object. Received: {shorten(request)}.")
        name = request.get("signature_name", "serving_default")
        if not isinstance(name, str) or name not in self.signatures:
            known = ", ".join(sorted(self.signatures))
            raise ValueError(f"The model's signatures are {known}. Received: {shorten(name)}.")
        signature, inputs = self.signatures[name], request.get("inputs", {})
        if not isinstance(inputs, dict):
            raise ValueError(f"inputs must be a JSON object. Received: {shorten(inputs)}.")
        if inputs.keys() != signature["inputs"].keys():
            raise ValueError(
                f"The inputs of {name} are {', '.join(sorted(signature['inputs']))}. "
                f"Received: {', '.join(sorted(inputs))}."
            )
        feeds, results = {}, {}
        try:
            for key, info in signature["inputs"].items():
                feeds[info["name"]] = self._write_input(key, inputs[key], info)
            fetches = [info["name"] for info in signature["outputs"].values()]
            results = dict(zip(signature["outputs"], self._run(feeds, fetches), strict=True))
            answer = {"outputs": {key: self._read(tensor) for key, tensor in results.items()}}
            if request.get("shapes"):
                answer["shapes"] = {key: self._shape(tensor) for key, tensor in results.items()}
            return answer
        finally:
            for tensor in feeds.values():
                self._delete_written(tensor)
            for tensor in results.values():
                self.lib.TF_DeleteTensor(tensor)

    def _run(self, feeds, fetches):
        """Feeds tensors, {name in the graph: tensor}, and returns the fetched tensors."""
        inputs = (Endpoint * len(feeds))(*map(self._endpoint, feeds))
        outputs = (Endpoint * len(fetches))(*map(self._endpoint, fetches))
        values, results = (POINTER * len(feeds))(*feeds.values()), (POINTER * len(fetches))()
        self.lib.TF_SessionRun(
            self.session, None, inputs, values, len(feeds), outputs, results, len(fetches),
            None, 0, None, self.status,
        )  # fmt: skip
        if self._fault():
            raise RuntimeError(self._fault())
        return list(results)

    def _fault(self):
        """TensorFlow's error message of the last call; "" if it succeeded."""
        return self.lib.TF_Message(self.status).decode("utf-8", "replace")

    def _endpoint(self, tensor_name):
        name, _, index = tensor_name.partition(":")
        operation = self.lib.TF_GraphOperationByName(self.graph, name.encode())
        return Endpoint(operation, int(index or 0))

    def _write_input(self, key, nested, info):
        try:
            return self._write(nested, info)
        except (ValueError, TypeError, KeyError, OverflowError, struct.error) as error:
            raise ValueError(
                f"The input {key} must be a list of {DTYPES[info['dtype']]}: {error}"
            ) from None

    def _write(self, nested, info):
        """Makes a tensor of the signature's dtype and rank from nested lists."""
        shape = shape_of(nested, info["shape"])
        values = flatten(nested, len(shape))
        sizes = (C.c_int64 * len(shape))(*shape)
        if info["dtype"] != STRING:
            data = pack(values, NUMBERS[info["dtype"]][0])
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
        """Makes nested lists from a tensor; strings must be UTF-8, as JSON requires."""
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

    def _delete_written(self, tensor):
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
    """The signatures of a serialised MetaGraphDef.

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
    """Reads a serialised TensorInfo into {"name", "dtype", "shape"}."""
    info = dict(fields(message))
    dims = [dict(fields(value)) for number, value in fields(info.get(3, b"")) if number == 2]
    # Protobuf writes an unknown size as -1 in 64 bits, and omits a size of 0.
    shape = [-1 if dim.get(1, 0) >> 63 else dim.get(1, 0) for dim in dims]
    return {"name": info.get(1, b"").decode(), "dtype": info.get(2, 0), "shape": shape}


def fields(message):
    """Yields field number and value of each field of a protobuf message; messages as bytes."""
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
    """The shape of nested lists; below an empty list, sizes come from the signature."""
    shape, level = [], nested
    for size in signature_shape:
        if level is not None and not isinstance(level, list):
            break
        shape.append(max(size, 0) if level is None else len(level))
        level = level[0] if level else None
    if len(shape) < len(signature_shape) or isinstance(level, list):
        raise ValueError(
            f"expected lists nested {len(signature_shape)} deep. Received: {shorten(nested)}."
        )
    return shape


def flatten(nested, depth):
    """The values of lists nested `depth` deep, which must be rectangular."""
    for _ in range(depth - 1):
        if any(not isinstance(inner, list) or len(inner) != len(nested[0]) for inner in nested):
            raise ValueError("all rows must have the same length.")
        nested = [value for inner in nested for value in inner]
    return nested


def nest(values, shape):
    """The inverse of `flatten`."""
    if len(shape) < 2:
        return values
    size = math.prod(shape[1:])
    return [nest(values[row * size : (row + 1) * size], shape[1:]) for row in range(shape[0])]


def pack(values, code):
    """The bytes of numbers of a type of `struct`. TypeError for true or false among numbers."""
    for value in values:
        if isinstance(value, bool) != (code == "?"):
            raise TypeError(f"{shorten(value)} is {'no' if code == '?' else 'a'} boolean")
    return struct.pack(f"<{len(values)}{code}", *values)


def to_bytes(value):
    """The bytes of a JSON string, in UTF-8, or of {"b64": "..."}."""
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, dict):
        raise TypeError(f"expected a string. Received: {shorten(value)}.")
    if value.keys() != {"b64"}:
        raise ValueError(f'Bytes must be written as {{"b64": "..."}}. Received: {shorten(value)}.')
    return base64.b64decode(value["b64"], validate=True)


def shorten(value):
    """At most about 200 characters of a value, for a message."""
    text = repr(value)
    return text if len(text) < 200 else text[:200] + "..."


def main():
    """Answers requests in a bare process, which replaces this one."""
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
    parser.add_argument("--packages", help="folder of another tensorflow and tensorflow_text")
    parser.add_argument("--libraries", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.libraries is None:
        arguments = [f"--text={text}" for text in options.text]
        arguments += ["--signatures"] * options.signatures
        try:
            command, environment = bare_command(
                options.model, *arguments, packages=options.packages
            )
        except FileNotFoundError as error:
            sys.exit(str(error))
        os.execve(command[0], command, environment)
    try:
        session = Session(options.model, *options.libraries)
    except RuntimeError as error:
        sys.exit(f"{ERROR}{error}")
    assert not {"tensorflow", "keras", "numpy"} & set(sys.modules)
    if options.signatures:
        print(json.dumps(session.signatures, indent=1))
        return
    lines = sys.stdin
    if options.text:
        inputs = session.signatures.get("serving_default", {"inputs": {}})["inputs"]
        name = "prompt" if "prompt" in inputs else "text"
        texts = [base64.b64encode(os.fsencode(text)) for text in options.text]  # may not be UTF-8
        lines = [json.dumps({"inputs": {name: [{"b64": text.decode()} for text in texts]}})]
    sys.stdout.reconfigure(errors="backslashreplace")  # writes a lone surrogate as JSON does
    for line in lines:
        try:
            answer = session.answer(json.loads(line))
        except Exception as error:  # a bad request must not end the session
            answer = {"error": str(error)}
        print(json.dumps(answer, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
