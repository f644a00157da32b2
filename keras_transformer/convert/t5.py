"""T5, T5 v1.1, Flan-T5, mT5 and ByT5, which write text from text, in Hugging Face's format.

T5 does not divide the products of queries and keys by the root of their width, and its first
version divides by that of the vectors before it projects them to logits. Both are part of the
weights here: of the projections of queries, and of the last norm.
"""

import dataclasses
import json
import logging
import math

import keras
import numpy as np

from keras_transformer.convert.blocks import ACTIVATIONS, activation_of, check_equal, check_t5
from keras_transformer.convert.folder import Converted, ModelFolder, num_padding_rows, write_json
from keras_transformer.convert.generation import (
    GENERATION,
    search_settings,
    written_search,
)
from keras_transformer.convert.marian import bias_in_our_order
from keras_transformer.convert.tables import (
    ENDINGS,
    ConversionError,
    Row,
    VocabularyPermutation,
    arrays_of,
    assign,
    first_of,
    rows_of,
)
from keras_transformer.convert.tokenizers import (
    BYTES,
    SETTINGS,
    T5_FILE,
    files_of,
    load_tokenizer_of,
)
from keras_transformer.models.encoder_decoder import translation
from keras_transformer.serving.settings import kept_search
from keras_transformer.tokenizers.control_ids import END_ID, PAD_ID, START_ID, UNKNOWN_ID
from keras_transformer.tokenizers.sentencepiece import SentencePieceTokenizer
from keras_transformer.tokenizers.sentencepiece_format import Model, ModelType, PieceType
from keras_transformer.tokenizers.symbols import SymbolTokenizer

TABLE, OUTPUT = "shared.weight", "lm_head.weight"
TWINS = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
FORMS = {"relu": "relu", "gated-gelu": "gelu_new", "gated-silu": "silu"}
# The paths of our layers in a block; "{last}" is the number of its last sub-layer.
SELF_ATTENTION = {
    "self_attention.query_key_value": "0.SelfAttention.q 0.SelfAttention.k 0.SelfAttention.v",
    "self_attention.output_projection": "0.SelfAttention.o",
    "around_self_attention.norm": "0.layer_norm",
}
CROSS_ATTENTION = {
    "cross_attention.query": "1.EncDecAttention.q",
    "cross_attention.key_value": "1.EncDecAttention.k 1.EncDecAttention.v",
    "cross_attention.output_projection": "1.EncDecAttention.o",
    "around_cross_attention.norm": "1.layer_norm",
}
FEED_FORWARD = {
    "feed_forward.widen": "{last}.DenseReluDense.wi",
    "feed_forward.gate_widen": "{last}.DenseReluDense.wi_0 {last}.DenseReluDense.wi_1",
    "feed_forward.narrow": "{last}.DenseReluDense.wo",
    "around_feed_forward.norm": "{last}.layer_norm",
}
BLOCKS = {
    "encoder": SELF_ATTENTION | {p: n.format(last=1) for p, n in FEED_FORWARD.items()},
    "decoder": SELF_ATTENTION | CROSS_ATTENTION | {
        p: n.format(last=2) for p, n in FEED_FORWARD.items()
    },
}  # fmt: skip
# Tokens of a text in their training, where a folder does not say how many.
LENGTH, LENGTH_OF_BYTES = 512, 1024
PIECES = {"pad": "<pad>", "unk": "<unk>", "eos": "</s>"}
QUERIES = "query_kernel", "query_key_value_kernel"


def rows(model, order, scales_outputs):
    """The table of T5.

    Args:
        model: of `translation`.
        order: the `VocabularyPermutation` of its ids.
        scales_outputs: whether vectors are divided by the root of their width before they are
            projected to logits.
    """
    table, output = model.target_embedding, model.output_projection
    twins = (*TWINS, OUTPUT) if output is table else TWINS
    yield order.row(table.embeddings, TABLE, *twins)
    if output is not table:
        yield order.row(output.embeddings, OUTPUT)
    yield from block_rows(model)
    root = math.sqrt(table.hidden_dim) if scales_outputs else 1
    for side, divisor in (("encoder", 1), ("decoder", root)):
        norm = Row(getattr(model, side).norm.scale, (f"{side}.final_layer_norm.weight",))
        yield scaled(norm, 1 / divisor)


