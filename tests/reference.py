"""The layers once more, in plain NumPy and float64, and how to fill them with numbers."""

import keras
import numpy as np


def pair(projection):
    """Kernel and bias of a `Projection`."""
    return projection.kernel, projection.bias


def normal(*shape):
    return np.random.normal(size=shape).astype("float32")


def array(tensor):
    """NumPy array of a tensor of any backend; bfloat16, which NumPy lacks, as float32."""
    return keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32"))


def truth(tensor):
    """NumPy array of a boolean tensor of any backend."""
    return keras.ops.convert_to_numpy(tensor)


def fill(layer):
    """Gives every weight random numbers, so that no bias is zero and no scale is one."""
    for weight in layer.weights:
        weight.assign(0.4 * normal(*weight.shape))
    return layer


def exact(weight):
    return keras.ops.convert_to_numpy(weight).astype("float64")


def attention_weights(queries, keys, mask=None):
    """softmax(Q K^T / sqrt(d)); a target that may attend to nothing takes nothing."""
    scores = queries @ np.swapaxes(keys, -1, -2) / np.sqrt(queries.shape[-1])
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    if mask is not None:
        powers = powers * mask
    total = powers.sum(axis=-1, keepdims=True)
    return powers / np.where(total == 0, 1, total)


def multi_head_attention(layer, query, value=None, mask=None):
    """Outputs and weights of our layer, head by head; mask (batch, target, source)."""
    if value is None:
        value = query
        kernels = np.split(exact(layer.query_key_value.kernel), 3)
        biases = np.split(exact(layer.query_key_value.bias), 3)
    else:
        kernels = [exact(layer.query.kernel), *np.split(exact(layer.key_value.kernel), 2)]
        biases = [exact(layer.query.bias), *np.split(exact(layer.key_value.bias), 2)]
    inputs = (query, value, value)
    projected = [x @ w.T + b for x, w, b in zip(inputs, kernels, biases, strict=True)]
    contexts, weights = [], []
    for queries, keys, values in zip(
        *(np.split(x, layer.num_heads, axis=-1) for x in projected), strict=True
    ):
        weights.append(attention_weights(queries, keys, mask))
        contexts.append(weights[-1] @ values)
    outputs = np.concatenate(contexts, axis=-1) @ exact(layer.output_projection.kernel).T
    return outputs + exact(layer.output_projection.bias), np.stack(weights, axis=1)


def relative_attention(layer, inputs, memory=None, mask=None):
    """Outputs and weights, score by score; mask (batch, target, past + target), made causal."""
    source = inputs if memory is None else np.concatenate([memory, inputs], axis=1)
    past, num_heads = source.shape[1] - inputs.shape[1], layer.num_heads
    patterns = positions(source.shape[1], source.shape[2])
    kernel, bias = pair(layer.query_key_value)
    projected = np.stack(
        np.split(source @ exact(kernel).T + (0 if bias is None else exact(bias)), 3, -1)
    )
    projected = np.stack(np.split(projected, num_heads, axis=-1), axis=2)
    queries, keys, values = projected  # each (batch, heads, source, key_dim)
    distances = np.split(patterns @ exact(layer.distance_projection.kernel).T, num_heads, axis=-1)
    u, v = exact(layer.content_bias)[:, 0], exact(layer.distance_bias)[:, 0]
    weights = np.zeros((len(inputs), num_heads, inputs.shape[1], source.shape[1]))
    mask = np.broadcast_to(True if mask is None else mask, weights[:, 0].shape)
    for row, head, i in np.ndindex(weights.shape[:3]):
        query = queries[row, head, past + i]
        for j in range(past + i + 1):
            if mask[row, i, j]:
                by_content = (query + u[head]) @ keys[row, head, j]
                by_distance = (query + v[head]) @ distances[head][past + i - j]
                score = (by_content + by_distance) / np.sqrt(len(query))
                weights[row, head, i, j] = np.exp(score)
    total = weights.sum(axis=-1, keepdims=True)
    weights /= np.where(total == 0, 1, total)
    context = np.concatenate(np.moveaxis(weights @ values, 1, 0), axis=-1)
    outputs = context @ exact(layer.output_projection.kernel).T
    bias = layer.output_projection.bias
    return outputs + (0 if bias is None else exact(bias)), weights


