"""Llama 2 and 3, Mistral, Qwen2, Qwen3, Phi-3 and Gemma in Hugging Face's format."""

import logging
import math

import numpy as np

from keras_transformer.convert.blocks import ACTIVATIONS, activation_of, check_equal
from keras_transformer.convert.folder import Converted, ModelFolder, num_padding_rows, write_json
from keras_transformer.convert.generation import (
    GENERATION,
    end_ids_of,
    run_sampling,
    sampling_settings,
    written_sampling,
)
from keras_transformer.convert.gpt2 import byte_pairs_of
from keras_transformer.convert.sentencepiece import after_control_ids, own_model
from keras_transformer.convert.tables import (
    ENDINGS,
    ConversionError,
    Row,
    arrays_of,
    assign,
    rows_of,
)
from keras_transformer.convert.tokenizer_json import byte_pairs_json
from keras_transformer.convert.tokenizers import (
    LLAMA_FILE,
    SETTINGS,
    TOKENIZER_JSON,
    files_of,
    load_tokenizer_of,
    start_of,
    tokenizer_settings,
)
from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.feed_forward import gelu_tanh
from keras_transformer.layers.rotary_embedding import RotaryEmbedding
from keras_transformer.models.decoder_only import language_model
from keras_transformer.tokenizers.byte_pairs import BytePairTokenizer
from keras_transformer.tokenizers.control_ids import END_ID
from keras_transformer.tokenizers.sentencepiece import SentencePieceTokenizer
from keras_transformer.tokenizers.sentencepiece_format import Model

TABLE, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"
NAMES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3",
         "phi3": "Phi3", "gemma": "Gemma"}  # fmt: skip
BLOCK = {
    "around_self_attention.norm": "input_layernorm",
    "self_attention.query_key_value": "self_attn.q_proj self_attn.k_proj self_attn.v_proj",
    "self_attention.query_norm": "self_attn.q_norm",
    "self_attention.key_norm": "self_attn.k_norm",
    "self_attention.output_projection": "self_attn.o_proj",
    "around_feed_forward.norm": "post_attention_layernorm",
    "feed_forward.gate_widen": "mlp.gate_proj mlp.up_proj",
    "feed_forward.narrow": "mlp.down_proj",
}
FUSED = {  # of Phi-3
    "self_attention.query_key_value": "self_attn.qkv_proj",
    "feed_forward.gate_widen": "mlp.gate_up_proj",
}
# Of each scaling of rotary positions: our names of its numbers, and theirs.
LENGTH = "original_max_position_embeddings"
SCALINGS = {
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "low_frequency": "low_freq_factor",
        "high_frequency": "high_freq_factor",
        "original_length": LENGTH,
    },
    "yarn": {
        "factor": "factor",
        "low_frequency": "beta_slow",
        "high_frequency": "beta_fast",
        "original_length": LENGTH,
        "attention_factor": "attention_factor",
    },
}


def rows(model, family):
    """The table of a model, as a family of `NAMES` has it."""
    for row in _rows(model, BLOCK | FUSED if family == "phi3" else BLOCK):
        if family == "gemma" and row.variable.name == "scale":  # theirs is added to 1
            row = row._replace(to_ours=lambda array: array + 1, to_theirs=lambda array: array - 1)
        yield row


def _rows(model, names):
    table, output = model.embedding, model.output_projection
    yield Row(table.embeddings, (TABLE,), twins=(OUTPUT,) if output is table else ())
    if output is not table:
        yield Row(output.embeddings, (OUTPUT,))
    yield Row(model.decoder.norm.scale, ("model.norm.weight",))
    for index, block in enumerate(model.decoder.blocks):
        yield from rows_of(block, names, f"model.layers.{index}.", ENDINGS | {"scale": ".weight"})


