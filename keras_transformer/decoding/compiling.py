"""When, and in which sizes, XLA compiles a search with a cache of full size."""

import tensorflow as tf

from keras_transformer.decoding.search import trim

CACHES = ("auto", "static", "growing")
FEW_ROWS, MANY_ROWS = 8, 64
LONGEST_BUCKET = 2**20


def is_static(cache, is_supported=True):
    """Whether a search keeps a static cache and is compiled: with "static", or "auto" and a GPU.

    On a CPU only long jobs make up for the seconds that each bucket takes to compile. ValueError
    for another `cache` than those and "growing", and for "static" with a model that has none.

    Examples:
        >>> is_static("static"), is_static("growing")
        (True, False)
    """
    if cache not in CACHES:
        raise ValueError(f"cache must be one of {', '.join(CACHES)}. Received: cache={cache!r}.")
    if cache == "static" and not is_supported:
        raise ValueError(
            "A static cache needs a model whose start_cache accepts a length and which "
            "declares has_static_cache=True. Received: cache='static'."
        )
    has_gpu = bool(tf.config.list_logical_devices("GPU"))
    return cache == "static" or (cache == "auto" and has_gpu and is_supported)


def bucket(length, smallest=8):
    """The smallest power of two that is at least `length` and `smallest`, an int32 scalar."""
    powers = tf.constant([2**n for n in range(LONGEST_BUCKET.bit_length()) if 2**n >= smallest])
    return tf.reduce_min(tf.where(powers >= length, powers, LONGEST_BUCKET))


def row_bucket(rows):
    """8 for up to 8 rows, otherwise the next multiple of 64."""
    return tf.where(rows <= FEW_ROWS, FEW_ROWS, -(-rows // MANY_ROWS) * MANY_ROWS)


def fill(values, rows, columns=None):
    """Pads (batch, ...) with rows of zeros, and (batch, length) with columns of zeros."""
    missing = [[0, rows - tf.shape(values)[0]]]
    if columns is not None:
        values = values[:, :columns]
        missing.append([0, columns - tf.shape(values)[1]])
    return tf.pad(values, missing + [[0, 0]] * (values.shape.rank - len(missing)))


def compiled(search):
    """A search that XLA compiles once for each shape of its inputs."""
    return tf.function(search, jit_compile=True, autograph=False)


def first_rows(hypotheses, rows):
    """The hypotheses of a batch without its padding rows and without empty columns."""
    return trim(type(hypotheses)(*(part[:rows] for part in hypotheses)))
