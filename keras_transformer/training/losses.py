"""The losses of token ids, over real tokens alone, and the losses that `compile` accepts."""

import keras
from keras import ops

from keras_transformer.arguments import (
    LARGEST_INTEGER,
    check_integer,
    check_number,
    check_probability,
)
from keras_transformer.training.internals import ON_TENSORFLOW, is_compiled_on_tensorflow

if ON_TENSORFLOW:
    import tensorflow as tf

COMPARES_ROWS = (
    "The loss of a row must not depend on the other rows: replicas see only their own rows, and "
    "would give different numbers. Received: {}."
)


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenCrossentropy(keras.losses.Loss):
    """Label-smoothed cross-entropy per real token, from logits and integer labels.

    With smoothing e the target distribution is 1 - e on the label plus e / V on each of
    the V ids; it is never built. Computed in float32. On its own the loss is the mean over
    the real tokens of the batch; the library's `Model` sums over tokens and divides by the
    number in the whole batch, over all replicas.

    Source: Szegedy et al. 2016, section 7 (https://arxiv.org/abs/1512.00567); Vaswani et
    al. 2017, section 5.4.

    Args:
        label_smoothing: e, in [0, 1); 0.1 in the paper.
        pad_id: label of padding.

    Call arguments:
        y_true: labels, integers (batch, target).
        y_pred: logits, (batch, target, vocabulary).
        sample_weight: None, or weights (batch, target), (batch, 1) or (batch,). They also
            count in the divisor: the loss is a weighted mean, whereas Keras's losses divide by
            the number of tokens.

    Returns:
        Nats per real token, a scalar.

    Raises:
        ValueError: if `label_smoothing` is outside [0, 1), or shapes do not fit.

    Examples:
        >>> logits = keras.ops.zeros((1, 3, 8))
        >>> round(float(TokenCrossentropy()(keras.ops.array([[5, 7, 0]]), logits)), 4)
        2.0794
    """

    def __init__(self, label_smoothing=0.0, pad_id=0, name="loss"):
        super().__init__(name=name, reduction="mean_with_sample_weight")
        check_probability("label_smoothing", label_smoothing)
        check_integer("pad_id", pad_id, least=-LARGEST_INTEGER)
        self.label_smoothing = label_smoothing
        self.pad_id = pad_id

    def call(self, y_true, y_pred):
        """The loss at each position, (batch, target), padding included."""
        logits = ops.cast(y_pred, "float32")
        labels = ops.cast(y_true, "int32")
        if len(labels.shape) != len(logits.shape) - 1:
            raise ValueError(
                "Labels must be integers, (batch, target), and predictions logits, (batch, target, "
                f"vocabulary). Received: labels of shape {tuple(labels.shape)}, predictions of "
                f"shape {tuple(logits.shape)}."
            )
        labels = ops.where(labels == self.pad_id, 0, labels)  # pad_id may be outside, e.g. -1
        nats = _crossentropy(labels, logits, self.label_smoothing)
        # GPUs do not raise for labels outside the vocabulary; NaN reveals them.
        is_inside = (labels >= 0) & (labels < ops.shape(logits)[-1])
        return ops.where(is_inside, nats, float("nan"))

    def weights(self, y_true, sample_weight=None):
        """1.0 for a real token, 0.0 for padding, times `sample_weight`; (batch, target)."""
        return token_weights(y_true, self.pad_id, sample_weight)

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


