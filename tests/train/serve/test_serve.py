"""A real client of `keras-transformer serve`: over HTTP, and the models as they answer alone."""

import asyncio
import base64
import contextlib
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
import tensorflow as tf

from keras_transformer.serving import Translator
from tests.serving.conftest import SENTENCES
from tests.serving.hostile import HostileRequests, is_equal, signatures_of
from train.command import EXIT_CODE_CTRL_C
from train.serve.__main__ import allow_open_files, main, newest_versions

from .browser import BROWSER, browser, until
from .client import (
    Client,
    free_port,
    listening,
    memory_of,
    serving,
    wait_for,
)
from .conftest import KINDS, TEXTS

pytestmark = pytest.mark.slow


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
    assert answer.keys() == {"error"} and message in answer["error"]
    assert len(answer["error"]) < 1000


@pytest.mark.parametrize(
    ("seed", "counts"), [(5, (50, 20, 20)), pytest.param(6, (150, 70, 70), marks=pytest.mark.soak)]
)
def test_hostile_requests_are_refused_and_sound_ones_answered(client, folder, seed, counts):
    for name, count in zip(KINDS, counts, strict=True):
        requests = HostileRequests(signatures_of(folder / name / "1"), seed, most_rows=100)
        for _ in range(count):
            request, is_sound = requests.draw()
            status, answer = client.predict(name, request)
            assert status == (200 if is_sound else 400), f"{answer}, {str(request)[:3000]}"
            assert answer.keys() == ({"outputs"} if is_sound else {"error"})
    assert client.predict("tiny", {"inputs": SENTENCES})[0] == 200


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


def num_counted(client, name):
    status, content = client.get("/metrics")
    assert status == 200
    name = re.escape(f"keras_transformer_{name}")
    found = re.search(rf"^{name} (\S+)$", content.decode(), re.MULTILINE)
    return float(found[1]) if found else 0.0


def num_answered(client, signature):
    """How many requests to the model tiny the metrics count."""
    labels = f'model="tiny",signature="{signature}",version="1"'
    return num_counted(client, f"request_seconds_count{{{labels}}}")


def test_metrics_are_those_of_prometheus(client):
    before = num_answered(client, "tokenize")
    for _ in range(3):
        body = {"signature_name": "tokenize", "inputs": SENTENCES}
        assert client.predict("tiny", body)[0] == 200
    assert num_answered(client, "tokenize") == before + 3


def test_the_only_port_is_on_the_loopback_interface(server):
    assert listening(server[1].pid) == ["0100007F"]  # 127.0.0.1


