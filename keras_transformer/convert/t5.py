"""T5, T5 v1.1, Flan-T5 and mT5, encoder-decoders of any text to any text, in Hugging Face's format.

T5 does not divide the products of queries and keys by the root of their width, and its first
version divides by that of the vectors before it projects them to logits. Both are part of the
weights here: of the projections of queries, and of the last norm.
"""

import math

import numpy as np

from keras_transformer.convert.blocks import ACTIVATIONS
from keras_transformer.convert.folder import Converted, ModelFolder, num_padding_rows
from keras_transformer.convert.generation import run_settings, search_settings
from keras_transformer.convert.marian import bias_in_our_order
from keras_transformer.convert.tables import (
    ENDINGS,
    ConversionError,
    Row,
    VocabularyPermutation,
    assign,
    first_of,
    rows_of,
)
from keras_transformer.convert.tokenizers import load_tokenizer_of
from keras_transformer.models.encoder_decoder import translation
from keras_transformer.tokenizers.control_ids import END_ID, PAD_ID, START_ID

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
        divisor = math.sqrt(table.hidden_dim) if scales_outputs and side == "decoder" else 1
        norm = Row(stack.norm.scale, (f"{side}.final_layer_norm.weight",))
        yield scaled(norm, 1 / divisor)


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
    """Reads a folder of T5 or mT5: weights, vocabulary and the settings of its search."""
    settings = folder.settings
    names = ("ForConditionalGeneration", "WithLMHeadModel")
    folder.head({f"{kind}{name}": None for name in names for kind in ("T5", "MT5")})
    dimensions, blocks = _dimensions(folder)
    weights = folder.arrays()
    hidden_dim, last = dimensions["hidden_dim"], dimensions["num_layers"] - 1
    inside = "wi_0" if blocks["gated"] else "wi"
    weights.check({
        (TABLE, *TWINS): (settings.count("vocab_size"), hidden_dim),
        f"decoder.block.{last}.layer.2.DenseReluDense.{inside}.weight":
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
    search = search_settings(folder, order, 512)
    run = run_settings(search, tokenizer.vocabulary_size, dimensions)
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
    if settings.count("num_decoder_layers", num_layers) != num_layers:
        settings.refuse("num_decoder_layers", f"{num_layers}, as num_layers",
                        settings.raw("num_decoder_layers"))  # fmt: skip
    settings.one_of("is_encoder_decoder", True)
    form = settings.one_of("feed_forward_proj", *_forms(settings))
    gated = form.startswith("gated-")
    settings.expect(
        dense_act_fn=FORMS[form], is_gated_act=gated, num_hidden_layers=num_layers,
        classifier_dropout=0.0,
    )  # fmt: skip
    settings.ignore(["n_positions"])
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
    config, path = folder.settings, folder.path
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
        raise ConversionError(f"{path} must hold a tokenizer with pad, unknown and end pieces.")
    num_padding_rows(path, int(their_id_of.max()) + 1, size)
    unused = sorted(set(range(size)) - set(their_id_of.tolist()))
    return VocabularyPermutation([*their_id_of, *unused])
