"""A real client of `python -m train.serve`: over HTTP, against the models as they answer alone."""

import asyncio
import base64
import concurrent.futures
import contextlib
import json
import pathlib
import shutil
import socket
import tempfile
import threading
import time
import urllib.request

import pytest
import tensorflow as tf

from keras_transformer.serving import Translator
from tests.serving.conftest import SENTENCES
from tests.serving.exporting import Echo
from tests.serving.hostile import HostileRequests, is_equal, signatures_of
from train.serve.__main__ import main

from .browser import BROWSER, browser, until
from .client import (
    Client,
    ask_for_ever,
    descendants,
    is_alive,
    listening,
    replica_memory,
    serving,
    wait_for,
)
from .conftest import KINDS, TEXTS

pytestmark = pytest.mark.oracle
pytest.importorskip("ray.serve")


@pytest.mark.parametrize("name", KINDS)
def test_rows_and_columns_are_answered_as_the_c_library_does(client, alone, name):
    key = "prompt" if name == "writer" else "text"
    bare = client.predict(name, {"instances": TEXTS})
    assert bare[0] == 200
    rows = bare[1]["predictions"]
    for row, expected in zip(rows, alone[name], strict=True):
        assert row.keys() == expected.keys()
        assert all(is_equal(expected[output], row[output]) for output in row)
    assert client.predict(name, {"instances": [{key: text} for text in TEXTS]}) == bare
    columns = {output: [row[output] for row in rows] for output in rows[0]}
    for inputs in (TEXTS, {key: TEXTS}):
        assert client.predict(name, {"inputs": inputs}) == (200, {"outputs": columns})
    encoded = [{"b64": base64.b64encode(text.encode()).decode()} for text in TEXTS]
    assert client.predict(name, {"inputs": encoded}) == (200, {"outputs": columns})
    assert client.predict(name, {"instances": encoded}) == bare
    assert client.predict(name, {"instances": []}) == (200, {"predictions": []})


def test_a_version_and_a_signature_may_be_named(client):
    body = {"signature_name": "tokenize", "inputs": SENTENCES}
    status, answer = client.predict("tiny", body)
    assert status == 200 and answer["outputs"].keys() == {"token_ids", "length", "truncated"}
    for path in ("tiny:1", "tiny/versions/1"):
        assert client.predict(path, body) == (200, answer)
    tokens = {key: answer["outputs"][key] for key in ("token_ids", "length")}
    named = {"signature_name": "detokenize", "inputs": tokens}
    status, answer = client.predict("tiny", named)
    assert status == 200  # one output: its bare values
    assert all(isinstance(text, str) for text in answer["outputs"])
    rows = [dict(zip(tokens, row, strict=True)) for row in zip(*tokens.values(), strict=True)]
    assert client.predict("tiny", {"signature_name": "detokenize", "instances": rows}) == (
        200,
        {"predictions": answer["outputs"]},
    )


def test_metadata_and_status_have_the_documented_form(client, folder):
    status, answer = client.get("/v1/models/tiny/metadata")
    assert status == 200 and client.get("/v1/models/tiny/versions/1/metadata") == (200, answer)
    assert answer["model_spec"] == {"name": "tiny", "signature_name": "", "version": "1"}
    signatures = answer["metadata"]["signature_def"]["signature_def"]
    assert signatures.keys() >= signatures_of(folder / "tiny" / "1").keys()
    default = signatures["serving_default"]
    assert default["method_name"] == "tensorflow/serving/predict"
    assert default["inputs"]["text"]["dtype"] == "DT_STRING"
    assert default["inputs"]["text"]["tensor_shape"] == {
        "dim": [{"size": "-1", "name": ""}],
        "unknown_rank": False,
    }
    available = {
        "version": "1",
        "state": "AVAILABLE",
        "status": {"error_code": "OK", "error_message": ""},
    }
    for path in ("/v1/models/mood", "/v1/models/mood/versions/1"):
        assert client.get(path) == (200, {"model_version_status": [available]})
    assert client.get("/v1/models") == (
        200,
        {"models": sorted(KINDS), "attention": sorted(KINDS)},
    )
    assert client.get("/health") == (200, sorted(KINDS))


