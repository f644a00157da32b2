"""Normalisation and projection for XLA on TensorFlow, which keep less for the backward pass.

On a GPU a training step is bound by what it moves to and from memory, and by what it keeps there.
XLA fuses element-wise work into products, but does not decide by itself to add a bias before a
product is rounded, or to recompute what is cheap. The gradients here are written by hand.
"""

import keras

from keras_transformer.layers.internals import attach_recipe, is_compiled, recompute
from keras_transformer.ops.attention import masked_softmax
from keras_transformer.ops.projection import known_rows

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf


def has_own_gradients(inputs, weight=None):
    """Whether XLA compiles TensorFlow, for dtypes that the functions below are written for.

    They compute in float32, in which float64 would lose digits, and return gradients for float32
    weights.
    """
    if not is_compiled() or inputs.dtype == "float64":
        return False
    return weight is None or weight.dtype == "float32"


def opaque_zero(tensor):
    """A float32 zero that XLA takes for a number that depends on a tensor.

    What is recomputed with it must wait for the tensor. Without it, XLA would notice that it has
    computed the same numbers before, and keep those.
    """
    first = tf.cast(tf.reduce_sum(tf.reshape(tensor, [-1])[:1]), tf.float32)  # there may be none
    return tf.where(tf.math.is_nan(first), first, 0.0)


def normalise(inputs, gamma, beta, epsilon):
    """Layer normalisation in float32.

    Source: Ba et al. 2016 (https://arxiv.org/abs/1607.06450).

    Args:
        inputs: (..., dim).
        gamma: (dim,), float32.
        beta: (dim,), float32.
        epsilon: added to the variance.

    Returns:
        Same shape and dtype as `inputs`. `projected` recomputes it in the backward pass instead of
        keeping it.
    """
    rows = tf.reshape(inputs, [-1, inputs.shape[-1]])
    wide = tf.cast(rows, tf.float32)
    mean = tf.reduce_mean(wide, axis=-1, keepdims=True)
    variance = tf.reduce_mean(tf.square(wide - mean), axis=-1, keepdims=True)
    scale = tf.math.rsqrt(variance + epsilon)

    def unit(rows):
        return (tf.cast(rows, tf.float32) - mean) * scale

    def outputs_of(rows, gamma):
        outputs = tf.cast(unit(rows) * gamma + beta, inputs.dtype)
        return tf.reshape(outputs, tf.shape(inputs))

    @tf.custom_gradient
    def forward(inputs_, gamma, beta_):  # both _ only say where gradients go
        def gradient(upstream):
            upstream = tf.cast(tf.reshape(upstream, tf.shape(rows)), tf.float32)
            units = unit(rows)
            gamma_gradient, beta_gradient = (
                tf.reduce_sum(each, 0) for each in (upstream * units, upstream)
            )
            unit_gradients = upstream * gamma
            along = tf.reduce_mean(unit_gradients * units, axis=-1, keepdims=True)
            across = tf.reduce_mean(unit_gradients, axis=-1, keepdims=True)
            row_gradients = tf.cast(scale * (unit_gradients - across - units * along), inputs.dtype)
            return tf.reshape(row_gradients, tf.shape(inputs)), gamma_gradient, beta_gradient

        return outputs_of(rows, gamma), gradient

    outputs = forward(inputs, gamma, beta)
    return attach_recipe(outputs, lambda zero: outputs_of(rows, gamma + zero))


def projected(inputs, kernel, bias=None):
    """`ops.projection.project`; the backward pass recomputes inputs that `normalise` returned.

    Args:
        inputs: (..., input_dim).
        kernel: (output_dim, input_dim), float32.
        bias: (output_dim,), float32, or None.

    Returns:
        (..., output_dim), in the dtype of `inputs`.
    """
    dim, dtype = inputs.shape[-1], inputs.dtype

    @tf.custom_gradient
    def forward(rows, kernel, *bias):
        def gradient(upstream):
            same_rows = tf.reshape(recompute(inputs, opaque_zero(upstream)), [-1, dim])
            gradients = _kernel_and_bias_gradients(upstream, same_rows)[: 1 + len(bias)]
            row_gradients = tf.matmul(upstream, tf.cast(kernel, dtype))
            return tf.reshape(row_gradients, tf.shape(rows)), *gradients

        outputs = tf.matmul(tf.reshape(rows, [-1, dim]), tf.cast(kernel, dtype), transpose_b=True)
        return outputs + tf.cast(bias[0], dtype) if bias else outputs, gradient

    weights = (kernel,) if bias is None else (kernel, bias)
    outputs = forward(inputs, *map(tf.convert_to_tensor, weights))
    sizes = keras.ops.shape(inputs)[1:-1]
    return tf.reshape(outputs, [known_rows(inputs), *sizes, kernel.shape[0]])


