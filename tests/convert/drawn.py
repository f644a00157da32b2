"""Texts, ids and models of random weights, which several files compare with other libraries."""

import functools

import numpy as np
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.convert.blocks import row_names
from keras_transformer.decoding import BeamSearch, HuggingFaceScoring
from keras_transformer.serving import SearchSettings, Translator
from keras_transformer.tokenizers import PAD_ID, START_ID
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
    settings = SearchSettings(BeamSearch(num_beams, 1, HuggingFaceScoring(penalty)), 20, 20)
    return Translator(model, tokenizer, settings=settings)


def by_ctranslate2(path, ours, texts):
    """Translations by CTranslate2 with the search of a `Translator` that scores as Hugging Face."""
    import ctranslate2

    settings, search = ours.settings, ours.settings.search
    rules = search.token_rules
    names, first = row_names(ours.target_tokenizer), []
    if getattr(ours.target_tokenizer, "language", None) is not None:
        first = pieces_of(ours.target_tokenizer, [""])[0]
    elif rules.forced_bos_token_id is not None:
        first = [names[rules.forced_bos_token_id]]
    room = settings.max_source_length - 1
    rows = [row[:room] for row in pieces_of(ours.tokenizer, texts)]
    found = ctranslate2.Translator(str(path), device="cpu").translate_batch(
        rows,
        target_prefix=[first] * len(rows) if first else None,
        beam_size=search.num_beams,
        length_penalty=search.scoring.length_penalty,
        patience=2,
        no_repeat_ngram_size=rules.no_repeat_ngram_size,
        min_decoding_length=max(0, rules.min_length - 1),
        max_decoding_length=settings.max_target_length - 1,
        suppress_sequences=[[names[PAD_ID]], [names[START_ID]]],
    )
    ids = {name: index for index, name in enumerate(names)}
    rows = [[ids.get(name, PAD_ID) for name in result.hypotheses[0]] for result in found]
    joined = ours.target_tokenizer.detokenize(tf.ragged.constant(rows, tf.int32, ragged_rank=1))
    return [text.decode() for text in joined.numpy()]


def pieces_of(tokenizer, texts):
    return [tokenizer.pieces(row) for row in tokenizer.tokenize(list(texts)).to_list()]
