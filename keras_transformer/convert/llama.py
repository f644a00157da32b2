"""Llama 2 and 3, Mistral, Qwen2 and Qwen3 in Hugging Face's format."""

import logging
import math

import numpy as np

from keras_transformer.convert.blocks import ACTIVATIONS, activation_of, check_equal
from keras_transformer.convert.folder import Converted, ModelFolder, num_padding_rows, write_json
from keras_transformer.convert.generation import (
    GENERATION,
    end_ids_of,
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
from keras_transformer.layers.rotary_embedding import RotaryEmbedding
from keras_transformer.models.decoder_only import language_model
from keras_transformer.serving.settings import kept_sampling
from keras_transformer.tokenizers.byte_pairs import BytePairTokenizer
from keras_transformer.tokenizers.control_ids import END_ID
from keras_transformer.tokenizers.sentencepiece import SentencePieceTokenizer
from keras_transformer.tokenizers.sentencepiece_format import Model

TABLE, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"
NAMES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
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
}


def rows(model):
    """The table of a model."""
    table, output = model.embedding, model.output_projection
    yield Row(table.embeddings, (TABLE,), twins=(OUTPUT,) if output is table else ())
    if output is not table:
        yield Row(output.embeddings, (OUTPUT,))
    yield Row(model.decoder.norm.scale, ("model.norm.weight",))
    for index, block in enumerate(model.decoder.blocks):
        yield from rows_of(block, BLOCK, f"model.layers.{index}.", ENDINGS | {"scale": ".weight"})


def read(folder: ModelFolder):
    """Reads a folder of one of these families: weights, tokenizer and sampling."""
    config, kind = folder.settings, folder.settings.raw("model_type")
    family = NAMES[kind]
    folder.head({f"{family}ForCausalLM": None})
    config.one_of("is_encoder_decoder", False)
    size, context = config.count("vocab_size"), config.count("max_position_embeddings", least=2)
    dimensions, blocks = _dimensions(folder, context)
    tied = config.flag("tie_word_embeddings", False)
    weights, hidden_dim = folder.arrays(), dimensions["hidden_dim"]
    last = f"model.layers.{dimensions['num_layers'] - 1}."
    inside, shared = dimensions["intermediate_dim"], blocks["attention_arguments"]
    shared = shared["num_key_value_heads"]
    shapes = {"mlp.gate_proj": inside, "self_attn.k_proj": blocks["key_dim"] * shared}
    weights.check({
        (TABLE, *((OUTPUT,) if tied else ())): (size, hidden_dim),
        **{f"{last}{name}.weight": (width, hidden_dim) for name, width in shapes.items()},
    }, family)  # fmt: skip
    ends = end_ids_of(folder, size)
    tokenizer, start = tokenizer_of(folder, size, ends)
    model = language_model(
        size,
        scale_embedding=False,
        blocks="llama",
        tie_output=tied,
        **blocks,
        **dimensions,
    )
    assign(rows(model), weights, family)
    sampling = sampling_settings(folder, size, context, *ends, start=start)
    run = {"model": "transformer", "size": "small", "blocks": "llama", "tokens": "pieces"}
    run |= {"context": context, "sampling": kept_sampling(sampling)} | dimensions
    return Converted("language_model", model, tokenizer, settings=sampling, config=run)


