"""The functions of TensorFlow with which the search is written, and the same on JAX.

The search runs on two backends from one source. On TensorFlow `tf` is TensorFlow; on JAX it is a
namespace with the part of it that the search calls, written with `jax.numpy`. There, nothing can
grow from step to step, and shapes are Python integers.
"""

import types

import keras
import numpy as np

__all__ = ["ON_JAX", "tf"]

ON_JAX = keras.backend.backend() == "jax"

if ON_JAX:
    import jax
    import jax.numpy as jnp
    from jax import lax

    def _gather(params, indices, axis=None, batch_dims=0):
        axis = batch_dims if axis is None else axis

        def take(params, indices):
            return jnp.take(params, indices, axis=axis - batch_dims, mode="clip")

        for _ in range(batch_dims):
            take = jax.vmap(take)
        return take(jnp.asarray(params), jnp.asarray(indices))

    def _in_numpy(function, *values):
        """Keeps what is known before JAX compiles, such as the sizes of paddings."""
        return getattr(jnp if any(isinstance(v, jax.Array) for v in values) else np, function)

    def _cast(values, dtype):
        return _in_numpy("asarray", values)(values, dtype)

    def _equal(first, second):
        first, second = (np.asarray(v) if isinstance(v, list) else v for v in (first, second))
        return _in_numpy("equal", first, second)(first, second)

    def _range(start, limit=None):
        return jnp.arange(start, limit, dtype="int32")

    def _one_hot(indices, depth, on_value, off_value, dtype):
        return jnp.where(indices[..., None] == jnp.arange(depth), on_value, off_value).astype(dtype)

    def _while_loop(condition, body, loop_vars, _):
        state = jax.tree.map(jnp.asarray, tuple(loop_vars))
        return lax.while_loop(lambda s: condition(*s), lambda s: tuple(body(*s)), state)

    class _TopK(tuple):
        values = property(lambda self: self[0])
        indices = property(lambda self: self[1])

    def _segment_sum(data, segment_ids, num_segments):
        return jax.ops.segment_sum(data.ravel(), segment_ids.ravel(), num_segments)

    def _pad(tensor, paddings, constant_values=0):
        return jnp.pad(tensor, paddings, constant_values=constant_values)

    tf = types.SimpleNamespace(
        Tensor=jax.Array,
        bool=jnp.bool_,
        float32=jnp.float32,
        int32=jnp.int32,
        broadcast_to=jnp.broadcast_to,
        cast=_cast,
        concat=lambda values, axis: jnp.concatenate([*map(jnp.asarray, values)], axis),
        cond=lax.cond,
        constant=jnp.asarray,
        convert_to_tensor=jnp.asarray,
        equal=_equal,
        exp=jnp.exp,
        fill=jnp.full,
        gather=_gather,
        is_tensor=lambda value: isinstance(value, jax.Array),
        maximum=jnp.maximum,
        minimum=jnp.minimum,
        one_hot=_one_hot,
        pad=_pad,
        range=_range,
        reduce_all=jnp.all,
        reduce_any=jnp.any,
        reduce_logsumexp=jax.nn.logsumexp,
        reduce_max=jnp.max,
        reduce_sum=jnp.sum,
        reshape=jnp.reshape,
        shape=jnp.shape,
        tile=jnp.tile,
        transpose=jnp.transpose,
        where=jnp.where,
        while_loop=_while_loop,
        zeros=jnp.zeros,
        zeros_like=jnp.zeros_like,
        math=types.SimpleNamespace(
            count_nonzero=lambda x, axis, dtype: jnp.count_nonzero(x, axis=axis).astype(dtype),
            cumprod=jnp.cumprod,
            is_finite=jnp.isfinite,
            is_inf=jnp.isinf,
            log=jnp.log,
            top_k=lambda x, k: _TopK(lax.top_k(x, k)),
            unsorted_segment_sum=_segment_sum,
        ),
        nest=types.SimpleNamespace(map_structure=jax.tree.map),
    )
else:
    import tensorflow as tf
