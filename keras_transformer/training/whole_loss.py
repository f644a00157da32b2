"""The loss of a step from whole outputs, and all that a step adds up with it.

Keras reduces the losses of a batch to one number. These numbers cannot be combined: parts of a
batch differ in rows, masks and weights. Sums can, and `LossSums.divisor` turns those of the whole
batch into Keras's number. A step sums the losses of a list, which has one until a model may have
several outputs. On JAX, Keras sums; only the checks of losses are used.
"""

from typing import NamedTuple

import keras
from keras import ops

from keras_transformer.training import internals
from keras_transformer.training.internals import keras_mask_of, loss_axis
from keras_transformer.training.losses import (
    COMPARES_ROWS,
    OWN_LOSSES,
    PretrainingLoss,
    TokenCrossentropy,
    aligned,
)

if internals.ON_TENSORFLOW:
    import tensorflow as tf

# Sums over all numbers, so parts of a batch add up. A custom regulariser may be no such sum.
ADDITIVE = (keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2)
ADDED_LOSS = (
    "The exact train step adds up penalties of rows: those of the activity regularisers L1, L2 and "
    "L1L2, one for each layer. A loss from add_loss may not be such a sum, and replicas would give "
    "different numbers. Include it in the loss. Received: {}."
)


class LossSums(NamedTuple):
    """Sums of a loss over a part of a batch, scalars; those of all parts and replicas add up."""

    loss: "tf.Tensor"  # the weighted losses
    values: "tf.Tensor"  # number of losses, masked ones included
    weights: "tf.Tensor"  # sample weights times mask; the number of losses without either
    unmasked: "tf.Tensor"  # number of True in the mask
    mask_size: "tf.Tensor"

    def divisor(self, reduction):
        """The scalar by which Keras divides the summed loss of a batch."""
        if reduction == "sum":
            return tf.ones_like(self.loss)
        if reduction == "mean_with_sample_weight":
            return self.weights
        return self.values * tf.math.divide_no_nan(self.unmasked, self.mask_size)


class StepSums(NamedTuple):
    """The sums of a step over a part of a batch, all scalars."""

    losses: tuple  # `LossSums`
    rows: "tf.Tensor"
    metrics: tuple = ()  # for each token metric the pair of its sum and the tokens
    activity: tuple = ()  # the penalties of layers' outputs, times rows


class StepGradients(NamedTuple):
    """Dicts from the position of a weight to its gradient; Keras divides each differently."""

    losses: tuple  # a dict for each loss
    activity: dict


class WholeLoss:
    """The losses of a compiled model, times their weights, from whole outputs, and its metrics.

    `losses` are pairs of a loss and its weight. `token_metrics` are those of `compile` if all can
    be summed with the loss; if they are None, Keras computes the metrics, `keras_metrics`. With a
    `Consistency`, training sees two views of each row; metrics are those of the first.
    """

    def __init__(self, model, losses, token_metrics, consistency=None):
        self.losses, self.token_metrics, self.keras_metrics = losses, token_metrics or [], None
        if token_metrics is None:
            self.keras_metrics = internals.compiled_metrics(model)
        else:
            internals.build_compiled_metrics(model)  # Keras would wait for whole logits
        self._model, self._consistency = model, consistency
        self._divides_penalties = internals.divides_activity_penalties()
        self._has_activity = has_activity(model)
        compile_sums(self, model)

    def sums(self, x, y, sample_weight):
        """The `StepSums` of some rows in evaluation. Updates the metrics that Keras computes."""
        return self._sums(x, y, sample_weight, training=False)

    def sums_and_gradients(self, x, y, sample_weight, factor=None):
        """The `StepSums` of some rows in training, and their `StepGradients`.

        The backward pass is scaled by `factor`, a power of two or None for 1; the gradients are
        divided by it again.
        """
        passes = len(self.losses) + self._has_activity
        with tf.GradientTape(persistent=passes > 1) as tape:
            sums = self._sums(x, y, sample_weight, training=True)
        weights = self._model.trainable_weights  # the first call may have created them
        losses = tuple(_gradients(tape, each.loss, weights, factor) for each in sums.losses)
        activity = _gradients(tape, sums.activity, weights, factor) if self._has_activity else {}
        return sums, StepGradients(losses, activity)

    def scales(self, sums):
        """The factors that turn the summed losses of a batch into Keras's numbers, scalars."""
        scales = []
        for (loss, weight), each in zip(self.losses, sums.losses, strict=True):
            divisor = each.divisor(loss.reduction)
            scales.append(tf.math.divide_no_nan(weight * tf.ones_like(divisor), divisor))
        return scales

    def penalty_divisor(self, sums):
        """Keras's divisor of the activity penalties of a batch, a scalar."""
        return sums.rows if self._divides_penalties else tf.ones_like(sums.rows)

    def count(self, sums):
        """The weight of a batch in the loss of an epoch: its tokens, or its rows as in Keras."""
        are_own = all(isinstance(loss, OWN_LOSSES) for loss, _ in self.losses)
        return sums.losses[0].weights if are_own else sums.rows

    def _sums(self, x, y, sample_weight, training):
        views = self._consistency if training else None
        inputs = x if views is None else views.views_of(x)
        y_pred = self._model(inputs, training=training)  # Keras leaves it out of a call without it
        rows = num_rows(x)  # now that the model has taken x, which may be no data at all
        sums = []
        for loss, _ in self.losses:
            labels, outputs, weights = single_output(loss, y, y_pred, sample_weight)
            if views is None:
                sums.append(loss_sums(loss, labels, outputs, weights))
            else:
                outputs, second = views.pair(outputs)
                sums.append(views.loss_sums(labels, outputs, second, weights))
        if self.keras_metrics is not None:
            seen = y_pred if views is None else outputs
            self.keras_metrics.update_state(y, seen, sample_weight=sample_weight)
        return StepSums(
            tuple(sums),
            tf.cast(rows, sums[0].loss.dtype),
            # As in Keras, `sample_weight` does not weigh these.
            tuple(metric.sums(labels, outputs) for metric in self.token_metrics),
            activity_penalties(self._model, rows if self._divides_penalties else 1),
        )


