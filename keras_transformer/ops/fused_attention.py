"""Dot-product attention in one kernel of cuDNN, on JAX with a GPU."""

import keras

if keras.backend.backend() == "jax":
    import jax
    import jax.numpy as jnp


def suits_cudnn(queries, keys, values):
    """Whether cuDNN has a kernel for attention between (batch, heads, length, dim).

    There is one on JAX with a GPU, in half precision, for even lengths and equal head widths that
    are multiples of 8 up to 128. With bfloat16 the GPU is assumed to be Ampere or newer.
    """
    if keras.backend.backend() != "jax" or not has_gpu() or keys.shape[3] != values.shape[3]:
        return False
    lengths, dim = (queries.shape[2], keys.shape[2]), queries.shape[3]
    is_half = keras.backend.standardize_dtype(queries.dtype) in ("bfloat16", "float16")
    return is_half and dim <= 128 and dim % 8 == 0 and not any(length % 2 for length in lengths)


def has_gpu():
    """Whether JAX computes on a GPU."""
    return jax.default_backend() == "gpu"


def attend_fused(queries, keys, values, mask=None, implementation="cudnn"):
    """Attention in one kernel that never holds the weights.

    The first four arguments are those of `ops.attention.attend`, with as many heads of keys as of
    queries; `implementation` is that of `jax.nn.dot_product_attention`. The context of a fully
    masked target is zero.

    Source: Dao et al. 2022 (https://arxiv.org/abs/2205.14135).
    """
    by_position = (jnp.swapaxes(tensor, 1, 2) for tensor in (queries, keys, values))
    if mask is not None:
        shape = (*mask.shape[:2], queries.shape[2], keys.shape[2])
        mask = jnp.broadcast_to(mask, shape)
    context = jax.nn.dot_product_attention(*by_position, mask=mask, implementation=implementation)
    context = jnp.swapaxes(context, 1, 2)
    if mask is None:
        return context
    return jnp.where(mask.any(axis=-1, keepdims=True), context, 0)
