"""A served model answers whatever it is sent, and a row is answered as if it were alone."""

import time

import numpy as np
import pytest
import tensorflow as tf

from .hostile import NOT_REQUESTS, Server, attack, is_equal

pytestmark = pytest.mark.slow

KINDS = ("tiny", "classifier", "generator")
REQUESTS = {"tiny": 6000, "classifier": 16_000, "generator": 8000}  # of half a minute


@pytest.fixture(scope="module")
def generator(exported):
    """A process that answers from the generator."""
    with Server(exported("generator")[1]) as server:
        yield server


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_requests_are_answered_or_refused_and_change_no_other_row(exported, kind):
    module, path = exported(kind)
    counts, _ = attack(path, module.row_shapes, count=200, seed=7, most_rows=50)
    assert counts["answers"] > 150 and counts["errors"] > 5 and counts["rows asked alone"] > 80


def test_a_line_that_is_not_a_request_does_not_stop_the_session(generator):
    for line in NOT_REQUESTS:
        assert generator.ask(line)["error"], line
    assert generator.ask({"inputs": {"prompt": []}})["outputs"]["length"] == []


def generate(server, **inputs):
    rows = {"prompt": ["ab"], "max_tokens": [3], "temperature": [1.0], "top_k": [0], "top_p": [1.0]}
    return server.ask({"signature_name": "generate", "inputs": {**rows, "seed": [5], **inputs}})


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"temperature": [1e39]}, "temperature must be a list of float32: float too large"),
        ({"max_tokens": [2**31]}, "max_tokens must be a list of int32: 'i' format requires"),
        ({"seed": [None]}, "seed must be a list of int32: required argument is not an integer"),
        (
            {"prompt": [{}]},
            'list of strings: Bytes must be written as {"b64": "..."}. Received: {}',
        ),
        ({"prompt": [{"b64": "?"}]}, "prompt must be a list of strings: "),
        ({"prompt": ["\ud800"]}, "surrogates not allowed"),
        ({"prompt": [["a"] * 999]}, "expected lists nested 1 deep. Received: [['a', 'a'"),
        ({"top_k": [1, 2]}, "same number of rows"),
    ],
)
def test_an_input_that_does_not_fit_is_named(generator, inputs, message):
    error = generate(generator, **inputs)["error"]
    assert message in error and len(error) < 2000
    assert "outputs" in generate(generator)


def test_a_refused_request_leaves_nothing_in_memory(exported_translator):
    """The inputs that were written before the one that is wrong are freed too."""
    large = {"text": ["a" * 2**21], "target_prefix": ["a" * 2**21], "max_length": [3]}
    with Server(exported_translator) as server:
        memory = []
        for _ in range(20):
            for key in large:
                inputs = {**large, key: [None]}
                answer = server.ask({"signature_name": "translate_nbest", "inputs": inputs})
                assert key in answer["error"]
            memory.append(server.memory())
    assert memory[-1] - memory[2] < 10, "MiB"


def test_meaningless_temperatures_count_as_the_nearest_valid_one(generator):
    """Minus infinity over infinity is no number: a forbidden token could be drawn."""
    for odd, usual in ((np.nan, 1e-4), (-1.0, 1e-4), (-np.inf, 1e-4), (np.inf, 1e30)):
        answers = [generate(generator, temperature=[value]) for value in (odd, usual)]
        assert answers[0] == answers[1], odd


def test_a_changed_row_would_be_noticed():
    assert is_equal([1.0, np.nan, np.inf], [1.0 + 1e-6, np.nan, np.inf])
    assert is_equal([[1e9, 1.0]], [[1e9, 1.5]]), "rounding of a sum with the large number"
    for value, other in ((1.0, 1.001), ([1.0], [np.nan]), ([np.inf], [-np.inf]), ("a", "b")):
        assert not is_equal(value, other), (value, other)


def test_a_model_whose_rows_leak_into_each_other_would_be_noticed(tmp_path):
    module = tf.Module()
    module.call = tf.function(
        lambda numbers: {"rest": numbers - tf.reduce_max(tf.concat([numbers, [0]], 0))},
        input_signature=[tf.TensorSpec([None], tf.int32, "numbers")],
    )
    tf.saved_model.save(module, str(tmp_path), {"serving_default": module.call})
    with pytest.raises(AssertionError, match=r"\['rest'\]: .* beside copies, .* in the batch, row"):
        attack(tmp_path, {"serving_default": {"rest": ()}}, count=100, seed=2, most_rows=9)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("kind", "onednn"), [("classifier", True), *((kind, False) for kind in KINDS)]
)
def test_hostile_requests_leave_the_memory_as_it_was(exported, kind, onednn):
    """oneDNN keeps up to 1024 kernels for sizes it has seen: its memory grows until then."""
    module, path = exported(kind)
    start = time.monotonic()

    def report(number, memory, counts):
        seconds = time.monotonic() - start
        print(
            f"{kind} {onednn=} {number} {memory:.0f} MiB {seconds:.0f} s {dict(counts)}", flush=True
        )

    count = REQUESTS[kind]
    counts, memory = attack(
        path, module.row_shapes, count, 11 + onednn, 200, onednn, report, every=count // 16
    )
    assert counts["rounded"] <= counts["rows asked alone"] / 1000
    if onednn:
        assert memory[-1] < 1.1 * memory[len(memory) // 2]
    else:
        assert memory[-1] < 1.05 * memory[0]
