"""Causal self-attention that uses distances instead of positions, and attends to a memory."""

import math

import keras
from keras import ops

from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.checks import implicit_mask, mask_per_token
from keras_transformer.layers.projection import add_projection
from keras_transformer.ops.attention import split_heads
from keras_transformer.ops.cache import append_to_cache
from keras_transformer.ops.masks import as_attention_mask, causal_mask, combine_masks
from keras_transformer.ops.positions import check_even, relative_shift, sinusoidal_positions

# Arguments of `MultiHeadAttention` that this attention does not have.
ABSENT = (
    *("value_dim", "num_key_value_heads", "rotary", "query_key_norm", "soft_cap"),
    "use_output_bias",
)


@keras.saving.register_keras_serializable(package="keras_transformer")
class RelativeAttention(MultiHeadAttention):
    """Self-attention to a memory and to what came before, scored by content and by distance.

    A target with query q scores a source with key k, at a distance whose sinusoidal pattern
    is projected to r, by ((q + u) k + (q + v) r) / sqrt(key_dim). The vectors u and v are
    learned for each head. No score depends on where a text was split, so vectors kept from one
    segment can be the memory of the next, and more of them may be kept than in training.

    Source: Dai et al. 2019, section 3.3 (https://arxiv.org/abs/1901.02860), with u and v
    for each layer, as its authors trained their largest models.

    Args:
        num_heads: number of heads, at least 1.
        key_dim: width of each head; the width of the inputs divided by `num_heads` if None.
        dropout: probability in [0, 1) with which an attention weight is dropped.
        use_bias: whether the projections of queries, keys, values and outputs add a bias;
            those of the paper do not.
        kernel_initializer: initializer, called separately for each projection.

    Call arguments:
        query: (batch, target, dim), dim even.
        memory: vectors that come before those of `query`, (batch, past, dim), or None.
        padding_mask: boolean (batch, past + target), True for a real token. If None, the
            implicit Keras mask of `query`, and all of the memory, are used.
        attention_mask: boolean, broadcasts to (batch, target, past + target); further limits
            the attention, which is always causal.
        training: whether dropout is applied.

    Returns:
        Same shape as `query`.

    Raises:
        ValueError: as for `MultiHeadAttention`, and if dim is odd.

    Examples:
        >>> layer = RelativeAttention(num_heads=2)
        >>> tuple(layer(keras.ops.zeros((3, 5, 4)), keras.ops.zeros((3, 7, 4))).shape)
        (3, 5, 4)
    """

    causal = True
    stepwise_methods = ("step",)  # it attends to no source

    def __init__(
        self,
        num_heads,
        key_dim=None,
        dropout=0.0,
        use_bias=False,
        kernel_initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(
            num_heads,
            key_dim,
            dropout=dropout,
            use_bias=use_bias,
            kernel_initializer=kernel_initializer,
            **kwargs,
        )
        others = {name: getattr(self, name) for name in ABSENT}
        if any(value is not None for value in others.values()):
            raise ValueError(
                f"RelativeAttention has no {', '.join(ABSENT)}: its positions are distances, and "
                f"each head has keys of its own. Received: {others}."
            )

    def build(self, query_shape, memory_shape=None):
        hidden_dim = query_shape[-1]
        check_even(hidden_dim)
        super().build(query_shape)
        self._build_for(query=query_shape, memory=query_shape)
        inner = math.prod(self._query_heads)
        self.distance_projection = add_projection(
            self, "distance", hidden_dim, inner, self.kernel_initializer, use_bias=False
        )
        shape = (self.num_heads, 1, inner // self.num_heads)
        small = keras.initializers.RandomNormal(stddev=0.02)
        self.content_bias, self.distance_bias = (
            self.add_weight(shape, draw, name=name)
            for name, draw in (("content_bias", small), ("distance_bias", small.clone()))
        )

    def call(self, query, memory=None, *, padding_mask=None, attention_mask=None, training=None):
        self._check_inputs(query=query, memory=memory)
        padding_mask = memory_padding_mask(query, memory, padding_mask)
        if memory is None:
            queries, keys, values = self._self_heads(query)
        else:
            [queries] = self._project_heads(query, self._projections(0, 1), self._query_heads)
            keys, values = self.keys_values(ops.concatenate([memory, query], axis=1))
        target, source = ops.shape(queries)[2], ops.shape(keys)[2]
        _, bias = self._distances_of(queries, source, query)
        causal = causal_mask(target, start=source - target)
        mask = combine_masks(causal, padding_mask, as_attention_mask(attention_mask))
        return self._attend_with(queries, keys, values, mask, training, bias)

    def keys_values(self, value):
        """Projects (batch, source, dim) to keys and values, each (batch, heads, source, dim)."""
        parts = self._key_heads, self._value_heads
        return self._project_heads(value, self._projections(1, 3), *parts)

    def empty_cache(self, batch_size, length=None, num_beams=1):
        """The cache of `MultiHeadAttention`, and projected distances.

        These are (batch, heads, length, key_dim), the farthest first; of length 0 if they grow.
        """
        keys, values = super().empty_cache(batch_size, length, num_beams)
        if length is None:
            return keys, values, keys
        shape = (batch_size, self.num_heads, length, self.content_bias.shape[2])
        patterns = ops.flip(
            sinusoidal_positions(length, self.distance_projection.kernel.shape[1]), 0
        )
        distances = self._project_distances(patterns, self.compute_dtype)
        return keys, values, ops.broadcast_to(distances, shape)

    def step(self, inputs, cache, mask, position=None):
        """One position, for several beams of each row, as of `MultiHeadAttention.step`.

        The cache is what `empty_cache` or the step before returned: keys and values, which grow by
        one position a beam and step, and projected distances, the farthest first, which grow by one
        a step; or have their full size.
        """
        queries, key, value = self._self_heads(inputs)
        if cache is None:
            distances, bias = self._distances_of(queries, ops.shape(key)[2], inputs)
            mask = causal_mask(ops.shape(key)[2]) if mask is None else mask
            outputs = self._attend_with(queries, key, value, mask, None, bias)
            rows = ops.shape(key)[0], *ops.shape(distances)[1:]
            return outputs, (key, value, ops.broadcast_to(distances, rows))
        start = None if position is None else position * inputs.shape[1]
        keys = append_to_cache(cache[0], key, start)
        values = append_to_cache(cache[1], value, start)
        batch_size, num_heads, steps, key_dim = ops.shape(cache[2])
        if position is None:
            farthest = sinusoidal_positions(1, inputs.shape[-1], start=steps)
            farthest = self._project_distances(farthest, inputs.dtype)
            farthest = ops.broadcast_to(farthest, (batch_size, num_heads, 1, key_dim))
            distances = ops.concatenate([farthest, cache[2]], axis=2)
            bias = self._distance_logits(queries, distances)  # (batch, heads, beams, steps + 1)
        else:
            distances = cache[2]
            # Distance 0 belongs to column `position`; columns that wrap around are masked.
            bias = self._distance_logits(queries, distances)
            bias = ops.roll(bias, position + 1 - steps, axis=3)
        # Every step has written one position per beam, and all of these are equally far away.
        bias = ops.repeat(bias, inputs.shape[1], axis=3)
        outputs = self._attend_with(queries, keys, values, mask, None, bias)
        return outputs, (keys, values, distances)

    def get_config(self):
        return {key: value for key, value in super().get_config().items() if key not in ABSENT}

    def _attend_with(self, queries, keys, values, mask, training, bias):
        queries = queries + ops.cast(self.content_bias, queries.dtype)
        return self.attend_heads(queries, keys, values, mask, training, bias)

    def _projections(self, start, stop):
        """Some of the projections to queries, keys and values, which are side by side."""
        inner = self.query_key_value.kernel.shape[0] // 3
        return self.query_key_value.rows(start * inner, stop * inner)

    def _distances_of(self, queries, source, inputs):
        """Projected distances, the farthest first, and their logits, for the last queries."""
        farthest_first = ops.flip(sinusoidal_positions(source, inputs.shape[-1]), axis=0)
        distances = self._project_distances(farthest_first, inputs.dtype)
        return distances, relative_shift(self._distance_logits(queries, distances))

    def _project_distances(self, patterns, dtype):
        """(distances, dim) -> (1, heads, distances, key_dim)."""
        projected = self.distance_projection(ops.cast(patterns, dtype)[None])
        return split_heads(projected, self.num_heads)

    def _distance_logits(self, queries, distances):
        """(batch, heads, target, distances), to be added to the logits by content."""
        queries = queries + ops.cast(self.distance_bias, queries.dtype)
        queries = queries * (1.0 / math.sqrt(queries.shape[-1]))
        distances = ops.swapaxes(distances, -1, -2)
        if self.num_heads == 1:
            # TensorFlow 2.21 with oneDNN crashes on large products that repeat (1, 1, ...).
            return ops.matmul(queries[:, 0], distances[:, 0])[:, None]
        return ops.matmul(queries, distances)


def memory_padding_mask(inputs, memory, padding_mask):
    """The padding mask of a call, or else that of Keras for the inputs, after all of the memory."""
    if memory is None:
        return implicit_mask(inputs, padding_mask)
    if padding_mask is not None:
        return mask_per_token("padding_mask", padding_mask, memory, inputs)
    mask = implicit_mask(inputs, None)
    if mask is None:
        return None
    return ops.concatenate([ops.ones(ops.shape(memory)[:2], "bool"), mask], axis=1)
