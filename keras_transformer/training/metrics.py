"""Metrics over real tokens; padding does not count."""

import keras
from keras import ops

from keras_transformer.arguments import LARGEST_INTEGER, check_integer
from keras_transformer.training.losses import TokenCrossentropy, token_weights


class TokenMetric(keras.metrics.Metric):
    """A sum over real tokens divided by their number; labels of `pad_id` are padding."""

    def __init__(self, pad_id=0, name=None, dtype=None):
        super().__init__(name=name, dtype=dtype)
        check_integer("pad_id", pad_id, least=-LARGEST_INTEGER)
        self.pad_id = pad_id
        self.total = self.add_variable((), "zeros", name="total")
        self.tokens = self.add_variable((), "zeros", name="tokens")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.add_sums(*self.sums(y_true, y_pred, sample_weight))

    def sums(self, y_true, y_pred, sample_weight=None):
        """The sum of the values of real tokens and the number of these, scalars."""
        weights = token_weights(y_true, self.pad_id, sample_weight)
        # The id of padding may be none of the vocabulary's.
        labels = ops.where(ops.equal(y_true, self.pad_id), 0, y_true)
        return ops.sum(self.values(labels, y_pred) * weights), ops.sum(weights)

    def add_sums(self, total, tokens):
        """Adds sums computed elsewhere, both scalars."""
        self.total.assign_add(ops.cast(total, self.dtype))
        self.tokens.assign_add(ops.cast(tokens, self.dtype))

    def values(self, y_true, y_pred):
        """The value of each token, (batch, target)."""
        raise NotImplementedError

    def result(self):
        return self.total / ops.maximum(self.tokens, 1e-9)

    def get_config(self):
        return {**super().get_config(), "pad_id": self.pad_id}


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenAccuracy(TokenMetric):
    """Share of real tokens whose label has the highest logit, ties included, in [0, 1].

    Examples:
        >>> metric = TokenAccuracy()
        >>> metric.update_state(keras.ops.array([[1, 0]]), keras.ops.array([[[0.0, 2], [9, 0]]]))
        >>> float(metric.result())
        1.0
    """

    def __init__(self, pad_id=0, name="token_accuracy", dtype=None):
        super().__init__(pad_id, name, dtype)

    def values(self, y_true, y_pred):
        # One pass over the logits; Keras's argmax takes six on TensorFlow.
        highest = ops.max(y_pred, axis=-1, initial=-float("inf"))  # also works without rows
        return ops.cast(_chosen(y_pred, y_true) >= highest, "float32")


@keras.saving.register_keras_serializable(package="keras_transformer")
class Perplexity(TokenMetric):
    """exp of the mean negative log-likelihood of a real token, without label smoothing.

    Examples:
        >>> metric = Perplexity()
        >>> metric.update_state(keras.ops.array([[1, 0]]), keras.ops.zeros((1, 2, 8)))
        >>> round(float(metric.result()), 3)
        8.0
    """

    def __init__(self, pad_id=0, name="perplexity", dtype=None):
        super().__init__(pad_id, name, dtype)

    def values(self, y_true, y_pred):
        logits = ops.cast(y_pred, "float32")
        return ops.logsumexp(logits, axis=-1) - _chosen(logits, y_true)

    def result(self):
        return ops.exp(super().result())


# The field of `TokenSums` (projected_loss.py) from which a projected loss makes each metric.
PROJECTED_METRICS = {TokenAccuracy: "hits", Perplexity: "nats"}


def is_token_sum(metric, loss):
    """Whether a metric is summed along with the loss; Keras computes others from whole logits."""
    is_ours = isinstance(loss, TokenCrossentropy) and type(metric) in PROJECTED_METRICS
    return is_ours and metric.pad_id == loss.pad_id


def _chosen(logits, labels):
    labels = ops.cast(labels, "int32")[..., None]
    return ops.take_along_axis(logits, labels, axis=-1)[..., 0]