MISTAKES = [
    ("GET", "/v1/models/none", None, 404, "Could not find any versions of model none"),
    ("GET", "/v1/models/tiny/versions/7", None, 404, "Could not find version 7 of model tiny"),
    ("GET", "/v1/models/none/metadata", None, 404, "Servable not found for request: Latest(none)"),
    ("POST", "/v1/models/none:predict", "{}", 404, "Servable not found for request: Latest(none)"),
    ("POST", "/v1/models/tiny:7:predict", "{}", 404, "not found for request: Specific(tiny, 7)"),
    ("POST", "/v1/models/tiny/versions/x:predict", "{}", 400, "A version is a number"),
    ("POST", "/v1/models/tiny/versions/٣:predict", "{}", 400, "A version is a number"),
    ("POST", "/v1/models/tiny", "{}", 400, "Malformed request: POST /v1/models/tiny"),
    ("GET", "/v1/models/tiny:predict", None, 404, "Could not find any versions"),
    ("POST", "/v1/models/tiny/labels/x:predict", "{}", 400, "Malformed request"),
    ("POST", "/v1/models/tiny:predict", "{", 400, "JSON Parse error"),
    ("POST", "/v1/models/tiny:predict", "", 400, "JSON Parse error"),
    ("POST", "/v1/models/tiny:predict", "[" * 99999, 400, "JSON Parse error"),
    ("POST", "/v1/models/tiny:predict", b"\xff\xfe", 400, "JSON Parse error"),
    ("POST", "/v1/models/tiny:predict", "9" * 9999, 400, "JSON Parse error"),
    ("POST", "/v1/models/tiny:predict", "null", 400, "A request is a JSON object"),
    ("POST", "/v1/models/tiny:predict", "{}", 400, "either 'instances', rows, or 'inputs'"),
    ("POST", "/v1/models/tiny:predict", {"instances": 7}, 400, "list of rows"),
    ("POST", "/v1/models/tiny:predict", {"instances": [7]}, 400, "must be a list of strings"),
    ("POST", "/v1/models/tiny:predict", {"inputs": {"a": []}}, 400, "The inputs are text"),
    ("POST", "/v1/models/tiny:predict", {"inputs": "dog"}, 400, "must be a list of strings"),
    ("POST", "/v1/models/tiny:predict", {"inputs": {"b64": "YQ=="}}, 400, "a list of strings"),
    ("POST", "/v1/models/tiny:predict", {"inputs": [{"b64": "?"}]}, 400, "a list of strings"),
    ("POST", "/v1/models/tiny:predict", {"inputs": ["\ud800"]}, 400, "a list of strings"),
    ("POST", "/v1/models/tiny:predict", {"signature_name": "x"}, 400, "The signatures are"),
    ("POST", "/v1/models/tiny:predict", {"signature_name": [1]}, 400, "The signatures are"),
    ("GET", "/nothing", None, 404, "Not Found"),
]  # fmt: skip


@pytest.mark.parametrize("method, path, body, code, message", MISTAKES)
def test_a_mistake_is_one_line(client, method, path, body, code, message):
    path = "".join(c if c.isascii() else "".join(f"%{b:02x}" for b in c.encode()) for c in path)
    status, answer = client.send(method, path, body)
    assert status == code
    if path == "/nothing":
        return
    assert answer.keys() == {"error"} and message in answer["error"]
    assert len(answer["error"]) < 1000