def read(folder: ModelFolder):
    """Reads a folder of one of these families: weights, tokenizer and sampling."""
    config, kind = folder.settings, folder.settings.raw("model_type")
    family = NAMES[kind]
    folder.head({f"{family}ForCausalLM": None})
    config.one_of("is_encoder_decoder", False)
    size, context = config.count("vocab_size"), config.count("max_position_embeddings", least=2)
    dimensions, blocks = _dimensions(folder, context)
    if kind == "gemma":
        config.one_of("tie_word_embeddings", True, None)
    tied = config.flag("tie_word_embeddings", kind == "gemma")
    weights, hidden_dim = folder.arrays(), dimensions["hidden_dim"]
    last = f"model.layers.{dimensions['num_layers'] - 1}."
    inside, shared = dimensions["intermediate_dim"], blocks["attention_arguments"]
    shared = shared["num_key_value_heads"]
    shapes = {"mlp.gate_proj": inside, "self_attn.k_proj": blocks["key_dim"] * shared}
    if kind == "phi3":
        heads = dimensions["num_heads"] + 2 * shared
        shapes = {"mlp.gate_up_proj": 2 * inside, "self_attn.qkv_proj": blocks["key_dim"] * heads}
    weights.check({
        (TABLE, *((OUTPUT,) if tied else ())): (size, hidden_dim),
        **{f"{last}{name}.weight": (width, hidden_dim) for name, width in shapes.items()},
    }, family)  # fmt: skip
    ends = end_ids_of(folder, size)
    tokenizer, start = tokenizer_of(folder, size, ends)
    model = language_model(
        size,
        scale_embedding=kind == "gemma",
        blocks="llama",
        tie_output=tied,
        **blocks,
        **dimensions,
    )
    assign(rows(model, kind), weights, family)
    sampling = sampling_settings(folder, size, context, *ends, start=start)
    run = {"model": "transformer", "size": "small", "blocks": "llama", "tokens": "pieces"}
    run |= {"context": context, "sampling": run_sampling(sampling)} | dimensions
    return Converted("language_model", model, tokenizer, settings=sampling, config=run)


def _dimensions(folder, context):
    """The dimensions that a run has settings for, and what else the blocks are."""
    config, family = folder.settings, folder.settings.raw("model_type")
    heads = config.heads_of("hidden_size", "num_attention_heads")
    num_heads = heads["num_heads"]
    is_gemma = family == "gemma"
    usual = 256 if is_gemma else heads["hidden_dim"] // num_heads
    key_dim = config.count("head_dim", usual)
    if key_dim % 2:
        config.refuse("head_dim", "even, for rotary positions", key_dim)
    shared = config.count("num_key_value_heads", None if is_gemma else num_heads)
    if num_heads % shared:
        config.refuse("num_key_value_heads", f"a divisor of num_attention_heads, {num_heads}",
                      shared)  # fmt: skip
    epsilon = config.number("rms_norm_eps", 1e-5 if family == "phi3" else 1e-6)
    attention = {"num_key_value_heads": shared, "rotary": _rotary(config, context, key_dim)}
    window, dropout = None, 0.0
    if family == "qwen2":
        attention |= {"use_bias": True, "use_output_bias": False}
    elif family == "qwen3":
        attention["query_key_norm"] = epsilon
    if family not in ("mistral", "phi3"):
        attention.setdefault("use_bias", config.flag("attention_bias", False))
    if family == "llama":
        config.one_of("mlp_bias", False)
        config.ignore(["pretraining_tp"])  # how products are split
    elif is_gemma:
        config.one_of("use_bidirectional_attention", None, False)
        config.expect(hidden_activation="gelu_pytorch_tanh")
    elif family in ("mistral", "phi3"):
        is_given = family == "phi3" or "sliding_window" in config.values
        window = config.count("sliding_window", context if is_given else 4096)
        if family == "phi3":
            dropout = config.number("resid_pdrop", 0.0, below=1)
            config.expect(attention_bias=False)
            config.ignore(["embd_pdrop"])  # which theirs does not use
    else:
        config.one_of("use_sliding_window", False)
        config.ignore(["sliding_window", "max_window_layers"])
        config.expect(use_mrope=False)
    layers = config.count("num_hidden_layers")
    kind = "full_attention" if window is None else "sliding_attention"
    config.expect(layer_types=[kind] * layers)
    if config.has("layer_types"):
        config.one_of("layer_types", [kind] * layers)
    names, also = ("silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu"), {}
    if is_gemma:  # earlier folders say gelu and mean its approximation
        names, also = ("gelu_pytorch_tanh", "gelu_new", "gelu"), {"gelu": gelu_tanh}
    activation = config.one_of("hidden_act", *names)
    return {
        "num_layers": layers,
        "intermediate_dim": config.count("intermediate_size"),
        **heads,
        "dropout": dropout,
        "attention_dropout": config.number("attention_dropout", 0.0, below=1),
    }, {
        "key_dim": key_dim,
        "activation": (ACTIVATIONS | also)[activation],
        "norm_epsilon": epsilon,
        "attention_arguments": attention,
        "attention_pattern": None if window is None or window >= context
        else {"pattern": "local", "block_size": window - 1},
    }  # fmt: skip


