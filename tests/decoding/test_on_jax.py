"""The search on JAX finds what it finds on TensorFlow."""

import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_transformer.decoding import TokenRules, beam_search

REPOSITORY = pathlib.Path(__file__).parents[2]
VOCABULARY, ROWS, LIMIT = 23, 3, 9
SETTINGS = {
    "one beam": {"num_beams": 1},
    "beams": {"num_beams": 4},
    "a prefix": {"num_beams": 3, "prefix": [[5, 7], [6, 0], [0, 0]]},
    "the heuristic": {"num_beams": 3, "scoring": "gnmt_heuristic", "length_penalty": 1.4},
    "as Hugging Face": {"num_beams": 3, "scoring": "huggingface", "length_penalty": 1.0},
    "early stopping": {"num_beams": 3, "scoring": "huggingface_early_stopping"},
    "never": {"num_beams": 3, "scoring": "huggingface_never"},
    "rules": {
        "num_beams": 3,
        "token_rules": {
            "no_repeat_ngram_size": 2, "repetition_penalty": 1.3, "min_length": 4,
            "bad_words_ids": [[5], [6, 7]], "suppress_tokens": [9],
            "begin_suppress_tokens": [11], "forced_bos_token_id": 8, "forces_end": False,
            "renormalize_logits": True,
        },
    },
}  # fmt: skip


def found(name):
    """The hypotheses of a search through a table: logits by the two newest tokens of a beam."""
    settings = dict(SETTINGS[name])
    rules = settings.pop("token_rules", None)
    draw = np.random.default_rng(3)
    table = draw.normal(size=(VOCABULARY, VOCABULARY, VOCABULARY)).astype("float32") * 2
    rows = np.arange(ROWS)[:, None] * np.ones((1, settings["num_beams"]), "int64")
    ops = keras.ops

    def step(token_ids, parents, position, cache):
        before = ops.take_along_axis(cache, parents, axis=1)
        index = (before * VOCABULARY + token_ids) % (VOCABULARY * VOCABULARY)
        logits = ops.take(ops.reshape(table, (-1, VOCABULARY)), index, axis=0)
        return logits, token_ids + 0 * ops.cast(rows, "int32")

    def search():
        hypotheses = beam_search(
            step, ops.zeros((ROWS, settings["num_beams"]), "int32"),
            limits=np.array([LIMIT, 5, 1]), start_id=2, end_id=3, capacity=LIMIT,
            token_rules=rules and TokenRules(**rules), **settings,
        )  # fmt: skip
        return tuple(hypotheses)

    if keras.backend.backend() == "jax":
        import jax

        search = jax.jit(search)
    return [np.asarray(part).tolist() for part in search()]


@pytest.fixture(scope="module")
def on_jax():
    """What JAX finds with all settings, {name: hypotheses}."""
    code = "import json\nfrom tests.decoding.test_on_jax import SETTINGS, found\n"
    code += "print(json.dumps({name: found(name) for name in SETTINGS}))"
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_hypotheses_are_those_of_tensorflow(name, on_jax):
    (ids, scores, lengths), (jax_ids, jax_scores, jax_lengths) = found(name), on_jax[name]
    assert ids == jax_ids and lengths == jax_lengths
    assert any(any(row) for row in lengths)
    np.testing.assert_allclose(scores, jax_scores, rtol=1e-5)


@pytest.mark.slow
def test_a_search_that_grows_and_sampling_are_refused_on_jax():
    code = """
from keras_transformer import decoding
try:
    decoding.beam_search(None, (), num_beams=2, limits=[3], start_id=2, end_id=3)
except ValueError as error:
    print(error)
try:
    decoding.sample
except ImportError as error:
    print(error)
"""
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert "a search needs a capacity" in done.stdout and "sample needs" in done.stdout
