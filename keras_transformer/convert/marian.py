"""MarianMT models, such as OPUS-MT, in Hugging Face's format."""

import re

import keras
import numpy as np

from keras_transformer.convert import bert
from keras_transformer.convert.folder import ModelFolder
from keras_transformer.convert.loading import Converted
from keras_transformer.convert.sentencepiece import our_order, sentencepiece_tokenizer
from keras_transformer.convert.settings import Settings, pieces_of
from keras_transformer.convert.tables import (
    ConversionError,
    Row,
    assign,
    first_of,
    in_float32,
    norm_rows,
    projection_rows,
)
from keras_transformer.convert.tokenizers import tokenizer_settings
from keras_transformer.models.encoder_decoder import translation
from keras_transformer.models.functions import layer_names
from keras_transformer.serving.settings import SearchSettings
from keras_transformer.tokenizers.sentencepiece import END_ID, PAD_ID, START_ID

GENERATION = "generation_config.json"
NEVER = -100.0  # the bias of an id that is never chosen; label smoothing would show a lower one
ACTIVATIONS = {"swish": "silu", "silu": "silu", "relu": "relu", "gelu": "gelu"}
ONE_TABLE = (
    "model.shared.weight",
    "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
)
SOURCE, TARGET, OUTPUT = ONE_TABLE[1:2], ONE_TABLE[2:], ("lm_head.weight",)
POSITIONS = re.compile(r"\.embed_positions\.weights?$")  # which older folders store
POSITION_TOLERANCE = 2e-3  # they may be in half precision
# What older versions wrote into config.json, and their library no longer reads.
_OLDER = {
    "add_bias_logits": False,
    "add_final_layer_norm": False,
    "classif_dropout": 0.0,
    "classifier_dropout": 0.0,
    "force_bos_token_to_be_generated": False,
    "normalize_before": False,
    "normalize_embedding": False,
    "static_position_embeddings": True,
}
_ATTENTION = (("q_proj", "k_proj", "v_proj"), "out_proj")


class Ids:
    """The order of a vocabulary: their id for each of our ids.

    Ours begin with pad, unknown, start and end. If their sequences start with the padding token or
    the end token, its row appears twice.

    Args:
        theirs: their id for each of ours, an integer array that contains all of their ids.
    """

    def __init__(self, theirs):
        self.theirs = np.asarray(theirs)
        self.ours = np.empty(max(theirs) + 1, int)
        self.ours[self.theirs[::-1]] = np.arange(len(self.theirs))[::-1]
        self.start_is_there_twice = self.theirs[START_ID] in self.theirs[[PAD_ID, END_ID]]

    def rows(self, table):
        """Their rows, (size, ...), in our order."""
        return table[self.theirs]

    def rows_back(self, table):
        return table[self.ours]

    def bias(self, bias):
        """Their biases, (1, size), in our order; `NEVER` for a duplicated start token."""
        ours = bias[0][self.theirs]
        if self.start_is_there_twice:
            ours[START_ID] = NEVER
        return ours

    def bias_back(self, bias):
        return bias[self.ours][None]


def rows(model, source_ids, target_ids, with_final_norms=False):
    """The table of a translation model; Pegasus and M2M100 have norms after the last block."""
    names = layer_names(model)
    tied = () if "output_projection" in names else OUTPUT
    tables = [("target", target_ids, (*ONE_TABLE, *tied))]
    if "source_embedding" in names:
        tables = [("source", source_ids, SOURCE), ("target", target_ids, (*TARGET, *tied))]
    for side, ids, (name, *twins) in tables:
        table = model.get_layer(f"{side}_embedding").embeddings
        mapping = {"to_ours": ids.rows, "to_theirs": ids.rows_back}
        yield Row(table, (name,), twins=tuple(twins), **mapping)
    if "output_projection" in names:
        table = model.get_layer("output_projection").embeddings
        yield Row(table, OUTPUT, to_ours=target_ids.rows, to_theirs=target_ids.rows_back)
    if "output_bias" in names:
        bias = model.get_layer("output_bias").bias
        yield Row(bias, ("final_logits_bias",), to_ours=target_ids.bias,
                  to_theirs=target_ids.bias_back)  # fmt: skip
    yield from block_rows(model)
    for side in ("encoder", "decoder"):
        norm = model.get_layer(side).norm
        if with_final_norms and norm is not None:
            yield from norm_rows(norm, f"model.{side}.layer_norm")


def block_rows(model):
    """The rows of all blocks, which do not depend on the vocabulary."""
    for side in ("encoder", "decoder"):
        for index, block in enumerate(model.get_layer(side).blocks):
            yield from _rows_of_block(block, f"model.{side}.layers.{index}", side == "decoder")


