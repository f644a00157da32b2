"""Dropout as a function of tensors."""

from keras import ops


def drop(inputs, kept, rate):
    """Sets what is not kept to 0 and scales the rest by 1 / (1 - rate)."""
    return ops.where(kept, inputs * (1 / (1 - rate)), 0)
