"""MarianMT models, such as OPUS-MT, in Hugging Face's format."""

import numpy as np

from keras_transformer.convert.folder import ModelFolder
from keras_transformer.convert.generation import run_settings, search_settings
from keras_transformer.convert.loading import Converted
from keras_transformer.convert.sentencepiece import our_order, sentencepiece_tokenizer
from keras_transformer.convert.settings import pieces_of
from keras_transformer.convert.tables import (
    ConversionError,
    Row,
    assign,
    norm_rows,
    projection_rows,
)
from keras_transformer.models.encoder_decoder import translation
from keras_transformer.models.functions import layer_names
from keras_transformer.tokenizers.sentencepiece import END_ID, PAD_ID, START_ID

NEVER = -100.0  # the bias of an id that is never chosen; label smoothing would show a lower one
ACTIVATIONS = {"swish": "silu", "silu": "silu", "relu": "relu", "gelu": "gelu"}
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
    shared = "source_embedding" not in names
    for side, name, ids in (
        ("source", "model.encoder.embed_tokens.weight", source_ids),
        ("target", "model.decoder.embed_tokens.weight", target_ids),
    ):
        if shared and side == "source":
            continue
        table = model.get_layer(f"{side}_embedding").embeddings
        name = "model.shared.weight" if shared else name
        yield Row(table, (name,), to_ours=ids.rows, to_theirs=ids.rows_back)
    if "output_projection" in names:
        table = model.get_layer("output_projection").embeddings
        yield Row(
            table, ("lm_head.weight",), to_ours=target_ids.rows, to_theirs=target_ids.rows_back
        )
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
    shared = settings.one_of("share_encoder_decoder_embeddings", True, False)
    tied = settings.one_of("tie_word_embeddings", True, False)
    source, target = vocabularies(folder, shared)
    source_ids, target_ids = (_ids(folder, vocabulary) for vocabulary in (source, target))
    dimensions = dimensions_of(folder, pre_norm=False)
    model = translation(
        len(source_ids.theirs),
        None if shared else len(target_ids.theirs),
        tie_output=tied,
        output_bias=True,
        scale_embedding=settings.flag("scale_embedding", False),
        positions={"interleaved": False},
        norm_epsilon=1e-5,
        **dimensions,
    )
    assign(rows(model, source_ids, target_ids), shared_arrays(folder), "Marian")
    tokenizers = [
        sentencepiece_tokenizer(folder.file(file), _pieces(vocabulary, ids))
        for file, vocabulary, ids in (
            ("source.spm", source, source_ids),
            ("target.spm", target, target_ids),
        )
    ]
    search = search_settings(folder, target_ids, 512)
    run = run_settings(search, len(source_ids.theirs)) | dimensions
    return Converted("translation", model, *tokenizers, settings=search, config=run)


def dimensions_of(folder, pre_norm):
    """The dimensions of both sides, which must be equal, as arguments of `translation`."""
    settings = folder.settings
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
    activation = settings.one_of("activation_function", *ACTIVATIONS)
    return {
        "num_layers": settings.count("encoder_layers"),
        "intermediate_dim": settings.count("encoder_ffn_dim"),
        **settings.heads_of("d_model", "encoder_attention_heads"),
        "dropout": settings.share("dropout", 0.1),
        "pre_norm": pre_norm,
        "activation": ACTIVATIONS[activation],
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
        if sorted(map(str, vocabulary.values())) != sorted(map(str, range(count))):
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


def shared_arrays(folder):
    """The weights; a table that encoder and decoder share has one of several names."""
    arrays = folder.arrays()
    names = ("model.shared.weight", "model.encoder.embed_tokens.weight",
             "model.decoder.embed_tokens.weight", "lm_head.weight")  # fmt: skip
    there = [name for name in names if name in arrays]
    return {**dict.fromkeys(names, arrays[there[0]]), **arrays} if there else arrays
