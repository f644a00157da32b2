"""Translation and language models in the format of CTranslate2, an engine for CPUs and GPUs.

Source: https://opennmt.net/CTranslate2, through its own model specifications.
"""

import json
import logging
import math

import keras
import numpy as np

from keras_transformer.convert.blocks import (
    activation_of,
    check_dense,
    check_output,
    check_t5,
    is_t5,
    row_names,
)
from keras_transformer.convert.graphs import save_beside
from keras_transformer.convert.llama import family_of
from keras_transformer.convert.tables import (
    ConversionError,
    Row,
    arrays_of,
    require,
    rows_of,
)
from keras_transformer.layers.positions import SinusoidalEncoding
from keras_transformer.layers.rotary_embedding import RotaryEmbedding
from keras_transformer.models.decoder_only import LanguageModel
from keras_transformer.models.encoder_decoder import TranslationModel
from keras_transformer.ops.positions import sinusoidal_positions
from keras_transformer.tokenizers.control_ids import START_ID

DTYPES = ("float32", "int8", "int16", "bfloat16", "float16")
# Where its specification of a block holds what ours has at each path.
BLOCK = {
    "self_attention.query_key_value": "self_attention/linear_0",
    "self_attention.query_norm": "self_attention/q_norm",
    "self_attention.key_norm": "self_attention/k_norm",
    "self_attention.output_projection": "self_attention/linear_1",
    "around_self_attention.norm": "self_attention/layer_norm",
    "cross_attention.query": "attention/linear_0",
    "cross_attention.key_value": "attention/linear_1",
    "cross_attention.output_projection": "attention/linear_2",
    "around_cross_attention.norm": "attention/layer_norm",
    "feed_forward.widen": "ffn/linear_0",
    "feed_forward.gate_widen": "ffn/linear_0 ffn/linear_0_noact",
    "feed_forward.narrow": "ffn/linear_1",
    "around_feed_forward.norm": "ffn/layer_norm",
}
ENDINGS = {
    "layer": {"kernel": "/weight", "bias": "/bias", "gamma": "/gamma", "beta": "/beta"},
    "rms": {"kernel": "/weight", "bias": "/bias", "scale": "/gamma"},
}
POSITIONS = {
    "source_positions": "encoder/position_encodings",
    "positions": "decoder/position_encodings",
}
NORMS = {
    "source_embedding_norm": "encoder/layernorm_embedding",
    "embedding_norm": "decoder/layernorm_embedding",
    "encoder.norm": "encoder/layer_norm",
    "decoder.norm": "decoder/layer_norm",
}
EXAMPLES = (
    *("A dog runs.", "It is ten past six.", "12,50 €", "x", "no", "She", "two men", "a red car"),
    *("in the park", "we are here", "Why?", "7:30", "the", "open door", "Good", "night"),
)


def write(text_model, draft, dtype="float32"):
    """Writes a model that `ctranslate2.Translator` or `ctranslate2.Generator` can load.

    `text_model` is a `serving.Translator` or `Generator`, whose tokenizers are written, too.
    """
    require("ctranslate2")
    from ctranslate2 import specs

    model = text_model.model
    if isinstance(model, TranslationModel):
        settings = text_model.settings
        spec = translation_spec(
            model,
            row_names(text_model.tokenizer, model.source_embedding.vocabulary_size),
            row_names(text_model.target_tokenizer, model.target_embedding.vocabulary_size),
            max(settings.max_source_length, settings.max_target_length),
        )
    elif isinstance(model, LanguageModel):
        spec = _language_model(specs, text_model)
    else:
        raise ConversionError(
            "CTranslate2 supports models of translation(), language_model() and gpt2(). "
            f"Received: {model!r}."
        )
    save(spec, draft, dtype)
    save_beside(text_model, draft)


def example(text_model):
    """Pieces of texts and their log-probabilities by our model, for the check of a folder."""
    tokenizer = text_model.tokenizer
    if hasattr(text_model, "n_best"):
        texts = list(EXAMPLES)
        target = text_model.target_tokenizer
        scores = text_model.score(texts, texts)
        pairs = [_pieces(tokenizer, texts), _pieces(target, texts)]
    else:
        texts = [text for text in EXAMPLES if len(_pieces(tokenizer, [text])[0]) > 1]
        start = text_model.settings.start_id
        first = [] if start is None else tokenizer.pieces([start])
        pairs = [[first + row for row in _pieces(tokenizer, texts)]]
        scores = text_model.score(texts)
    return {"pieces": np.array(json.dumps(pairs)), "scores": scores}


