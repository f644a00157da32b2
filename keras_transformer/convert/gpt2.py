"""GPT-2's weights: by the names of Hugging Face, or out of a backbone of KerasHub."""

import keras
import numpy as np

from keras_transformer.convert.internals import arrays_of_gpt2_block


def load_gpt2(model, arrays):
    """Gives a model of `models.gpt2` released weights.

    Args:
        model: of `gpt2`, in the size of the weights.
        arrays: {name: array} as Hugging Face names them, e.g. what
            `safetensors.numpy.load_file("model.safetensors")` returns; a leading
            "transformer." is allowed, what is not needed (attention masks, the tied head) is
            left out.

    Returns:
        The model.

    Raises:
        ValueError: if an array is missing or has another shape.

    Examples:
        >>> from keras_transformer.models.gpt2_model import gpt2
        >>> load_gpt2(gpt2(num_layers=1, hidden_dim=4, num_heads=2), {})
        Traceback (most recent call last):
        ...
        ValueError: The weights of GPT-2 must hold wte.weight. Received: 0 arrays.
    """
    arrays = {name.removeprefix("transformer."): array for name, array in arrays.items()}

    def put(variable, name, turned=False):
        if name not in arrays:
            raise ValueError(
                f"The weights of GPT-2 must hold {name}. Received: {len(arrays)} arrays."
            )
        array = np.asarray(arrays[name], "float32")
        array = array.T if turned else array  # their kernels are (input, output)
        if array.shape != tuple(variable.shape):
            raise ValueError(
                f"{name} must have the shape {tuple(variable.shape)} in this model. "
                f"Received: {array.shape}."
            )
        variable.assign(array)

    def put_projection(projection, name):
        kernel, bias = projection
        put(kernel, f"{name}.weight", turned=True)
        put(bias, f"{name}.bias")

    def put_norm(norm, name):
        put(norm.gamma, f"{name}.weight")
        put(norm.beta, f"{name}.bias")

    put(model.get_layer("embedding").embeddings, "wte.weight")
    put(model.get_layer("positions").embeddings, "wpe.weight")
    decoder = model.get_layer("decoder")
    for index, block in enumerate(decoder.blocks):
        put_norm(block.around_self_attention.norm, f"h.{index}.ln_1")
        put_projection(block.self_attention.query_key_value, f"h.{index}.attn.c_attn")
        put_projection(block.self_attention.output_projection, f"h.{index}.attn.c_proj")
        put_norm(block.around_feed_forward.norm, f"h.{index}.ln_2")
        put_projection(block.feed_forward.widen, f"h.{index}.mlp.c_fc")
        put_projection(block.feed_forward.narrow, f"h.{index}.mlp.c_proj")
    put_norm(decoder.norm, "ln_f")
    return model


def arrays_of_keras_hub_gpt2(backbone):
    """The weights of a `keras_hub.models.GPT2Backbone`, named as `load_gpt2` takes them."""
    arrays = {
        "wte.weight": backbone.token_embedding.embeddings,
        "wpe.weight": backbone.position_embedding.position_embeddings,
        "ln_f.weight": backbone.layer_norm.gamma,
        "ln_f.bias": backbone.layer_norm.beta,
    }
    for index, layer in enumerate(backbone.transformer_layers):
        of_layer = arrays_of_gpt2_block(layer, backbone.hidden_dim)
        arrays.update({f"h.{index}.{name}": array for name, array in of_layer.items()})
    return {name: keras.ops.convert_to_numpy(array) for name, array in arrays.items()}