def test_hostile_requests_are_refused_and_sound_ones_answered(client, folder):
    for name, count in zip(KINDS, (150, 70, 70), strict=True):
        requests = HostileRequests(signatures_of(folder / name / "1"), seed=5, most_rows=100)
        for _ in range(count):
            request, is_sound = requests.draw()
            status, answer = client.predict(name, request)
            assert status == (200 if is_sound else 400), f"{answer}, {str(request)[:3000]}"
            assert answer.keys() == ({"outputs"} if is_sound else {"error"})
    assert client.predict("tiny", {"inputs": SENTENCES})[0] == 200


def test_no_request_is_lost_while_versions_come_and_go(server, client, folder):
    Echo().export(folder, "echo")
    wait_for(lambda: client.get("/v1/models/echo")[0] == 200)
    wait_for(lambda: client.predict("echo", {"instances": ["a"]})[0] == 200)

    def states():
        found = client.get("/v1/models/echo")[1]["model_version_status"]
        return {entry["version"]: entry["state"] for entry in found}

    may_end, texts = threading.Event(), ["a", "b"]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        jobs = [
            pool.submit(ask_for_ever, server[0], "echo", texts, ["aa", "bb"], may_end)
            for _ in range(4)
        ]
        try:
            Echo().export(folder, "echo")
            wait_for(lambda: states() == {"2": "AVAILABLE", "1": "END"})
            damaged = folder / "echo" / "3"
            shutil.copytree(folder / "echo" / "2", damaged.with_suffix(".draft"))
            graph = damaged.with_suffix(".draft") / "saved_model.pb"
            graph.write_bytes(graph.read_bytes()[:99])
            damaged.with_suffix(".draft").rename(damaged)
            wait_for(lambda: states() == {"3": "END", "2": "AVAILABLE", "1": "END"})
            [broken] = client.get("/v1/models/echo/versions/3")[1]["model_version_status"]
            assert broken["status"]["error_code"] == "UNKNOWN"
            assert broken["status"]["error_message"]
            shutil.rmtree(damaged)
            shutil.rmtree(folder / "echo" / "2")  # back to the first
            wait_for(lambda: states()["1"] == "AVAILABLE" and states()["2"] == "END")
        finally:
            may_end.set()
        for count, wrong in (job.result() for job in jobs):
            assert count > 10 and not wrong, wrong[:3]
    shutil.rmtree(folder / "echo")
    wait_for(lambda: client.predict("echo", {"instances": ["a"]})[0] == 404)


@pytest.mark.soak
def test_no_request_is_lost_by_two_replicas_that_load_a_version_each_in_its_time(tmp_path):
    folder = tmp_path / "saved_models"
    Echo().export(folder, "echo")
    may_end, text = threading.Event(), ["a"]
    flags = "--replicas=2", "--poll-seconds=0.2"
    with serving(folder, *flags) as (port, _, _), concurrent.futures.ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(ask_for_ever, port, "echo", text, ["aa"], may_end) for _ in range(4)]
        try:
            Echo().export(folder, "echo")
            with contextlib.closing(Client(port)) as client:
                # Both replicas have it once many answers in a row are of it.
                wait_for(lambda: {versions_of(client) for _ in range(20)} == {"2"})
        finally:
            may_end.set()
        for count, wrong in (job.result() for job in jobs):
            assert count > 10 and not wrong, wrong[:3]


def versions_of(client):
    status, answer = client.get("/v1/models/echo/metadata")
    assert status == 200
    return answer["model_spec"]["version"]


def request_of(prompt, max_tokens):
    row = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0.8, "top_k": 0, "top_p": 1.0}
    return {"signature_name": "generate", "instances": [{**row, "seed": 5}]}


def events(content):
    parts = content.decode().removesuffix("\n\n").split("\n\n")
    return [json.loads(part.removeprefix("data: ")) for part in parts]