def _dimensions(folder, context):
    """The dimensions that a run has settings for, and what else the blocks are."""
    config, family = folder.settings, folder.settings.raw("model_type")
    heads = config.heads_of("hidden_size", "num_attention_heads")
    num_heads = heads["num_heads"]
    key_dim = config.count("head_dim", heads["hidden_dim"] // num_heads)
    if key_dim % 2:
        config.refuse("head_dim", "even, for rotary positions", key_dim)
    shared = config.count("num_key_value_heads", num_heads)
    if num_heads % shared:
        config.refuse("num_key_value_heads", f"a divisor of num_attention_heads, {num_heads}",
                      shared)  # fmt: skip
    epsilon = config.number("rms_norm_eps", 1e-6)
    attention = {"num_key_value_heads": shared, "rotary": _rotary(config, context, key_dim)}
    window = None
    if family == "qwen2":
        attention |= {"use_bias": True, "use_output_bias": False}
    elif family == "qwen3":
        attention["query_key_norm"] = epsilon
    if family != "mistral":
        attention.setdefault("use_bias", config.flag("attention_bias", False))
    if family == "llama":
        config.one_of("mlp_bias", False)
        config.ignore(["pretraining_tp"])  # how products are split
    elif family == "mistral":
        is_given = "sliding_window" in config.values
        window = config.count("sliding_window", context if is_given else 4096)
    else:
        config.one_of("use_sliding_window", False)
        config.ignore(["sliding_window", "max_window_layers"])
        config.expect(use_mrope=False)
    layers = config.count("num_hidden_layers")
    kind = "full_attention" if window is None else "sliding_attention"
    config.expect(layer_types=[kind] * layers)
    if config.has("layer_types"):
        config.one_of("layer_types", [kind] * layers)
    names = ("silu", "swish", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu")
    activation = config.one_of("hidden_act", *names)
    return {
        "num_layers": layers,
        "intermediate_dim": config.count("intermediate_size"),
        **heads,
        "dropout": 0.0,
        "attention_dropout": config.number("attention_dropout", 0.0, below=1),
    }, {
        "key_dim": key_dim,
        "activation": ACTIVATIONS[activation],
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
        kind = part.one_of(key, "default", *SCALINGS)
        scaling = None if kind == "default" else _scaling(config, part, kind, context)
        part.warn_of_unread()
    rotary = {"max_wavelength": theta, "scaling": scaling}
    if share != 1.0:
        config.refuse("partial_rotary_factor", "1.0", share)
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
    names = SCALINGS[kind].items()
    numbers = {ours: part.number(theirs, defaults.get(theirs)) for ours, theirs in names}
    return {"type": kind, **numbers}


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
    ends += [other - num_control_ids for other in settings.sampling.end_ids]
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
    bias = {} if family in ("qwen2", "mistral") else {"attention_bias": attention.use_bias}
    window = {"sliding_window": None}
    if decoder.attention_pattern is not None:
        window["sliding_window"] = decoder.attention_pattern["block_size"] + 1
    elif family != "mistral":
        window = {}
    arrays = arrays_of(rows(model))
    tied = model.output_projection is table and not table.scale
    if table.scale:  # which these families do not do
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
        "rope_parameters": {"rope_theta": rotary.max_wavelength, **scaling},
        "attention_dropout": decoder.attention_dropout,
        "tie_word_embeddings": tied,
        "pad_token_id": None,
        **bias,
        **window,
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
    width = attention.output_projection.kernel.shape[1] // decoder.num_heads
    check_equal(f"{library}'s rotary positions", {
        "interleaved": (rotary.interleaved, False),
        "rotary_dim, the width of a head": (rotary.rotary_dim or width, width),
        "scaling, if any, linear or llama3":
            ((rotary.scaling or {"type": "linear"})["type"] in SCALINGS, True),
    })  # fmt: skip
    norm = attention.query_key_norm
    if pattern is not None:
        if pattern["pattern"] != "local" or norm is not None or any(biases):
            raise ConversionError(
                f"{library} has no attention patterns but a local one, of Mistral, without biases "
                f"or query_key_norm. Received: {pattern}."
            )
        return "mistral"
    if norm not in (None, decoder.norm_epsilon) or (norm and biases[0] != biases[1]):
        raise ConversionError(
            f"{library} has a query_key_norm like norm_epsilon, {decoder.norm_epsilon}, and biases "
            f"of all projections or of none. Received: {norm} and {biases}."
        )
    if norm is not None:
        return "qwen3"
    if biases[1] and not biases[0]:
        raise ConversionError(f"{library} has no biases of the output projection alone.")
    return "qwen2" if biases == (True, False) else "llama"


def _save_tokenizer(tokenizer, num_control_ids, start, end, draft):
    """Writes the files from which Hugging Face's library makes the tokenizer."""
    pieces = tokenizer.pieces(range(num_control_ids, tokenizer.vocabulary_size))
    if isinstance(tokenizer, SentencePieceTokenizer):
        spec = Model.FromString(tokenizer.model).normalizer_spec
        is_set = spec.HasField("remove_extra_whitespaces")  # unset, SentencePiece removes them
        is_bare = spec.HasField("add_dummy_prefix") and not spec.add_dummy_prefix
        if spec.precompiled_charsmap or spec.remove_extra_whitespaces or not is_set or is_bare:
            raise ConversionError(
                "Hugging Face's library has SentencePiece models that change no character, remove "
                "no space and add one before a text. Received: a model of another kind, such as "
                "`train_sentencepiece` makes. Train byte pairs (--tokens pieces)."
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
    write_json(draft / SETTINGS, {
        "tokenizer_class": "PreTrainedTokenizerFast" if is_byte_level else "LlamaTokenizer",
        "bos_token": None if start is None else pieces[start],
        "eos_token": None if end is None else pieces[end],
        **({} if is_byte_level else {"add_bos_token": start is not None, "add_eos_token": False,
                                     "unk_token": pieces[0]}),
    })  # fmt: skip