def layer_norm(layer, inputs):
    centred = inputs - inputs.mean(axis=-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
    return scaled * exact(layer.gamma) + exact(layer.beta)


def feed_forward(layer, inputs):
    hidden = inputs @ exact(layer.widen.kernel).T + exact(layer.widen.bias)
    return np.maximum(hidden, 0) @ exact(layer.narrow.kernel).T + exact(layer.narrow.bias)


def residual(layer, inputs, sublayer):
    """Outputs, and what the sub-layer returns besides its own."""
    added, extra = sublayer(layer_norm(layer.norm, inputs) if layer.normalize_first else inputs)
    outputs = inputs + added
    return (outputs if layer.normalize_first else layer_norm(layer.norm, outputs)), extra


def encoder_block(block, inputs, mask=None):
    outputs, weights = residual(
        block.around_self_attention,
        inputs,
        lambda x: multi_head_attention(block.self_attention, x, None, mask),
    )
    outputs, _ = residual(
        block.around_feed_forward, outputs, lambda x: (feed_forward(block.feed_forward, x), None)
    )
    return outputs, weights


def decoder_block(block, inputs, source, mask=None, source_mask=None):
    """Masks as for `multi_head_attention`; the causal one is added here."""
    length = inputs.shape[1]
    causal = np.tril(np.ones((1, length, length), bool))
    own_mask = causal if mask is None else causal & mask
    outputs, from_self = residual(
        block.around_self_attention,
        inputs,
        lambda x: multi_head_attention(block.self_attention, x, None, own_mask),
    )
    outputs, from_cross = residual(
        block.around_cross_attention,
        outputs,
        lambda x: multi_head_attention(block.cross_attention, x, source, source_mask),
    )
    outputs, _ = residual(
        block.around_feed_forward, outputs, lambda x: (feed_forward(block.feed_forward, x), None)
    )
    return outputs, (from_self, from_cross)


def transformer_xl_block(block, inputs, memory=None, mask=None):
    around = block.around_self_attention
    if memory is not None and block.normalize_first:
        memory = layer_norm(around.norm, memory)
    outputs, weights = residual(
        around, inputs, lambda x: relative_attention(block.self_attention, x, memory, mask)
    )
    outputs, _ = residual(
        block.around_feed_forward, outputs, lambda x: (feed_forward(block.feed_forward, x), None)
    )
    return outputs, weights


def transformer_xl(layer, inputs, memories=None, mask=None):
    """Outputs, memories and weights of every block."""
    outputs, longer, weights = inputs, [], []
    for block, memory in zip(layer.blocks, memories or [None] * layer.num_layers, strict=True):
        longer.append(outputs if memory is None else np.concatenate([memory, outputs], axis=1))
        outputs, from_block = transformer_xl_block(block, outputs, memory, mask)
        weights.append(from_block)
    return (layer_norm(layer.norm, outputs) if layer.normalize_first else outputs), longer, weights


def stack(layer, block_function, inputs, *others):
    """Outputs of `Encoder` or `Decoder`, and the weights of every block."""
    outputs, weights = inputs, []
    for block in layer.blocks:
        outputs, from_block = block_function(block, outputs, *others)
        weights.append(from_block)
    return (layer_norm(layer.norm, outputs) if layer.normalize_first else outputs), weights


def positions(length, dim, max_wavelength=10000.0):
    """The paper's formula, number by number."""
    table = np.zeros((length, dim))
    for position in range(length):
        for index in range(dim // 2):
            angle = position / max_wavelength ** (2 * index / dim)
            table[position, 2 * index] = np.sin(angle)
            table[position, 2 * index + 1] = np.cos(angle)
    return table