def _rows_of_block(block, name, has_source):
    (q, k, v), out = _ATTENTION
    own, theirs = block.self_attention, f"{name}.self_attn"
    yield from projection_rows(own.query_key_value, [f"{theirs}.{part}" for part in (q, k, v)])
    yield from projection_rows(own.output_projection, (f"{theirs}.{out}",))
    yield from norm_rows(block.around_self_attention.norm, f"{name}.self_attn_layer_norm")
    if has_source:
        own, theirs = block.cross_attention, f"{name}.encoder_attn"
        yield from projection_rows(own.query, (f"{theirs}.{q}",))
        yield from projection_rows(own.key_value, [f"{theirs}.{part}" for part in (k, v)])
        yield from projection_rows(own.output_projection, (f"{theirs}.{out}",))
        yield from norm_rows(block.around_cross_attention.norm, f"{name}.encoder_attn_layer_norm")
    yield from projection_rows(block.feed_forward.widen, (f"{name}.fc1",))
    yield from projection_rows(block.feed_forward.narrow, (f"{name}.fc2",))
    yield from norm_rows(block.around_feed_forward.norm, f"{name}.final_layer_norm")


def read(folder: ModelFolder):
    """Reads a folder of MarianMT: weights, vocabularies and the settings of its search."""
    settings = folder.settings
    settings.usual(**_OLDER)
    bert.head_of(folder, {"MarianMTModel": None})
    shared = settings.one_of("share_encoder_decoder_embeddings", True, False)
    tied = settings.one_of("tie_word_embeddings", True, False)
    dimensions, weights = dimensions_of(folder, False, "gelu"), folder.arrays()
    check(folder, weights, "Marian", shared, dimensions)
    source, target = vocabularies(folder, shared)
    source_ids, target_ids = (_ids(folder, vocabulary) for vocabulary in (source, target))
    model = translation(
        len(source_ids.theirs),
        None if shared and _is_one_table(weights, tied) else len(target_ids.theirs),
        tie_output=tied,
        output_bias=True,
        scale_embedding=settings.flag("scale_embedding", False),
        positions={"interleaved": False},
        norm_epsilon=1e-5,
        **dropouts_of(settings),
        **dimensions,
    )
    check_positions(model, weights)
    assign(rows(model, source_ids, target_ids), weights.without(POSITIONS), "Marian")
    cutter = tokenizer_settings(folder)
    cutter.without_effect(("source_lang", "target_lang"))
    cutter.usual(separate_vocabs=not shared)
    cutter.warn_of_unread()
    tokenizers = [
        sentencepiece_tokenizer(folder.file(file), _pieces(vocabulary, ids))
        for file, vocabulary, ids in (
            ("source.spm", source, source_ids),
            ("target.spm", target, target_ids),
        )
    ]
    search = search_settings(folder, 512)
    run = run_settings(search, len(source_ids.theirs)) | dimensions
    return Converted("translation", model, *tokenizers, settings=search, config=run)


def dimensions_of(folder, pre_norm, activation):
    """The dimensions of both sides, which must be equal, as arguments of `translation`.

    Args:
        pre_norm: whether the family normalises before its sub-layers.
        activation: name of the activation of a folder that gives none.
    """
    settings = folder.settings
    settings.one_of("is_encoder_decoder", True)
    settings.usual(encoder_layerdrop=0.0, decoder_layerdrop=0.0)
    settings.usual(num_hidden_layers=settings.given("encoder_layers"))
    for name in ("layers", "attention_heads", "ffn_dim"):
        sides = [settings.count(f"{side}_{name}") for side in ("encoder", "decoder")]
        if sides[0] != sides[1]:
            raise ConversionError(
                f"{folder.path}: encoder and decoder must have equally many {name}. "
                f"Received: {sides}."
            )
    if settings.count("d_model", least=4) % 2:
        raise ConversionError(
            f"{settings.file}: d_model must be even, for sines and cosines. "
            f"Received: {settings.count('d_model')}."
        )
    # A dictionary keeps the first place of a name that comes twice.
    activation = settings.one_of("activation_function", *{activation: "", **ACTIVATIONS})
    return {
        "num_layers": settings.count("encoder_layers"),
        "intermediate_dim": settings.count("encoder_ffn_dim"),
        **settings.heads_of("d_model", "encoder_attention_heads"),
        "dropout": settings.share("dropout", 0.1),
        "pre_norm": pre_norm,
        "activation": ACTIVATIONS[activation],
    }