@keras.saving.register_keras_serializable(package="keras_transformer")
class PretrainingLoss(keras.losses.Loss):
    """The sum of BERT's two losses: of masked tokens and of the next sentence.

    Each is a separate mean: over the masked tokens and over the examples of the whole batch.
    The data supplies weights that turn the first into a sum over examples: only the data sees
    the whole batch, while a replica or an accumulated part sees a share of it. The loss has two
    outputs, which needs the library's train step, on TensorFlow or JAX; Keras's own, on PyTorch,
    expects one loss per output.

    Source: Devlin et al. 2018, appendix A.2 (https://arxiv.org/abs/1810.04805).

    Call arguments:
        y_true: a dict of `masked_tokens`, the ids before masking, integers (batch, masked);
            `masked_weights`, (batch, masked), examples divided by masked tokens of the whole
            batch for each masked token, and 0 for padding; and `next_sentence`, (batch,), 0 if
            the second text follows the first, 1 if it is random, -1 for an empty row.
        sample_weight: None, or 0 for empty rows and 1 for the others, (batch,).
        y_pred: logits of `bert_pretraining`.

    Returns:
        Nats, a scalar: the mean over the examples, without empty rows.

    Examples:
        >>> y_true = {"masked_tokens": [[7, 0]], "masked_weights": [[1.0, 0.0]]}
        >>> y_true = {**y_true, "next_sentence": [1]}
        >>> logits = {"masked_tokens": [[[0.0] * 8] * 2], "next_sentence": [[0.0, 0.0]]}
        >>> round(float(PretrainingLoss()(y_true, logits)), 4)  # log 8 + log 2
        2.7726
    """

    def __init__(self, name="loss"):
        super().__init__(name=name, reduction="mean_with_sample_weight")

    def call(self, y_true, y_pred):
        """The loss of each example, (batch,); their mean is the loss."""
        masked = TokenCrossentropy().call(y_true["masked_tokens"], y_pred["masked_tokens"])
        masked = masked * ops.cast(y_true["masked_weights"], masked.dtype)  # (batch, masked)
        second = TokenCrossentropy(pad_id=-1)
        following = second.call(y_true["next_sentence"], y_pred["next_sentence"])  # (batch,)
        return ops.sum(masked, axis=-1) + following

    def get_config(self):
        return {"name": self.name}


OWN_LOSSES = (TokenCrossentropy, PretrainingLoss)


def token_weights(labels, pad_id, sample_weight=None):
    """Weight of each token: 1.0, or 0.0 for padding, times `sample_weight`; float32.

    The last axes of `sample_weight` may be missing, or extra ones have size 1.
    """
    weights = ops.cast(ops.not_equal(labels, pad_id), "float32")
    if sample_weight is None:
        return weights
    sample_weight = ops.cast(sample_weight, "float32")
    while len(sample_weight.shape) < len(weights.shape):
        sample_weight = sample_weight[..., None]
    while len(sample_weight.shape) > len(weights.shape) and sample_weight.shape[-1] == 1:
        sample_weight = sample_weight[..., 0]
    if len(sample_weight.shape) > len(weights.shape):
        raise ValueError(
            "sample_weight must have one number per token, or per row. Received: shape "
            f"{tuple(sample_weight.shape)} for labels of shape {tuple(weights.shape)}."
        )
    return weights * sample_weight


def _crossentropy(labels, logits, smoothing):
    """The smoothed loss: (..., vocabulary) float32 with labels (...) to (...)."""
    if not ON_TENSORFLOW:
        nats = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        if not smoothing:
            return nats
        uniform = ops.logsumexp(logits, axis=-1) - ops.mean(logits, axis=-1)
        return (1 - smoothing) * nats + smoothing * uniform

    # TensorFlow's own operation takes ten times as long as its softmax, which gives both the
    # loss and its gradient, softmax - target. The gradient of a gather is slow too.
    # With XLA it compares ids instead of scattering to the labels: XLA fuses the comparison, while
    # it can scatter only with atomic sums. Without XLA, scattering is faster.
    compares_ids = is_compiled_on_tensorflow()
    size = ops.shape(logits)[-1]  # unknown until the step if the labels are positions

    @tf.custom_gradient
    def crossentropy(logits):
        probabilities = tf.nn.softmax(logits)
        highest = tf.reduce_max(logits, axis=-1)
        chosen = tf.gather(logits, labels, batch_dims=labels.shape.rank)
        # The highest probability is 1 / sum(exp(logits - highest)).
        nats = highest - chosen - tf.math.log(tf.reduce_max(probabilities, axis=-1))
        if smoothing:
            nats += smoothing * (chosen - tf.reduce_mean(logits, axis=-1))

        def gradient(upstream):
            upstream, above = upstream[..., None], probabilities
            if smoothing:
                above -= smoothing / tf.cast(size, above.dtype)
            if compares_ids:
                chosen_ids = tf.cast(labels, tf.int32)[..., None]
                ones = tf.cast(chosen_ids == tf.range(size), above.dtype)
                return (above - (1 - smoothing) * ones) * upstream
            weighted = tf.reshape(above * upstream, [-1, size])
            at = tf.stack([tf.range(tf.size(labels)), tf.reshape(labels, [-1])], axis=1)
            on_labels = (1 - smoothing) * tf.reshape(upstream, [-1])
            weighted = tf.tensor_scatter_nd_sub(weighted, at, on_labels)
            return tf.reshape(weighted, tf.shape(logits))

        return nats, gradient

    return crossentropy(logits)


