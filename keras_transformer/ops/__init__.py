"""Functions of tensors: masks, attention, positions."""

from keras_transformer.ops.masks import (
    causal_mask,
    combine_masks,
    local_mask,
    padding_mask,
    valid_length_mask,
)
from keras_transformer.ops.positions import sinusoidal_positions
from keras_transformer.ops.segments import segment_mask, segments_after

__all__ = [
    "causal_mask",
    "combine_masks",
    "local_mask",
    "padding_mask",
    "segment_mask",
    "segments_after",
    "sinusoidal_positions",
    "valid_length_mask",
]
