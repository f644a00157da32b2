"""Functions of tensors, written in `keras.ops` alone."""

from keras_transformer.ops.attention import (
    attention_weights,
    dot_product_attention,
    merge_heads,
    split_heads,
)
from keras_transformer.ops.masks import (
    beam_mask,
    causal_mask,
    combine_masks,
    local_mask,
    padding_mask,
    valid_length_mask,
)
from keras_transformer.ops.positions import (
    segment_mask,
    segment_positions,
    segments_after,
    segments_before,
    sinusoidal_positions,
)
from keras_transformer.ops.projection import project

__all__ = [
    "attention_weights",
    "beam_mask",
    "causal_mask",
    "combine_masks",
    "dot_product_attention",
    "local_mask",
    "merge_heads",
    "padding_mask",
    "project",
    "segment_mask",
    "segment_positions",
    "segments_after",
    "segments_before",
    "sinusoidal_positions",
    "split_heads",
    "valid_length_mask",
]
