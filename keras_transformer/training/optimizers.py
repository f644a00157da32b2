"""Adam in one pass over memory, its schedule, the average of the weights, the scale of the loss.

Adam and the schedule are those of "Attention Is All You Need". The moving average of the weights
and the scale of the loss in float16 belong to the train step, since Keras's optimizers would see
one replica only.
"""

import contextlib
import numbers

import keras
from keras import ops

from keras_transformer.arguments import check_integer, check_number, check_probability
from keras_transformer.training.internals import ON_TENSORFLOW, adam_moments

if ON_TENSORFLOW:
    import tensorflow as tf

FIRST_SCALE, LARGEST_SCALE = 2.0**15, 2.0**30
STEPS_TO_DOUBLE = 2000  # without an overflow
LARGEST = 65504.0  # finite float16
EXPONENT = 0x7F800000  # the exponent bits of a float32


@keras.saving.register_keras_serializable(package="keras_transformer")
class Adam(keras.optimizers.Adam):
    """Keras's Adam with the settings of the Transformer, fused on TensorFlow.

    It gives the same numbers as `keras.optimizers.Adam` in one kernel instead of a dozen. On
    other backends, and with AMSGrad, it is Keras's own.

    Source: Kingma and Ba 2015 (https://arxiv.org/abs/1412.6980); settings: Vaswani et al.
    2017, section 5.3.

    Args:
        learning_rate: a rate, or a schedule such as `InverseSqrtWarmup`.
        beta_1: decay of the first moment, in [0, 1).
        beta_2: decay of the second moment, in [0, 1).
        epsilon: added to the root of the second moment.
        **kwargs: other arguments of `keras.optimizers.Adam`.

    Examples:
        >>> float(Adam(0.5).beta_2)
        0.98
    """

    def __init__(self, learning_rate=0.001, beta_1=0.9, beta_2=0.98, epsilon=1e-9, **kwargs):
        if isinstance(learning_rate, (numbers.Real, str)) or learning_rate is None:
            check_number("learning_rate", learning_rate, least=0)
        check_probability("beta_1", beta_1)
        check_probability("beta_2", beta_2)
        check_number("epsilon", epsilon, least=0)
        super().__init__(learning_rate, beta_1, beta_2, epsilon, **kwargs)

    def update_step(self, gradient, variable, learning_rate):
        fused = ON_TENSORFLOW and not self.amsgrad
        if not fused or isinstance(gradient, tf.IndexedSlices):
            return super().update_step(gradient, variable, learning_rate)
        momentum, velocity = adam_moments(self, variable)
        steps = tf.cast(tf.convert_to_tensor(self.iterations) + 1, variable.dtype)
        return tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=momentum.value.handle,
            v=velocity.value.handle,
            beta1_power=tf.pow(tf.cast(self.beta_1, variable.dtype), steps),
            beta2_power=tf.pow(tf.cast(self.beta_2, variable.dtype), steps),
            lr=tf.cast(learning_rate, variable.dtype),
            beta1=tf.cast(self.beta_1, variable.dtype),
            beta2=tf.cast(self.beta_2, variable.dtype),
            epsilon=tf.cast(self.epsilon, variable.dtype),
            grad=tf.cast(gradient, variable.dtype),
        )


@keras.saving.register_keras_serializable(package="keras_transformer")
class InverseSqrtWarmup(keras.optimizers.schedules.LearningRateSchedule):
    """Rises linearly to a peak, then falls with the square root of the step.

    rate(s) = peak_rate * min(s / warmup_steps, sqrt(warmup_steps / s)), where s counts
    optimizer steps from 1.

    Source: Vaswani et al. 2017, equation 3 (https://arxiv.org/abs/1706.03762).

    Args:
        peak_rate: the highest rate, reached after `warmup_steps`. Positive.
        warmup_steps: length of the rise, in optimizer steps, at least 1.

    Call arguments:
        step: number of optimizer steps already taken.

    Returns:
        The learning rate, a float32 scalar.

    Raises:
        ValueError: if an argument is not positive.

    Examples:
        >>> schedule = InverseSqrtWarmup(peak_rate=0.5, warmup_steps=4)
        >>> [round(float(schedule(step)), 3) for step in (0, 3, 15)]
        [0.125, 0.5, 0.25]
    """

    def __init__(self, peak_rate, warmup_steps=4000):
        super().__init__()
        check_number("peak_rate", peak_rate, above=0)
        check_integer("warmup_steps", warmup_steps)
        self.peak_rate = peak_rate
        self.warmup_steps = warmup_steps

    @classmethod
    def of_paper(cls, hidden_dim, warmup_steps=4000):
        """The paper's own form, whose peak is 1 / sqrt(hidden_dim * warmup_steps).

        Examples:
            >>> round(InverseSqrtWarmup.of_paper(512).peak_rate, 7)
            0.0006988
        """
        check_integer("hidden_dim", hidden_dim)
        check_integer("warmup_steps", warmup_steps)
        return cls((hidden_dim * warmup_steps) ** -0.5, warmup_steps)

    def __call__(self, step):
        step = ops.cast(step, "float32") + 1.0
        rise = step / self.warmup_steps
        fall = ops.rsqrt(step / self.warmup_steps)
        return self.peak_rate * ops.minimum(rise, fall)

    def get_config(self):
        return {"peak_rate": self.peak_rate, "warmup_steps": self.warmup_steps}


