"""Which losses can be summed over rows and, on TensorFlow, their sums over part of a batch.

Keras reduces the losses of a batch to one number. These numbers cannot be combined: parts of a
batch differ in rows, masks and weights. Sums can, and `StepSums.divisor` (step_sums.py) turns those
of the whole batch into Keras's number.
"""

import keras
from keras import ops

from keras_transformer.arguments import check_number
from keras_transformer.training.internals import ON_TENSORFLOW, keras_mask_of, loss_axis
from keras_transformer.training.losses import PretrainingLoss, TokenCrossentropy

if ON_TENSORFLOW:
    import tensorflow as tf

OWN_LOSSES = (TokenCrossentropy, PretrainingLoss)
COMPARES_ROWS = (
    "The loss of a row must not depend on the other rows: replicas see only their own rows, and "
    "would give different numbers. Received: {}."
)
# Sums over all numbers, so parts of a batch add up. A custom regulariser may be no such sum.
ADDITIVE = (keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2)
ADDED_LOSS = (
    "The exact train step adds up penalties of rows: those of the activity regularisers L1, L2 and "
    "L1L2, one for each layer. A loss from add_loss may not be such a sum, and replicas would give "
    "different numbers. Include it in the loss. Received: {}."
)


class LossFunction(keras.losses.Loss):
    """Wraps a function of labels and predictions as a loss, as Keras does in `compile`."""

    def __init__(self, function):
        super().__init__(name=getattr(function, "__name__", type(function).__name__))
        self.fn = function

    def call(self, y_true, y_pred):
        return self.fn(*_aligned(y_true, y_pred))


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


def loss_sums(loss, y, y_pred, sample_weight):
    """The sums of a loss over the rows of this replica: `StepSums` from `loss` to `mask_size`.

    `y` and `y_pred` come from `single_output`. `sample_weight` is None or has as many axes as the
    losses, or one axis of size 1 more or less; other shapes raise ValueError.
    """
    if isinstance(loss, TokenCrossentropy):
        values, mask = loss.call(y, y_pred), None
        weights = loss.weights(y, sample_weight)
        return _sums(values * weights, tf.reduce_sum(weights), mask)
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
    weighted = values if weights is None else values * weights
    counted = ops.size(weighted) if weights is None else ops.sum(weights)
    return _sums(weighted, counted, mask)


def _sums(weighted, counted, mask):
    # Sums in half precision would lose rows; double precision is kept.
    dtype = tf.float64 if weighted.dtype == tf.float64 else tf.float32
    size = 1 if mask is None else tf.size(mask)
    true = 1 if mask is None else tf.math.count_nonzero(mask)
    loss = tf.reduce_sum(tf.cast(weighted, dtype))
    others = (tf.size(weighted), counted, true, size)
    return loss, *(tf.cast(value, dtype) for value in others)


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


def _aligned(first, second):
    """Aligns two tensors as Keras does: one may have an extra last axis of size 1."""
    first_rank, second_rank = len(first.shape), len(second.shape)
    if second_rank == first_rank + 1:
        return _aligned(second, first)[::-1]
    if first_rank == second_rank + 1 and first.shape[-1] == 1:
        return (first, second[:, None]) if second_rank == 1 else (first[..., 0], second)
    return first, second


def _same_rank(values, weights, what, whose, loss):
    values, weights = _aligned(values, weights)
    fits = len(values.shape) == len(weights.shape)
    sizes = zip(values.shape, weights.shape, strict=fits)
    if not fits or any(None not in (a, b) and 1 not in (a, b) and a != b for a, b in sizes):
        raise ValueError(
            f"The shape of {what} must be that of {whose}, except for axes of size 1. "
            f"Received: shape {tuple(weights.shape)} for {tuple(values.shape)} with {loss.name}."
        )
    return values, weights


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


def _is_config(loss):
    return isinstance(loss, dict) and {"class_name", "config"} <= loss.keys()