class LossFunction(keras.losses.Loss):
    """Wraps a function of labels and predictions as a loss, as Keras does in `compile`."""

    def __init__(self, function):
        super().__init__(name=getattr(function, "__name__", type(function).__name__))
        self.fn = function

    def call(self, y_true, y_pred):
        return self.fn(*aligned(y_true, y_pred))


def single_loss(loss, loss_weights, output_names):
    """The one loss, and its weight as a float, that two arguments of `compile` name.

    Either may be a list or a dict of one, as in Keras. `output_names` are those of the model, or
    None if they are not known.

    Raises:
        ValueError: for several losses or weights, for the name of no output, and for a weight that
            is not a finite number.
    """
    weight = _only("loss_weights", loss_weights, output_names)
    if weight is not None:
        check_number("loss_weights", weight)
    return _only("loss", loss, output_names), 1.0 if weight is None else float(weight)


def _only(name, value, output_names):
    """The value for the only output in an argument that may be a list or a dict of one."""
    received = value
    while isinstance(value, (list, tuple, dict)) and not _is_config(value):
        if len(value) != 1:
            raise ValueError(
                "The exact train step needs one loss for one output. For several outputs write one "
                "model per loss, or add up their losses in a layer with one output. "
                f"Received: {name}={received}."
            )
        key, value = next(iter(value.items() if isinstance(value, dict) else enumerate(value)))
        if isinstance(key, str) and output_names and key not in output_names:
            raise ValueError(
                f"{name} must name the output {output_names[0]!r}. Received: {name}={received}."
            )
    return value


def resolve_loss(loss):
    """Turns one loss of `compile` into a `keras.losses.Loss`, or None.

    Raises ValueError for losses that are not sums over rows.
    """
    if str(loss).lower() in ("crossentropy", "ce"):
        raise ValueError(
            "Name the cross-entropy: binary_crossentropy, categorical_crossentropy or "
            f"sparse_categorical_crossentropy. Received: loss={loss!r}."
        )
    loss = keras.losses.get(loss)
    if loss is None:
        return None
    if not isinstance(loss, keras.losses.Loss):
        loss = LossFunction(loss)
    _check_adds_up(loss)
    return loss


def _check_adds_up(loss):
    """Raises for losses that are not sums over rows: replicas could not add them up."""
    name = type(loss).__name__
    function = getattr(loss, "fn", None)
    if type(loss).__call__ not in (keras.losses.Loss.__call__, TokenCrossentropy.__call__):
        raise ValueError(
            "The exact train step reduces losses itself, so a loss must define call, which "
            f"returns one value per row or token, and not __call__. Received: {name}."
        )
    if loss.reduction in (None, "none"):
        raise ValueError(
            "The reduction of the loss must be 'sum', 'sum_over_batch_size', 'mean' or "
            "'mean_with_sample_weight'. 'sum' has the gradient of losses that are not reduced. "
            f"Received: reduction={loss.reduction!r} of {name}."
        )
    if function is keras.losses.circle:
        raise ValueError(COMPARES_ROWS.format(loss.name))


def _is_config(loss):
    return isinstance(loss, dict) and {"class_name", "config"} <= loss.keys()


def aligned(first, second):
    """Aligns two tensors as Keras does: one may have an extra last axis of size 1."""
    first_rank, second_rank = len(first.shape), len(second.shape)
    if second_rank == first_rank + 1:
        return aligned(second, first)[::-1]
    if first_rank == second_rank + 1 and first.shape[-1] == 1:
        return (first, second[:, None]) if second_rank == 1 else (first[..., 0], second)
    return first, second