def half_sent(port, path="/v1/models/tiny:predict", sent='{"instances": [', length=99):
    """A connection on which a part of a request was sent."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    head = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"
    connection.sendall(head.encode() + sent.encode())
    return connection


def test_1000_requests_are_in_flight_and_the_next_is_refused(server, client):
    allow_open_files()  # this process has as many
    with contextlib.ExitStack() as stack:
        for _ in range(999):
            stack.enter_context(half_sent(server[0]))
        time.sleep(0.3)  # until they are read
        assert client.predict("tiny", {"instances": SENTENCES})[0] == 200

        def is_full():  # by one more each time: this request, too, was in flight for a while
            stack.enter_context(half_sent(server[0]))
            return client.get("/v1/models")[0] == 503

        wait_for(is_full)
        status, answer = client.predict("tiny", {"instances": SENTENCES})
        assert (status, answer.keys()) == (503, {"error"}) and "1000 requests" in answer["error"]
        assert client.get("/health")[0] == 200
        assert num_counted(client, 'answers_total{status="503"}') > 0
    wait_for(lambda: client.get("/v1/models")[0] == 200)


def test_clients_that_hang_up_leave_no_thread_busy(server, client):
    """Neither while they send, nor wait, nor read a stream."""
    body = json.dumps({"instances": ["A dog runs."] * 1000})
    streamed = json.dumps(request_of("A dog", 9))
    attention = json.dumps({"text": "A dog runs."})
    port, _ = server
    before = num_answered(client, "serving_default")
    with contextlib.ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(half_sent(port))
            stack.enter_context(half_sent(port, sent=body, length=len(body)))
            for path, sent in [("writer:stream", streamed), ("tiny:attention", attention)]:
                stack.enter_context(half_sent(port, f"/v1/models/{path}", sent, len(sent)))
        time.sleep(0.3)  # until they wait
    assert client.predict("tiny", {"instances": SENTENCES})[0] == 200
    answered = num_answered(client, "serving_default") - before
    assert answered < 20, "not those of 40 clients that have gone"
    begin = time.monotonic()
    assert client.send("POST", "/v1/models/tiny:attention", attention)[0] == 200
    assert time.monotonic() - begin < 10, "and no page for them"


def test_running_requests_end_after_a_signal(folder, tmp_path):
    body, errors = json.dumps(request_of("A dog", 9)), tmp_path / "errors"
    with (
        open(errors, "w") as stream,
        serving(folder, stderr=stream) as (port, process),
        contextlib.closing(Client(port)) as client,
    ):
        half_sent(port).close()  # which is no error of the server
        whole = client.predict("writer", request_of("A dog", 9))
        with half_sent(port, "/v1/models/writer:predict", body[:20], len(body)) as connection:
            client.get("/health")  # the one before has been accepted
            process.send_signal(signal.SIGTERM)
            wait_for(lambda: not listening(process.pid))
            connection.sendall(body[20:].encode())
            with connection.makefile("rb") as answer:
                assert answer.readline() == b"HTTP/1.1 200 OK\r\n"
                content = answer.read().partition(b"\r\n\r\n")[2]
        assert json.loads(content) == whole[1]
        assert process.wait(20) == EXIT_CODE_CTRL_C
    assert errors.read_text().endswith("Stopped.\n") and "Error" not in errors.read_text()


def test_a_signal_ends_the_start_and_of_two_servers_one_has_the_port(folder):
    flags = [str(folder), f"--port={free_port()}"]
    command = [sys.executable, "-m", "train.serve", *flags]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    stopped, *others = [subprocess.Popen(command, **pipes) for _ in range(3)]
    time.sleep(2)  # while it imports TensorFlow
    stopped.send_signal(signal.SIGTERM)
    assert stopped.communicate(timeout=60)[1] == "Stopped.\n"
    assert stopped.returncode == EXIT_CODE_CTRL_C
    wait_for(lambda: any(process.poll() is not None for process in others), 120)
    [late] = [process for process in others if process.poll() is not None]
    said = late.communicate()[1].splitlines()[-1]
    assert late.returncode == 2
    assert re.fullmatch(r"error: Cannot listen on 127.0.0.1:\d+: Address already in use\.", said)
    [served] = [process for process in others if process is not late]
    assert served.stdout.readline().startswith("Serving ")
    served.send_signal(signal.SIGTERM)
    assert "Stopped." in served.communicate(timeout=60)[1]


@pytest.mark.parametrize("name", KINDS)
def test_a_text_of_20_mb_is_truncated_without_taking_memory(server, client, name):
    expected = client.predict(name, {"instances": ["A dog runs. " * 9]})[1]["predictions"]
    before, begin = memory_of(server[1].pid), time.monotonic()
    status, answer = client.predict(name, {"instances": ["A dog runs. " * 1_700_000]})
    assert status == 200 and answer["predictions"] == expected
    assert answer["predictions"][0]["truncated"] is True
    assert time.monotonic() - begin < 5
    assert memory_of(server[1].pid) - before < 400  # MiB


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
    damaged = shutil.copytree(folder / "tiny" / "1", tmp_path / "damaged" / "tiny" / "2")
    graph = damaged / "saved_model.pb"
    graph.write_bytes(graph.read_bytes()[:99])
    (tmp_path / "empty" / "tiny" / "x").mkdir(parents=True)
    for flags, message in [
        ([str(tmp_path / "empty")], "holds no model"),
        ([str(tmp_path / "damaged"), f"--port={free_port()}"], "tiny/2 cannot be loaded: "),
        ([str(folder), f"--port={server[0]}"], "Address already in use"),
    ]:
        with pytest.raises(SystemExit) as caught:
            main(flags)
        said = capsys.readouterr().err
        assert caught.value.code == 2
        assert said.startswith("error: ") and message in said and said.count("\n") == 1


def test_the_newest_version_of_each_model_is_served(tmp_path):
    for name in ("a/2", "a/10", "a/9", "b/1", "b/x", "b/-1", "b/.2", ".c/1", "d e/1", "f/٣"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "saved_model.pb").touch()
    (tmp_path / "b" / "3").mkdir()  # without a file
    assert newest_versions(tmp_path) == {"a": tmp_path / "a" / "10", "b": tmp_path / "b" / "1"}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (tf.errors.InvalidArgumentError(None, None, "of the request"), 400),
        (tf.errors.ResourceExhaustedError(None, None, "no memory"), 503),
        (tf.errors.InternalError(None, None, "of the server"), 500),
    ],
)
def test_a_fault_of_the_server_is_no_mistake_of_the_request(error, code):
    from train.serve.app import answer_of_error

    assert answer_of_error(None, error).status_code == code
