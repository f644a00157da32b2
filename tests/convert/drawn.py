"""Texts, ids and models of random weights, which several files compare with other libraries."""

import functools

import numpy as np

import keras_transformer as kt
from keras_transformer.serving import SearchSettings, Translator
from train.demo.corpus import demo_corpus

CORPUS = demo_corpus(600)
PAIRS = functools.cache(lambda: list(zip(*demo_corpus(4000), strict=True)))
LONGEST = 24  # tokens of a translation
SPREAD = 0.4  # of weights that are sure of their tokens


def drawn_ids(rows, length, size, seed):
    return np.random.default_rng(seed).integers(4, size, (rows, length)).astype("int32")


def noisy(model, scale=0.2):
    """Weights of which every one matters, biases and scales too."""
    generator = np.random.default_rng(7)
    for weight in model.weights:
        if "seed" not in weight.path:
            weight.assign(weight + scale * generator.normal(size=weight.shape))
    return model


def translator_of(tokenizer, num_beams=1, penalty=1.0, ids=405, **options):
    model = noisy(kt.translation(ids, size="tiny", num_layers=2, **options))
    lengths = {"max_source_length": 20, "max_target_length": 20}
    settings = SearchSettings(num_beams, 1, penalty, **lengths, scoring="huggingface")
    return Translator(model, tokenizer, settings=settings)