def search_settings(folder, positions):
    """The `SearchSettings` of a folder; `positions` is how many its family usually has."""
    settings, file = folder.settings, folder.settings.file
    given = settings.values
    if folder.has(GENERATION):
        given, file = {**given, **folder.json(GENERATION)}, folder.path / GENERATION
    generation = Settings(given, file)
    early = generation.flag("early_stopping", False)
    return SearchSettings(
        num_beams=generation.count("num_beams", 1),
        length_penalty=generation.number("length_penalty", 1.0),
        max_source_length=settings.count("max_position_embeddings", positions, least=2),
        max_target_length=generation.count("max_length", positions, least=3) - 1,  # without start
        scoring="huggingface_early_stopping" if early else "huggingface",
    )


def run_settings(settings, vocabulary_size):
    """The settings of a search that a run keeps."""
    return {
        "vocabulary_size": vocabulary_size,
        "num_beams": settings.num_beams,
        "length_penalty": settings.length_penalty,
        "scoring": settings.scoring,
        "max_length": settings.max_target_length,
    }


def vocabularies(folder, shared):
    """The ids of the pieces of source and target, two dictionaries, as many as the tables have."""
    sides = [("vocab.json", "vocab_size")]
    if not shared:
        sides.append(("target_vocab.json", "decoder_vocab_size"))
    found = []
    for file, size in sides:
        vocabulary = folder.json(file)
        count = len(vocabulary)
        are_numbers = all(type(index) is int for index in vocabulary.values())
        if not are_numbers or sorted(vocabulary.values()) != list(range(count)):
            raise ConversionError(
                f"{folder.path / file}: the ids must be 0, 1, 2 and so on. "
                f"Received: {count} pieces with other ids."
            )
        padding = pieces_of(folder.path / file, count, folder.settings.count(size, count))
        found.append(vocabulary | {f"<unused{i}>": count + i for i in range(padding)})
    return found * 2 if shared else found


def _ids(folder, vocabulary):
    settings, size = folder.settings, len(vocabulary)
    names = ("pad_token_id", "eos_token_id")
    pad, end = (settings.count(name, least=0) for name in names)
    start = settings.count("decoder_start_token_id", pad, least=0)
    if not {pad, end, start} <= set(range(size)):
        raise ConversionError(
            f"{settings.file}: pad_token_id, eos_token_id and decoder_start_token_id must be below "
            f"{size}, the pieces of the vocabulary. Received: {pad}, {end}, {start}."
        )
    return Ids(our_order(size, pad, vocabulary.get("<unk>", pad), start, end))


def _pieces(vocabulary, ids):
    pieces = sorted(vocabulary, key=vocabulary.get)
    return [pieces[index] for index in ids.theirs]


def dropouts_of(settings):
    """The dropouts inside of a block, as arguments of `translation`."""
    names = ("attention_dropout", "activation_dropout")
    return {name: settings.share(name, 0.0) for name in names}


def check(folder, weights, family, shared, dimensions):
    """Compares the dimensions with the arrays, before a model is built."""
    hidden_dim, settings = dimensions["hidden_dim"], folder.settings
    last = f"model.decoder.layers.{dimensions['num_layers'] - 1}.fc1.weight"
    shapes = {last: (dimensions["intermediate_dim"], hidden_dim)}
    tables = [(ONE_TABLE + OUTPUT, "vocab_size")]
    if shared:
        settings.without_effect(["decoder_vocab_size"])
    else:
        tables = [(SOURCE, "vocab_size"), (TARGET + OUTPUT, "decoder_vocab_size")]
    for names, size in tables:
        rows_there = weights.rows(first_of(names, weights, family))
        shapes[names] = (settings.count(size, rows_there), hidden_dim)
    weights.check(shapes, family)


def _is_one_table(weights, tied):
    """Whether what a folder shares is one table: if it is not tied, both sides may have their own.

    Then Hugging Face's library uses each of them, and the shared one for nothing.
    """
    sides = [name for name in SOURCE + TARGET if name in weights]
    return tied or len(sides) < 2 or np.array_equal(*(weights[name] for name in sides))


def check_positions(model, weights):
    """Raises ConversionError if a folder stores positions that are not the model's sines."""
    layer = model.get_layer("positions")
    for name in weights.matching(POSITIONS):
        stored = in_float32(name, weights[name])[layer.first_position :]
        ours = keras.ops.convert_to_numpy(layer(np.zeros((1, *stored.shape), "float32")))[0]
        difference = np.abs(stored - ours).max(initial=0.0)
        if difference > POSITION_TOLERANCE:
            raise ConversionError(
                f"{name} must be the sines and cosines of the paper. Received: a largest "
                f"difference of {difference:.1e}."
            )
