"""MarianMT models, such as OPUS-MT, in Hugging Face's format, and Pegasus, which is only written.

A translation model that normalises after its sub-layers is a Marian, one that normalises before
them a Pegasus. `read` takes files and settings from folder.py, fills the model by tables.py, builds
the tokenizers by sentencepiece.py, and leaves the settings of the search to generation.py.
"""

import re

import keras
import numpy as np

from keras_transformer.convert.blocks import (
    ACTIVATIONS,
    activation_of,
    check_dense,
    check_equal,
    row_names,
)
from keras_transformer.convert.folder import (
    Converted,
    ModelFolder,
    num_padding_rows,
    pieces_in_order,
    write_json,
)
from keras_transformer.convert.generation import (
    GENERATION,
    search_settings,
    written_search,
)
from keras_transformer.convert.sentencepiece import read_model, rearranged, save_for_lookup
from keras_transformer.convert.tables import (
    ConversionError,
    VocabularyPermutation,
    arrays_of,
    assign,
    finite_float32,
    first_of,
    our_order,
    rows_of,
)
from keras_transformer.convert.tokenizers import name_in_errors, tokenizer_settings
from keras_transformer.models.encoder_decoder import translation
from keras_transformer.serving.settings import kept_search
from keras_transformer.tokenizers.control_ids import START_ID
from keras_transformer.tokenizers.sentencepiece import SentencePieceTokenizer

NEVER = -100.0  # the bias of an id that is never chosen; label smoothing would show a lower one
EPSILON = 1e-5  # of all norms
ONE_TABLE = (
    "model.shared.weight",
    "model.encoder.embed_tokens.weight",
    "model.decoder.embed_tokens.weight",
)
SOURCE, TARGET, OUTPUT = ONE_TABLE[1:2], ONE_TABLE[2:], ("lm_head.weight",)
POSITIONS = re.compile(r"\.embed_positions\.weights?$")  # which older folders store
POSITION_TOLERANCE = 2e-3  # they may be in half precision
BLOCK = {
    "self_attention.query_key_value": "self_attn.q_proj self_attn.k_proj self_attn.v_proj",
    "self_attention.output_projection": "self_attn.out_proj",
    "around_self_attention.norm": "self_attn_layer_norm",
    "cross_attention.query": "encoder_attn.q_proj",
    "cross_attention.key_value": "encoder_attn.k_proj encoder_attn.v_proj",
    "cross_attention.output_projection": "encoder_attn.out_proj",
    "around_cross_attention.norm": "encoder_attn_layer_norm",
    "feed_forward.widen": "fc1",
    "feed_forward.narrow": "fc2",
    "around_feed_forward.norm": "final_layer_norm",
}
FINAL_NORMS = {f"{side}.norm": f"model.{side}.layer_norm" for side in ("encoder", "decoder")}


def rows(model, source_order, target_order):
    """The table of a translation model.

    Args:
        model: of `translation`.
        source_order: the `VocabularyPermutation` of the source.
        target_order: that of the target.
    """
    source, target, output = model.source_embedding, model.target_embedding, model.output_projection
    tied = OUTPUT if output is target else ()
    if source is target:
        yield target_order.row(target.embeddings, *ONE_TABLE, *tied)
    else:
        yield source_order.row(source.embeddings, *SOURCE)
        yield target_order.row(target.embeddings, *TARGET, *tied)
    if output is not target:
        yield target_order.row(output.embeddings, *OUTPUT)
    if model.output_bias is not None:
        yield target_order.row(
            model.output_bias.bias,
            "final_logits_bias",
            shape=(1, len(target_order.our_id_of)),
            missing=0.0,
            to_ours=lambda array: bias_in_our_order(array, target_order),
            to_theirs=lambda array: array[target_order.text_id_of],
        )
    yield from block_rows(model)
    yield from rows_of(model, FINAL_NORMS)  # which only models with normalize_first have


def block_rows(model):
    """The rows of all blocks, which do not depend on the vocabulary."""
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        for index, block in enumerate(stack.blocks):
            yield from rows_of(block, BLOCK, f"model.{side}.layers.{index}.")


