"""Penalties on weights and activities, as Keras adds them to the loss of a batch."""

import keras
import tensorflow as tf
from keras import ops

from keras_transformer.training.internals import added_losses, all_layers
from keras_transformer.training.parts import dense

# Sums over all numbers, so parts of a batch add up. A custom regulariser may be no such sum.
ADDITIVE = (keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2)


def weight_penalty(weights):
    """The penalty that weight regularisers add to the loss, whatever the batch.

    Returns:
        A scalar and its gradients, a dict by the weights' positions; None and an empty dict if
        no weight has a regulariser.
    """
    if all(weight.regularizer is None for weight in weights):
        return None, {}
    with tf.GradientTape() as tape:
        penalties = [ops.sum(w.regularizer(w)) for w in weights if w.regularizer is not None]
        penalty = tf.add_n([tf.cast(p, tf.float32) for p in penalties])
    return penalty, dense(tape.gradient(penalty, weights))


def has_activity_regularizer(model):
    return any(layer.activity_regularizer is not None for layer in all_layers(model))


def activity_penalties(model, divisor):
    """The penalties added by the latest call of a model, as sums over its rows.

    The penalties of all parts of a batch then add up to that of the whole.

    Args:
        model: a model that was called on a part of a batch.
        divisor: the number by which Keras has divided the penalties: that of rows, or 1.

    Returns:
        A tuple of float32 scalars, one per penalty.

    Raises:
        ValueError: for penalties that may not be sums over rows.
    """
    penalties = []
    for layer in all_layers(model):
        own = added_losses(layer)
        if own and (type(layer.activity_regularizer) not in ADDITIVE or len(own) > 1):
            raise ValueError(
                "The exact train step adds up penalties of rows: those of the activity "
                "regularisers L1, L2 and L1L2, one for each layer. A loss from add_loss may not be "
                "such a sum, and replicas would give different numbers. Include it in the loss. "
                f"Received: {len(own)} loss(es) of the layer {layer.name}."
            )
        penalties += [tf.cast(loss, tf.float32) * tf.cast(divisor, tf.float32) for loss in own]
    return tuple(penalties)
