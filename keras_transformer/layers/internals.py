"""The only place of the layers that uses what Keras does not promise, or TensorFlow itself."""

import keras
from keras.src.backend import get_keras_mask, set_keras_mask

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

WORD = 2**16  # values of a draw that decides on one unit


def mask_of(tensor):
    """The mask that Keras carries along with a tensor, or None.

    Relies on `keras.src.backend.get_keras_mask`: an attribute of the tensor would not do, since
    the tensors of a jitted JAX function have none.
    """
    return get_keras_mask(tensor)


def carry_mask(source, tensor):
    """Has a tensor carry the mask of another, as `Layer.__call__` does.

    Relies on `keras.src.backend.set_keras_mask`.
    """
    set_keras_mask(tensor, get_keras_mask(source))


def keep_mask(shape, rate, seed_generator):
    """A boolean tensor that is False with probability `rate`, and otherwise True.

    On TensorFlow, Keras leaves the generator to TensorFlow, which chooses another one under XLA.
    Here it is Philox everywhere, with 16 bits a unit: `rate` counts to 1 / 65536. JAX and PyTorch
    have one generator each, and Keras uses it.

    Relies on TensorFlow's Philox giving the same bits on every device, plain and under XLA, and
    on `bitcast` taking the lower half of a number first.

    Args:
        shape: tuple of integers and integer scalars, not empty.
        rate: probability in [0, 1).
        seed_generator: a `keras.random.SeedGenerator`, advanced by one.
    """
    if keras.backend.backend() != "tensorflow":
        return keras.random.uniform(shape, dtype="float32", seed=seed_generator) >= rate
    # XLA wants the seed, a pair of integers, in 32 bits.
    seed = tf.cast(tf.math.floormod(seed_generator.next(), tf.int32.max - 1), tf.int32)
    *rows, length = shape
    pairs = (length + 1) // 2  # one draw of 32 bits decides on two neighbours
    bits = tf.random.stateless_uniform([*rows, pairs], seed, None, None, tf.uint32, alg="philox")
    words = tf.reshape(tf.bitcast(bits, tf.uint16), [*rows, 2 * pairs])
    if not isinstance(length, int) or length % 2:
        words = words[..., :length]
    return words >= tf.constant(min(round(rate * WORD), WORD - 1), tf.uint16)
