"""R-Drop: each row is seen twice, and the two predictions are drawn together.

The loss of a row or a token is the mean of the cross-entropies of its views, which differ by
dropout alone, plus half of a weight times the divergence of their predictions.

The views of a row are neighbours in a batch of twice as many rows: one pass computes both, each
with noise of its own, and on JAX they stay on the device that holds the row. All divergences are
sums over rows, so that replicas and parts of a batch add up like losses.

Source: Liang et al. 2021, section 2.1 (https://arxiv.org/abs/2106.14448). There the two
cross-entropies are added; here everything is halved, so that the loss of a view is on the scale of
a plain one.
"""

import keras
from keras import ops

from keras_transformer.arguments import check_number
from keras_transformer.training import internals
from keras_transformer.training.distribution import DropoutSeeds, carried_variables
from keras_transformer.training.losses import TokenCrossentropy
from keras_transformer.training.whole_loss import loss_sums

if internals.ON_TENSORFLOW:
    import tensorflow as tf

EPSILON = 1e-7  # the least probability, as in Keras's cross-entropies
LOSSES = (  # from what is known to be the outputs of one of them, there are probabilities
    keras.losses.categorical_crossentropy,
    keras.losses.sparse_categorical_crossentropy,
    keras.losses.binary_crossentropy,
)


class Consistency:
    """Makes two views of each batch in training, and measures how far apart predictions are.

    Args:
        model: that is compiled.
        loss: from `resolve_loss`.
        r_drop: weight of the divergence, above 0.

    Raises:
        ValueError: if the model or the loss has no such views or divergence.
    """

    def __init__(self, model, loss, r_drop):
        self._check_loss(loss)
        self._check_model(model)
        check_number("r_drop", r_drop, above=0)
        if model.built and not DropoutSeeds(model).variables:
            raise ValueError(
                "r_drop compares two passes with different dropout. Build the model with "
                f"dropout above 0. Received: {model.name}, which has none."
            )
        self.weight, self._loss = r_drop, loss

    def _check_loss(self, loss):
        function, axis = getattr(loss, "fn", None), internals.loss_axis(loss)
        is_known = isinstance(loss, TokenCrossentropy) or function in LOSSES
        if loss is not None and not is_known:
            raise ValueError(
                "r_drop compares probabilities. Train with TokenCrossentropy or with Keras's "
                "categorical, sparse categorical or binary cross-entropy. "
                f"Received: loss={loss.name}."
            )
        ignored = getattr(loss, "ignore_class", None)
        if axis not in (None, -1) or ignored is not None:
            raise ValueError(
                "r_drop needs probabilities on the last axis and no ignore_class. Leave out "
                "rows or tokens by a sample_weight of 0. "
                f"Received: axis={axis}, ignore_class={ignored}."
            )

    def _check_model(self, model):
        if carried_variables(model):
            raise ValueError(
                "r_drop needs a model without a memory, which belongs to one view of each "
                f"row. Received: {model.name}."
            )
        for layer in internals.all_layers(model):
            if layer.activity_regularizer is not None:
                raise ValueError(
                    "r_drop cannot be combined with activity regularisers, which would "
                    f"penalise both views. Received: the layer {layer.name}."
                )

    def views_of(self, x):
        """The inputs of twice as many rows: the views of each row, one after the other."""

        # TensorFlow 2.21 would take stacks of each of two inputs with itself for the same tensor.
        def twice(part):
            return None if part is None else ops.repeat(part, 2, axis=0)

        return keras.tree.map_structure(twice, x)

    def pair(self, outputs):
        """The outputs of the first and of the second views, with Keras's masks."""
        mask = internals.keras_mask_of(outputs)
        views = outputs[::2], outputs[1::2]
        if mask is not None:
            for place, view in enumerate(views):
                internals.set_keras_mask(view, mask[place::2])
        return views

    def divergence(self, first, second):
        """Nats between predictions, float32: of each token (batch, target), or each row (batch,).

        With several labels per row it is the mean over the labels, as is their cross-entropy.
        """
        first, second = (ops.cast(view, "float32") for view in (first, second))
        if not isinstance(self._loss, TokenCrossentropy):
            first, second = map(self._logits_of, (first, second))
        values = symmetric_divergence(first, second)
        is_binary = getattr(self._loss, "fn", None) is keras.losses.binary_crossentropy
        return ops.mean(values, axis=-1) if is_binary else values

    def _logits_of(self, outputs):
        from_logits = getattr(self._loss, "from_logits", False)
        if not from_logits:
            outputs = ops.clip(outputs, EPSILON, 1 - EPSILON)
        if self._loss.fn is keras.losses.binary_crossentropy:
            others = ops.zeros_like(outputs) if from_logits else ops.log(1 - outputs)
            outputs = outputs if from_logits else ops.log(outputs)
            return ops.stack([outputs, others], axis=-1)
        return outputs if from_logits else ops.log(outputs)

    def values(self, labels, first, second):
        """The loss of each token with `TokenCrossentropy`, (batch, target), padding included."""
        losses = self._loss.call(labels, first) + self._loss.call(labels, second)
        return (losses + self.weight * self.divergence(first, second)) / 2

    def loss_sums(self, labels, first, second, sample_weight):
        """The `LossSums` of both views, on TensorFlow."""
        one, other = (loss_sums(self._loss, labels, v, sample_weight) for v in (first, second))
        if isinstance(self._loss, TokenCrossentropy):
            weights = self._loss.weights(labels, sample_weight)
            apart = tf.reduce_sum(self.divergence(first, second) * weights)
        else:
            apart = loss_sums(DivergenceLoss(self), first, second, sample_weight).loss
        weight, apart = (tf.cast(each, one.loss.dtype) for each in (self.weight, apart))
        return one._replace(loss=(one.loss + other.loss + weight * apart) / 2)

    def mean_divergence(self, labels, first, second, sample_weight):
        """The divergences of a batch, reduced as the loss is; a scalar."""
        if isinstance(self._loss, TokenCrossentropy):
            weights = self._loss.weights(labels, sample_weight)
            total = ops.sum(self.divergence(first, second) * weights)
            return total / ops.maximum(ops.sum(weights), 1e-9)
        return DivergenceLoss(self)(first, second, sample_weight)


