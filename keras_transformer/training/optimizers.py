"""The optimizer of "Attention Is All You Need": Adam in one pass over memory, and its schedule."""

import numbers

import keras
from keras import ops

from keras_transformer.arguments import check_integer, check_number, check_probability
from keras_transformer.training.internals import ON_TENSORFLOW, adam_moments

if ON_TENSORFLOW:
    import tensorflow as tf


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
