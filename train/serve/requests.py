"""The JSON of TensorFlow Serving's REST API: requests to arrays, and arrays to answers.

Source: https://www.tensorflow.org/tfx/serving/api_rest
"""

import base64
import json
import struct

import numpy as np

from keras_transformer.serving.publishing.c_api import (
    DTYPES,
    NUMBERS,
    STRING,
    flatten,
    pack,
    shape_of,
    shorten,
    to_bytes,
)

ROWS, COLUMNS = "instances", "inputs"


class NotFound(Exception):
    """There is no such model, or no run of it."""


def read_json(body):
    """Reads JSON; raises ValueError with TensorFlow Serving's message."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"JSON Parse error: {error}") from None


def read_request(body, signatures):
    """Reads a request to predict.

    Args:
        body: body of the request, bytes.
        signatures: as in `SavedModel.signatures`.

    Returns:
        The triple of the signature's name, its inputs, {input: array}, and the format of
        the answer, `ROWS` or `COLUMNS`.

    Raises:
        ValueError: if the body is not JSON, or does not match the signature.
    """
    request = read_json(body)
    if not isinstance(request, dict):
        raise ValueError(f"A request is a JSON object. Received: {shorten(request)}.")
    name = request.get("signature_name")
    name = "serving_default" if name in (None, "") else name
    if not isinstance(name, str) or name not in signatures:
        raise ValueError(f"The signatures are {', '.join(signatures)}. Received: {shorten(name)}.")
    if (ROWS in request) == (COLUMNS in request):
        raise ValueError("A request has either 'instances', rows, or 'inputs', columns.")
    format = ROWS if ROWS in request else COLUMNS
    infos = signatures[name]["inputs"]
    read = _columns_of if format == ROWS else _named
    columns = read(request[format], infos)
    return name, {key: _array(key, columns[key], info) for key, info in infos.items()}, format


def write_answer(outputs, format):
    """Writes the body of an answer.

    Args:
        outputs: {output: array}, one row per row of the request.
        format: `ROWS` or `COLUMNS`, as from `read_request`.

    Returns:
        JSON as bytes.

    Raises:
        ValueError: if rows are requested and the outputs have different numbers of rows.
    """
    values = {key: _values(key, array) for key, array in outputs.items()}
    if format == COLUMNS:
        answer = {"outputs": next(iter(values.values())) if len(values) == 1 else values}
    else:
        if len({array.shape[:1] for array in outputs.values()} | {()}) != 2:
            raise ValueError("The outputs do not share a number of rows. Use 'inputs'.")
        rows = zip(*values.values(), strict=True)
        bare = len(values) == 1
        answer = {
            "predictions": [r[0] if bare else dict(zip(values, r, strict=True)) for r in rows]
        }
    return json.dumps(answer, ensure_ascii=False).encode()


def _columns_of(rows, infos):
    """Turns rows, each {input: value} or the value of the only input, into columns."""
    if not isinstance(rows, list):
        raise ValueError(f"'instances' is a list of rows. Received: {shorten(rows)}.")
    columns = {key: [] for key in infos}
    for row in rows:
        for key, value in _named(row, infos).items():
            columns[key].append(value)
    return columns


def _named(values, infos):
    """{input: value}; a signature with one input may leave out its name."""
    is_named = isinstance(values, dict) and values.keys() != {"b64"}
    if not is_named and len(infos) == 1:
        return dict.fromkeys(infos, values)
    if not is_named or values.keys() != infos.keys():
        received = ", ".join(sorted(values)) if is_named else shorten(values)
        raise ValueError(
            f"The inputs are {', '.join(sorted(infos))}. Received: {shorten(received)}."
        )
    return values


def _array(key, nested, info):
    try:
        shape = shape_of(nested, info["shape"])
        values = flatten(nested, len(shape)) if shape else [nested]
        if info["dtype"] == STRING:
            array = np.empty(len(values), object)
            array[:] = [to_bytes(value) for value in values]
        else:
            code, _ = NUMBERS[info["dtype"]]
            array = np.frombuffer(pack(values, code), f"<{code}")
        return array.reshape(shape)
    except (ValueError, TypeError, KeyError, OverflowError, struct.error) as error:
        kind = DTYPES.get(info["dtype"], "values")
        raise ValueError(f"The input {key} must be a list of {kind}: {error}") from None


def _values(key, array):
    if array.dtype != object:
        return array.tolist()
    flat = [_text(value, key.endswith("_bytes")) for value in array.ravel()]
    strings = np.empty(len(flat), object)
    strings[:] = flat
    return strings.reshape(array.shape).tolist()


def _text(value, is_binary):
    try:
        if not is_binary:
            return value.decode()
    except UnicodeDecodeError:
        pass
    return {"b64": base64.b64encode(value).decode()}