def _rotary(config, context, key_dim):
    """The arguments of `RotaryEmbedding`, from settings of old and new versions."""
    theta, scaling = config.number("rope_theta", 10000.0), None
    share = config.number("partial_rotary_factor", 1.0)
    # As in `transformers`, the older name counts first.
    name = next((n for n in ("rope_scaling", "rope_parameters") if config.values.get(n)), None)
    config.ignore(["rope_scaling", "rope_parameters", LENGTH])
    if name is not None:
        part = config.part(name)
        theta = part.number("rope_theta", theta)
        share = part.number("partial_rotary_factor", share)
        key = "rope_type" if part.has("rope_type") else "type"
        part.ignore(["type", LENGTH])
        is_phi3 = config.raw("model_type") == "phi3"  # which has scalings of its own alone
        kind = part.one_of(key, "default", *(() if is_phi3 else SCALINGS))
        scaling = None if kind == "default" else _scaling(config, part, kind, context)
        part.warn_of_unread()
    rotary = {"max_wavelength": theta, "scaling": scaling}
    if share != 1.0:
        if config.raw("model_type") != "phi3":
            config.refuse("partial_rotary_factor", "1.0", share)
        rotary["rotary_dim"] = int(key_dim * share)
    try:
        RotaryEmbedding(**rotary).build((None, key_dim))
    except ValueError as error:
        raise ConversionError(f"{config.file}: {name or 'rotary positions'}: {error}") from None
    return rotary


def _scaling(config, part, kind, context):
    """The `scaling` of `RotaryEmbedding`."""
    if kind == "linear":
        defaults = {"factor": 1.0}
    else:
        length = part.count(LENGTH, config.count(LENGTH, context))
        config.one_of(LENGTH, None, length)
        defaults = {LENGTH: length}
    if kind == "yarn":
        defaults |= {"beta_slow": 1.0, "beta_fast": 32.0}
        defaults["attention_factor"] = _attention_factor(part)
        part.one_of("truncate", True)
    names = SCALINGS[kind].items()
    numbers = {ours: part.number(theirs, defaults.get(theirs)) for ours, theirs in names}
    return {"type": kind, **numbers}


def _attention_factor(part):
    """What YaRN multiplies queries and keys by, in settings that do not say it."""
    logarithm = 0.1 * math.log(max(part.number("factor", None), 1.0))
    scales = [part.number(name, 0.0) for name in ("mscale", "mscale_all_dim")]
    if not all(scales):
        return logarithm + 1.0
    return (scales[0] * logarithm + 1.0) / (scales[1] * logarithm + 1.0)


def tokenizer_of(folder, size, ends):
    """The tokenizer of a folder, its ids after our control ids, and their id that begins texts."""
    tokenizer, theirs = load_tokenizer_of(folder.path)
    start = start_of(folder, tokenizer, theirs)
    added = [token["content"] for token in tokenizer_settings(folder).items("added_tokens_decoder")]
    if isinstance(tokenizer, SentencePieceTokenizer):
        found = {*tokenizer.pieces(range(tokenizer.vocabulary_size))}
    else:
        file = folder.json(TOKENIZER_JSON) if folder.has(TOKENIZER_JSON) else {}
        added += [token["content"] for token in file.get("added_tokens") or []]
        found = {*getattr(tokenizer, "added", ())}
    if plain := [name for name in dict.fromkeys(added) if name not in found]:
        logging.getLogger(__name__).warning(
            "%s: the added tokens %s are plain text in prompts.", folder.path, ", ".join(plain)
        )
    if isinstance(tokenizer, SentencePieceTokenizer):
        num_padding_rows(files_of(folder), int(max(theirs)) + 1, size)
        end = ends[0] if ends else None
        return after_control_ids(tokenizer, theirs, size, end), start
    kinds = "byte pairs or a SentencePiece model"
    return byte_pairs_of(folder, tokenizer, theirs, size, ends, kinds), start