def block_rows(model):
    """The rows of all blocks, which do not depend on the vocabulary."""
    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        yield Row(stack.shared_bias.embeddings, (bias,))
        for index, block in enumerate(stack.blocks):
            head = block.self_attention
            width = head.output_projection.kernel.shape[1]
            root = math.sqrt(width / head.num_heads)
            names = BLOCKS[side], f"{side}.block.{index}.layer."
            for row in rows_of(block, *names, ENDINGS | {"scale": ".weight"}):
                is_query = row.variable.name in QUERIES
                yield scaled(row, root, width) if is_query else row


def scaled(row, factor, count=None):
    """A row whose first `count` numbers along the first axis are `factor` times theirs here."""

    def times(array, factor):
        array = np.array(array, "float32")
        array[:count] *= np.float32(factor)
        return array

    return row._replace(
        to_ours=lambda array: times(array, factor),
        to_theirs=lambda array: times(array, 1 / factor),
    )


def read(folder: ModelFolder):
    """Reads a folder of T5, mT5 or ByT5: weights, vocabulary and the settings of its search."""
    settings = folder.settings
    names = ("ForConditionalGeneration", "WithLMHeadModel")
    folder.head({f"{kind}{name}": None for name in names for kind in ("T5", "MT5")})
    dimensions, blocks = _dimensions(folder)
    weights = folder.arrays()
    hidden_dim = dimensions["hidden_dim"]
    last, last_of_decoder = dimensions["num_layers"] - 1, dimensions["num_decoder_layers"] - 1
    inside = "wi_0" if blocks["gated"] else "wi"
    weights.check({
        (TABLE, *TWINS): (settings.count("vocab_size"), hidden_dim),
        f"decoder.block.{last_of_decoder}.layer.2.DenseReluDense.{inside}.weight":
            (dimensions["intermediate_dim"], hidden_dim),
        f"encoder.block.{last}.layer.0.SelfAttention.q.weight":
            (blocks["key_dim"] * dimensions["num_heads"], hidden_dim),
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight":
            (blocks["position_bias"]["num_buckets"], dimensions["num_heads"]),
    }, "T5")  # fmt: skip
    tokenizer, their_id_of = load_tokenizer_of(folder.path)
    order = _order(folder, their_id_of)
    scales_outputs = _scales_outputs(settings)
    model = translation(
        len(order),
        tie_output=_is_tied(weights),
        output_bias=True,
        scale_embedding=False,
        use_bias=False,
        normalization="rms",
        **blocks,
        **dimensions,
    )
    # Only to exclude the start token, which stands for padding as well.
    no_bias = np.zeros(len(order.our_id_of), "float32")
    model.output_bias.bias.assign(bias_in_our_order(no_bias, order))
    model.output_bias.trainable = False
    assign(rows(model, order, scales_outputs), weights, "T5")
    usual = LENGTH_OF_BYTES if isinstance(tokenizer, SymbolTokenizer) else LENGTH
    search = dataclasses.replace(
        search_settings(folder, order, LENGTH),
        max_source_length=settings.count("n_positions", usual, least=2),
    )
    run = dimensions | kept_search(search)
    return Converted("translation", model, tokenizer, settings=search, config=run)


def _is_tied(weights):
    """Whether the output projection is the table.

    The settings do not say: version 5 of Hugging Face's library calls every model tied, and ties
    those whose folder has one table, or the same twice.
    """
    if OUTPUT not in weights:
        return True
    table = weights[first_of((TABLE, *TWINS), weights, "T5")]
    return weights.shape(OUTPUT) == table.shape and np.array_equal(weights[OUTPUT], table)


def _scales_outputs(settings):
    """Whether vectors are divided by the root of their width before the output projection.

    Those of T5 are, unless the folder says that it is not tied, or says it by a setting of newer
    versions; those of mT5 are not, but were in version 4 where it was tied.
    """
    is_mt5 = settings.raw("model_type") == "mt5"
    tied = settings.one_of("tie_word_embeddings", not is_mt5, True, False)
    if not is_mt5:
        return settings.flag("scale_decoder_outputs", tied)
    version = settings.text("transformers_version", "0").split(".")[0]
    if tied and version in ("0", "1", "2", "3", "4"):
        settings.refuse("tie_word_embeddings", "false, as of released models of mT5", tied)
    return False