def bias_in_our_order(bias, order):
    """Their biases in our order; `NEVER` for a start token that is another token, too."""
    in_our_order = bias[order.their_id_of]
    if order.repeats_start:
        in_our_order[START_ID] = NEVER
    return in_our_order


def read(folder: ModelFolder):
    """Reads a folder of MarianMT: weights, vocabularies and the settings of its search."""
    settings = folder.settings
    folder.head({"MarianMTModel": None})
    shared = settings.one_of("share_encoder_decoder_embeddings", True, False)
    tied = settings.one_of("tie_word_embeddings", True, False)
    dimensions, weights = dimensions_of(folder, False, "gelu"), folder.arrays()
    check_weights(folder, weights, "Marian", shared, dimensions)
    vocabularies = _vocabularies(folder, shared)
    orders = [_order(folder, pieces) for pieces in vocabularies]
    model = translation(
        len(orders[0]),
        None if shared and _is_one_table(weights, tied) else len(orders[1]),
        tie_output=tied,
        output_bias=True,
        scale_embedding=settings.flag("scale_embedding", False),
        positions={"interleaved": False},
        norm_epsilon=EPSILON,
        **dropouts_of(settings),
        **dimensions,
    )
    check_positions(model, weights)
    assign(rows(model, *orders), weights.without(POSITIONS), "Marian")
    tokenizer_config = tokenizer_settings(folder)
    tokenizer_config.ignore(("source_lang", "target_lang"))
    tokenizer_config.expect(separate_vocabs=not shared)
    tokenizer_config.warn_of_unread()
    tokenizers = []
    for file, pieces, order in zip(("source.spm", "target.spm"), vocabularies, orders, strict=True):
        with name_in_errors(folder.path / file):
            model_of_pieces = read_model(folder.file(file))
            names = [pieces[index] for index in order.their_id_of]
            tokenizers.append(rearranged(model_of_pieces, names, True))
    search = search_settings(folder, orders[1], 512)
    run = dimensions | kept_search(search)
    return Converted("translation", model, *tokenizers, settings=search, config=run)


def dimensions_of(folder, normalize_first, activation):
    """The dimensions of both sides, equal but for the depth, as arguments of `translation`.

    Args:
        normalize_first: whether the family normalises before its sub-layers.
        activation: name of the activation of a folder that gives none.
    """
    settings = folder.settings
    settings.one_of("is_encoder_decoder", True)
    # What older versions wrote and the library no longer reads, and what only training uses.
    settings.expect(
        add_bias_logits=False,
        add_final_layer_norm=normalize_first,
        classif_dropout=0.0,
        classifier_dropout=0.0,
        force_bos_token_to_be_generated=False,
        normalize_before=normalize_first,
        normalize_embedding=False,
        static_position_embeddings=True,
        encoder_layerdrop=0.0,
        decoder_layerdrop=0.0,
        num_hidden_layers=settings.raw("encoder_layers"),
    )
    for name in ("attention_heads", "ffn_dim"):
        sides = [settings.count(f"{side}_{name}") for side in ("encoder", "decoder")]
        if sides[0] != sides[1]:
            raise ConversionError(
                f"{folder.path}: encoder and decoder must have equally many {name}. "
                f"Received: {sides}."
            )
    if settings.count("d_model", least=4) % 2:
        settings.refuse("d_model", "even, for sines and cosines", settings.count("d_model"))
    # A dictionary keeps the first place of a name that comes twice.
    names = dict.fromkeys((activation, "swish", "silu", "relu", "gelu"))
    return {
        "num_layers": settings.count("encoder_layers"),
        "num_decoder_layers": settings.count("decoder_layers"),
        "intermediate_dim": settings.count("encoder_ffn_dim"),
        **settings.heads_of("d_model", "encoder_attention_heads"),
        "dropout": settings.number("dropout", 0.1, below=1),
        "normalize_first": normalize_first,
        "activation": ACTIVATIONS[settings.one_of("activation_function", *names)],
    }


def dropouts_of(settings):
    """The dropouts inside of a block, as arguments of `translation`."""
    names = ("attention_dropout", "activation_dropout")
    return {name: settings.number(name, 0.0, below=1) for name in names}


