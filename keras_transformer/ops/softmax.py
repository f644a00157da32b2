"""The softmax of dot-product attention, computed in float32 under every dtype policy."""

import math

import keras
from keras import ops

from keras_transformer.ops.compiled import has_own_gradients, softmax_of_products


def attention_weights(queries, keys, mask=None, bias=None, soft_cap=None):
    """How much each target position attends to each source position, (..., heads, target, source).

    softmax(Q K^T / sqrt(d) + bias), computed in float32 under every dtype policy. The weights of a
    fully masked target position are all zero.

    Source: Vaswani et al. 2017, equation 1 (https://arxiv.org/abs/1706.03762).

    Args:
        queries: (..., heads, target, dim).
        keys: (..., heads, source, dim).
        mask: boolean, broadcasts to the weights; True where attention is allowed; None allows all.
        bias: added to the logits, broadcasts to the weights, or None.
        soft_cap: the products are kept between minus this number and it, as of `soft_capped`; None
            for no limit.
    """
    # The same as scaling the logits, up to rounding: fewer numbers are touched, and logits
    # of float16 overflow later.
    queries = queries * (1.0 / math.sqrt(queries.shape[-1]))
    if bias is None and soft_cap is None and has_own_gradients(queries):
        return softmax_of_products(lambda logits: masked_softmax(logits, mask), queries, keys)
    logits = ops.matmul(queries, ops.swapaxes(keys, -1, -2))
    if soft_cap is not None:
        logits = soft_capped(ops.cast(logits, wide_dtype(logits)), soft_cap)
    return ops.cast(masked_softmax(logits, mask, bias), queries.dtype)


def masked_softmax(logits, mask=None, bias=None):
    """A softmax over the last axis, at least in float32; zero in a fully masked row.

    The weights have the shape and dtype of the logits, (..., heads, target, source).
    """
    dtype, wide = logits.dtype, wide_dtype(logits)
    logits = ops.cast(logits, wide)
    if bias is not None:
        logits = logits + ops.cast(bias, wide)
    if mask is None:
        return ops.cast(_softmax(logits), dtype)
    # Finite, so that a fully masked row gives no NaN. Chosen rather than added: TensorFlow fuses an
    # addition into the product before it, for which oneDNN has only its reference code on most
    # processors, up to 200 times slower.
    logits = ops.where(mask, logits, -1e30)
    allowed = ops.cast(ops.any(mask, axis=-1, keepdims=True), wide)
    return ops.cast(_softmax(logits) * allowed, dtype)


def _softmax(logits):
    # Keras warns of a softmax over one number; at the first step of decoding there is just one.
    return ops.ones_like(logits) if logits.shape[-1] == 1 else ops.softmax(logits, axis=-1)


def soft_capped(logits, soft_cap):
    """Logits that stay between `-soft_cap` and `soft_cap`: soft_cap * tanh(logits / soft_cap).

    Source: Gemma Team 2024, section 2 (https://arxiv.org/abs/2408.00118).

    Examples:
        >>> soft_capped(keras.ops.array([1.0, 1000.0]), 30.0).numpy().round(2).tolist()
        [1.0, 30.0]
    """
    return soft_cap * ops.tanh(logits / soft_cap)


def wide_dtype(tensor):
    """The dtype in which what must not be rounded is computed: float32, or float64."""
    return keras.backend.result_type(tensor.dtype, "float32")