@pytest.mark.parametrize("max_tokens, length", [(0, 1), (4, 4), (99, 10)])
def test_a_stream_ends_with_the_whole_continuation(client, max_tokens, length):
    request = request_of("A dog", max_tokens)
    status, content = client.send("POST", "/v1/models/writer:stream", request)
    found = events(content)
    assert status == 200 and [event["length"] for event in found] == list(range(1, length + 1))
    assert [found[-1]] == client.predict("writer", request)[1]["predictions"]
    # Each is what as many tokens give, unless so many more leave no room for the prompt.
    for event in [event for event in found if not event["truncated"]][1::3]:
        alone = client.predict("writer", request_of("A dog", event["length"]))
        assert alone[1]["predictions"] == [event]


def test_each_token_is_sent_by_itself_and_a_client_may_hang_up(server, client):
    port, body = server[0], json.dumps(request_of("A dog", 9))
    request = f"POST /v1/models/writer:stream HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}"
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(f"{request}\r\n\r\n{body}".encode())
            with connection.makefile("rb") as lines:
                while lines.readline() != b"\r\n":
                    pass  # of the head
                for length in (1, 2):  # each a chunk of its own
                    chunk = lines.read(int(lines.readline(), 16) + 2)
                    [event] = events(chunk.removesuffix(b"\r\n"))
                    assert event["length"] == length
    status, answer = client.predict("writer", request_of("A dog", 9))
    assert status == 200 and answer["predictions"][0]["length"] == 9


@pytest.mark.parametrize(
    "name, body, code",
    [
        ("none", {}, 404),
        ("writer", "{", 400),
        ("writer", {"instances": ["a"]}, 400),
        ("writer", request_of("a", "7"), 400),
        ("writer", request_of(None, 7), 400),
        ("writer", {**request_of("a", 7), "instances": []}, 400),
        ("writer", {"signature_name": "generate", "instances": [{"max_tokens": 7}]}, 400),
        ("tiny", {"inputs": ["a"]}, 400),
    ],
)
def test_a_mistaken_stream_is_refused(client, name, body, code):
    status, answer = client.send("POST", f"/v1/models/{name}:stream", body)
    assert status == code and answer.keys() == {"error"}


def test_the_attention_is_that_of_the_run(client, runs):
    body = {"text": "A dog runs.", "target": "Zwei Katzen"}
    status, page = client.send("POST", "/v1/models/tiny:attention", body)
    expected = Translator.load(runs / "tiny").attention(*body.values()).page()
    assert status == 200 and page.decode() == expected
    for name, wrong, code in [
        ("none", body, 404), ("..", body, 404), ("tiny", "[" * 99999, 400),
        ("tiny", [], 400), ("tiny", {"text": 7}, 400), ("tiny", {"text": "a" * 9999}, 400),
        ("tiny", {"text": "🦜" * 999}, 400), ("tiny", {"text": "a", "target": "🦜" * 99}, 400),
        ("tiny", {"text": "\ud800"}, 400), ("tiny", {"text": "a", "more": "b"}, 400),
    ]:  # fmt: skip
        status, answer = client.send("POST", f"/v1/models/{name}:attention", wrong)
        assert status == code and answer.keys() == {"error"}, (wrong, answer)


FILL_AND_ASK = """
for (const [key, value] of Object.entries(%s)) document.forms[0][key].value = value;
document.querySelector("button").click();
"""
SHOWN = """document.body.dataset.state && {
    output: document.querySelector("output").textContent,
    table: [...document.querySelectorAll("tr")].map(row => [...row.cells].map(c => c.textContent)),
    looked: document.querySelector("iframe").srcdoc,
    notes: document.querySelector("#notes").textContent,
}"""


async def shown_in_browser(address, folder, fields):
    async with browser(address, folder) as evaluate:
        await until(evaluate, "document.querySelectorAll('option').length")
        await evaluate(FILL_AND_ASK % json.dumps(fields))
        return await until(evaluate, SHOWN)


def n_best_request(text):
    row = {"text": text, "target_prefix": "", "max_length": 0}
    return {"signature_name": "translate_nbest", "instances": [row]}


