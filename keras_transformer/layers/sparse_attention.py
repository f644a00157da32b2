"""Multi-head attention within one sequence that computes only what a sparse pattern allows."""

import keras
from keras import ops

from keras_transformer.layers.attention import MultiHeadAttention
from keras_transformer.layers.attention_scores import scores_are_recorded
from keras_transformer.layers.checks import implicit_mask
from keras_transformer.layers.dropout import ReproducibleDropout
from keras_transformer.ops.attention import merge_heads, repeat_heads
from keras_transformer.ops.masks import combine_masks
from keras_transformer.ops.sparse_attention import SparsePattern


@keras.saving.register_keras_serializable(package="keras_transformer")
class SparseAttention(MultiHeadAttention):
    """Self-attention for long sequences: every position attends to a few others.

    "local" allows the positions at most `block_size` away; "strided" those and every
    `block_size`-th position beyond, for data with that period, such as the rows of an image;
    "fixed" the own block and the last `summary_size` positions of every other block, for data
    without a period, such as text. With a `block_size` near the square root of the length n,
    time and memory of the last two grow as n * sqrt(n).

    The weights are those of `MultiHeadAttention`, and so are the outputs where that layer is
    given `pattern_mask`. For a pattern that is not listed, such as the edges of a graph, give
    `MultiHeadAttention` an `attention_mask`.

    Source: Child et al. 2019, section 4.3, with both sets of positions in every head as in
    section 5.1 (https://arxiv.org/abs/1904.10509).

    Args:
        num_heads: number of heads, at least 1.
        pattern: "strided", "fixed" or "local".
        block_size: in tokens, at least 1; l in the paper. Lengths of sequences need not be
            multiples of it.
        summary_size: of "fixed", in tokens, from 1 to `block_size`; c in the paper, which
            takes 8 to 32 of 128 to 256. No other pattern uses it.
        causal: whether later positions are forbidden.
        key_dim: and all further arguments as for `MultiHeadAttention`, but `soft_cap` must be None.

    Call arguments:
        query: (batch, length, dim).
        value: None; a pattern lies within one sequence.
        padding_mask: boolean (batch, length), True for a real token; the implicit Keras mask
            of `query` if None.
        attention_mask: None; the pattern replaces it.
        training: whether dropout is applied.

    Returns:
        Same shape as `query`.

    Raises:
        ValueError: if `pattern` is none of the three, a size is out of its range, or `value`
            or `attention_mask` is given.

    Examples:
        >>> layer = SparseAttention(num_heads=2, pattern="strided", block_size=3, causal=True)
        >>> tuple(layer(keras.ops.zeros((5, 11, 4))).shape)
        (5, 11, 4)
    """

    stepwise_methods = ("step",)  # it attends to no source

    def __init__(
        self,
        num_heads,
        pattern,
        block_size,
        summary_size=8,
        causal=False,
        key_dim=None,
        value_dim=None,
        dropout=0.0,
        use_bias=True,
        kernel_initializer="glorot_uniform",
        num_key_value_heads=None,
        rotary=None,
        query_key_norm=None,
        soft_cap=None,
        use_output_bias=None,
        **kwargs,
    ):
        super().__init__(
            num_heads,
            key_dim,
            value_dim,
            dropout,
            use_bias,
            kernel_initializer=kernel_initializer,
            num_key_value_heads=num_key_value_heads,
            rotary=rotary,
            query_key_norm=query_key_norm,
            use_output_bias=use_output_bias,
            **kwargs,
        )
        if soft_cap is not None:
            raise ValueError(
                "A sparse pattern has no soft_cap: its softmax is a sum of several parts. Use "
                f"MultiHeadAttention with a mask. Received: soft_cap={soft_cap}."
            )
        self._pattern = SparsePattern(pattern, block_size, summary_size, causal)
        # One for each part of a pattern: `remat` counts on one draw from each random state.
        self._dropouts = [self._dropout]
        if pattern != "local":
            self._dropouts.append(ReproducibleDropout(self.dropout, dtype=self.dtype_policy))
        self.pattern = pattern
        self.block_size = block_size
        self.summary_size = summary_size
        self.causal = causal

    def pattern_mask(self, target_length, source_length=None, start=0):
        """What the pattern allows, boolean (1, target, source); arguments as of `local_mask`."""
        return self._pattern.mask(target_length, source_length, start)

    def call(
        self,
        query,
        value=None,
        key=None,
        *,
        padding_mask=None,
        attention_mask=None,
        training=None,
    ):
        if any(tensor is not None for tensor in (value, key, attention_mask)):
            shapes = (getattr(tensor, "shape", None) for tensor in (value, key, attention_mask))
            raise ValueError(
                "SparseAttention attends within one sequence, to what its pattern allows. Use "
                "MultiHeadAttention for a value or an attention_mask. Received: value of shape "
                "{}, key of shape {}, attention_mask of shape {}.".format(*shapes)
            )
        if scores_are_recorded():  # length * length numbers a head, as in the dense layer
            mask = self.pattern_mask(ops.shape(query)[1])
            return super().call(
                query, padding_mask=padding_mask, attention_mask=mask, training=training
            )
        self._check_inputs(query=query)
        dropouts = iter(self._dropouts)
        queries, keys, values = self._self_heads(query)
        context = self._pattern.attend(
            queries,
            repeat_heads(keys, self.num_heads),
            repeat_heads(values, self.num_heads),
            padding_mask=implicit_mask(query, padding_mask),
            dropout=lambda powers: next(dropouts)(powers, training=training),
        )
        return self.output_projection(merge_heads(context))

    def step(self, inputs, cache, mask, position=None):
        if cache is None:
            return super().step(inputs, None, self.pattern_mask(ops.shape(inputs)[1]))
        num_beams = inputs.shape[1]
        cached = ops.shape(cache[0])[2] // num_beams
        length, start = (cached + 1, cached) if position is None else (cached, position)
        # One position a beam and step: all beams of a step stand at the same position.
        allowed = ops.repeat(self.pattern_mask(1, length, start), num_beams, axis=2)
        return super().step(inputs, cache, combine_masks(allowed, mask), position)

    def get_config(self):
        return {
            **super().get_config(),
            "pattern": self.pattern,
            "block_size": self.block_size,
            "summary_size": self.summary_size,
            "causal": self.causal,
        }