def check_weights(folder, weights, family, shared, dimensions):
    """Compares the dimensions with the arrays, before a model is built."""
    hidden_dim, settings = dimensions["hidden_dim"], folder.settings
    shapes = {
        f"model.{side}.layers.{dimensions[depth] - 1}.fc1.weight":
            (dimensions["intermediate_dim"], hidden_dim)
        for side, depth in (("encoder", "num_layers"), ("decoder", "num_decoder_layers"))
    }  # fmt: skip
    tables = [(ONE_TABLE + OUTPUT, "vocab_size")]
    if shared:
        settings.ignore(["decoder_vocab_size"])
    else:
        tables = [(SOURCE, "vocab_size"), (TARGET + OUTPUT, "decoder_vocab_size")]
    for names, size in tables:
        rows_there = weights.rows(first_of(names, weights, family))
        shapes[names] = (settings.count(size, rows_there), hidden_dim)
    weights.check(shapes, family)


def check_positions(model, weights):
    """Raises ConversionError if a folder stores positions that are not the model's sines."""
    layer = model.positions
    for name in filter(POSITIONS.search, weights):
        stored = finite_float32(name, weights[name])[layer.first_position :]
        ours = keras.ops.convert_to_numpy(layer(np.zeros((1, *stored.shape), "float32")))[0]
        difference = np.abs(stored - ours).max(initial=0.0)
        if difference > POSITION_TOLERANCE:
            raise ConversionError(
                f"{name} must be the sines and cosines of the paper. Received: a largest "
                f"difference of {difference:.1e}."
            )


def _vocabularies(folder, shared):
    """The pieces of source and target in the order of their ids, as many as the tables have."""
    sides = [("vocab.json", "vocab_size")]
    if not shared:
        sides.append(("target_vocab.json", "decoder_vocab_size"))
    vocabularies = []
    for name, size in sides:
        pieces = pieces_in_order(folder.path / name, folder.json(name))
        count = len(pieces)
        size = folder.settings.count(size, count)
        padding = num_padding_rows(folder.path / name, count, size)
        vocabularies.append([*pieces, *(f"<unused{i}>" for i in range(padding))])
    return vocabularies * 2 if shared else vocabularies


def _order(folder, pieces):
    """The `VocabularyPermutation` of the pieces of one side."""
    settings, size = folder.settings, len(pieces)
    pad, end = (settings.count(name, least=0) for name in ("pad_token_id", "eos_token_id"))
    start = settings.count("decoder_start_token_id", pad, least=0)
    ids = {"pad_token_id": pad, "eos_token_id": end, "decoder_start_token_id": start}
    for name, value in ids.items():
        if value >= size:
            settings.refuse(name, f"below {size}, the pieces of the vocabulary", value)
    unknown = pieces.index("<unk>") if "<unk>" in pieces else pad
    return VocabularyPermutation(our_order(size, pad, unknown, start, end))


def _is_one_table(weights, tied):
    """Whether source and target have one table.

    If it is not tied to the output, each side may have its own, and Hugging Face's library then
    ignores the shared one.
    """
    sides = [name for name in SOURCE + TARGET if name in weights]
    return tied or len(sides) < 2 or np.array_equal(*(weights[name] for name in sides))


def hugging_face_folder(text_model, draft):
    """Writes the tokenizers, and returns the config and the arrays of a translation model."""
    model, settings = text_model.model, text_model.settings
    encoder, source, target = model.encoder, model.source_embedding, model.target_embedding
    shared = source is target
    _check_written(model, shared)
    longest = max(settings.max_source_length, settings.max_target_length) + 1
    _save_tokenizers(text_model, (source, target), shared, longest, draft)
    ids = {"pad_token_id": 0, "eos_token_id": 3, "decoder_start_token_id": 2, "bos_token_id": 2}
    write_json(draft / GENERATION, ids | written_search(settings))
    arrays = _arrays_with_sines_first(model)
    if "final_logits_bias" not in arrays:
        arrays["final_logits_bias"] = np.zeros((1, target.vocabulary_size), "float32")
    kind, name = "marian", "MarianMTModel"
    if encoder.normalize_first:
        kind, name = "pegasus", "PegasusForConditionalGeneration"
    return {
        "model_type": kind,
        "architectures": [name],
        **written_settings(model),
        "decoder_vocab_size": target.vocabulary_size,
        "share_encoder_decoder_embeddings": shared,
        "max_position_embeddings": max(longest, 512),  # sines: any number will do
        **ids,
    }, arrays