def hugging_face_folder(text_model, draft):
    """Writes the tokenizer, and returns the config and the arrays of a model with such blocks."""
    model, settings = text_model.model, text_model.settings
    decoder, table, tokenizer = model.decoder, model.embedding, text_model.tokenizer
    attention = decoder.blocks[0].self_attention
    family = family_of(model, "Hugging Face")
    rotary = RotaryEmbedding(**attention.rotary)
    attention_dim = attention.key_dim or table.hidden_dim // decoder.num_heads
    num_control_ids = max(tokenizer.vocabulary_size - table.vocabulary_size, 0)
    end = getattr(tokenizer, "end_of_text_id", None)
    if end is None and not num_control_ids:
        end = END_ID
    ends = [] if end is None else [end]
    ends += [other - num_control_ids for other in settings.end_ids]
    start = None if settings.start_id is None else settings.start_id - num_control_ids
    _save_tokenizer(tokenizer, num_control_ids, start, end, draft)
    ids = {"bos_token_id": start, "eos_token_id": ends if len(ends) > 1 else end}
    sampling = written_sampling(settings, num_control_ids, end)
    write_json(draft / GENERATION, ids | sampling)
    scaling = {"rope_type": "default"}
    if rotary.scaling is not None:
        kind = rotary.scaling["type"]
        names = SCALINGS[kind].items()
        scaling = {"rope_type": kind, **{theirs: rotary.scaling[ours] for ours, theirs in names}}
    bias = {} if family in ("qwen2", "mistral", "phi3") else {"attention_bias": attention.use_bias}
    window = {"sliding_window": None}
    if decoder.attention_pattern is not None:
        window["sliding_window"] = decoder.attention_pattern["block_size"] + 1
    elif family not in ("mistral", "phi3"):
        window = {}
    partly = {}
    if family == "phi3":
        partly["partial_rotary_factor"] = rotary.rotary_dim / attention_dim
    arrays = arrays_of(rows(model, family))
    tied = model.output_projection is table and (family == "gemma" or not table.scale)
    if table.scale and family != "gemma":  # which the other families do not do
        arrays[OUTPUT] = arrays.get(OUTPUT, arrays[TABLE])
        arrays[TABLE] = arrays[TABLE] * np.float32(math.sqrt(table.hidden_dim))
    return {
        "model_type": family,
        "architectures": [f"{NAMES[family]}ForCausalLM"],
        "vocab_size": table.vocabulary_size,
        "hidden_size": table.hidden_dim,
        "intermediate_size": decoder.intermediate_dim,
        "num_hidden_layers": decoder.num_layers,
        "num_attention_heads": decoder.num_heads,
        "num_key_value_heads": attention.num_key_value_heads or decoder.num_heads,
        "head_dim": attention_dim,
        "hidden_act": activation_of(decoder, ("relu", "silu", "gelu", "gelu_pytorch_tanh")),
        "max_position_embeddings": settings.context,
        "rms_norm_eps": decoder.norm_epsilon,
        "rope_theta": rotary.max_wavelength,
        "rope_scaling": None if rotary.scaling is None else scaling,
        "rope_parameters": {"rope_theta": rotary.max_wavelength, **scaling, **partly},
        "attention_dropout": decoder.attention_dropout,
        "tie_word_embeddings": tied,
        "pad_token_id": None,
        **bias,
        **window,
        **partly,
        **ids,
    }, arrays


