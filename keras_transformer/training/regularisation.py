"""Penalties of weights and of activities, as Keras adds them to the loss of a batch."""

import keras
import tensorflow as tf

# Sums over all numbers, so that parts of a batch add up; a regulariser of one's own may not.
ADDITIVE = (keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2)


def weight_penalty(weights):
    """The penalty that the regularisers of weights add to the loss, whatever the batch.

    Returns:
        The pair of a scalar and its gradients, a list of tensors; None and an empty list where
        no weight has a regulariser.
    """
    if all(weight.regularizer is None for weight in weights):
        return None, []
    with tf.GradientTape() as tape:
        penalties = [w.regularizer(w) for w in weights if w.regularizer is not None]
        penalty = tf.add_n([tf.cast(p, tf.float32) for p in penalties])
    gradients = tape.gradient(penalty, weights)
    return penalty, [
        tf.zeros_like(w.value) if g is None else tf.convert_to_tensor(g)
        for g, w in zip(gradients, weights, strict=True)
    ]


def has_activity_regularizer(model):
    return any(layer.activity_regularizer is not None for layer in model._flatten_layers())


def activity_penalties(model, rows):
    """The penalties that the latest call of a model added, times its number of rows.

    Keras divides the penalty of an output by its rows. Multiplied by them it is a sum over rows,
    so those of all parts of a batch add up to that of the whole.

    Args:
        model: called on a part of a batch.
        rows: of that part, an integer scalar.

    Returns:
        A tuple of float32 scalars, one per penalty.

    Raises:
        ValueError: for penalties that need not be sums over rows.
    """
    penalties = []
    for layer in model._flatten_layers():
        own = layer._get_own_losses()
        if own and not isinstance(layer.activity_regularizer, ADDITIVE):
            raise ValueError(
                "The exact train step adds up penalties of rows: the activity regularisers L1, L2 "
                "and L1L2. What add_loss adds, or another regulariser, may be no such sum, and "
                "replicas would give other numbers. Return the penalty as a part of the loss. "
                f"Received: {len(own)} loss(es) of the layer {layer.name}."
            )
        penalties += [tf.cast(loss, tf.float32) * tf.cast(rows, tf.float32) for loss in own]
    return tuple(penalties)