def _kernel_and_bias_gradients(upstream, rows):
    """Those of a projection of rows, in float32."""
    kernel_gradient = tf.matmul(upstream, rows, transpose_a=True, output_type=tf.float32)
    return kernel_gradient, tf.reduce_sum(tf.cast(upstream, tf.float32), axis=0)


def compiled_attention_weights(queries, keys, mask=None):
    """`ops.attention.attention_weights`, which keeps only the weights for the backward pass."""

    @tf.custom_gradient
    def softmax(logits):
        weights = masked_softmax(logits, mask)

        def gradient(upstream):
            # XLA leaves out a rounding, and would keep logits to compute float32 weights again.
            bits = tf.bitcast(weights, tf.uint16 if weights.dtype.size == 2 else tf.uint32)
            bits += tf.cast(opaque_zero(upstream), bits.dtype)
            wide, upstream = (
                tf.cast(each, tf.float32) for each in (tf.bitcast(bits, weights.dtype), upstream)
            )
            mean = tf.reduce_sum(wide * upstream, axis=-1, keepdims=True)
            return tf.cast(wide * (upstream - mean), logits.dtype)

        return weights, gradient

    return softmax(tf.matmul(queries * queries.shape[-1] ** -0.5, keys, transpose_b=True))


def feed_forward(inputs, widen, activate, narrow):
    """`narrow(activate(widen(inputs)))`; the backward pass recomputes the widened vectors.

    These are by far the largest tensor of a block, and their product is a fifteenth of the work
    of a step of the base model.

    Args:
        inputs: (..., dim).
        widen: the `Projection` to the inner width, with a bias.
        activate: a function of tensors, element by element.
        narrow: the `Projection` back, with a bias.

    Returns:
        Same shape and dtype as `inputs`.
    """
    dim, dtype = inputs.shape[-1], inputs.dtype

    @tf.custom_gradient
    def forward(rows, widen_kernel, widen_bias, narrow_kernel, narrow_bias):
        def widened(rows, kernel):
            sums = tf.matmul(rows, kernel, transpose_b=True, output_type=tf.float32)
            return tf.cast(sums + widen_bias, dtype)

        def gradient(upstream):
            zero = opaque_zero(upstream)
            same_rows = tf.reshape(recompute(inputs, zero), [-1, dim])
            with tf.GradientTape() as tape:
                sums = widened(same_rows, tf.cast(widen_kernel + zero, dtype))
                tape.watch(sums)
                activations = activate(sums)
            narrow_gradients = _kernel_and_bias_gradients(upstream, activations)
            activation_gradients = tf.matmul(upstream, tf.cast(narrow_kernel + zero, dtype))
            sum_gradients = tape.gradient(activations, sums, activation_gradients)
            widen_gradients = _kernel_and_bias_gradients(sum_gradients, same_rows)
            kernel = tf.cast(widen_kernel + zero, dtype)
            row_gradients = tf.reshape(tf.matmul(sum_gradients, kernel), tf.shape(inputs))
            return row_gradients, *widen_gradients, *narrow_gradients

        rows = tf.reshape(rows, [-1, dim])
        activations = activate(widened(rows, tf.cast(widen_kernel, dtype)))
        outputs = tf.matmul(activations, tf.cast(narrow_kernel, dtype), transpose_b=True)
        return outputs + tf.cast(narrow_bias, dtype), gradient

    outputs = forward(inputs, *(tf.convert_to_tensor(each) for each in (*widen, *narrow)))
    return tf.reshape(outputs, tf.shape(inputs))
