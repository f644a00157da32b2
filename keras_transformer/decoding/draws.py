"""Random numbers per row, bit for bit those of TensorFlow's Philox, plain and under XLA.

TensorFlow draws with one seed at a time, and extends a negative seed to 64 bits differently under
XLA.
"""

import tensorflow as tf

_KEY = (0x3EC8F720, 0x02461E29)  # with which TensorFlow scrambles seeds
_WORD = 0xFFFFFFFF


def fold_in(seeds, number):
    """New seeds, (..., 2) int32, as from `tf.random.experimental.stateless_fold_in`.

    `seeds` are (..., 2) int32 or int64, `number` int32, a scalar or (...).
    """
    first = tf.cast(_philox(*_scrambled(seeds), 1)[..., 0, 0], tf.int32)  # wraps around
    return tf.stack([first, tf.zeros_like(first) + number], axis=-1)


def uniform(seeds, count):
    """Numbers in [0, 1), (..., count), as from `tf.random.stateless_uniform` for each seed.

    `seeds` are (..., 2) int32 or int64, `count` a Python integer.
    """
    blocks = _philox(*_scrambled(seeds), -(-count // 4))
    words = tf.reshape(blocks, tf.concat([tf.shape(seeds)[:-1], [-1]], axis=0))[..., :count]
    return tf.cast(words & tf.constant(2**23 - 1, tf.uint64), tf.float32) * 2.0**-23


def _scrambled(seeds):
    """The key, two words (..., 1), and the upper half of the counter, two words (..., 1)."""
    seeds = tf.cast(tf.cast(seeds, tf.int64), tf.uint64)  # negative ones wrap around
    low, high = _halves(seeds)  # (..., 2)
    counter = [low[..., 0], high[..., 0], low[..., 1], high[..., 1]]
    mixed = _rounds(counter, [tf.constant(word, tf.uint64) for word in _KEY])
    first, second, third, fourth = (word[..., None] for word in mixed)
    return (first, second), (third, fourth)


def _philox(key, upper, num_blocks):
    """Blocks of four words each, (..., num_blocks, 4) uint64 below 2 ** 32."""
    index = tf.zeros_like(key[0]) + tf.cast(tf.range(num_blocks), tf.uint64)
    zeros = tf.zeros_like(index)
    counter = [index, zeros, zeros + upper[0], zeros + upper[1]]
    return tf.stack(_rounds(counter, list(key)), axis=-1)


def _rounds(counter, key):
    """Philox 4x32-10 (Salmon et al. 2011, https://doi.org/10.1145/2063384.2063405)."""
    for _ in range(10):
        low_0, high_0 = _halves(counter[0] * tf.constant(0xD2511F53, tf.uint64))
        low_1, high_1 = _halves(counter[2] * tf.constant(0xCD9E8D57, tf.uint64))
        counter = [high_1 ^ counter[1] ^ key[0], low_1, high_0 ^ counter[3] ^ key[1], low_0]
        key = [
            (key[0] + tf.constant(0x9E3779B9, tf.uint64)) & tf.constant(_WORD, tf.uint64),
            (key[1] + tf.constant(0xBB67AE85, tf.uint64)) & tf.constant(_WORD, tf.uint64),
        ]
    return counter


def _halves(numbers):
    """The lower and the upper word of 64-bit numbers."""
    upper = tf.bitwise.right_shift(numbers, tf.constant(32, tf.uint64))
    return numbers & tf.constant(_WORD, tf.uint64), upper
