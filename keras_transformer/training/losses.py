"""Cross-entropy of token ids, summed over real tokens and never over padding."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenCrossentropy(keras.losses.Loss):
    """Label-smoothed cross-entropy per real token, from logits and integer labels.

    With smoothing e the target distribution is 1 - e on the label plus e / V on each of
    the V ids; it is never built. Computed in float32. Called by itself it is the mean
    over the real tokens of the batch; the library's `Model` sums tokens and divides by
    those of the whole batch, over all replicas.

    Source: Szegedy et al. 2016, section 7 (https://arxiv.org/abs/1512.00567); Vaswani et
    al. 2017, section 5.4.

    Args:
        label_smoothing: e, in [0, 1); 0.1 in the paper.
        pad_id: label of the positions that do not count.

    Call arguments:
        y_true: labels, integers (batch, target).
        y_pred: logits, (batch, target, vocabulary).
        sample_weight: None, or weights (batch, target) or (batch,).

    Returns:
        Nats per real token, a scalar.

    Raises:
        ValueError: if `label_smoothing` is outside [0, 1).

    Example:
        >>> logits = keras.ops.zeros((1, 3, 8))
        >>> round(float(TokenCrossentropy()(keras.ops.array([[5, 7, 0]]), logits)), 4)
        2.0794
    """

    def __init__(self, label_smoothing=0.0, pad_id=0, name="loss"):
        super().__init__(name=name)
        if not 0 <= label_smoothing < 1:
            raise ValueError(
                f"label_smoothing must be in [0, 1). Received: label_smoothing={label_smoothing}."
            )
        self.label_smoothing = label_smoothing
        self.pad_id = pad_id

    def call(self, y_true, y_pred):
        """The loss of each position, (batch, target), padding included."""
        logits = ops.cast(y_pred, "float32")
        labels = ops.cast(y_true, "int32")
        chosen = ops.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
        likelihood = chosen
        if self.label_smoothing:
            mean = ops.mean(logits, axis=-1)
            likelihood = (1 - self.label_smoothing) * chosen + self.label_smoothing * mean
        return ops.logsumexp(logits, axis=-1) - likelihood

    def weights(self, y_true, sample_weight=None):
        """1.0 for a real token, 0.0 for padding, times `sample_weight`; (batch, target)."""
        weights = ops.cast(ops.not_equal(y_true, self.pad_id), "float32")
        if sample_weight is None:
            return weights
        sample_weight = ops.cast(sample_weight, "float32")
        if len(sample_weight.shape) < len(weights.shape):
            sample_weight = sample_weight[..., None]  # (batch, 1)
        return weights * sample_weight

    def __call__(self, y_true, y_pred, sample_weight=None):
        weights = self.weights(y_true, sample_weight)
        total = ops.sum(self.call(y_true, y_pred) * weights)
        return total / ops.maximum(ops.sum(weights), 1e-9)

    def get_config(self):
        return {
            "label_smoothing": self.label_smoothing,
            "pad_id": self.pad_id,
            "name": self.name,
        }
