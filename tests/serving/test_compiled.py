"""Static caches under XLA find what growing caches find, with one program for each bucket."""

import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.decoding import BeamSearch
from keras_transformer.decoding.compiling import bucket, is_static, row_bucket
from keras_transformer.serving import Generator, SamplingSettings, SearchSettings, Translator
from keras_transformer.serving.settings import scoring_of
from keras_transformer.tokenizers import SymbolTokenizer, train_sentencepiece

REPOSITORY = pathlib.Path(__file__).parents[2]
TEXTS = [
    "a dog runs",
    "",
    "the big red ball of a small house",
    "cat",
    "the cat sees a dog and a ball",
]


PREFIXES = ["the", "", "a dog", "", "c"]


def shaken(model, scale):
    """Weights of a size that makes some hypotheses end early and others not at all."""
    noise = np.random.default_rng(7)
    for weight in model.weights:
        weight.assign(weight + noise.normal(0, scale, weight.shape))
    return model


def test_buckets():
    assert [int(bucket(n)) for n in (0, 1, 8, 9, 64, 65)] == [8, 8, 8, 16, 64, 128]
    assert int(bucket(3, smallest=16)) == 16
    assert [int(row_bucket(tf.constant(n))) for n in (0, 1, 8, 9, 64, 65)] == [8, 8, 8, 64, 64, 128]


def test_the_cache_is_chosen_by_the_device_or_by_hand():
    has_gpu = bool(tf.config.list_logical_devices("GPU"))
    assert is_static("auto") == has_gpu
    assert not is_static("auto", is_supported=False)
    with pytest.raises(ValueError, match="one of auto, static, growing"):
        is_static("fixed")
    with pytest.raises(ValueError, match="has_static_cache=True"):
        is_static("static", is_supported=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "num_beams, length_penalty, scoring",
    [
        pytest.param(1, 0.6, "gnmt", marks=pytest.mark.soak),
        (4, 1.0, "gnmt"),
        pytest.param(4, 1.0, "huggingface", marks=pytest.mark.soak),
        pytest.param(4, 1.0, "gnmt_heuristic", marks=pytest.mark.soak),
        pytest.param(3, 0.6, "huggingface_early_stopping", marks=pytest.mark.soak),
    ],
)
def test_translations_are_those_of_the_growing_cache(num_beams, length_penalty, scoring):
    keras.utils.set_random_seed(num_beams)
    tokenizer = train_sentencepiece(TEXTS, 290)
    dims = {"num_layers": 1, "hidden_dim": 32, "intermediate_dim": 32}
    model = kt.translation(tokenizer.vocabulary_size, size="tiny", **dims)
    shaken(model, 0.2)
    search = BeamSearch(num_beams, scoring=scoring_of(scoring, length_penalty))
    settings = SearchSettings(search, max_target_length=40)
    growing, static = (
        Translator(model, tokenizer, settings=settings, cache=cache)
        for cache in ("growing", "static")
    )
    arguments = [(TEXTS, PREFIXES)]
    if (num_beams, scoring) == (4, "gnmt"):  # what asks for programs of their own, once
        arguments += [(TEXTS,), (TEXTS, None, 6)]
        assert_without_xla(
            static.as_exported().signatures["serving_default"].get_concrete_function()
        )
    lengths = set()
    for given in arguments:
        for one, other in zip(growing.n_best(*given), static.n_best(*given), strict=True):
            assert [h.text for h in one] == [h.text for h in other]
            lengths |= {h.num_tokens for h in one}
            np.testing.assert_allclose([h.score for h in one], [h.score for h in other], atol=1e-4)
    least = 1 if scoring.startswith("huggingface") else 3
    assert len(lengths) > least, "hypotheses end at different lengths"
    assert static([]) == []
    shaken(model, 0.2)
    one, other = ([h[0].text for h in each.n_best(TEXTS, PREFIXES)] for each in (growing, static))
    assert one == other, "a compiled search reads the weights as they are"


def assert_without_xla(exported):
    """A model is served where XLA may not be."""
    graph = exported.graph.as_graph_def()
    nodes = [*graph.node, *(node for each in graph.library.function for node in each.node_def)]
    assert not [node.op for node in nodes if "Xla" in node.op or "_XlaMustCompile" in node.attr]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["gpt2", pytest.param("sparse", marks=pytest.mark.soak), "transformer_xl"]
)
def test_samples_are_those_of_the_growing_cache(kind):
    keras.utils.set_random_seed(3)
    tokenizer = SymbolTokenizer("abcdefghijklmnop \n")
    size = tokenizer.vocabulary_size
    dims = {"num_layers": 1, "hidden_dim": 32, "intermediate_dim": 32, "num_heads": 4}
    if kind == "transformer_xl":
        model = kt.transformer_xl(size, batch_size=2, memory_length=5, start_id=4, **dims)
    elif kind == "sparse":
        dims["attention_pattern"] = {"pattern": "fixed", "block_size": 4, "summary_size": 2}
        model = kt.language_model(size, **dims)
    else:
        model = kt.language_model(size, max_sequence_length=24, **dims)
    shaken(model, 0.2)
    growing, static = (
        Generator(model, tokenizer, SamplingSettings(context=24, max_tokens=9), cache=cache)
        for cache in ("growing", "static")
    )
    prompts = ["a cab", "", "f", "lamp of a foal in fog" * 2, "pea"]
    options = [{"max_tokens": 20, "top_p": 0.8, "temperature": 1.4}]
    if kind == "gpt2":  # what is drawn from logits, once
        options += [{"seed": 5}, {"seed": -9, "temperature": 0.7, "top_k": 4}]
        options += [{"temperature": 1e-5}]
    for given in options:
        with pytest.warns(UserWarning, match="truncated at the beginning"):
            drawn = growing(prompts, **given)
        with pytest.warns(UserWarning, match="truncated at the beginning"):
            assert static(prompts, **given) == drawn
        assert len(set(drawn)) > 3
    streamed = [list(each.stream("a cab", 40, top_k=5, seed=-2)) for each in (growing, static)]
    assert streamed[0] == streamed[1]
    assert len(streamed[0]) == 40, "the context of 24 tokens moves"


@pytest.mark.slow
def test_one_program_for_each_bucket(tmp_path):
    found = subprocess.run(
        [sys.executable, "-m", "tests.serving.count_programs"],
        env={
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "XLA_FLAGS": " ".join(
                [os.environ["XLA_FLAGS"], f"--xla_dump_to={tmp_path}", "--xla_dump_hlo_as_text"]
            ),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        },
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    buckets, calls = json.loads(found.stdout.splitlines()[-1])
    programs = [
        text
        for path in tmp_path.glob("*before_optimizations.txt")
        if " dot(" in (text := path.read_text())
    ]
    assert len(programs) == buckets < calls
    for text in programs:
        assert " while(" in text, "the loop over steps is inside"
        for leaves_the_device in (" infeed(", " outfeed(", " send(", " recv("):
            assert leaves_the_device not in text
