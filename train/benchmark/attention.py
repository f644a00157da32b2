"""One layer of sparse attention and one of dense attention, for `train.benchmark --attention`.

An engine's unit of work is a training pass: outputs, then gradients of inputs and weights. Its
result is the number of bytes by which the passes raised the peak of its process's memory.
"""

import functools
import math
import resource
import statistics

from .engines import Candidate, Engine, Workload, import_keras
from .tables import table

HIDDEN_DIM, NUM_HEADS, BATCH_SIZE = 512, 8, 1
PATTERNS = ["dense", "chunks", "strided", "fixed", "local"]
LENGTHS = [1024, 2048, 4096]
SUMMARY_SIZE = 8  # of "fixed", the lowest that the paper recommends
DESCRIPTION = (
    f"one layer of causal attention, {HIDDEN_DIM} wide, {NUM_HEADS} heads, batch {BATCH_SIZE}, "
    f"blocks near the square root of the length, summaries of {SUMMARY_SIZE}"
)
WARM_UP_LENGTH = 7


def attention_candidates(length, threads):
    """One candidate per pattern, dense attention first.

    Args:
        length: tokens of a sequence.
        threads: threads of each engine.
    """
    workload = Workload(None, "float32", BATCH_SIZE, threads)
    return [
        Candidate(pattern, functools.partial(attention, pattern, length), workload)
        for pattern in PATTERNS
    ]


def attention_table(rows):
    """Lines of text, one per pattern, which compare it with dense attention, the first row."""
    seconds = {row["name"]: statistics.median(row["seconds"]) for row in rows if row["seconds"]}

    def share(part, whole):
        return f"{part / whole:.0%}" if whole else ""

    columns = {
        "attention": lambda row: row["name"],
        "ms": lambda row: f"{1000 * seconds[row['name']]:.1f}",
        "time of dense": lambda row: share(seconds[row["name"]], seconds.get("dense")),
        "MB": lambda row: f"{row['result'] / 1e6:.0f}",
        "memory of dense": lambda row: share(row["result"], rows[0].get("result")),
    }
    return table(columns, rows)


def attention(pattern, length, workload):
    """A layer with one of PATTERNS, for sequences of so many tokens."""
    tf, _ = import_keras(workload)
    compiled = training_pass(pattern, length)
    if pattern != "chunks":
        compiled(tf.random.normal((BATCH_SIZE, WARM_UP_LENGTH, HIDDEN_DIM)))  # loads kernels
    inputs = tf.random.normal((BATCH_SIZE, length, HIDDEN_DIM))
    before = _peak_bytes()
    return Engine(pattern, lambda: compiled(inputs), finish=lambda _: _peak_bytes() - before)


def training_pass(pattern, length):
    """A compiled function from inputs (BATCH_SIZE, any length, HIDDEN_DIM) to gradients."""
    import tensorflow as tf

    from keras_transformer.layers import MultiHeadAttention
    from keras_transformer.layers.sparse_attention import SparseAttention
    from keras_transformer.ops import causal_mask

    is_dense = pattern in ("dense", "chunks")  # in chunks where the length is known beforehand
    if is_dense:
        layer = MultiHeadAttention(NUM_HEADS)
    else:
        block_size = 2 ** int(math.log2(length) / 2)  # up to the square root of the length
        sizes = {"block_size": block_size, "summary_size": SUMMARY_SIZE}
        layer = SparseAttention(NUM_HEADS, pattern, **sizes, causal=True)
    layer.build((BATCH_SIZE, length, HIDDEN_DIM))

    known = length if pattern == "chunks" else None

    @tf.function(input_signature=[tf.TensorSpec((BATCH_SIZE, known, HIDDEN_DIM))])
    def gradients(inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            masks = {}
            if is_dense:
                masks = {"attention_mask": causal_mask(tf.shape(inputs)[1])}
            loss = tf.reduce_sum(layer(inputs, **masks) ** 2)
        return tape.gradient(loss, [inputs, *(v.value for v in layer.trainable_variables)])

    return gradients


def _peak_bytes():
    """The most memory that this process has ever had; Linux counts it in kilobytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