def _dimensions(folder):
    """The dimensions that a run has settings for, and what else its blocks are."""
    settings = folder.settings
    num_layers = settings.count("num_layers")
    settings.one_of("is_encoder_decoder", True)
    form = settings.one_of("feed_forward_proj", *_forms(settings))
    gated = form.startswith("gated-")
    settings.expect(
        dense_act_fn=FORMS[form], is_gated_act=gated, num_hidden_layers=num_layers,
        classifier_dropout=0.0,
    )  # fmt: skip
    settings.ignore(["tokenizer_class"])
    rate = settings.number("dropout_rate", 0.1, below=1)
    buckets = settings.count("relative_attention_num_buckets", 32, least=4)
    distance = settings.count("relative_attention_max_distance", 128, least=2)
    if buckets % 4 or distance <= buckets // 2:
        settings.refuse(
            "relative_attention_num_buckets",
            f"a multiple of 4, at most twice the relative_attention_max_distance, {distance}",
            buckets,
        )
    dimensions = {
        "num_layers": num_layers,
        "num_decoder_layers": settings.count("num_decoder_layers", num_layers),
        "hidden_dim": settings.count("d_model"),
        "intermediate_dim": settings.count("d_ff"),
        "num_heads": settings.count("num_heads"),
        "dropout": rate,
        "attention_dropout": rate,
        "activation_dropout": rate,
    }
    return dimensions, {
        "key_dim": settings.count("d_kv"),
        "activation": ACTIVATIONS[FORMS[form]],
        "gated": gated,
        "norm_epsilon": settings.number("layer_norm_epsilon", 1e-6),
        "position_bias": {"type": "t5", "num_buckets": buckets, "max_distance": distance},
    }


def _forms(settings):
    """What `feed_forward_proj` may be, the usual form of the family first."""
    usual = "gated-gelu" if settings.raw("model_type") == "mt5" else "relu"
    return dict.fromkeys((usual, *FORMS))


def _order(folder, their_id_of):
    """The order of the tokenizer's ids, then of the rows that have no piece."""
    config = folder.settings
    size = config.count("vocab_size")
    control = {"pad_token_id": (0, PAD_ID), "eos_token_id": (1, END_ID)}
    for name, (usual, ours) in control.items():
        if config.count(name, usual, least=0) != their_id_of[ours]:
            config.refuse(name, f"{their_id_of[ours]}, as in the tokenizer", config.raw(name))
    start = config.count("decoder_start_token_id", int(their_id_of[PAD_ID]), least=0)
    if start not in (their_id_of[PAD_ID], their_id_of[END_ID]):
        config.refuse("decoder_start_token_id", "the id of padding or of the end", start)
    their_id_of = np.array(their_id_of)
    their_id_of[START_ID] = start
    if (their_id_of < 0).any():
        raise ConversionError(
            f"{files_of(folder)} must hold a tokenizer with pad, unknown and end pieces."
        )
    num_padding_rows(files_of(folder), int(their_id_of.max()) + 1, size)
    unused = sorted(set(range(size)) - set(their_id_of.tolist()))
    return VocabularyPermutation([*their_id_of, *unused])


def hugging_face_folder(text_model, draft):
    """Writes the tokenizer, and returns the config and the arrays of a model like T5.

    Its ids are T5's: pad, which starts targets too, end and unknown come first.
    """
    model, settings = text_model.model, text_model.settings
    _check_written(model)
    encoder, table, bias = model.encoder, model.target_embedding, model.encoder.shared_bias
    order, tied = _written_order(model), model.output_projection is table
    size = table.vocabulary_size - 1
    write_json(
        draft / SETTINGS,
        _save_tokenizer(text_model.tokenizer, size, draft)
        | {"model_max_length": settings.max_source_length}
        | {f"{name}_token": piece for name, piece in PIECES.items()},
    )
    ids = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    search = written_search(settings, lambda index: int(order.their_id_of[index]))
    write_json(draft / GENERATION, ids | search)
    rates = {name: getattr(encoder, name) for name in ("attention_dropout", "activation_dropout")}
    if others := {name: rate for name, rate in rates.items() if rate != encoder.dropout}:
        logging.getLogger(__name__).warning(
            "T5 has one dropout_rate, %s. The folder does not hold: %s.",
            encoder.dropout, ", ".join(f"{name}={rate}" for name, rate in others.items()),
        )  # fmt: skip
    width = encoder.blocks[0].self_attention.output_projection.kernel.shape[1]
    return {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "vocab_size": size,
        "n_positions": settings.max_source_length,
        "d_model": table.hidden_dim,
        "d_kv": width // encoder.num_heads,
        "d_ff": encoder.intermediate_dim,
        "num_layers": encoder.num_layers,
        "num_decoder_layers": model.decoder.num_layers,
        "num_heads": encoder.num_heads,
        "relative_attention_num_buckets": bias.num_buckets,
        "relative_attention_max_distance": bias.max_distance,
        "dropout_rate": encoder.dropout,
        "layer_norm_epsilon": encoder.norm_epsilon,
        "feed_forward_proj": _form_of(encoder),
        "tie_word_embeddings": tied,
        "is_encoder_decoder": True,
        **ids,
    }, arrays_of(rows(model, order, scales_outputs=tied))