def written_settings(model):
    """The settings of config.json that Marian, Pegasus, BART and mBART have in common."""
    encoder, table = model.encoder, model.source_embedding
    depths = {"encoder_layers": encoder.num_layers, "decoder_layers": model.decoder.num_layers}
    sizes = {
        "attention_heads": encoder.num_heads,
        "ffn_dim": encoder.intermediate_dim,
    }
    return {
        "vocab_size": table.vocabulary_size,
        "tie_word_embeddings": True,
        "d_model": table.hidden_dim,
        **depths,
        **{f"{s}_{name}": size for s in ("encoder", "decoder") for name, size in sizes.items()},
        "dropout": encoder.dropout,
        "attention_dropout": encoder.attention_dropout,
        "activation_dropout": encoder.activation_dropout,
        "activation_function": activation_of(encoder),
        "scale_embedding": bool(table.scale),
        "is_encoder_decoder": True,
    }


def _check_written(model, shared):
    """Raises ConversionError if neither Marian nor Pegasus is such a model."""
    encoder, positions = model.encoder, model.positions
    check_dense(encoder)
    is_pegasus = encoder.normalize_first
    check_equal(f"Hugging Face's {'Pegasus (pre-norm)' if is_pegasus else 'Marian (post-norm)'}", {
        "max_wavelength of positions": (positions.max_wavelength, 10000),
        "first_position": (positions.first_position, 0),
        "an encoder that sees the end token": (model.source_without_end is None, True),
        "one vocabulary": (shared or not is_pegasus, True),
        "tie_output": (model.output_projection is model.target_embedding, True),
        "norm_epsilon": (encoder.norm_epsilon, EPSILON),
    })  # fmt: skip


def _save_tokenizers(text_model, tables, shared, longest, draft):
    """Writes both tokenizers and the pieces of the tables as Marian's tokenizer reads them."""
    for tokenizer, table, model_file, file in (
        (text_model.tokenizer, tables[0], "source.spm", "vocab.json"),
        (text_model.target_tokenizer, tables[1], "target.spm", "target_vocab.json"),
    ):
        if not isinstance(tokenizer, SentencePieceTokenizer):
            raise ConversionError(
                "Marian's tokenizers are SentencePiece models. "
                f"Received: a {type(tokenizer).__name__}."
            )
        save_for_lookup(tokenizer, draft / model_file)
        if file == "vocab.json" or not shared:
            pieces = row_names(tokenizer, table.vocabulary_size)
            write_json(draft / file, {piece: index for index, piece in enumerate(pieces)})
    write_json(draft / "tokenizer_config.json", {
        "tokenizer_class": "MarianTokenizer", "separate_vocabs": not shared,
        "source_lang": "", "target_lang": "", "model_max_length": longest,
        "pad_token": "<pad>", "unk_token": "<unk>", "eos_token": "</s>",
    })  # fmt: skip


def _arrays_with_sines_first(model):
    """The arrays of a model, whose token vectors have the columns of Marian's positions."""
    tables = model.source_embedding, model.target_embedding
    orders = [VocabularyPermutation(range(table.vocabulary_size)) for table in tables]
    arrays = arrays_of(rows(model, *orders))
    if model.positions.interleaved:
        columns = np.arange(tables[1].hidden_dim).reshape(-1, 2).T.ravel()
        for name in arrays:
            for axis in _hidden_axes(name):
                arrays[name] = np.take(arrays[name], columns, axis)
    return arrays


def _hidden_axes(name):
    """The axes of one of Marian's arrays that run over the columns of the token vectors."""
    if name == "final_logits_bias":
        return []
    if "norm" in name or ".out_proj." in name or ".fc2." in name:
        return [0]
    return [1] if name.endswith(".weight") else []
