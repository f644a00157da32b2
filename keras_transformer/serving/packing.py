"""A nested structure of tensors as one tensor, so that it can be sent over the wire."""

import math

import tensorflow as tf


class Packing:
    """Turns one kind of nested structure into (batch, length, features) float32, and back.

    Each tensor of the structure has the batch first and exactly one more axis whose size is
    not fixed: the positions of the source, or those decoded so far. That axis becomes
    `length`; all others of all tensors lie side by side in `features`. Booleans become 0
    and 1, and bfloat16 fits into float32: nothing is lost.

    Args:
        structure: nested structure of TensorSpec or tensors of that kind; the one free axis
            has an unknown size or size 0.

    Raises:
        ValueError: if a tensor has no or several such axes.

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
        self.leaves = [(_free_axis(leaf.shape), leaf.dtype) for leaf in tf.nest.flatten(structure)]
        self.fixed_shapes = [
            [size for axis, size in enumerate(leaf.shape) if axis not in (0, free)]
            for leaf, (free, _) in zip(tf.nest.flatten(structure), self.leaves, strict=True)
        ]
        self.features = sum(math.prod(shape) for shape in self.fixed_shapes)

    def pack(self, structure):
        """Returns the structure as one tensor, (batch, length, features)."""
        parts = []
        for leaf, (free, _), fixed in self._zip(tf.nest.flatten(structure)):
            order = [0, free, *(axis for axis in range(1, leaf.shape.rank) if axis != free)]
            moved = tf.cast(tf.transpose(leaf, order), tf.float32)  # (batch, length, ...)
            batch_and_length = tf.shape(moved)[:2]
            parts.append(tf.reshape(moved, tf.concat([batch_and_length, [math.prod(fixed)]], 0)))
        return tf.concat(parts, axis=-1)

    def unpack(self, packed):
        """Returns the structure that was packed."""
        parts = tf.split(packed, [math.prod(shape) for shape in self.fixed_shapes], axis=-1)
        leaves = []
        for part, (free, dtype), fixed in self._zip(parts):
            shape = tf.concat([tf.shape(part)[:2], tf.constant(fixed, tf.int32)], 0)
            moved = tf.reshape(part, shape)  # (batch, length, ...)
            order = [0, *range(2, free + 1), 1, *range(free + 1, len(fixed) + 2)]
            leaves.append(tf.cast(tf.transpose(moved, order), dtype))
        return tf.nest.pack_sequence_as(self.structure, leaves)

    def _zip(self, leaves):
        return zip(leaves, self.leaves, self.fixed_shapes, strict=True)


def _free_axis(shape):
    free = [axis for axis, size in enumerate(shape) if axis > 0 and not size]
    if len(free) != 1:
        raise ValueError(
            "Each tensor of a memory or cache needs the batch axis and exactly one more axis "
            f"whose size is not fixed. Received: a tensor of shape {tuple(shape)}."
        )
    return free[0]