class DivergenceLoss(keras.losses.Loss):
    """Divergences as a loss that Keras, or `loss_sums`, weighs and reduces like the loss."""

    def __init__(self, consistency):
        super().__init__(name="divergence", reduction=consistency._loss.reduction)
        self._consistency = consistency

    def call(self, first, second):
        return self._consistency.divergence(first, second)


def symmetric_divergence(first, second):
    """The mean of KL(p || q) and KL(q || p) from logits (..., classes), in nats (...).

    On TensorFlow it has a gradient of its own: without XLA, automatic differentiation would read
    and write the logits about twice as often.
    """
    if not internals.ON_TENSORFLOW:
        return _nats_and_gradient(first, second)[0]

    @tf.custom_gradient
    def differentiable(first, second):
        nats, gradient = _nats_and_gradient(first, second)
        return nats, lambda upstream: tuple(upstream[..., None] * g for g in gradient())

    return differentiable(first, second)


def _nats_and_gradient(first, second):
    p, q = ops.softmax(first), ops.softmax(second)
    more, ratio = p - q, first - second  # the latter up to a constant, which cancels
    nats = ops.sum(more * ratio, axis=-1, keepdims=True) / 2

    def gradient():
        mean = ops.sum(p * ratio, axis=-1, keepdims=True)  # under q it is 2 * nats less
        return (p * (ratio - mean) + more) / 2, (q * (mean - 2 * nats - ratio) - more) / 2

    return nats[..., 0], gradient
