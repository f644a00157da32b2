"""Decodes drawn texts three times; prints the number of buckets they are in, and of batches."""

import json

import keras
import numpy as np

import keras_transformer as kt
from keras_transformer.decoding import BeamSearch
from keras_transformer.serving import Generator, SamplingSettings, SearchSettings, Translator


def power(length, least):
    return max(least, 2 ** int(np.ceil(np.log2(length))))


def main():
    keras.utils.set_random_seed(3)
    tokenizer = kt.tokenizers.SymbolTokenizer("abcdefgh")
    dims = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 8, "num_heads": 2}
    random = np.random.default_rng(1)
    texts = ["".join(random.choice(list("abcdefgh"), n)) for n in random.integers(1, 29, 320)]
    texts.sort(key=len)
    batches = [texts[start : start + 64] for start in range(0, len(texts), 64)]
    model = kt.translation(tokenizer.vocabulary_size, **dims)
    translator = Translator(
        model, tokenizer, settings=SearchSettings(BeamSearch(3)), cache="static"
    )
    # Sources end with a token of their own; limits are twice that and 8.
    longest = [max(map(len, batch)) + 1 for batch in batches]
    of_translator = {(power(n, 8), power(2 * n, 16)) for n in longest}

    model = kt.language_model(tokenizer.vocabulary_size, **dims)
    settings = SamplingSettings(context=64, max_tokens=30, empty_prompt="a")
    generator = Generator(model, tokenizer, settings, cache="static")
    # The first token of a prompt is no step.
    of_generator = {power(max(map(len, batch)) - 1 + 30, 8) for batch in batches}
    for seed in range(3):
        translator(texts)
        generator(texts, seed=seed)
    print(json.dumps([len(of_translator) + len(of_generator), 6 * len(batches)]))


if __name__ == "__main__":
    main()
