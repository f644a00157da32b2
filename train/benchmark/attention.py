"""Attention of long sequences on JAX: in cuDNN's kernel, in chunks, and with all weights at once.

A unit of work is causal attention and the gradients of queries, keys and values.
"""

import numpy as np

from .engines import Engine, import_jax
from .on_jax import cost_of, peak_bytes

NUM_HEADS, KEY_DIM = 8, 64
ON_GPUS = "cuDNN's kernel"
KINDS = (ON_GPUS, "in chunks", "all weights at once")


def attention_engine(kind, workload):
    """An engine of one of `KINDS`."""
    jax = import_jax(workload)
    import jax.numpy as jnp

    from keras_transformer.ops.attention import attend_at_once
    from keras_transformer.ops.chunked_attention import attend_in_chunks
    from keras_transformer.ops.fused_attention import attend_fused, has_gpu

    if kind == ON_GPUS and not has_gpu():
        raise RuntimeError("cuDNN's kernel needs an NVIDIA GPU")
    attend = {
        "all weights at once": lambda *arguments: attend_at_once(*arguments)[0],
        "in chunks": attend_in_chunks,
        ON_GPUS: attend_fused,
    }[kind]

    def gradients(queries, keys, values, mask):
        outputs, gradients_of = jax.vjp(lambda *each: attend(*each, mask), queries, keys, values)
        return gradients_of(outputs), jnp.abs(outputs.astype("float32")).mean()

    length = workload.size.length
    shape = (workload.batch_size, NUM_HEADS, length, KEY_DIM)
    drawn = [np.random.default_rng(seed).normal(size=shape) for seed in range(3)]
    arguments = step = None

    def prepare():
        nonlocal arguments, step
        mask = jnp.tril(jnp.ones((1, 1, length, length), bool))
        arguments = *(jnp.asarray(tensor, workload.dtype) for tensor in drawn), mask
        step = jax.jit(gradients).lower(*arguments).compile()

    def finish(result):
        return float(jax.block_until_ready(result)[1])

    def details():
        yield {**cost_of(step), "peak_bytes": peak_bytes()}

    return Engine(kind, lambda: step(*arguments), 0, finish, prepare, details)