def test_the_page_shows_the_best_translations_with_their_scores(client):
    status, page = client.get("/")
    assert status == 200 and b"translate_nbest" in page
    request = n_best_request(SENTENCES[0])
    inputs = client.get("/v1/models/tiny/metadata")[1]["metadata"]["signature_def"]["signature_def"]
    assert request["instances"][0].keys() == inputs["translate_nbest"]["inputs"].keys()
    [best] = client.predict("tiny", request)[1]["predictions"]
    [row] = client.predict("tiny", {"instances": SENTENCES[:1]})[1]["predictions"]
    assert best["translation"][0] == row["translation"] and len(best["translation"]) == 3
    assert best["score"][0] == pytest.approx(row["score"], rel=1e-5)
    assert best["score"] == sorted(best["score"], reverse=True)


def test_an_empty_text_has_one_hypothesis_that_scores_nothing(client):
    texts = ["", SENTENCES[0], " \t"]
    for rows in ([""], texts):
        instances = [n_best_request(text)["instances"][0] for text in rows]
        status, answer = client.predict("tiny", n_best_request("") | {"instances": instances})
        assert status == 200
        for text, row in zip(rows, answer["predictions"], strict=True):
            if text.strip():
                assert row["length"][0] > 0 > row["score"][0]
            else:
                assert row["translation"] == ["", "", ""] and row["length"] == [0, 0, 0]
                assert row["score"][0] == 0 and max(row["score"][1:]) < -1e8
        status, answer = client.predict("tiny", {"instances": rows})
        for text, row in zip(rows, answer["predictions"], strict=True):
            if not text.strip():
                assert (row["translation"], row["score"], row["length"]) == ("", 0, 0)


needs_browser = pytest.mark.skipif(BROWSER is None, reason="needs Chromium or Chrome")


@needs_browser
@pytest.mark.parametrize("name", KINDS)
def test_the_page_answers_in_a_browser(server, client, name, tmp_path):
    text = "A dog <b>runs</b>"
    [row] = client.predict(name, {"instances": [text]})[1]["predictions"]
    fields = {"model": name, "text": text, "max_tokens": 9, "temperature": 0.8, "seed": 5}
    address = f"http://127.0.0.1:{server[0]}/"
    shown = asyncio.run(shown_in_browser(address, tmp_path, fields))
    expected = row.get("translation", row.get("label"))
    if name == "writer":
        [row] = client.predict(name, request_of(text, 9))[1]["predictions"]
        expected = text + row["continuation"]
    columns = [row.get("labels", []), [f"{share:.3f}" for share in row.get("probabilities", [])]]
    if name == "tiny":
        [best] = client.predict(name, n_best_request(text))[1]["predictions"]
        scores = [f"{score:.3f}" for score in best["score"]]
        columns = [best["translation"], scores, list(map(str, best["length"]))]
    assert shown["output"] == expected
    assert shown["table"] == list(map(list, zip(*columns, strict=True)))
    translated = {"text": text, "target": expected}
    looked = {"tiny": translated, "mood": {"text": text}, "writer": {"text": expected}}[name]
    page = client.send("POST", f"/v1/models/{name}:attention", looked)[1].decode()
    assert shown["looked"] == page and page.startswith("<!doctype html>")


@needs_browser
def test_an_answer_stays_where_no_attention_can_be_shown(server, client, tmp_path):
    text = "A dog runs. " * 99  # longer than the weights of which a page is made
    [row] = client.predict("tiny", {"instances": [text]})[1]["predictions"]
    address = f"http://127.0.0.1:{server[0]}/"
    shown = asyncio.run(shown_in_browser(address, tmp_path, {"model": "tiny", "text": text}))
    assert shown["output"] == row["translation"] and shown["looked"] == ""
    assert "was cut" in shown["notes"] and "at most 1000 characters" in shown["notes"]


