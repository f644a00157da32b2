import json
import shutil
import subprocess

import pytest
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.serving.publishing import c_api

pytestmark = pytest.mark.slow


def test_signatures_are_read_as_tensorflow_reads_them(exported_translator):
    saved_model = saved_model_pb2.SavedModel()
    with open(f"{exported_translator}/saved_model.pb", "rb") as file:
        saved_model.ParseFromString(file.read())
    (meta_graph,) = saved_model.meta_graphs
    ours = c_api.read_signatures(meta_graph.SerializeToString())
    assert len(ours) == 4
    for name, signature in ours.items():
        theirs = meta_graph.signature_def[name]
        for side in ("inputs", "outputs"):
            assert signature[side] == {
                key: {
                    "name": info.name,
                    "dtype": info.dtype,
                    "shape": [dim.size for dim in info.tensor_shape.dim],
                }
                for key, info in getattr(theirs, side).items()
            }


def test_a_copied_model_answers_many_requests_in_one_process(exported_translator, tmp_path):
    copy = shutil.copytree(exported_translator, tmp_path / "elsewhere")
    answers = c_api.ask(
        copy,
        [
            {"inputs": {"text": [b"\xff dog", "a dog", ""]}},
            {"signature_name": "detokenize", "inputs": {"token_ids": [[]], "length": [7]}},
            {"inputs": {"text": []}},
            {"signature_name": "none"},
            {"inputs": {"words": []}},
            {"inputs": {"text": "a dog"}},
            {"inputs": {"text": [["a dog"]]}},
            {"inputs": {"text": [5]}},
            {"signature_name": "detokenize", "inputs": {"token_ids": [[5], [5]], "length": [1]}},
            {
                "signature_name": "detokenize",
                "inputs": {"token_ids": [[5, 6], [5]], "length": [1, 1]},
            },
            ["a dog"],
            {"inputs": {"text": ["a dog"]}},
        ],
    )
    first, last = answers[0]["outputs"], answers[-1]["outputs"]
    assert first["translation"][1] == last["translation"][0] != ""
    assert first["score"][1] == pytest.approx(last["score"][0], rel=1e-4)
    assert first["translation"][2] == ""
    assert first["truncated"] == [False] * 3
    assert answers[1] == {"outputs": {"text": [""]}}
    assert answers[2]["outputs"] == {"translation": [], "score": [], "length": [], "truncated": []}
    for answer, message in zip(
        answers[3:11],
        [
            "serving_default, tokenize, translate_nbest. Received: 'none'",
            "The inputs of serving_default are text. Received: words.",
            "lists nested 1 deep. Received: 'a dog'",
            "lists nested 1 deep. Received: [['a dog']]",
            "text must be a list of strings: expected a string. Received: ",
            "same number of rows",
            "the same length",
            "A request is a JSON object. Received: ['a dog']",
        ],
        strict=True,
    ):
        assert message in answer["error"]


def test_the_command_answers_a_text(exported_translator):
    command, environment = c_api.bare_command(exported_translator, "--text", "a dog", "--text", "")
    done = subprocess.run(command, env=environment, capture_output=True, check=True)
    assert json.loads(done.stdout)["outputs"]["translation"][1] == ""


def test_without_the_text_operations_the_model_cannot_be_loaded(exported_translator, monkeypatch):
    folder, libraries = c_api.find_libraries()
    assert any("sentencepiece" in library for library in libraries)
    monkeypatch.setattr(c_api, "find_libraries", lambda packages: (folder, []))
    with pytest.raises(RuntimeError, match=r"^Exit code 1: Op type not registered 'Sentencepiece"):
        c_api.ask(exported_translator, [])


def test_a_library_that_cannot_be_loaded_matters_only_where_it_is_needed(
    exported, monkeypatch, tmp_path
):
    _, path = exported("classifier")
    folder, libraries = c_api.find_libraries()
    broken = tmp_path / "_broken.so"
    broken.write_bytes(b"no library")
    monkeypatch.setattr(
        c_api, "find_libraries", lambda packages: (folder, [str(broken), *libraries])
    )
    assert "outputs" in c_api.ask(path, [{"inputs": {"text": ["a dog"]}}])[0]
    monkeypatch.setattr(c_api, "find_libraries", lambda packages: (folder, [str(broken)]))
    with pytest.raises(RuntimeError, match=r"(?s)not registered 'Sentence.*_broken.so: file too"):
        c_api.ask(path, [])


def test_a_missing_model_and_a_slow_one_are_one_clear_line(tmp_path, exported_translator):
    with pytest.raises(RuntimeError, match=r"^Exit code 1: Could not find SavedModel"):
        c_api.ask(tmp_path, [])
    with pytest.raises(RuntimeError, match=r"within 0.01 seconds"):
        c_api.ask(exported_translator, [], timeout=0.01)


@pytest.mark.parametrize(
    ("nested", "signature_shape", "shape"),
    [
        ([], [-1, -1, 7], [0, 0, 7]),
        ([[], []], [-1, -1, 7], [2, 0, 7]),
        ([[1, 2, 3], [4, 5, 6]], [-1, -1], [2, 3]),
        ([[[1], [2]]], [-1, -1, 1], [1, 2, 1]),
    ],
)
def test_lists_become_values_and_a_shape_and_lists_again(nested, signature_shape, shape):
    assert c_api.shape_of(nested, signature_shape) == shape
    assert c_api.nest(c_api.flatten(nested, len(shape)), shape) == nested
