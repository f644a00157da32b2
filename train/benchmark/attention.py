"""Attention of long sequences on JAX: in cuDNN's kernel, in chunks, and with all weights at once.

A unit of work is the outputs of causal attention and the gradients of queries, keys and values.
"""

import functools

import numpy as np

from .engines import Candidate, Engine
from .on_jax import cost_of, peak_bytes

NUM_HEADS, KEY_DIM = 8, 64
KINDS = {"all weights at once": "dense", "in chunks": "chunks", "cuDNN's kernel": "cudnn"}


def attention_candidates(workload):
    """One candidate per kind that the device has; ratios are to the first, all weights at once."""
    return [
        Candidate(label, functools.partial(attention_engine, kind), workload)
        for label, kind in KINDS.items()
        if kind != "cudnn" or workload.device == "gpu"
    ]


def attention_engine(kind, workload):
    """An engine of one of `KINDS`."""
    import jax
    import jax.numpy as jnp

    from keras_transformer.layers import memory_efficient_attention as efficient
    from keras_transformer.ops.attention import attention_weights

    if kind == "cudnn" and not efficient.has_gpu():
        raise RuntimeError("cuDNN's kernel needs an NVIDIA GPU")
    attend = {
        "dense": lambda q, k, v, mask: jnp.matmul(attention_weights(q, k, mask), v),
        "chunks": efficient.chunked_attention_on_jax,
        "cudnn": efficient.fused_attention,
    }[kind]

    def outputs_and_gradients(queries, keys, values, mask):
        outputs, gradients_of = jax.vjp(lambda *each: attend(*each, mask), queries, keys, values)
        return outputs, gradients_of(outputs)

    length = workload.size.length
    shape = (workload.batch_size, NUM_HEADS, length, KEY_DIM)
    tensors = [
        jnp.asarray(np.random.default_rng(seed).normal(size=shape), workload.dtype)
        for seed in range(3)
    ]
    mask = jnp.tril(jnp.ones((1, 1, length, length), bool))
    step = jax.jit(outputs_and_gradients).lower(*tensors, mask).compile()

    def finish(result):
        return float(jnp.abs(jax.block_until_ready(result)[0].astype("float32")).mean())

    def details():
        return {**cost_of(step), "peak_bytes": peak_bytes()}

    return Engine(kind, lambda: step(*tensors, mask), finish=finish, details=details)