def loss_sums(loss, y, y_pred, sample_weight):
    """The `LossSums` of a loss over some rows.

    `y` and `y_pred` come from `single_output`. `sample_weight` is None or has as many axes as the
    losses, or one axis of size 1 more or less; other shapes raise ValueError.
    """
    if isinstance(loss, TokenCrossentropy):
        values, weights, mask = loss.call(y, y_pred), loss.weights(y, sample_weight), None
    else:
        values, weights, mask = _weighted_as_keras_does(loss, y, y_pred, sample_weight)
    weighted = values if weights is None else values * weights
    # Sums in half precision would lose rows; double precision is kept.
    dtype = tf.float64 if weighted.dtype == tf.float64 else tf.float32
    counted = ops.size(weighted) if weights is None else ops.sum(weights)
    unmasked = (1, 1) if mask is None else (tf.math.count_nonzero(mask), tf.size(mask))
    counts = (tf.size(weighted), counted, *unmasked)
    return LossSums(
        tf.reduce_sum(tf.cast(weighted, dtype)), *(tf.cast(count, dtype) for count in counts)
    )


def _weighted_as_keras_does(loss, y, y_pred, sample_weight):
    """The losses, their weights with the mask, or None, in the same rank, and the mask, or None."""
    values, mask = checked_losses(loss, y, y_pred)
    if not isinstance(loss, OWN_LOSSES):
        message = f"The loss must return a value for each row. Received: {loss.name}."
        check = tf.debugging.assert_equal(tf.shape(values)[0], tf.shape(y_pred)[0], message)
        with tf.control_dependencies([check]):
            values = tf.identity(values)
    weights = None if sample_weight is None else ops.cast(sample_weight, values.dtype)
    if mask is not None:
        unmasked = ops.cast(mask, values.dtype)
        if weights is not None:
            unmasked, weights = _same_rank(unmasked, weights, "sample_weight", "the mask", loss)
        weights = unmasked if weights is None else unmasked * weights
    if weights is not None:
        what = "the mask of the outputs" if sample_weight is None else "sample_weight"
        values, weights = _same_rank(values, weights, what, "the losses", loss)
    return values, weights, mask


def checked_losses(loss, y, y_pred):
    """The losses before any weight or mask, and the mask that Keras would apply, or None.

    Raises ValueError unless the first axis of the losses, and no other, is known to be the rows.
    """
    mask = keras_mask_of(y_pred)
    if not isinstance(loss, OWN_LOSSES):  # ours accept integers
        y, y_pred = (ops.convert_to_tensor(part, dtype=loss.dtype) for part in (y, y_pred))
        _check_ranks(loss, y, y_pred)
    values = loss.call(y, y_pred)
    own_mask = keras_mask_of(values)  # of an `ignore_class`
    if mask is None or own_mask is None:
        mask = own_mask if mask is None else mask
    else:
        mask = mask & own_mask
    values = ops.convert_to_tensor(values, dtype=loss.dtype)
    if not isinstance(loss, OWN_LOSSES):
        _check_rows(loss, tuple(values.shape), y, y_pred)
    return values, mask


def single_output(loss, y, y_pred, sample_weight):
    """Takes labels, predictions and weights out of lists or dicts of one."""
    if isinstance(loss, PretrainingLoss):
        return y, y_pred, sample_weight
    outputs, labels, weights = map(keras.tree.flatten, (y_pred, y, sample_weight))
    if len(outputs) != 1 or len(labels) != 1 or len(weights) != 1:
        raise ValueError(
            "The exact train step needs one loss for one output. "
            f"Received: {len(outputs)} outputs, {len(labels)} labels."
        )
    return labels[0], outputs[0], weights[0]