def rows(model):
    """The table of a model of `translation` or `language_model`."""
    is_translation = isinstance(model, TranslationModel)
    table = model.target_embedding if is_translation else model.embedding
    names, sides = ("decoder/embeddings/weight",), {"decoder": model.decoder}
    if is_translation:
        source, sides["encoder"] = model.source_embedding, model.encoder
        if source is table:
            names += ("encoder/embeddings_0/weight",)
        else:
            yield Row(source.embeddings, ("encoder/embeddings_0/weight",))
        if model.output_bias is not None:
            yield Row(model.output_bias.bias, ("decoder/projection/bias",))
    if model.output_projection is table:
        names += ("decoder/projection/weight",)
    else:
        yield Row(model.output_projection.embeddings, ("decoder/projection/weight",))
    yield Row(table.embeddings, names[:1], twins=names[1:])
    endings = ENDINGS[model.decoder.normalization]
    yield from rows_of(model, POSITIONS, endings={"embeddings": "/encodings"})
    yield from rows_of(model, NORMS, endings=endings)
    for side, stack in sides.items():
        for index, block in enumerate(stack.blocks):
            yield from rows_of(block, BLOCK, f"{side}/layer_{index}/", endings)
        if stack.shared_bias is not None:
            scopes = [f"{side}/layer_{i}/self_attention" for i in range(stack.num_layers)]
            first, *others = [f"{scope}/relative_attention_bias" for scope in scopes]
            yield Row(stack.shared_bias.embeddings, (first,), twins=tuple(others))


def translation_spec(model, source_pieces, target_pieces, max_length):
    """CTranslate2's specification of a model of translation().

    Args:
        model: a model with float32 weights.
        source_pieces: a name for each id of the source.
        target_pieces: a name for each id of the target.
        max_length: longest sequence in tokens, if positions are not learned.

    Raises:
        ConversionError: if CTranslate2 does not support the model.
    """
    from ctranslate2 import specs

    encoder, decoder = model.encoder, model.decoder
    if is_t5(model):
        check_t5(model, "CTranslate2")
        options = _t5_options(encoder)
    else:
        check_dense(decoder, "CTranslate2", needs_bias=False)
        options = _options(encoder)
    spec = specs.TransformerSpec.from_config(
        (encoder.num_layers, decoder.num_layers),
        encoder.num_heads,
        layernorm_embedding=model.embedding_norm is not None,
        **options,
    )
    for side, table, positions, stack in (
        (spec.encoder, model.source_embedding, model.source_positions, encoder),
        (spec.decoder, model.target_embedding, model.positions, decoder),
    ):
        _fill_side(side, table, positions, stack, max_length)
    _fill(spec, model)
    spec.config.add_source_bos = False
    spec.config.add_source_eos = model.source_without_end is None
    spec.config.decoder_start_token = target_pieces[START_ID]
    spec.config.layer_norm_epsilon = encoder.norm_epsilon
    spec.register_source_vocabulary(source_pieces)
    spec.register_target_vocabulary(target_pieces)
    return spec


def save(spec, folder, dtype="float32"):
    """Writes a specification to a folder, with its weights in a dtype."""
    spec.validate()
    spec.optimize(quantization=None if dtype == "float32" else dtype)
    spec.save(str(folder))


def _language_model(specs, text_model):
    model = text_model.model
    decoder, table = model.decoder, model.embedding
    if decoder.normalization == "rms":
        options = _llama_options(model)
    else:
        check_output(model, "CTranslate2")
        options = _options(decoder)
    spec = specs.TransformerDecoderModelSpec.from_config(
        decoder.num_layers, decoder.num_heads, **options
    )
    context = getattr(text_model.settings, "context", 0)
    _fill_side(spec.decoder, table, model.positions, decoder, context)
    _fill(spec, model)
    spec.config.layer_norm_epsilon = decoder.norm_epsilon
    pieces = row_names(text_model.tokenizer, table.vocabulary_size)
    spec.config.unk_token = pieces[1]
    start = getattr(text_model.settings, "start_id", None)
    num_control_ids = max(text_model.tokenizer.vocabulary_size - table.vocabulary_size, 0)
    spec.config.bos_token = pieces[2 if start is None else start - num_control_ids]
    if others := [pieces[end - num_control_ids] for end in text_model.settings.sampling.end_ids]:
        logging.getLogger(__name__).warning(
            "CTranslate2's folders name one end. Give these as end_token, too: %s.",
            ", ".join(others),
        )
    end = getattr(text_model.tokenizer, "end_of_text_id", None)
    spec.config.eos_token = pieces[3 if end is None else end]
    spec.register_vocabulary(pieces)
    return spec


