"""A moving average of a model's weights."""

import tensorflow as tf


class MovingAverage:
    """Follows variables: after each step, average = momentum * average + (1 - momentum) * value.

    Args:
        variables: list of Keras variables, which give the initial values.
        momentum: share of the old value, in (0, 1).

    Attributes:
        values: list of TensorFlow variables.
    """

    def __init__(self, variables, momentum):
        self._variables, self._momentum = variables, momentum
        self.values = [tf.Variable(v.value, trainable=False) for v in variables]

    def update(self):
        for variable, average in zip(self._variables, self.values, strict=True):
            average.assign_add((1 - self._momentum) * (variable.value - average))

    def swap(self):
        """Exchanges the variables with their averages."""
        for variable, average in zip(self._variables, self.values, strict=True):
            kept = tf.identity(variable.value)
            variable.assign(average)
            average.assign(kept)