def test_metrics_are_those_of_prometheus(server, client):
    assert client.predict("tiny", {"inputs": SENTENCES})[0] == 200

    def found():
        with urllib.request.urlopen(f"http://127.0.0.1:{server[1]}/metrics") as answer:
            return answer.read().decode()

    wait_for(lambda: "ray_keras_transformer_request_seconds_count{" in found(), 30)
    assert 'model="tiny"' in found() and "ray_serve" in found()


def test_every_port_is_on_the_loopback_interface(server):
    v4, v6 = "0100007F", "0000000000000000FFFF00000100007F"  # 127.0.0.1
    found = listening(server[2].pid)
    assert len(found) > 9 and set(found) <= {v4, v6}


@pytest.mark.soak
def test_a_server_does_not_join_another_cluster_and_ends_with_its_first_process(folder):
    with contextlib.ExitStack() as stack:
        # Where Ray notes which cluster was started last; a longer path has no room for its sockets.
        noted = stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp", prefix="r"))
        pathlib.Path(noted, "ray").mkdir()
        pathlib.Path(noted, "ray/ray_current_cluster").write_text("127.0.0.1:9")
        _, _, process = stack.enter_context(serving(folder, environment={"RAY_TMPDIR": noted}))
        started = descendants(process.pid)
        process.kill()
        process.wait()
        assert len(started) > 5
        wait_for(lambda: not any(map(is_alive, started)), 60)


@pytest.mark.parametrize("name", KINDS)
def test_a_text_of_20_mb_is_truncated_without_taking_memory(server, client, name):
    expected = client.predict(name, {"instances": ["A dog runs. " * 9]})[1]["predictions"]
    before, begin = replica_memory(server[2].pid), time.monotonic()
    status, answer = client.predict(name, {"instances": ["A dog runs. " * 1_700_000]})
    assert status == 200 and answer["predictions"] == expected
    assert answer["predictions"][0]["truncated"] is True
    assert time.monotonic() - begin < 5
    assert replica_memory(server[2].pid) - before < 400  # MiB


@pytest.mark.parametrize(
    "name, body, message",
    [
        ("tiny", {"inputs": [""] * 1025}, "A request has at most 1024 rows"),
        ("tiny", {"inputs": ["a" * 2**20] * 5}, "have at most 4194304 bytes together"),
        ("mood", {"inputs": [{"b64": "YWFh" * 2**19}] * 5}, "have at most 4194304 bytes together"),
        ("writer", {"signature_name": "tokenize", "inputs": ["a" * 4194305]}, "at most 4194304"),
        ("writer", {"signature_name": "tokenize", "inputs": ["a" * 4097, *"a" * 1023]},
         "of others, as many as of the longest"),
    ],
)  # fmt: skip
def test_a_request_that_would_take_too_much_memory_is_refused(client, name, body, message):
    status, answer = client.predict(name, body)
    assert status == 413 and message in answer["error"]


def test_a_folder_without_models_and_a_taken_port_are_refused(server, folder, tmp_path, capsys):
    taken = str(server[0])
    for flags, message in [
        ([str(tmp_path)], "holds no model"),
        ([str(folder), "--port", taken], "Address already in use"),
        ([str(folder), "--metrics-port", taken], "Address already in use"),
    ]:
        with pytest.raises(SystemExit) as caught:
            main(flags)
        said = capsys.readouterr().err
        assert caught.value.code == 2
        assert said.startswith("error: ") and message in said and said.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (tf.errors.InvalidArgumentError(None, None, "of the request"), 400),
        (tf.errors.ResourceExhaustedError(None, None, "no memory"), 503),
        (tf.errors.InternalError(None, None, "of the server"), 500),
    ],
)
def test_a_fault_of_the_server_is_no_mistake_of_the_request(error, code):
    from train.serve.app import _refuse

    assert _refuse(None, error).status_code == code
