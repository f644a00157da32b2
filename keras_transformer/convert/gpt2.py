"""GPT-2 with Hugging Face's names, or from a KerasHub backbone."""

from keras_transformer.convert.bert import head_of
from keras_transformer.convert.folder import ModelFolder
from keras_transformer.convert.generation import run_sampling, sampling_settings
from keras_transformer.convert.loading import Converted
from keras_transformer.convert.settings import pieces_of
from keras_transformer.convert.tables import (
    ConversionError,
    Row,
    arrays_of,
    assign,
    norm_rows,
    projection_rows,
)
from keras_transformer.convert.weights import Weights
from keras_transformer.layers.feed_forward import gelu_tanh
from keras_transformer.models.gpt2_model import gpt2

ACTIVATIONS = {
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "gelu": "gelu",
    "relu": "relu",
}
ARCHITECTURES = ("GPT2LMHeadModel", "GPT2Model")
# Of other heads, of its attention in half precision, and of older versions.
_UNUSED = (
    "n_ctx reorder_and_upcast_attn summary_activation summary_first_dropout "
    "summary_proj_to_labels summary_type summary_use_proj"
)
FIRST_ID = 4  # of the tokenizer: `serving` puts the control ids before GPT-2's ids


def rows(model):
    """The table of GPT-2: its kernels are (input, output), ours (output, input)."""
    table = model.get_layer("embedding").embeddings
    yield Row(table, ("wte.weight",), twins=("lm_head.weight",))
    yield Row(model.get_layer("positions").embeddings, ("wpe.weight",))
    decoder = model.get_layer("decoder")
    for index, block in enumerate(decoder.blocks):
        name, attention, feed_forward = f"h.{index}", block.self_attention, block.feed_forward
        yield from norm_rows(block.around_self_attention.norm, f"{name}.ln_1")
        yield from norm_rows(block.around_feed_forward.norm, f"{name}.ln_2")
        for projection, theirs in (
            (attention.query_key_value, "attn.c_attn"),
            (attention.output_projection, "attn.c_proj"),
            (feed_forward.widen, "mlp.c_fc"),
            (feed_forward.narrow, "mlp.c_proj"),
        ):
            yield from projection_rows(projection, (f"{name}.{theirs}",), transpose=True)
    yield from norm_rows(decoder.norm, "ln_f")


def load_gpt2(model, arrays):
    """Loads released weights into a model of `gpt2`.

    Args:
        model: a model of `gpt2` of the same size as the weights.
        arrays: {name: array} with Hugging Face's names, e.g. from
            `safetensors.numpy.load_file("model.safetensors")`. Names may start with
            "transformer.". Attention masks are ignored, the tied head must be equal to the
            table, and a warning names other extra arrays.

    Returns:
        The same model.

    Raises:
        ConversionError: a ValueError, if an array is missing, is there twice, has the wrong shape,
            or is neither finite nor of floating-point numbers.

    Examples:
        >>> from keras_transformer.models.gpt2_model import gpt2
        >>> load_gpt2(gpt2(num_layers=1, hidden_dim=4, num_heads=2), {})
        Traceback (most recent call last):
        ...
        keras_transformer.convert.tables.ConversionError: The weights of GPT-2 must include \
wte.weight. Received: 0 arrays.
    """
    arrays = arrays if isinstance(arrays, Weights) else Weights.of(arrays)
    assign(rows(model), arrays.renamed(_bare), "GPT-2")
    return model


def arrays_of_keras_hub_gpt2(backbone):
    """The weights of a KerasHub backbone, for `load_gpt2`.

    Args:
        backbone: a `keras_hub.models.GPT2Backbone`.

    Returns:
        {name: array} with Hugging Face's names.
    """
    from keras_transformer.convert.keras_hub_presets import read_keras_hub

    return arrays_of(rows(read_keras_hub(backbone).model))


def read(folder: ModelFolder):
    """Reads a folder of GPT-2: weights, byte pairs and the longest context."""
    config = folder.settings
    head_of(folder, dict.fromkeys(ARCHITECTURES))
    config.without_effect(_UNUSED.split())
    config.one_of("is_encoder_decoder", False)
    config.one_of("scale_attn_weights", True)
    config.one_of("scale_attn_by_inverse_layer_idx", False)
    config.one_of("tie_word_embeddings", True)
    activation = config.one_of("activation_function", *ACTIVATIONS)
    size, context = config.count("vocab_size"), config.count("n_positions", least=2)
    dimensions = {
        "num_layers": config.count("n_layer"),
        **config.heads_of("n_embd", "n_head"),
        "intermediate_dim": config.count("n_inner", 4 * config.count("n_embd")),
        "dropout": config.share("resid_pdrop", 0.1),
        "attention_dropout": config.share("attn_pdrop", 0.1),
    }
    config.usual(embd_pdrop=dimensions["dropout"])
    weights, hidden_dim = folder.arrays().renamed(_bare), dimensions["hidden_dim"]
    shapes = {
        f"h.{dimensions['num_layers'] - 1}.mlp.c_fc.weight": (
            hidden_dim,
            dimensions["intermediate_dim"],
        ),
        "wte.weight": (size, hidden_dim),
        "wpe.weight": (context, hidden_dim),
    }
    weights.check(shapes, "GPT-2")
    tokenizer = _tokenizer(folder, size)
    model = gpt2(
        vocabulary_size=size,
        max_sequence_length=context,
        activation=ACTIVATIONS[activation],
        norm_epsilon=config.number("layer_norm_epsilon", 1e-5),
        **dimensions,
    )
    assign(rows(model), weights, "GPT-2")
    sampling = sampling_settings(folder, size, context, tokenizer.end_of_text_id)
    return converted(model, tokenizer, sampling, dimensions)


def _bare(name):
    return name.removeprefix("transformer.")


def _tokenizer(folder, size):
    """The byte pairs of a folder for a table of `size` rows."""
    from keras_transformer.convert.tokenizer_json import byte_level, check_added, merges_of
    from keras_transformer.convert.tokenizers import check_byte_level, tokenizer_settings

    settings = tokenizer_settings(folder)
    check_byte_level(folder, settings)
    settings.warn_of_unread()
    name = "vocab.json" if folder.has("vocab.json") else "tokenizer.json"
    file = folder.file(name)

    def found():
        if name == "vocab.json":
            return folder.json(name), merges_of(folder.file("merges.txt"))
        content = folder.json(name)
        check_added(content.get("added_tokens") or [], file)
        return byte_level(content, file)

    return byte_pairs_of(file, found, size)


def byte_pairs_of(file, found, size):
    """A `BytePairTokenizer` with a piece for each row of a table, which may be padded.

    Args:
        file: for messages.
        found: returns the vocabulary and the merges.
        size: of the table.

    Raises:
        ConversionError: if there are more pieces than rows, or they are no byte pairs.
    """
    from keras_transformer.tokenizers.byte_pairs import BytePairTokenizer

    try:
        vocabulary, merges = found()
        count = len(vocabulary)
        padding = {f"<|unused{i}|>": count + i for i in range(pieces_of(file, count, size))}
        return BytePairTokenizer(vocabulary | padding, merges, FIRST_ID)
    except ConversionError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConversionError(f"{file} is a tokenizer that ours cannot be: {error}") from None


def converted(model, tokenizer, settings, dimensions):
    """A language model and the settings of a run with it."""
    run = {"model": "gpt2", "size": "124M", "tokens": "pieces", "context": settings.context}
    run["sampling"] = run_sampling(settings)
    return Converted("language_model", model, tokenizer, settings=settings, config=run | dimensions)
