"""The JSON of TensorFlow Serving's REST API, by the examples of its documentation."""

import json

import numpy as np
import pytest

from keras_transformer.serving.publishing.c_api import STRING
from train.serve.requests import COLUMNS, ROWS, read_request, write_answer

FLOAT, INT32 = 1, 3
SIGNATURES = {
    "serving_default": {
        "inputs": {
            "tag": {"dtype": STRING, "shape": [-1]},
            "signal": {"dtype": INT32, "shape": [-1, -1]},
            "sensor": {"dtype": FLOAT, "shape": [-1, 2, 2]},
        }
    },
    "one": {"inputs": {"image_bytes": {"dtype": STRING, "shape": [-1]}}},
}
TAGS, SIGNALS = ["foo", "bar"], [[1, 2, 3, 4, 5], [3, 4, 1, 2, 5]]
SENSORS = [[[1, 2], [3, 4]], [[4, 5], [6, 8]]]
DOCUMENTED_ROWS = [
    {"tag": tag, "signal": signal, "sensor": sensor}
    for tag, signal, sensor in zip(TAGS, SIGNALS, SENSORS, strict=True)
]


@pytest.mark.parametrize(
    "form, values",
    [(ROWS, DOCUMENTED_ROWS), (COLUMNS, {"tag": TAGS, "signal": SIGNALS, "sensor": SENSORS})],
)
def test_rows_and_columns_give_the_same_arrays(form, values):
    name, inputs, found = read_request(json.dumps({form: values}), SIGNATURES)
    assert (name, found) == ("serving_default", form)
    assert inputs["tag"].tolist() == [b"foo", b"bar"]
    assert inputs["signal"].dtype == np.int32 and inputs["signal"].tolist() == SIGNALS
    assert inputs["sensor"].dtype == np.float32 and inputs["sensor"].tolist() == SENSORS


def test_the_only_input_needs_no_name():
    for values in (
        ["a", {"b64": "aW1hZ2U="}],
        [{"image_bytes": "a"}, {"image_bytes": b64("aW1hZ2U=")}],
    ):
        request = {"signature_name": "one", "instances": values}
        _, inputs, _ = read_request(json.dumps(request), SIGNATURES)
        assert inputs["image_bytes"].tolist() == [b"a", b"image"]


def b64(text):
    return {"b64": text}


@pytest.mark.parametrize(
    "request_, message",
    [
        ({"instances": [], "inputs": []}, "either 'instances', rows, or 'inputs'"),
        ({"instances": [{"tag": "a"}]}, "The inputs are sensor, signal, tag"),
        ({"instances": DOCUMENTED_ROWS + ["a"]}, "The inputs are sensor, signal, tag"),
        ({"instances": [DOCUMENTED_ROWS[0] | {"more": 1}]}, "The inputs are sensor, signal, tag"),
        ({"signature_name": "one", "inputs": [{"b64": "?"}]}, "The input image_bytes must be"),
        ({"signature_name": "one", "inputs": [["a"]]}, "The input image_bytes must be"),
        (
            {"inputs": {"tag": TAGS, "signal": [[1], [2, 3]], "sensor": SENSORS}},
            "The input signal must be a list of int32: all rows must have the same length",
        ),
        (
            {"inputs": {"tag": TAGS, "signal": [[2**31]], "sensor": SENSORS}},
            "The input signal must be a list of int32",
        ),
        (
            {"inputs": {"tag": TAGS, "signal": [[1, True]], "sensor": SENSORS}},
            "The input signal must be a list of int32: True is a boolean",
        ),
        (
            {"inputs": {"tag": ["\udcff"], "signal": [[1]], "sensor": SENSORS}},
            "The input tag must be a list of strings: .*surrogates not allowed",
        ),
        ({"signature_name": False, "inputs": {}}, "The signatures are .* Received: False"),
    ],
)
def test_a_mistake_is_explained(request_, message):
    with pytest.raises(ValueError, match=message):
        read_request(json.dumps(request_), SIGNATURES)


def test_one_output_is_written_bare_and_several_by_name():
    texts = np.array([b"a", b"\xff"], object)
    scores = np.array([[1.5, 2], [3, np.inf]], np.float32)
    several = {"text": texts, "score": scores}
    assert json.loads(write_answer({"score": scores}, ROWS)) == {
        "predictions": [[1.5, 2.0], [3.0, float("inf")]]
    }
    assert json.loads(write_answer({"text_bytes": texts}, COLUMNS)) == {
        "outputs": [b64("YQ=="), b64("/w==")]
    }
    columns = json.loads(write_answer(several, COLUMNS))["outputs"]
    assert columns == {"text": ["a", b64("/w==")], "score": scores.tolist()}
    rows = json.loads(write_answer(several, ROWS))["predictions"]
    assert rows[1] == {"text": b64("/w=="), "score": [3.0, float("inf")]}


def test_rows_are_refused_where_outputs_have_none():
    with pytest.raises(ValueError, match="do not share a number of rows"):
        write_answer({"a": np.zeros(2), "b": np.zeros(3)}, ROWS)
    with pytest.raises(ValueError, match="do not share a number of rows"):
        write_answer({"a": np.float32(2)}, ROWS)


def test_text_is_read_as_utf8_in_every_locale(monkeypatch):
    monkeypatch.setattr("os.fsencode", lambda text: text.encode("latin-1"))
    _, inputs, _ = read_request(b'{"signature_name": "one", "inputs": ["K\xc3\xb6ln"]}', SIGNATURES)
    assert inputs["image_bytes"].tolist() == ["Köln".encode()]
