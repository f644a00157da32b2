"""Output projection, softmax and cross-entropy in one, for the train step on JAX on a GPU.

A step on a GPU is bound by what it moves, and the largest tensor that it moves are the logits of
the batch. From whole logits, XLA makes a step that writes or reads them ten times. Here it computes
exp(logit - shift) within the product, writes that once, and reads it for its sum and for the two
gradients. Compiled for an H100, the base step moves a tenth less. No GPU has run it.
"""

import jax
import jax.numpy as jnp

from keras_transformer.training.projected_loss import MOST_SHIFTS, MOST_TOTAL, SHIFT_STEP


def projected_loss_on_jax(features, table, labels, weights, label_smoothing=0.0):
    """The weighted sum of the smoothed cross-entropy of softmax(features · tableᵀ), a scalar.

    With p the probabilities, E the table, h the features, e the smoothing and V its rows, the loss
    of a token is log(sum(exp(h · Eᵀ))) - (1 - e) h · E[label] - (e / V) h · sum(E). JAX
    differentiates the last two terms, and `_normalisers` the first.

    Args:
        features: (batch, target, dim), float32 or bfloat16.
        table: (vocabulary, dim), float32.
        labels: integers (batch, target). Outside of the table the loss is NaN.
        weights: float32 (batch, target), 0 for padding, whose labels do not matter.
        label_smoothing: e, in [0, 1).
    """
    vocabulary, dim = table.shape
    hidden, labels, weights = features.reshape(-1, dim), labels.reshape(-1), weights.reshape(-1)
    hidden = jnp.where(weights[:, None] != 0, hidden, 0)  # that of padding may be infinite or NaN
    narrow = table.astype(hidden.dtype)
    wide = hidden.astype(jnp.float32)
    chosen_rows = narrow[jnp.clip(labels, 0, vocabulary - 1)].astype(jnp.float32)
    chosen = jnp.sum(wide * chosen_rows, axis=-1)  # the logits of the labels
    mean = jnp.sum(wide * jnp.sum(table, axis=0), axis=-1) / vocabulary
    smoothed = (1 - label_smoothing) * chosen + label_smoothing * mean
    # Labels outside of the vocabulary show as NaN.
    smoothed = jnp.where((labels >= 0) & (labels < vocabulary), smoothed, jnp.nan)
    smoothed = jnp.sum(jnp.where(weights != 0, weights * smoothed, 0.0))
    return _normalisers(hidden, narrow, jax.lax.stop_gradient(chosen), weights) - smoothed


@jax.custom_vjp
def _normalisers(hidden, table, shift, weights):
    """The weighted sum of log(sum(exp(hidden · tableᵀ))), which no `shift` changes, a scalar.

    The gradients are computed with it, while the exponentials exist: (rows, vocabulary) in the
    dtype of `hidden`. They are divided by their sum on the narrow side of each product.

    Args:
        hidden: (rows, dim).
        table: (vocabulary, dim), in the same dtype.
        shift: what logits are lowered by, float32 (rows,); those of the labels, to which the
            highest are mostly near.
        weights: float32 (rows,).
    """
    return _normalisers_and_gradients(hidden, table, shift, weights)[0]


def _normalisers_and_gradients(hidden, table, shift, weights):
    def body(state):
        shift = state[0]
        logits = _product(hidden, table, 1, 1)
        numbers = jnp.exp(logits - shift[:, None]).astype(hidden.dtype)  # (rows, vocabulary)
        total = jnp.sum(numbers.astype(jnp.float32), axis=-1)
        share = jnp.where(total == 0, 0.0, weights / total)[:, None]
        hidden_gradient = (_product(numbers, table, 1, 0) * share).astype(hidden.dtype)
        scaled = (hidden.astype(jnp.float32) * share).astype(hidden.dtype)
        table_gradient = _product(numbers, scaled, 0, 0).astype(table.dtype)
        overflows = total > MOST_TOTAL
        next_shift = jnp.where(overflows, shift + SHIFT_STEP, shift)
        return next_shift, jnp.any(overflows), state[2] + 1, total, hidden_gradient, table_gradient

    # A logit is seldom so far above its label's that the total overflows: nearly always there is
    # one pass. XLA fuses `shift` into the product only in the body of a loop. Rows without weight
    # hold zeros, and need no other. Of the loop's initial values, only `shift` and the number of
    # passes are read.
    start = jnp.where(weights == 0, jnp.inf, shift)
    empty = jnp.zeros_like(hidden), jnp.zeros_like(table)
    shift, _, _, total, *gradients = jax.lax.while_loop(
        lambda state: state[1] & (state[2] < MOST_SHIFTS), body, (start, True, 0, start, *empty)
    )
    logarithms = jnp.where(weights == 0, 0.0, shift + jnp.log(total))
    return jnp.sum(weights * logarithms), gradients


def _scaled_gradients(gradients, upstream):
    hidden, table = ((upstream * g.astype(jnp.float32)).astype(g.dtype) for g in gradients)
    return hidden, table, None, None


_normalisers.defvjp(_normalisers_and_gradients, _scaled_gradients)


def _product(first, second, first_axis, second_axis):
    """The float32 product of two matrices, summed over an axis of each."""
    axes = (((first_axis,), (second_axis,)), ((), ()))
    return jax.lax.dot_general(first, second, axes, preferred_element_type=jnp.float32)