class MovingAverage:
    """Follows weights: after each step, average = momentum * average + (1 - momentum) * weight.

    `values` are the averages of `weights`, Keras variables that start at the weights' values before
    the first step, which may have been loaded after `compile`.
    """

    def __init__(self, weights, momentum):
        self.weights, self._momentum = weights, momentum
        self.values, self.has_begun = list(map(_copy_of, weights)), False

    def begin(self):
        """Copies the weights, once."""
        if not self.has_begun:
            self.assign([ops.copy(weight.value) for weight in self.weights])

    def assign(self, values):
        """Sets all averages."""
        for average, value in zip(self.values, values, strict=True):
            average.assign(value)
        self.has_begun = True

    def update(self):
        """Moves the averages towards the weights."""
        for weight, average in zip(self.weights, self.values, strict=True):
            change = (1 - self._momentum) * (weight.value - average.value)
            if ON_TENSORFLOW:
                average.value.assign_add(change)  # in place; Keras would write a sum first
            else:
                average.assign_add(change)

    def swap(self):
        """Exchanges the weights with their averages."""
        self.begin()
        for weight, average in zip(self.weights, self.values, strict=True):
            kept = ops.copy(weight.value)
            weight.assign(average.value)
            average.assign(kept)


def _copy_of(variable):
    """A variable with the value of a weight and its path, by which layouts are chosen on JAX."""
    *scopes, name = variable.path.split("/")
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        value = ops.copy(variable.value)
        return keras.Variable(value, dtype=variable.dtype, trainable=False, name=name)


class LossScale:
    """Scales losses so that gradients neither vanish in float16 nor overflow, on TensorFlow.

    A step whose gradient overflows changes nothing but the scale, which it halves; many steps
    without an overflow double the scale. The scale applies to the mean of a batch, because the sum
    that the exact step differentiates grows with the batch. A step is skipped if the gradient of
    the whole batch overflows, as on one device: all replicas skip the same steps, and `skipped`
    counts them.

    Source: Micikevicius et al. 2018, section 3.2 (https://arxiv.org/abs/1710.03740).
    """

    def __init__(self):
        self._scale = tf.Variable(FIRST_SCALE, trainable=False)
        self._clean_steps = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.skipped = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.variables = [self._scale, self._clean_steps, self.skipped]

    def factor(self, labels):
        """The factor for the summed loss of a batch of so many labels.

        Gradients are divided by it again. It is a power of two, which causes no rounding, and the
        same for all parts of a batch.
        """
        per_label = self._scale / tf.maximum(tf.cast(labels, tf.float32), 1.0)
        # Without the other bits of a float32, the largest power of two that is not above it.
        return tf.bitcast(tf.bitcast(per_label, tf.int32) & EXPONENT, tf.float32)

    @contextlib.contextmanager
    def skips(self, gradients, factor, variables):
        """Undoes changes to variables in this context if a gradient of the whole batch overflows.

        There is no branch: the step would have to wait for its outcome, and replicas cannot
        communicate inside a branch. `gradients` are sums over all replicas, already divided by
        `factor`.
        """
        largest = LARGEST / factor
        flat = tf.nest.flatten(gradients)
        # NaN is not below the largest number either.
        fit = [tf.reduce_all(tf.abs(g) <= tf.cast(largest, g.dtype)) for g in flat]
        fits = tf.reduce_all(tf.stack([True, *fit]))  # there may be no gradient
        before = [tf.identity(variable.value) for variable in variables]
        yield
        for variable, value in zip(variables, before, strict=True):
            variable.value.assign(tf.where(fits, variable.value, value))
        clean = self._clean_steps + 1
        doubles = clean >= STEPS_TO_DOUBLE
        grown = tf.minimum(tf.where(doubles, 2.0, 1.0) * self._scale, LARGEST_SCALE)
        self._scale.assign(tf.where(fits, grown, tf.maximum(self._scale / 2, 1.0)))
        self._clean_steps.assign(tf.where(fits & ~doubles, clean, 0))
        self.skipped.assign_add(tf.where(fits, tf.zeros([], tf.int64), 1))


def batches_taken(model):
    """The number of batches so far, also of those that float16 skipped."""
    loss_scale = model._step.loss_scale if hasattr(model, "_step") else None
    skipped = 0 if loss_scale is None else int(loss_scale.skipped.numpy())
    return int(model.optimizer.iterations.numpy()) + skipped
