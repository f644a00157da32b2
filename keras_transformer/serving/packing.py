"""Packs a nested structure of tensors into one tensor, to send it over the wire."""

import math

import tensorflow as tf


class Packing:
    """Packs a nested structure into (batch, length, features) float32, and unpacks it.

    Each tensor of the structure has the batch first and exactly one other axis of variable size:
    the source positions, or the positions decoded so far. That axis becomes `length`; the
    remaining axes of all tensors lie side by side in `features`. Packing is lossless: booleans
    become 0 and 1, and bfloat16 fits into float32.

    Args:
        structure: nested structure of TensorSpec or tensors; the variable axis has an unknown
            size or size 0.

    Raises:
        ValueError: if a tensor does not have exactly one such axis.

    Examples:
        >>> keys = tf.TensorSpec((None, 2, None, 3))  # (batch, heads, length, key_dim)
        >>> packing = Packing({"keys": keys, "mask": tf.TensorSpec((None, None), tf.bool)})
        >>> packing.features
        7
        >>> keys, mask = tf.ones((5, 2, 11, 3)), tf.ones((5, 11), tf.bool)
        >>> packed = packing.pack({"keys": keys, "mask": mask})
        >>> tuple(packed.shape), tuple(packing.unpack(packed)["keys"].shape)
        ((5, 11, 7), (5, 2, 11, 3))
    """

    def __init__(self, structure):
        self.structure = structure
        leaves = tf.nest.flatten(structure)
        self.leaves = [(_variable_axis(leaf.shape), leaf.dtype) for leaf in leaves]
        self.fixed_shapes = [
            [size for axis, size in enumerate(leaf.shape) if axis not in (0, variable)]
            for leaf, (variable, _) in zip(leaves, self.leaves, strict=True)
        ]
        self.features = sum(math.prod(shape) for shape in self.fixed_shapes)

    def pack(self, structure):
        """The structure as one tensor, (batch, length, features)."""
        parts = []
        for leaf, (variable, _), fixed in self._zip(tf.nest.flatten(structure)):
            order = [0, variable, *(axis for axis in range(1, leaf.shape.rank) if axis != variable)]
            moved = tf.cast(tf.transpose(leaf, order), tf.float32)  # (batch, length, ...)
            batch_and_length = tf.shape(moved)[:2]
            parts.append(tf.reshape(moved, tf.concat([batch_and_length, [math.prod(fixed)]], 0)))
        return tf.concat(parts, axis=-1)

    def unpack(self, packed):
        """The structure that was packed into (batch, length, features)."""
        parts = tf.split(packed, [math.prod(shape) for shape in self.fixed_shapes], axis=-1)
        leaves = []
        for part, (variable, dtype), fixed in self._zip(parts):
            shape = tf.concat([tf.shape(part)[:2], tf.constant(fixed, tf.int32)], 0)
            moved = tf.reshape(part, shape)  # (batch, length, ...)
            order = [0, *range(2, variable + 1), 1, *range(variable + 1, len(fixed) + 2)]
            leaves.append(tf.cast(tf.transpose(moved, order), dtype))
        return tf.nest.pack_sequence_as(self.structure, leaves)

    def _zip(self, leaves):
        return zip(leaves, self.leaves, self.fixed_shapes, strict=True)


def _variable_axis(shape):
    variable = [axis for axis, size in enumerate(shape) if axis > 0 and not size]
    if len(variable) != 1:
        raise ValueError(
            "Each tensor of an encoded source or cache must have exactly one axis of variable "
            f"size after the batch axis. Received: a tensor of shape {tuple(shape)}."
        )
    return variable[0]
