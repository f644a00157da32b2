"""GPT-2 with Hugging Face's names, or from a KerasHub backbone."""

from keras_transformer.convert.folder import ModelFolder
from keras_transformer.convert.loading import Converted
from keras_transformer.convert.tables import (
    Row,
    arrays_of,
    assign,
    norm_rows,
    projection_rows,
)
from keras_transformer.layers.feed_forward import gelu_tanh
from keras_transformer.models.gpt2_model import gpt2

ACTIVATIONS = {
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "gelu": "gelu",
    "relu": "relu",
}
FIRST_ID = 4  # of the tokenizer: `serving` puts the control ids before GPT-2's ids


def rows(model):
    """The table of GPT-2: its kernels are (input, output), ours (output, input)."""
    yield Row(model.get_layer("embedding").embeddings, ("wte.weight",))
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
            "transformer."; attention masks, the tied head and other extra arrays are ignored.

    Returns:
        The same model.

    Raises:
        ValueError: if an array is missing or has the wrong shape.

    Examples:
        >>> from keras_transformer.models.gpt2_model import gpt2
        >>> load_gpt2(gpt2(num_layers=1, hidden_dim=4, num_heads=2), {})
        Traceback (most recent call last):
        ...
        keras_transformer.convert.tables.ConversionError: The weights of GPT-2 must include \
wte.weight. Received: 0 arrays.
    """
    arrays = {name.removeprefix("transformer."): array for name, array in arrays.items()}
    assign(rows(model), arrays, "GPT-2")
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
    from keras_transformer.convert.tokenizer_json import byte_level
    from keras_transformer.tokenizers.byte_pairs import BytePairTokenizer

    config = folder.config
    folder.setting("scale_attn_weights", True)
    folder.setting("scale_attn_by_inverse_layer_idx", False)
    folder.setting("tie_word_embeddings", True)
    activation = folder.setting("activation_function", *ACTIVATIONS)
    context, hidden_dim = config["n_positions"], config["n_embd"]
    dimensions = {
        "num_layers": config["n_layer"],
        "hidden_dim": hidden_dim,
        "intermediate_dim": config.get("n_inner") or 4 * hidden_dim,
        "num_heads": config["n_head"],
        "dropout": config.get("resid_pdrop", 0.1),
        "attention_dropout": config.get("attn_pdrop", 0.1),
    }
    model = gpt2(
        vocabulary_size=config["vocab_size"],
        max_sequence_length=context,
        activation=ACTIVATIONS[activation],
        norm_epsilon=config.get("layer_norm_epsilon", 1e-5),
        **dimensions,
    )
    load_gpt2(model, folder.arrays())
    if folder.has("vocab.json"):
        files = folder.file("vocab.json"), folder.file("merges.txt")
        tokenizer = BytePairTokenizer.from_files(*files, FIRST_ID)
    else:
        found = byte_level(folder.json("tokenizer.json"), folder.file("tokenizer.json"))
        tokenizer = BytePairTokenizer(*found, FIRST_ID)
    return converted(model, tokenizer, context, dimensions)


def converted(model, tokenizer, context, dimensions):
    """A language model and the settings of a run with it."""
    from keras_transformer.serving.settings import SamplingSettings

    settings = SamplingSettings(context=context, max_tokens=context // 2)
    run = {"model": "gpt2", "size": "124M", "tokens": "pieces", "context": context}
    return Converted("language_model", model, tokenizer, settings=settings, config=run | dimensions)
