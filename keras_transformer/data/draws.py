"""Random numbers in NumPy, bit for bit those of TensorFlow's stateless operations with "philox".

A seed is a pair of integers of 64 bits. Equal seeds draw equal numbers, and the first of them do
not depend on how many are drawn.
"""

import numpy as np

_KEY = (0x3EC8F720, 0x02461E29)  # with which TensorFlow scrambles seeds
_WORD = 0xFFFFFFFF
_BLOCKS_AT_A_TIME = 2**14  # fit into a core's cache


def split(seed) -> list[tuple[int, int]]:
    """Two seeds that are independent of each other, as from `tf.random.split`.

    Examples:
        >>> split((3, 5))
        [(4687201300610777707, -8344497684996986804), (7599368635277227662, -7510894832601287979)]
    """
    numbers = _words(seed, 8).view("<u8").view(np.int64).tolist()
    return [tuple(numbers[:2]), tuple(numbers[2:])]


def uniform(seed, count, dtype=np.float32) -> np.ndarray:
    """Numbers in [0, 1), float32 or float64, as from `tf.random.stateless_uniform`."""
    if dtype == np.float32:
        return (_words(seed, count) & 0x7FFFFF).astype(np.float32) * np.float32(2.0**-23)
    words = _words(seed, 2 * count).astype(np.uint64)
    return ((words[::2] & 0xFFFFF) << 32 | words[1::2]) * 2.0**-52


def integers(seed, count, limit) -> np.ndarray:
    """Integers in [0, limit), int32, as from `tf.random.stateless_uniform`."""
    return (_words(seed, count) % np.uint32(limit)).astype(np.int32)


def _words(seed, count):
    """Words of 32 bits, (count,)."""
    scrambled = [np.uint64(half) for number in seed for half in _halves(int(number) % 2**64)]
    *key, third, fourth = map(int, _rounds(scrambled, _KEY))
    words = np.empty((-(-count // 4), 4), np.uint32)
    for start in range(0, len(words), _BLOCKS_AT_A_TIME):
        block = words[start : start + _BLOCKS_AT_A_TIME]
        index = np.arange(start, start + len(block), dtype=np.uint64)
        upper = (np.full(len(block), word, np.uint64) for word in (third, fourth))
        block[:] = np.stack(_rounds([*_halves(index), *upper], key), axis=-1)
    return words.ravel()[:count]


def _rounds(counter, key):
    """Philox 4x32-10 (Salmon et al. 2011, https://doi.org/10.1145/2063384.2063405)."""
    for turn in range(10):
        low_0, high_0 = _halves(counter[0] * 0xD2511F53)
        low_1, high_1 = _halves(counter[2] * 0xCD9E8D57)
        keys = (key[0] + turn * 0x9E3779B9) & _WORD, (key[1] + turn * 0xBB67AE85) & _WORD
        counter = [high_1 ^ counter[1] ^ keys[0], low_1, high_0 ^ counter[3] ^ keys[1], low_0]
    return counter


def _halves(numbers):
    """The lower and the upper word of numbers of 64 bits."""
    return numbers & _WORD, numbers >> 32
