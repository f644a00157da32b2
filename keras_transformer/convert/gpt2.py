"""Loads GPT-2 weights, in the naming of Hugging Face or from a KerasHub backbone."""

import keras
import numpy as np

from keras_transformer.convert.internals import arrays_of_gpt2_block


def load_gpt2(model, arrays):
    """Loads released weights into a model of `gpt2`.

    Args:
        model: of `gpt2`, of the same size as the weights.
        arrays: {name: array} in the naming of Hugging Face, e.g. from
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
        ValueError: The weights of GPT-2 must include wte.weight. Received: 0 arrays.
    """
    arrays = {name.removeprefix("transformer."): array for name, array in arrays.items()}

    def assign(variable, name, transpose=False):
        if name not in arrays:
            raise ValueError(
                f"The weights of GPT-2 must include {name}. Received: {len(arrays)} arrays."
            )
        array = np.asarray(arrays[name], "float32")
        array = array.T if transpose else array  # their kernels are (input, output)
        if array.shape != tuple(variable.shape):
            raise ValueError(
                f"{name} must have the shape {tuple(variable.shape)} in this model. "
                f"Received: {array.shape}."
            )
        variable.assign(array)

    def assign_projection(projection, name):
        kernel, bias = projection
        assign(kernel, f"{name}.weight", transpose=True)
        assign(bias, f"{name}.bias")

    def assign_norm(norm, name):
        assign(norm.gamma, f"{name}.weight")
        assign(norm.beta, f"{name}.bias")

    assign(model.get_layer("embedding").embeddings, "wte.weight")
    assign(model.get_layer("positions").embeddings, "wpe.weight")
    decoder = model.get_layer("decoder")
    for index, block in enumerate(decoder.blocks):
        assign_norm(block.around_self_attention.norm, f"h.{index}.ln_1")
        assign_projection(block.self_attention.query_key_value, f"h.{index}.attn.c_attn")
        assign_projection(block.self_attention.output_projection, f"h.{index}.attn.c_proj")
        assign_norm(block.around_feed_forward.norm, f"h.{index}.ln_2")
        assign_projection(block.feed_forward.widen, f"h.{index}.mlp.c_fc")
        assign_projection(block.feed_forward.narrow, f"h.{index}.mlp.c_proj")
    assign_norm(decoder.norm, "ln_f")
    return model


def arrays_of_keras_hub_gpt2(backbone):
    """The weights of a KerasHub backbone, for `load_gpt2`.

    Args:
        backbone: a `keras_hub.models.GPT2Backbone`.

    Returns:
        {name: array} in the naming of Hugging Face.
    """
    arrays = {
        "wte.weight": backbone.token_embedding.embeddings,
        "wpe.weight": backbone.position_embedding.position_embeddings,
        "ln_f.weight": backbone.layer_norm.gamma,
        "ln_f.bias": backbone.layer_norm.beta,
    }
    for index, layer in enumerate(backbone.transformer_layers):
        block_arrays = arrays_of_gpt2_block(layer, backbone.hidden_dim)
        arrays.update({f"h.{index}.{name}": array for name, array in block_arrays.items()})
    return {name: keras.ops.convert_to_numpy(array) for name, array in arrays.items()}