def _fill_side(spec, table, positions, stack, max_length):
    """Fills what the specification of a side has besides the arrays of `rows`.

    Args:
        spec: of an encoder or a decoder.
        table: our `TokenEmbedding`.
        positions: our layer of positions, or None.
        stack: our `Encoder` or `Decoder`.
        max_length: longest sequence in tokens, if positions are not learned.
    """
    spec.scale_embeddings = bool(table.scale)
    if isinstance(positions, SinusoidalEncoding):
        spec.position_encodings.encodings = keras.ops.convert_to_numpy(
            sinusoidal_positions(
                max_length + 1,
                table.hidden_dim,
                positions.first_position,
                positions.max_wavelength,
                positions.interleaved,
            )
        )
    if stack.shared_bias is None:
        return
    for layer, block in zip(spec.layer, stack.blocks, strict=True):
        layer.self_attention.relative_attention_max_distance = np.int32(
            stack.shared_bias.max_distance
        )
        attentions = [(layer.self_attention, block.self_attention)]
        if hasattr(layer, "attention"):
            attentions.append((layer.attention, block.cross_attention))
        for theirs, ours in attentions:
            width = ours.output_projection.kernel.shape[1] // ours.num_heads
            theirs.queries_scale = np.float32(1 / math.sqrt(width))


def _fill(spec, model):
    """Copies the arrays of a model to its specification."""
    table = list(rows(model))
    arrays = arrays_of(table)
    for row in table:
        for name in row.names:
            for place in (name, *row.twins):
                scope, _, attribute = place.rpartition("/")
                setattr(_at(spec, scope), attribute, arrays[name])


def _at(spec, scope):
    """The part of a specification at a scope such as "encoder/layer_0/attention/linear_0"."""
    for name in scope.split("/"):
        if hasattr(spec, name):
            spec = getattr(spec, name)
        else:  # one of a list
            name, _, index = name.rpartition("_")
            spec = getattr(spec, name)[int(index)]
    return spec


def _options(stack):
    """What a specification needs to know of a stack."""
    check_dense(stack, "CTranslate2", needs_bias=False)
    return {"pre_norm": stack.normalize_first, "activation": _activation(stack)}


def _t5_options(stack):
    """The same of one of T5."""
    return {
        "pre_norm": True,
        "activation": _activation(stack),
        "ffn_glu": stack.gated,
        "rms_norm": True,
        "relative_attention_bias": True,
    }


def _llama_options(model):
    """The same of a language model like Llama."""
    from ctranslate2.specs.attention_spec import RotaryScalingType

    family_of(model, "CTranslate2")  # raises if it is none of them
    decoder = model.decoder
    attention = decoder.blocks[0].self_attention
    rotary = RotaryEmbedding(**attention.rotary)
    scaling, shared = rotary.scaling or {}, attention.num_key_value_heads
    pattern = decoder.attention_pattern
    if pattern is not None:
        raise ConversionError(
            "CTranslate2 scores no text that is longer than its sliding window. Give a Mistral a "
            f"context that fits into one. Received: attention_pattern={pattern}."
        )
    if scaling.get("type", "linear") != "linear":
        raise ConversionError(
            "CTranslate2 4.8 scales rotary positions of Llama 3 otherwise than its authors: texts "
            f"would get other probabilities. Received: scaling={scaling}."
        )
    return {
        "pre_norm": True,
        "activation": _activation(decoder),
        "ffn_glu": True,
        "rms_norm": True,
        "rotary_dim": 0,  # all columns
        "rotary_interleave": False,
        "rotary_base": rotary.max_wavelength,
        "rotary_scaling_type": RotaryScalingType.Linear if scaling else None,
        "rotary_scaling_factor": scaling.get("factor", 1),
        "num_heads_kv": None if shared == decoder.num_heads else shared,
        "head_dim": attention.output_projection.kernel.shape[1] // decoder.num_heads,
        "qk_norm": attention.query_norm is not None,
    }


def _activation(stack):
    from ctranslate2.specs.common_spec import Activation

    names = Activation.RELU, Activation.SWISH, Activation.GELU, Activation.GELUTanh
    return activation_of(stack, names, "CTranslate2")


def _pieces(tokenizer, texts):
    return [tokenizer.pieces(row) for row in tokenizer.tokenize(list(texts)).to_list()]
