"""The learning-rate schedule of "Attention Is All You Need"."""

import keras
from keras import ops

from keras_transformer.arguments import check_integer, check_number


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
