"""M2M100 and NLLB, which translate between many languages, in Hugging Face's format."""

import re

import numpy as np

from keras_transformer.convert import bert, marian
from keras_transformer.convert.folder import ModelFolder
from keras_transformer.convert.loading import Converted
from keras_transformer.convert.sentencepiece import with_languages
from keras_transformer.convert.settings import Settings, pieces_of
from keras_transformer.convert.tables import ConversionError, assign
from keras_transformer.convert.tokenizers import SETTINGS, load_tokenizer_of
from keras_transformer.convert.weights import Weights
from keras_transformer.models.encoder_decoder import translation
from keras_transformer.tokenizers.sentencepiece import END_ID, PAD_ID, START_ID

LANGUAGE = re.compile(r"__\w+__|[a-z]{3}_[A-Z][a-z]{3}")  # __en__ of M2M100, eng_Latn of NLLB
# What older versions wrote into config.json, and their library no longer reads.
_OLDER = {
    "add_bias_logits": False,
    "add_final_layer_norm": True,
    "classif_dropout": 0.0,
    "classifier_dropout": 0.0,
    "normalize_before": True,
    "normalize_embedding": False,
    "static_position_embeddings": True,
}
LANGUAGE_SETTINGS = {"source_language": "src_lang", "target_language": "tgt_lang"}


def read(folder: ModelFolder):
    """Reads a folder of M2M100 or NLLB: weights, vocabulary and the settings of its search."""
    config = folder.settings
    config.usual(**_OLDER)
    bert.head_of(folder, {"M2M100ForConditionalGeneration": None})
    config.one_of("tie_word_embeddings", True)
    dimensions, weights = marian.dimensions_of(folder, True, "relu"), folder.arrays()
    marian.check(folder, weights, "M2M100", True, dimensions)
    tokenizer, theirs = load_tokenizer_of(folder.path)
    ids = _ids(folder, theirs)
    tokenizer = with_languages(tokenizer, LANGUAGE)
    if not tokenizer.languages:
        raise ConversionError(
            f"{folder.path} must hold a tokenizer with languages, such as __en__ or eng_Latn. "
            "Received: none."
        )
    half = dimensions["hidden_dim"] // 2
    model = translation(
        len(ids.theirs),
        output_bias=True,
        scale_embedding=config.flag("scale_embedding", True),
        positions={
            "max_wavelength": 10000 ** (half / (half - 1)),
            "interleaved": False,
            "first_position": config.count("pad_token_id", least=0) + 1,
        },
        norm_epsilon=1e-5,
        **marian.dropouts_of(config),
        **dimensions,
    )
    # Only to exclude the start token, which duplicates the end token.
    model.get_layer("output_bias").trainable = False
    no_bias = {"final_logits_bias": np.zeros((1, config.count("vocab_size")), "float32")}
    rows = marian.rows(model, ids, ids, with_final_norms=True)
    marian.check_positions(model, weights)
    assign(rows, weights.without(marian.POSITIONS).joined(Weights.of(no_bias)), "M2M100")
    settings = marian.search_settings(folder, 1024)
    run = marian.run_settings(settings, tokenizer.vocabulary_size) | dimensions
    given = Settings(folder.json(SETTINGS) if folder.has(SETTINGS) else {}, folder.path / SETTINGS)
    if given.flag("legacy_behaviour", False):
        raise ConversionError(
            f"{folder.path / SETTINGS}: the language must come before the text; legacy_behaviour, "
            "which puts it after the text, is not supported. Received: legacy_behaviour=True."
        )
    languages = {name: given.text(theirs, "") for name, theirs in LANGUAGE_SETTINGS.items()}
    return Converted("translation", model, tokenizer, settings=settings, config=run | languages)


def _ids(folder, theirs):
    """Their id at each of ours: of the tokenizer, then those that no text has, such as <s>."""
    config = folder.settings
    size, end = config.count("vocab_size"), config.count("eos_token_id", least=0)
    start = config.count("decoder_start_token_id", end, least=0)
    control = {"pad_token_id": theirs[PAD_ID], "eos_token_id": theirs[END_ID]}
    for name, index in control.items():
        if config.count(name, least=0) != index:
            raise ConversionError(
                f"{folder.path}: {name} must be {index}, as in the tokenizer. "
                f"Received: {config.count(name, least=0)}."
            )
    theirs = np.array(theirs)
    theirs[START_ID] = start
    pieces_of(folder.path, int(theirs.max()) + 1, size)
    return marian.Ids([*theirs, *sorted(set(range(size)) - set(theirs.tolist()))])