def _same_rank(values, weights, what, whose, loss):
    values, weights = aligned(values, weights)
    fits = len(values.shape) == len(weights.shape)
    sizes = zip(values.shape, weights.shape, strict=fits)
    if not fits or any(None not in (a, b) and 1 not in (a, b) and a != b for a, b in sizes):
        raise ValueError(
            f"The shape of {what} must be that of {whose}, except for axes of size 1. "
            f"Received: shape {tuple(weights.shape)} for {tuple(values.shape)} with {loss.name}."
        )
    return values, weights


def _check_ranks(loss, y, y_pred):
    """Raises where Keras would broadcast labels against all rows."""
    ranks = len(y.shape), len(y_pred.shape)
    wide = y if ranks[0] > ranks[1] else y_pred
    if not hasattr(loss, "fn") and ranks[0] != ranks[1] and wide.shape[-1] == 1:
        raise ValueError(
            "Labels and predictions must have the same rank, or each row would be compared with "
            f"all rows. Received: labels of shape {tuple(y.shape)}, predictions of shape "
            f"{tuple(y_pred.shape)}, for {loss.name}."
        )
    axis = loss_axis(loss)
    axes = axis if isinstance(axis, (list, tuple)) else [axis]
    if 0 in axes or -ranks[1] in axes:
        raise ValueError(COMPARES_ROWS.format(f"{loss.name} with axis={axis}"))


def _check_rows(loss, shape, y, y_pred):
    received = (
        f"Received: losses of shape {shape} from {loss.name}, for predictions of shape "
        f"{tuple(y_pred.shape)}."
    )
    if not shape:
        raise ValueError(
            "The loss must return one value per row or token, not a scalar: only sums can be "
            "divided by those of the whole batch. If outputs have one axis, Keras's losses "
            "average over the rows: add a last axis of size 1 to the outputs. "
            f"Received: a scalar from {loss.name}."
        )
    if None in shape[1:] and None not in [*y.shape[1:], *y_pred.shape[1:]]:
        raise ValueError(
            "The loss of a row must not depend on the other rows. Are labels broadcast against "
            f"predictions? {received}"
        )
    counts = shape[0], y_pred.shape[0]
    if None not in counts and counts[0] != counts[1]:
        raise ValueError(f"The loss must return a value, or several, for each row. {received}")


def compile_sums(loss, model):
    """With `jit_compile`, compiles the sums of each replica.

    The sums over replicas stay outside: XLA cannot compile them.
    """
    if model.jit_compile:
        settings = {"jit_compile": True, "autograph": False, "reduce_retracing": True}
        loss.sums = tf.function(loss.sums, **settings)
        loss.sums_and_gradients = tf.function(loss.sums_and_gradients, **settings)


def has_activity(model):
    """Whether any layer of a model has an activity regulariser."""
    layers = internals.all_layers(model)
    return any(layer.activity_regularizer is not None for layer in layers)


def num_rows(x):
    """The number of rows of a batch, an integer scalar."""
    return tf.shape(next(part for part in keras.tree.flatten(x) if part is not None))[0]


def activity_penalties(model, divisor):
    """The penalties that the latest call of a model added, as float32 sums over its rows.

    Keras has divided them by `divisor`, the number of rows or 1. The penalties of all parts of a
    batch add up to that of the whole. Raises ValueError for those that may not be sums over rows.
    """
    penalties = []
    for layer in internals.all_layers(model):
        own = internals.added_losses(layer)
        if own and (type(layer.activity_regularizer) not in ADDITIVE or len(own) > 1):
            raise ValueError(ADDED_LOSS.format(f"{len(own)} loss(es) of the layer {layer.name}"))
        penalties += own
    return tuple(ops.cast(p, "float32") * ops.cast(divisor, "float32") for p in penalties)


def _gradients(tape, sums, weights, factor):
    """Dense gradients of scalars; where there is a factor, scaled in the backward pass only."""
    if factor is None:
        return dense(tape.gradient(sums, weights))
    seeds = [tf.cast(factor, s.dtype) for s in tf.nest.flatten(sums)]
    return scaled(dense(tape.gradient(sums, weights, output_gradients=seeds)), 1 / factor)


def dense(gradients):
    """Gradients as a dict of dense tensors by position; leaves out those that are None."""
    return {i: tf.convert_to_tensor(g) for i, g in enumerate(gradients) if g is not None}


def scaled(gradients, scale):
    """A dict of gradients times a scalar."""
    return {place: g * tf.cast(scale, g.dtype) for place, g in gradients.items()}