def family_of(model, library):
    """Which of these families a language model is.

    Raises:
        ConversionError: if it is none of them.
    """
    decoder = model.decoder
    attention, network = decoder.blocks[0].self_attention, decoder.blocks[0].feed_forward
    projections = attention.query_key_value, attention.output_projection
    biases = tuple(projection.bias is not None for projection in projections)
    pattern = decoder.attention_pattern
    check_equal(f"{library}, of models with RMS normalisation,", {
        "attention": (decoder.attention or MultiHeadAttention, MultiHeadAttention),
        "normalization": (decoder.normalization, "rms"),
        "gated": (decoder.gated, True),
        "normalize_first": (decoder.normalize_first, True),
        "position_bias": (decoder.position_bias, None),
        "biases in feed-forward networks": (network.narrow.bias is not None, False),
        "value_dim": (attention.value_dim, None),
        "soft_cap": (attention.soft_cap, None),
        "logit_soft_cap": (model.soft_cap, None),
        "rotary positions": (attention.rotary is not None, True),
    })  # fmt: skip
    rotary = RotaryEmbedding(**attention.rotary)
    check_equal(f"{library}'s rotary positions", {
        "interleaved": (rotary.interleaved, False),
        "scaling, if any, linear, llama3 or yarn":
            ((rotary.scaling or {"type": "linear"})["type"] in SCALINGS, True),
    })  # fmt: skip
    norm, is_local = attention.query_key_norm, pattern is not None
    width = attention.output_projection.kernel.shape[1] // decoder.num_heads
    is_partly = rotary.rotary_dim not in (None, width)
    if is_partly and (norm is not None or any(biases) or rotary.scaling is not None):
        raise ConversionError(
            f"{library} rotates a part of the columns in Phi-3 only, without biases, "
            f"query_key_norm or scaling. Received: {biases}, {norm} and {rotary.scaling}."
        )
    if is_local and (pattern["pattern"] != "local" or norm is not None or any(biases)):
        raise ConversionError(
            f"{library} has no attention patterns but a local one, of Mistral, without biases or "
            f"query_key_norm. Received: {pattern}."
        )
    if is_partly or is_local:
        return "phi3" if is_partly else "mistral"
    if norm not in (None, decoder.norm_epsilon) or (norm and biases[0] != biases[1]):
        raise ConversionError(
            f"{library} has a query_key_norm like norm_epsilon, {decoder.norm_epsilon}, and biases "
            f"of all projections or of none. Received: {norm} and {biases}."
        )
    if norm is not None:
        return "qwen3"
    if biases[1] and not biases[0]:
        raise ConversionError(f"{library} has no biases of the output projection alone.")
    if biases == (True, False):
        return "qwen2"
    is_tied = model.output_projection is model.embedding
    scaled = model.embedding.scale and is_tied and decoder.activation is gelu_tanh
    return "gemma" if scaled else "llama"


def _save_tokenizer(tokenizer, num_control_ids, start, end, draft):
    """Writes the files from which Hugging Face's library makes the tokenizer."""
    pieces = tokenizer.pieces(range(num_control_ids, tokenizer.vocabulary_size))
    if isinstance(tokenizer, SentencePieceTokenizer):
        spec = Model.FromString(tokenizer.model).normalizer_spec
        is_set = spec.HasField("remove_extra_whitespaces")  # unset, SentencePiece removes them
        if spec.precompiled_charsmap or spec.remove_extra_whitespaces or not is_set:
            raise ConversionError(
                "Hugging Face's library has SentencePiece models that change no character and "
                "remove no space. Received: a tokenizer that does, as `train_sentencepiece` makes "
                "them. Train byte pairs (--tokens pieces)."
            )
        pieces = own_model(tokenizer, draft / LLAMA_FILE)
    elif isinstance(tokenizer, BytePairTokenizer):
        starts = None if start is None else pieces[start]
        write_json(draft / TOKENIZER_JSON, byte_pairs_json(tokenizer, pieces, starts))
    else:
        raise ConversionError(
            "Hugging Face's library has byte pairs (--tokens pieces) or SentencePiece models. "
            f"Received: a {type(tokenizer).__name__}."
        )
    is_byte_level = isinstance(tokenizer, BytePairTokenizer)
    name = "PreTrainedTokenizerFast"
    if not is_byte_level:  # Gemma puts no space before a text
        spec = Model.FromString(tokenizer.model).normalizer_spec
        is_bare = spec.HasField("add_dummy_prefix") and not spec.add_dummy_prefix
        name = "GemmaTokenizer" if is_bare else "LlamaTokenizer"
    write_json(draft / SETTINGS, {
        "tokenizer_class": name,
        "bos_token": None if start is None else pieces[start],
        "eos_token": None if end is None else pieces[end],
        **({} if is_byte_level else {"add_bos_token": start is not None, "add_eos_token": False,
                                     "unk_token": pieces[0]}),
    })  # fmt: skip
