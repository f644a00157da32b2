"""What the models of all families have in common as folders of Hugging Face's library."""

import json

import keras

from keras_transformer.convert.tables import ConversionError
from keras_transformer.layers.feed_forward import gelu_tanh
from keras_transformer.models.functions import layer_names


def first_table(model):
    """The layer that holds the vectors of what a model reads."""
    names = layer_names(model)
    ours = ("source_embedding", "target_embedding", "token_embedding", "embedding")
    return model.get_layer(next(name for name in ours if name in names))


def check_blocks(stack, epsilon=None):
    """Raises ConversionError unless the attention of a stack is what all families have."""
    kernel, bias = stack.blocks[0].self_attention.output_projection
    square = kernel.shape[0] == kernel.shape[1]
    if stack.attention_pattern is not None or not square or bias is None or stack.lora:
        raise ConversionError(
            "Hugging Face's models need dense attention with biases, heads that together are as "
            "wide as the model, and no unmerged LoRA. Received: "
            f"attention_pattern={stack.attention_pattern!r}, key_dim={stack.key_dim!r}, "
            f"use_bias={bias is not None}, lora={stack.lora!r}."
        )
    if epsilon not in (None, stack.norm_epsilon):
        raise ConversionError(
            f"norm_epsilon must be {epsilon} there. Received: {stack.norm_epsilon}."
        )


def activation_name(stack):
    """What Hugging Face's library calls the activation of a stack."""
    names = {
        keras.activations.relu: "relu",
        keras.activations.silu: "silu",
        keras.activations.gelu: "gelu",
        gelu_tanh: "gelu_new",
    }
    if stack.activation not in names:
        raise ConversionError(
            "The activation must be relu, silu, gelu or gelu_tanh. Received: "
            f"{keras.activations.serialize(stack.activation)}."
        )
    return names[stack.activation]


def write_json(path, content):
    """Writes what `json` can hold, in UTF-8."""
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")
