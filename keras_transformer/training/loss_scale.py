"""Dynamic scaling of the loss, which training in float16 needs."""

import contextlib

import tensorflow as tf

from keras_transformer.training.internals import all_layers

FIRST_SCALE, LARGEST_SCALE = 2.0**15, 2.0**30
STEPS_TO_DOUBLE = 2000  # without an overflow
LARGEST = tf.float16.max
EXPONENT = 0x7F800000  # the exponent bits of a float32


class LossScale:
    """Scales losses so that gradients neither vanish in float16 nor overflow.

    A step whose gradient overflows changes nothing but the scale, which it halves; many steps
    without an overflow double the scale. The scale applies to the mean of a batch, because the sum
    that the exact step differentiates grows with the batch. A step is skipped if the gradient of
    the whole batch overflows, as on one device: all replicas skip the same steps.

    Source: Micikevicius et al. 2018, section 3.2 (https://arxiv.org/abs/1710.03740).

    Attributes:
        skipped: number of skipped steps so far, a TensorFlow variable.
        variables: TensorFlow variables to save in checkpoints.
    """

    def __init__(self):
        self._scale = tf.Variable(FIRST_SCALE, trainable=False)
        self._clean_steps = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.skipped = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.variables = [self._scale, self._clean_steps, self.skipped]

    def factor(self, labels):
        """The factor for the sum of the losses, by which its gradients are divided again.

        It is a power of two, which causes no rounding, and the same for all parts of a batch.

        Args:
            labels: number of labels in the whole batch, a scalar.
        """
        return power_of_two(self._scale / tf.maximum(tf.cast(labels, tf.float32), 1.0))

    @contextlib.contextmanager
    def skips(self, gradients, factor, variables):
        """Undoes changes to variables in this context if a gradient of the whole batch overflows.

        There is no branch: the step would have to wait for its outcome, and replicas cannot
        communicate inside a branch.

        Args:
            gradients: nest of tensors, unscaled sums over all replicas.
            factor: the factor by which they were scaled.
            variables: list of TensorFlow variables.
        """
        largest = LARGEST / factor
        flat = tf.nest.flatten(gradients)
        # NaN is not below the largest number either.
        fit = [tf.reduce_all(tf.abs(g) <= tf.cast(largest, g.dtype)) for g in flat]
        fits = tf.reduce_all(tf.stack(fit))
        before = [tf.identity(variable) for variable in variables]
        yield
        for variable, value in zip(variables, before, strict=True):
            variable.assign(tf.where(fits, variable, value))
        clean = self._clean_steps + 1
        doubles = clean >= STEPS_TO_DOUBLE
        grown = tf.minimum(tf.where(doubles, 2.0, 1.0) * self._scale, LARGEST_SCALE)
        self._scale.assign(tf.where(fits, grown, tf.maximum(self._scale / 2, 1.0)))
        self._clean_steps.assign(tf.where(fits & ~doubles, clean, 0))
        self.skipped.assign_add(tf.where(fits, tf.zeros([], tf.int64), 1))


def power_of_two(number):
    """The largest power of two that does not exceed a positive float32."""
    return tf.bitcast(tf.bitcast(number, tf.int32) & EXPONENT, tf.float32)


def computes_in_float16(model):
    return any(layer.compute_dtype == "float16" for layer in all_layers(model))
