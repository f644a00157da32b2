"""Random keys, and permutations that are computed place by place."""

import numpy as np

_ROUNDS = 16  # of the Feistel network: 10 still prefer some orders of five places
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


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
