"""Random numbers in NumPy, and permutations that are computed place by place.

`split`, `uniform` and `integers` are bit for bit TensorFlow's stateless operations with "philox". A
seed is a pair of integers of 64 bits. Equal seeds draw equal numbers, and the first of them do not
depend on how many are drawn.
"""

import numpy as np

_ROUNDS = 16  # of the Feistel network: 10 still prefer some orders of five places
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
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


def key_of(*numbers):
    """A key of 64 bits for `permuted`, from integers or arrays of them."""
    key = np.zeros(1, np.uint64)  # NumPy warns of scalars that overflow, not of arrays
    for number in numbers:
        key = _mixed(key + _GOLDEN + np.asarray(number, np.int64).astype(np.uint64))
    return key


def permuted(places, sizes, keys) -> np.ndarray:
    """Where seeded permutations of 0 .. size - 1 put these places, in constant memory.

    A Feistel network over a grid of about the square root of `size` on either side, walked until it
    ends inside of the permutation.

    Source: Black and Rogaway 2002, methods 2 and 3 (https://doi.org/10.1007/3-540-45760-7_9);
    rounds are those of SplitMix64, Steele et al. 2014 (https://doi.org/10.1145/2714064.2660195).

    Args:
        places: integers in [0, size), of any shape.
        sizes: the size of the permutation of each place, up to 2**52; broadcast.
        keys: from `key_of`: one permutation for each pair of a size and a key; broadcast.

    Returns:
        Integers in [0, size), int64, in the shape of all arguments together.

    Examples:
        >>> sorted(permuted(np.arange(5), 5, key_of(3)).tolist())
        [0, 1, 2, 3, 4]
    """
    places, sizes, keys = np.broadcast_arrays(
        np.asarray(places, np.int64).astype(np.uint64), np.asarray(sizes, np.uint64), keys
    )
    found, shape = places.ravel(), places.shape
    sizes, keys = sizes.ravel(), keys.ravel()
    columns = np.maximum(np.ceil(np.sqrt(sizes.astype(np.float64))), 1).astype(np.uint64)
    lines = -(-sizes.astype(np.int64) // columns.astype(np.int64)).astype(np.uint64)
    found = _through_network(found, columns, lines, keys)
    while len(outside := np.flatnonzero(found >= sizes)):
        grid = columns[outside], lines[outside], keys[outside]
        found[outside] = _through_network(found[outside], *grid)
    return found.astype(np.int64).reshape(shape)


def _through_network(places, columns, lines, keys):
    line, column = np.divmod(places, columns)
    for _ in range(0, _ROUNDS, 2):
        line = (line + (_mixed(keys + column) >> 32)) % lines
        keys = keys + _GOLDEN
        column = (column + (_mixed(keys + line) >> 32)) % columns
        keys = keys + _GOLDEN
    return line * columns + column


def _mixed(numbers):
    """SplitMix64's finalizer of integers of 64 bits, uint64."""
    numbers = (numbers ^ (numbers >> 30)) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> 27)) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> 31)


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
