"""The only file of `ops/` that uses what Keras and TensorFlow do not promise.

Private names are imported where they are used: if a version has moved one, its canary fails and
says what to do, and the package can still be imported.
"""

import functools
import operator

import keras

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

WORD = 2**16  # possible values of the draw for one unit


def keep_mask(shape, rate, seed):
    """A boolean tensor that is False with probability `rate`, and otherwise True.

    On TensorFlow, Keras leaves the generator to TensorFlow, which chooses a different one under
    XLA. Here it is always Philox, with 16 bits per unit, so `rate` is rounded to 1 / 65536. JAX and
    PyTorch have one generator each, and Keras uses it.

    Relies on TensorFlow's Philox giving the same bits on every device, plain and under XLA, and
    on `bitcast` taking the lower half of a number first.

    Args:
        shape: tuple of integers and integer scalars, not empty.
        rate: probability in [0, 1).
        seed: a `keras.random.SeedGenerator`, advanced by one, or a seed of `draw_seed`.
    """
    if keras.backend.backend() != "tensorflow":
        return keras.random.uniform(shape, dtype="float32", seed=seed) >= rate
    if isinstance(seed, keras.random.SeedGenerator):
        seed = draw_seed(seed)
    *rows, length = shape
    limit = min(round(rate * WORD), WORD - 1)
    if is_compiled() and isinstance(length, int) and length % 8 == 0:
        return _keep_mask_from_bits([*rows, length // 8], limit, seed)
    pairs = (length + 1) // 2  # a 32-bit draw decides two neighbouring units
    if is_compiled():  # bits of all rows, one after the other
        size = functools.reduce(operator.mul, rows, 2 * pairs)
        kept = _keep_mask_from_bits([-(-size // (8 * 1024)), 1024], limit, seed)
        kept = tf.reshape(tf.reshape(kept, [-1])[:size], [*rows, 2 * pairs])
        return kept[..., :length]
    bits = tf.random.stateless_uniform([*rows, pairs], seed, None, None, tf.uint32, alg="philox")
    words = tf.reshape(tf.bitcast(bits, tf.uint16), [*rows, 2 * pairs])
    if not isinstance(length, int) or length % 2:
        words = words[..., :length]
    return words >= tf.constant(limit, tf.uint16)


def draw_seed(seed_generator):
    """The next seed of a generator, which `keep_mask` takes any number of times on TensorFlow.

    There it is a pair of 32-bit numbers, as XLA needs it. Other backends have only the generator.
    """
    if keras.backend.backend() != "tensorflow":
        return seed_generator
    return tf.cast(tf.math.floormod(seed_generator.next(), tf.int32.max - 1), tf.int32)


def look_up_rows(table, ids, axis=0):
    """The rows of a table for ids; NaN, or an error, for an id that the table lacks.

    Keras takes negative ids for places from the end. Without XLA, TensorFlow raises for ids outside
    on CPUs and gives zeros on GPUs; with XLA it gives the first or last row.

    Relies on `tf.gather` raising on CPUs.

    Args:
        table: (count, dim), or (dim, count).
        ids: integers of any shape.
        axis: of the table, along which `count` is.

    Returns:
        The shape of `ids` with a last axis of `dim`.
    """
    table = keras.ops.convert_to_tensor(table)
    on_tensorflow = keras.backend.backend() == "tensorflow"
    take = tf.gather if on_tensorflow else keras.ops.take
    rows = take(table, ids, axis=axis)
    rows = keras.ops.moveaxis(rows, 0, -1) if axis else rows
    if on_tensorflow and not (is_compiled() or _has_gpu()):
        return rows
    is_inside = keras.ops.logical_and(ids >= 0, ids < table.shape[axis])
    return keras.ops.where(keras.ops.expand_dims(is_inside, -1), rows, float("nan"))


def _has_gpu():
    return bool(tf.config.list_physical_devices("GPU"))


def is_compiled():
    """Whether TensorFlow is tracing a function that XLA will compile, as far as can be known.

    Relies on `tf.function(jit_compile=True)` entering what TensorFlow calls an XLA context.
    """
    if keras.backend.backend() != "tensorflow":
        return False
    from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

    return GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())


def attach_recipe(tensor, recipe):
    """Returns a tensor that `recompute` computes by calling `recipe`, so that nobody keeps it.

    Relies on Keras giving a layer the very tensor that another layer returned.
    """
    tensor.recipe = recipe
    return tensor


def recompute(tensor, *arguments):
    """Calls the recipe of a tensor; returns the tensor itself if it has none.

    Relies on the same.
    """
    recipe = getattr(tensor, "recipe", None)
    return tensor if recipe is None else recipe(*arguments)


def after(tensor, *earlier):
    """A tensor that XLA takes for a new one, and uses only once others are computed.

    Raises NotImplementedError for gradients of gradients, in which terms would be missing.

    Relies on `tensorflow.compiler.tf2xla.python.xla.optimization_barrier`, which XLA alone knows.
    """
    if not is_compiled():
        return tensor
    from tensorflow.compiler.tf2xla.python.xla import optimization_barrier

    @tf.custom_gradient
    def barrier(tensor):
        def gradient(_):
            raise NotImplementedError(
                "Gradients of gradients need jit_compile=False: the layers that XLA compiles "
                "compute their gradients in their own way. Received: a gradient of a gradient in a "
                "function with jit_compile=True."
            )

        return optimization_barrier(tensor, *earlier)[0], gradient

    return barrier(tensor)


def _keep_mask_from_bits(shape, limit, seed):
    """The same mask, which XLA keeps for the backward pass as one bit per unit.

    XLA writes the draws of `stateless_uniform` to memory three times, and reads them again in the
    backward pass. Here the draws of one call of Philox, which decide eight neighbouring units, are
    compared in registers, and only one byte is written.

    Source: Salmon et al. 2011 (https://doi.org/10.1145/2063384.2063405).

    Args:
        shape: shape of the bytes: the mask's, with the last axis divided by 8.
        limit: the first of 65,536 draws that keeps a unit.
        seed: as for `stateless_uniform`.
    """
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
    low, stride = counter[0], 1
    for axis, size in enumerate(reversed(shape)):  # a range over all would be stored as numbers
        steps = tf.cast(tf.range(size) * stride, tf.uint64)
        low, stride = low + tf.reshape(steps, [-1] + [1] * axis), stride * size
    high = counter[1] + tf.cast(low < counter[0], tf.uint64)
    words = _philox([*_halves(low), *_halves(high)], [*_halves(key[0])])
    lower, upper = tf.constant(WORD - 1, tf.uint32), tf.constant(16, tf.uint32)
    draws = [(word & lower, tf.bitwise.right_shift(word, upper)) for word in words]
    places = [1 << place for place in range(8)]
    bits = tf.add_n(
        [
            tf.where(draw >= limit, tf.constant(place, tf.uint8), tf.constant(0, tf.uint8))
            for draw, place in zip([d for pair in draws for d in pair], places, strict=True)
        ]
    )
    kept = (bits[..., None] & tf.constant(places, tf.uint8)) != 0
    return tf.reshape(kept, [*shape[:-1], 8 * shape[-1]])


def _philox(counter, key):
    """Philox4x32-10: four 32-bit words from a counter of four words and a key of two."""
    for _ in range(10):
        (low_0, high_0), (low_1, high_1) = (
            _halves(tf.cast(word, tf.uint64) * tf.constant(factor, tf.uint64))
            for word, factor in ((counter[0], 0xD2511F53), (counter[2], 0xCD9E8D57))
        )
        counter = [high_1 ^ counter[1] ^ key[0], low_1, high_0 ^ counter[3] ^ key[1], low_0]
        key = [
            word + tf.constant(step, tf.uint32)
            for word, step in zip(key, (0x9E3779B9, 0xBB67AE85), strict=True)
        ]
    return counter


def _halves(numbers):
    """The lower and the upper 32 bits of 64-bit numbers."""
    upper = tf.bitwise.right_shift(numbers, tf.constant(32, tf.uint64))
    return tf.cast(numbers, tf.uint32), tf.cast(upper, tf.uint32)
