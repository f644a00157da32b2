"""Functions for XLA on TensorFlow that keep less for the backward pass, and move less.

On a GPU a training step is bound by what it moves to and from memory. XLA fuses element-wise work
into products, but left alone it keeps whatever the backward pass reads. The functions here say what
to compute again instead, with two helpers of internals.py:

- `recompute(tensor, upstream)` computes the output of a normalisation again from its input. Else
  both would be kept.
- `after(tensor, upstream)` is the tensor, but XLA may use it only when the gradient `upstream` has
  arrived. What is computed from it is computed in the backward pass. Else XLA would find that the
  forward pass computes the same, and would keep that.

The numbers are right whatever XLA makes of it: only memory and time depend on these two.
docs/h100.md lists what each saves.
"""

import keras

from keras_transformer.ops.internals import after, attach_recipe, is_compiled, recompute
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


def normalise(inputs, gamma, epsilon, beta=None):
    """Normalisation in float32, whose output `recompute` computes again.

    Source: Ba et al. 2016 (https://arxiv.org/abs/1607.06450); without a beta, Zhang and Sennrich
    2019 (https://arxiv.org/abs/1910.07467).

    Args:
        inputs: (..., dim).
        gamma: (dim,), float32.
        epsilon: added to the variance, or to the mean square.
        beta: (dim,), float32; None for RMS normalisation, which does not subtract the mean.

    Returns:
        Same shape and dtype as `inputs`.
    """
    wide, mean = tf.cast(inputs, tf.float32), 0.0
    if beta is not None:
        mean = tf.reduce_mean(wide, axis=-1, keepdims=True)
        wide -= mean
    variance = tf.reduce_mean(tf.square(wide), axis=-1, keepdims=True)
    scale = tf.math.rsqrt(variance + epsilon)

    def normalised(inputs):
        outputs = tf.cast(inputs, tf.float32)
        outputs = (
            outputs * scale * gamma if beta is None else (outputs - mean) * scale * gamma + beta
        )
        return tf.cast(outputs, inputs.dtype)

    return attach_recipe(normalised(inputs), lambda upstream: normalised(after(inputs, upstream)))


def projected(inputs, kernel, bias=None, adds_bias_first=False):
    """`ops.projection.project`, whose backward pass recomputes inputs that `normalise` returned.

    The gradients of kernel and bias are summed in float32.

    Args:
        inputs: (..., input_dim).
        kernel: (output_dim, input_dim), float32.
        bias: (output_dim,), float32, or None.
        adds_bias_first: whether the bias is added before sums are rounded, within the product.
            In the projections of attention, XLA would then write float32.

    Returns:
        (..., output_dim), in the dtype of `inputs`.
    """
    dim, dtype = inputs.shape[-1], inputs.dtype

    @tf.custom_gradient
    def forward(rows, kernel, *bias):
        def gradient(upstream):
            rows = tf.reshape(recompute(inputs, upstream), [-1, dim])
            row_gradients = tf.matmul(upstream, tf.cast(kernel, dtype))
            kernel_gradient = tf.matmul(upstream, rows, transpose_a=True, output_type=tf.float32)
            bias_gradient = tf.reduce_sum(tf.cast(upstream, tf.float32), axis=0)
            return row_gradients, *(kernel_gradient, bias_gradient)[: 1 + len(bias)]

        sum_dtype = tf.float32 if adds_bias_first else dtype
        sums = tf.matmul(rows, tf.cast(kernel, dtype), transpose_b=True, output_type=sum_dtype)
        outputs = sums + tf.cast(bias[0], sum_dtype) if bias else sums
        return tf.cast(outputs, dtype), gradient

    weights = [tf.convert_to_tensor(each) for each in (kernel, bias) if each is not None]
    outputs = forward(tf.reshape(inputs, [-1, dim]), *weights)
    sizes = keras.ops.shape(inputs)[1:-1]
    return tf.reshape(outputs, [known_rows(inputs), *sizes, kernel.shape[0]])


def softmax_of_products(softmax, queries, keys):
    """A softmax over the products with all keys, which keeps only its outputs for the gradient.

    Args:
        softmax: a function of logits, (..., target, source), which returns what has their shape and
            dtype.
        queries: (..., target, dim), already scaled.
        keys: (..., source, dim).
    """

    @tf.custom_gradient
    def forward(logits):
        weights = softmax(logits)

        def gradient(upstream):
            # Else XLA would leave out the rounding, and keep logits to compute weights in float32.
            wide = tf.cast(after(weights, upstream), tf.float32)
            upstream = tf.cast(upstream, tf.float32)
            mean = tf.reduce_sum(wide * upstream, axis=-1, keepdims=True)
            return tf.cast(wide * (upstream - mean), logits.dtype)

        return weights, gradient

    return forward(tf.matmul(queries, keys, transpose_b=True))


def feed_forward(inputs, activate, widen, narrow):
    """`narrow(activate(widen(inputs)))`, whose backward pass widens again.

    The widened vectors are by far the largest tensor of a block, and their product is a fifteenth
    of the work of a step of the base model.

    Args:
        inputs: (..., dim).
        activate: a function from what `widen` returns to what `narrow` takes, for each vector.
        widen: kernel, (inner_dim, input_dim), and bias, (inner_dim,) or None, of the projection to
            the inner width, or to that of gates and what they multiply.
        narrow: those of the projection back, with a bias if `widen` has one.

    Returns:
        Same shape and dtype as `inputs`.
    """

    def outputs_of(inputs, widen_kernel, narrow_kernel, widen_bias=None, narrow_bias=None):
        adds_bias_first = widen_bias is not None
        widened = projected(inputs, widen_kernel, widen_bias, adds_bias_first)
        return projected(activate(widened), narrow_kernel, narrow_bias)

    @tf.custom_gradient
    def forward(inputs_, *weights):  # `inputs` have the recipe
        def gradient(upstream):
            # Biases need not wait: XLA adds within a product only what is given to the program.
            kernels, biases = weights[:2], weights[2:]
            same = [recompute(inputs, upstream), *(after(kernel, upstream) for kernel in kernels)]
            with tf.GradientTape() as tape:
                tape.watch([*same, *biases])
                outputs = outputs_of(*same, *biases)
            return tape.gradient(outputs, [*same, *biases], upstream)

        return outputs_of(inputs_, *weights), gradient

    weights = widen[0], narrow[0], widen[1], narrow[1]
    weights = [tf.convert_to_tensor(weight) for weight in weights if weight is not None]
    return forward(inputs, *weights)


def call_either(condition, if_true, if_false):
    """Calls one of two functions; the condition is a Python boolean, or a tensor under XLA.

    XLA compiles both branches of a `tf.cond`, but of a case only that for the shape at hand.
    """
    if isinstance(condition, bool):
        return if_true() if condition else if_false()
    return tf.switch_case(tf.cast(condition, tf.int32), [if_false, if_true])
