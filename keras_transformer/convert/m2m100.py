"""M2M100 and NLLB, which translate between many languages, in Hugging Face's format."""

import re

import numpy as np

from keras_transformer.convert import marian
from keras_transformer.convert.folder import Converted, ModelFolder, Settings, num_padding_rows
from keras_transformer.convert.generation import in_language, search_settings
from keras_transformer.convert.sentencepiece import with_languages
from keras_transformer.convert.tables import ConversionError, VocabularyPermutation, assign
from keras_transformer.convert.tokenizers import SETTINGS, files_of, load_tokenizer_of
from keras_transformer.models.encoder_decoder import translation
from keras_transformer.serving.settings import kept_search
from keras_transformer.tokenizers.control_ids import END_ID, PAD_ID, START_ID

LANGUAGE = re.compile(r"__\w+__|[a-z]{3}_[A-Z][a-z]{3}")  # __en__ of M2M100, eng_Latn of NLLB
LANGUAGE_SETTINGS = {"source_language": "src_lang", "target_language": "tgt_lang"}


def read(folder: ModelFolder):
    """Reads a folder of M2M100 or NLLB: weights, vocabulary and the settings of its search."""
    config = folder.settings
    folder.head({"M2M100ForConditionalGeneration": None})
    config.one_of("tie_word_embeddings", True)
    dimensions, weights = marian.dimensions_of(folder, True, "relu"), folder.arrays()
    marian.check_weights(folder, weights, "M2M100", True, dimensions)
    tokenizer, their_id_of = load_tokenizer_of(folder.path)
    order = order_of(folder, their_id_of)
    tokenizer = with_languages_of(folder, tokenizer, LANGUAGE)
    half = dimensions["hidden_dim"] // 2
    model = translation(
        len(order),
        output_bias=True,
        scale_embedding=config.flag("scale_embedding", True),
        positions={
            "max_wavelength": 10000 ** (half / (half - 1)),
            "interleaved": False,
            "first_position": config.count("pad_token_id", least=0) + 1,
        },
        norm_epsilon=marian.EPSILON,
        **marian.dropouts_of(config),
        **dimensions,
    )
    # Only to exclude the start token, which duplicates the end token.
    model.output_bias.trainable = False
    marian.check_positions(model, weights)
    assign(marian.rows(model, order, order), weights.without(marian.POSITIONS), "M2M100")
    search, language = in_language(folder, search_settings(folder, order, 1024), tokenizer)
    run = dimensions | kept_search(search)
    run |= languages_of(folder) | language
    return Converted("translation", model, tokenizer, settings=search, config=run)


def with_languages_of(folder, tokenizer, pattern):
    """The tokenizer of a folder whose pieces of a pattern are languages, at least one."""
    tokenizer = with_languages(tokenizer, pattern)
    if not tokenizer.languages:
        raise ConversionError(
            f"{files_of(folder)} must hold a tokenizer with languages, such as __en__, eng_Latn or "
            "en_XX. Received: none."
        )
    return tokenizer


def languages_of(folder):
    """The languages that the tokenizer's settings name, "" for none."""
    values = folder.json(SETTINGS) if folder.has(SETTINGS) else {}
    settings = Settings(values, folder.path / SETTINGS)
    # With it, the language comes after the text instead of before it.
    settings.one_of("legacy_behaviour", False)
    return {ours: settings.text(theirs, "") for ours, theirs in LANGUAGE_SETTINGS.items()}


def order_of(folder, their_id_of):
    """The order of the tokenizer's ids, then of those that no text has, such as <s>."""
    config = folder.settings
    size, end = config.count("vocab_size"), config.count("eos_token_id", least=0)
    start = config.count("decoder_start_token_id", end, least=0)
    control = {"pad_token_id": their_id_of[PAD_ID], "eos_token_id": their_id_of[END_ID]}
    for name, index in control.items():
        if config.count(name, least=0) != index:
            config.refuse(name, f"{index}, as in the tokenizer", config.count(name, least=0))
    their_id_of = np.array(their_id_of)
    their_id_of[START_ID] = start
    num_padding_rows(files_of(folder), int(their_id_of.max()) + 1, size)
    unused = sorted(set(range(size)) - set(their_id_of.tolist()))
    return VocabularyPermutation([*their_id_of, *unused])
