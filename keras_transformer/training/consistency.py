"""R-Drop and cutoff: each row is seen twice, and the two predictions are drawn together.

Both train on two views of each row. The loss of a row or a token is the mean of the cross-entropies
of its views, plus half of a weight times the divergence of their predictions. R-Drop's views differ
by dropout alone. With cutoff, the second view also lacks some tokens.

The views of a row are neighbours in a batch of twice as many rows: one pass computes both, each
with noise of its own, and on JAX they stay on the device that holds the row. All divergences are
sums over rows, so that replicas and parts of a batch add up like losses.

Source: Liang et al. 2021, section 2.1 (https://arxiv.org/abs/2106.14448); Shen et al. 2020, section
3 (https://arxiv.org/abs/2009.13818). Both add the two cross-entropies; here everything is halved,
so that the loss of a view is on the scale of a plain one.
"""

import itertools

import keras
import numpy as np
from keras import ops

from keras_transformer.arguments import check_number
from keras_transformer.training import internals
from keras_transformer.training.losses import TokenCrossentropy
from keras_transformer.training.step_state import DropoutSeeds, carried_variables

if internals.ON_TENSORFLOW:
    import tensorflow as tf

    from keras_transformer.training.loss_sums import loss_sums

CUTOFF_WEIGHT = 5.0  # of the divergence, in the authors' runs on IWSLT14 and WMT14
FIRST_PIECE = 4  # ids below are control symbols, which cutoff keeps
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
        r_drop: weight of R-Drop's divergence, above 0, or None.
        cutoff: probability in (0, 1) of cutting a token, or None.

    Raises:
        ValueError: if the model or the loss has no such views or divergence.
    """

    def __init__(self, model, loss, r_drop=None, cutoff=None):
        if r_drop is not None and cutoff is not None:
            raise ValueError(
                "r_drop and cutoff each make the second view of a batch. Choose one of them. "
                f"Received: r_drop={r_drop}, cutoff={cutoff}."
            )
        self.name = "r_drop" if cutoff is None else "cutoff"
        self._check_loss(loss)
        self._check_model(model)
        self._loss = loss
        self.variables = []  # the random state, which belongs to that of dropout
        self._pad_ids = {}  # of the inputs that are cut
        if cutoff is None:
            check_number("r_drop", r_drop, above=0)
            self.weight, self._divergence = r_drop, symmetric_divergence
            if model.built and not DropoutSeeds(model).variables:
                raise ValueError(
                    "r_drop compares two passes with different dropout. Build the model with "
                    f"dropout above 0. Received: {model.name}, which has none."
                )
            return
        check_number("cutoff", cutoff, above=0, below=1)
        self.weight, self._divergence = CUTOFF_WEIGHT, jensen_shannon_divergence
        self._rate, self._pad_ids = cutoff, token_inputs(model)
        if not self._pad_ids:
            raise ValueError(
                "cutoff replaces tokens with padding. It needs a functional model with an input of "
                "ids for a TokenEmbedding whose pad_id is not None; language models have no "
                f"padding, and may be trained with r_drop. Received: {model.name}."
            )
        if any(tensor.shape[-1] is None for tensor in getattr(model, "outputs", None) or []):
            raise ValueError(
                "cutoff needs labels that are no positions of tokens, because those that are cut "
                "cannot be chosen. Received: a model whose outputs have a last axis of any length."
            )
        self._seeds = keras.random.SeedGenerator()
        self.variables = [self._seeds.state]

    def _check_loss(self, loss):
        function, axis = getattr(loss, "fn", None), internals.loss_axis(loss)
        is_known = isinstance(loss, TokenCrossentropy) or function in LOSSES
        if loss is not None and not is_known:
            raise ValueError(
                f"{self.name} compares probabilities. Train with TokenCrossentropy or with Keras's "
                "categorical, sparse categorical or binary cross-entropy. "
                f"Received: loss={loss.name}."
            )
        ignored = getattr(loss, "ignore_class", None)
        if axis not in (None, -1) or ignored is not None:
            raise ValueError(
                f"{self.name} needs probabilities on the last axis and no ignore_class. Leave out "
                "rows or tokens by a sample_weight of 0. "
                f"Received: axis={axis}, ignore_class={ignored}."
            )

    def _check_model(self, model):
        if carried_variables(model):
            raise ValueError(
                f"{self.name} needs a model without a memory, which belongs to one view of each "
                f"row. Received: {model.name}."
            )
        for layer in internals.all_layers(model):
            if layer.activity_regularizer is not None:
                raise ValueError(
                    f"{self.name} cannot be combined with activity regularisers, which would "
                    f"penalise both views. Received: the layer {layer.name}."
                )

    def views_of(self, x):
        """The inputs of twice as many rows: the views of each row, one after the other."""

        # TensorFlow 2.21 would take stacks of each of two inputs with itself for the same tensor.
        def twice(part, pad_id=None):
            if part is None:
                return None
            rows = ops.repeat(part, 2, axis=0)
            return rows if pad_id is None else self._cut(rows, pad_id)

        pad_ids, places = self._pad_ids, itertools.count()
        if isinstance(x, dict):
            return {name: twice(part, pad_ids.get(name)) for name, part in x.items()}
        return keras.tree.map_structure(lambda part: twice(part, pad_ids.get(next(places))), x)

    def _cut(self, ids, pad_id):
        """Replaces tokens of second views with padding, but no control symbols and no first."""
        rows, length = ops.shape(ids)
        is_second = (ops.arange(rows) % 2 == 1)[:, None] & (ops.arange(length) > 0)
        is_cut = is_second & (ids >= FIRST_PIECE)
        is_cut &= internals.drawn((rows, length), self._rate, self._seeds)
        return ops.where(is_cut, ops.cast(pad_id, ids.dtype), ids)

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
        values = self._divergence(first, second)
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

    def loss_sums(self, labels, outputs, sample_weight):
        """What `loss_sums` gives for one view, on TensorFlow; the outputs are those of both."""
        first, second = self.pair(outputs)
        one, other = (loss_sums(self._loss, labels, v, sample_weight) for v in (first, second))
        if isinstance(self._loss, TokenCrossentropy):
            weights = self._loss.weights(labels, sample_weight)
            apart = tf.reduce_sum(self.divergence(first, second) * weights)
        else:
            apart = loss_sums(DivergenceLoss(self), first, second, sample_weight)[0]
        weight = tf.cast(self.weight, one[0].dtype)
        return (one[0] + other[0] + weight * tf.cast(apart, one[0].dtype)) / 2, *one[1:]

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


def token_inputs(model):
    """The padding of each input that a `TokenEmbedding` reads, by its name and by its place."""
    pad_ids = {}
    for layer, arguments, inputs in internals.calls_of(model):
        pad_id = getattr(layer, "pad_id", None)
        if hasattr(layer, "num_ids") and pad_id is not None and not arguments.get("reverse"):
            pad_ids[id(_source(inputs[0]))] = pad_id
    found = {}
    for place, tensor in enumerate(getattr(model, "inputs", None) or []):
        if id(tensor) in pad_ids:
            found[tensor.name] = found[place] = pad_ids[id(tensor)]
    return found


def _source(ids):
    """The tensor from which layers that keep ids have made `ids`."""
    layer, _, inputs = internals.last_call(ids)
    return _source(inputs[0]) if getattr(layer, "keeps_ids", False) else ids


def symmetric_divergence(first, second):
    """The mean of KL(p || q) and KL(q || p) from logits (..., classes), in nats (...)."""
    return _with_gradient(_symmetric_divergence, first, second)


def _symmetric_divergence(first, second):
    p, q = ops.softmax(first), ops.softmax(second)
    more, ratio = p - q, first - second  # the latter up to a constant, which cancels
    nats = ops.sum(more * ratio, axis=-1, keepdims=True) / 2

    def gradient():
        mean = ops.sum(p * ratio, axis=-1, keepdims=True)  # under q it is 2 * nats less
        return (p * (ratio - mean) + more) / 2, (q * (mean - 2 * nats - ratio) - more) / 2

    return nats[..., 0], gradient


def jensen_shannon_divergence(first, second):
    """The mean divergence of p and q from their mean, from logits (..., classes), in nats (...)."""
    return _with_gradient(_jensen_shannon_divergence, first, second)


def _jensen_shannon_divergence(first, second):
    first, second = ops.log_softmax(first), ops.log_softmax(second)
    p, q = ops.exp(first), ops.exp(second)
    middle = ops.logaddexp(first, second) - np.log(2).astype("float32")
    first, second = first - middle, second - middle
    nats_p = ops.sum(p * first, axis=-1, keepdims=True)
    nats_q = ops.sum(q * second, axis=-1, keepdims=True)

    def gradient():
        return p * (first - nats_p) / 2, q * (second - nats_q) / 2

    return (nats_p + nats_q)[..., 0] / 2, gradient


def _with_gradient(function, first, second):
    """What a function of two logits gives, with the gradient that it also gives, on TensorFlow.

    Without XLA, automatic differentiation would read and write them about twice as often.
    """
    if not internals.ON_TENSORFLOW:
        return function(first, second)[0]

    @tf.custom_gradient
    def differentiable(first, second):
        values, gradient = function(first, second)
        return values, lambda upstream: tuple(upstream[..., None] * g for g in gradient())

    return differentiable(first, second)
