"""The only place of the converters that uses what KerasHub does not promise."""

import keras
import numpy as np


def arrays_of_gpt2_block(layer, hidden_dim):
    """The weights of a `TransformerDecoder` of KerasHub, named as GPT-2's block names them.

    Relies on the attributes that hold its sublayers.
    """
    attention = layer._self_attention_layer
    parts = (attention._query_dense, attention._key_dense, attention._value_dense)
    array = keras.ops.convert_to_numpy
    kernels = [array(part.kernel).reshape(hidden_dim, -1) for part in parts]
    biases = [array(part.bias).reshape(-1) for part in parts]
    return {
        "ln_1.weight": layer._self_attention_layer_norm.gamma,
        "ln_1.bias": layer._self_attention_layer_norm.beta,
        "attn.c_attn.weight": np.concatenate(kernels, axis=1),
        "attn.c_attn.bias": np.concatenate(biases),
        "attn.c_proj.weight": array(attention._output_dense.kernel).reshape(-1, hidden_dim),
        "attn.c_proj.bias": attention._output_dense.bias,
        "ln_2.weight": layer._feedforward_layer_norm.gamma,
        "ln_2.bias": layer._feedforward_layer_norm.beta,
        "mlp.c_fc.weight": layer._feedforward_intermediate_dense.kernel,
        "mlp.c_fc.bias": layer._feedforward_intermediate_dense.bias,
        "mlp.c_proj.weight": layer._feedforward_output_dense.kernel,
        "mlp.c_proj.bias": layer._feedforward_output_dense.bias,
    }
