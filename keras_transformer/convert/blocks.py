"""The settings of our blocks that other libraries have, under their names."""

import keras

from keras_transformer.convert.tables import ConversionError
from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.feed_forward import gelu_tanh

# Our activations by Hugging Face's names, of which each family has some.
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": gelu_tanh,
    "gelu_pytorch_tanh": gelu_tanh,
    "silu": "silu",
    "swish": "silu",
}


def check_equal(library, settings):
    """Raises ConversionError if a library lacks a setting of our model.

    Args:
        library: whose model it is to be, such as "KerasHub's BERT", for the message.
        settings: {name: (ours, the one that the library has)}; ours may be a subclass of theirs.
    """
    for name, (ours, theirs) in settings.items():
        is_subclass = isinstance(theirs, type) and issubclass(ours, theirs)
        if ours != theirs and not is_subclass:
            ours, theirs = (getattr(value, "__name__", value) for value in (ours, theirs))
            raise ConversionError(f"{library} has {name}: {theirs}. Received: {ours}.")


def check_attention(stack, library):
    """Raises ConversionError if a stack has parts that a library lacks, or the user's own."""
    if stack.attention not in (None, MultiHeadAttention):
        raise ConversionError(
            f"{library} has no attention but that of `MultiHeadAttention`. Export the model as a "
            f"SavedModel instead. Received: attention={stack.attention.__name__}."
        )
    others = {"attention_arguments": None, "position_bias": None, "gated": False,
              "normalization": "layer"}  # fmt: skip
    received = {name: getattr(stack, name) for name in others}
    if any(received[name] not in (value, {}) for name, value in others.items()):
        raise ConversionError(
            f"{library} takes no attention_arguments, position_bias, gated networks or RMS "
            "normalisation from us. Export the model as a SavedModel instead. Received: "
            f"{', '.join(f'{name}={value!r}' for name, value in received.items())}."
        )


def is_t5(model):
    """Whether a translation model has T5's biases by distance; see `check_t5` for the rest."""
    return (model.encoder.position_bias or {}).get("type") == "t5"


def check_t5(model, library):
    """Raises ConversionError unless the blocks of a translation model are those of T5."""
    for stack in (model.encoder, model.decoder):
        own = None if stack.attention is MultiHeadAttention else stack.attention
        check_equal(f"The T5 of {library}", {
            "normalization": (stack.normalization, "rms"),
            "normalize_first": (stack.normalize_first, True),
            "use_bias": (stack.use_bias, False),
            "attention": (own, None),
            "attention_arguments": (stack.attention_arguments or None, None),
        })  # fmt: skip


def check_output(model, library):
    """Raises ConversionError unless logits come from the token embedding of a language model."""
    check_equal(library, {
        "tie_output": (model.output_projection is model.embedding, True),
        "logit_soft_cap": (model.soft_cap and model.soft_cap.limit, None),
    })  # fmt: skip


def check_dense(stack, library="Hugging Face", needs_bias=True):
    """Raises ConversionError unless a stack has the attention that every library has.

    Args:
        stack: an `Encoder` or a `Decoder`.
        library: for the message.
        needs_bias: whether the projections must have biases.
    """
    check_attention(stack, library)
    output = stack.blocks[0].self_attention.output_projection
    square = output.kernel.shape[0] == output.kernel.shape[1]
    lacks_bias = needs_bias and output.bias is None
    if stack.attention_pattern is not None or not square or lacks_bias or stack.lora:
        raise ConversionError(
            f"{library} needs dense attention{' with biases' * needs_bias}, heads that together "
            "are as wide as the model, and no unmerged LoRA. Received: "
            f"attention_pattern={stack.attention_pattern!r}, key_dim={stack.key_dim!r}, "
            f"use_bias={output.bias is not None}, lora={stack.lora!r}."
        )


def activation_of(stack, names=("relu", "silu", "gelu", "gelu_new"), library="Hugging Face"):
    """What a library calls the activation of a stack.

    Args:
        stack: an `Encoder` or a `Decoder`.
        names: what it calls relu, silu, gelu and gelu_tanh.
        library: for the message.
    """
    ours = (keras.activations.relu, keras.activations.silu, keras.activations.gelu, gelu_tanh)
    if stack.activation not in ours:
        raise ConversionError(
            f"{library} supports the activations relu, silu, gelu and gelu_tanh. Received: "
            f"{keras.activations.serialize(stack.activation)}."
        )
    return names[ours.index(stack.activation)]


def read_dimensions(settings, names, intermediate_dim=None):
    """The dimensions in another library's settings, as arguments of our models.

    Args:
        settings: `Settings`.
        names: {our name of a setting: theirs}.
        intermediate_dim: its default; None if the settings must have it.
    """
    dropout = settings.number(names["dropout"], 0.1, below=1)
    return {
        "num_layers": settings.count(names["num_layers"]),
        **settings.heads_of(names["hidden_dim"], names["num_heads"]),
        "intermediate_dim": settings.count(names["intermediate_dim"], intermediate_dim),
        "dropout": dropout,
        "attention_dropout": settings.number(names["attention_dropout"], 0.1, below=1),
    }


def written_dimensions(model, stack, table, names):
    """The inverse of `read_dimensions`, with all sizes that a model with learned positions has."""
    ours = {
        "vocabulary_size": table.vocabulary_size,
        "hidden_dim": table.hidden_dim,
        "max_sequence_length": model.positions.max_sequence_length,
        **{name: getattr(stack, name) for name in (
            "num_layers", "num_heads", "intermediate_dim", "dropout", "attention_dropout",
            "norm_epsilon",
        )},
    }  # fmt: skip
    return {names[name]: value for name, value in ours.items() if name in names}


def row_names(tokenizer, size=None):
    """A name for each id of a tokenizer, or for each of the `size` rows of a table of embeddings.

    A table may have more rows, whose names are made up, or lack those of the control ids, as that
    of GPT-2 does.
    """
    pieces = tokenizer.pieces(range(tokenizer.vocabulary_size))
    size = len(pieces) if size is None else size
    pieces = pieces[max(0, len(pieces) - size) :]
    return [*pieces, *(f"<unused{i}>" for i in range(len(pieces), size))]