def _check_written(model):
    """Raises ConversionError unless T5 is such a model."""
    table, bias = model.target_embedding, model.output_bias
    check_t5(model, "Hugging Face")
    _form_of(model.encoder)
    numbers = np.zeros(1) if bias is None else keras.ops.convert_to_numpy(bias.bias)
    check_equal("The T5 of Hugging Face", {
        "scale_embedding": (bool(table.scale), False),
        "one vocabulary": (model.source_embedding is table, True),
        "an encoder that sees the end token": (model.source_without_end is None, True),
        # Of the start, it only keeps it from being chosen.
        "an output bias": (bool(np.delete(numbers, START_ID % len(numbers)).any()), False),
    })  # fmt: skip


def _form_of(stack):
    """The `feed_forward_proj` of a stack."""
    activation = activation_of(stack)
    for form, name in FORMS.items():
        if form.startswith("gated-") == stack.gated and name == activation:
            return form
    raise ConversionError(
        "The T5 of Hugging Face has the activation relu or, gated, gelu_tanh or silu. "
        f"Received: {activation}, gated={stack.gated}."
    )


def _written_order(model):
    """Our ids in the order of T5, which has no start token of its own."""
    size = model.target_embedding.vocabulary_size - 1
    order = VocabularyPermutation([0, 2, 0, 1, *range(3, size)])
    order.our_id_of[0] = START_ID  # no model sees padding, so the row is that of the start
    return order


def _save_tokenizer(tokenizer, size, draft):
    """Writes a tokenizer with T5's order of ids, and returns the settings of its class.

    Args:
        tokenizer: of the model.
        size: of their vocabulary.
        draft: path of the folder.
    """
    if isinstance(tokenizer, SymbolTokenizer):
        check_equal("The tokenizer of ByT5", {
            "characters": (tokenizer.characters, None),
            "errors": (tokenizer.errors, "ignore"),
        })  # fmt: skip
        return {"tokenizer_class": BYTES, "extra_ids": size - tokenizer.vocabulary_size + 1}
    is_spm = isinstance(tokenizer, SentencePieceTokenizer)
    model = Model.FromString(tokenizer.model) if is_spm else None
    # A field that the file leaves out is 0.
    is_unigram = model is not None and model.trainer_spec.model_type in (0, ModelType.UNIGRAM)
    if not is_unigram or any(piece.type == PieceType.BYTE for piece in model.pieces):
        raise ConversionError(
            "T5's tokenizer of Hugging Face is a Unigram model of SentencePiece without bytes, as "
            f"released ones are. Received: {type(tokenizer).__name__}"
            f"{' of another kind' if model is not None else ''}."
        )
    if tokenizer.vocabulary_size < len(model.pieces):
        raise ConversionError(
            "T5 has a row for each piece of its tokenizer. Received: "
            f"{tokenizer.vocabulary_size} rows for {len(model.pieces)} pieces."
        )
    names = [piece.piece for piece in model.pieces]
    extra = 0
    while names[-1 - extra] == f"<extra_id_{extra}>":  # which only their class has
        extra += 1
    control = [model.pieces[index] for index in (PAD_ID, END_ID, UNKNOWN_ID)]
    pieces = [*control, *model.pieces[END_ID + 1 : len(names) - extra]]
    pieces = [(piece.piece, piece.score, piece.type) for piece in pieces]
    del model.pieces[:]
    for name, score, kind in pieces:
        model.pieces.add(piece=name, score=score, type=kind)
    model.trainer_spec.vocab_size = len(pieces)
    (draft / T5_FILE).write_bytes(model.SerializeToString())
    return {"tokenizer_class": "T5Tokenizer", "extra_ids": extra}


def in_their_order(arrays, model):
    """The example of a folder, with their ids for ours."""
    order = _written_order(model)
    arrays = dict(arrays)
    texts, ids = json.loads(str(arrays["texts"]))
    ids = [order.their_id_of[np.array(row, int)].tolist() for row in ids]
    arrays["texts"] = np.array(json.dumps([texts, ids]))
    for name in arrays:
        if name.startswith("input."):
            arrays[name] = order.their_id_of[arrays[name]]
    logits = np.array(arrays["output.logits"])
    if model.output_bias is not None:
        logits[..., START_ID] -= keras.ops.convert_to_numpy(model.output_bias.bias)[START_ID]
    return arrays | {"output.logits": logits[..., order.our_id_of]}
