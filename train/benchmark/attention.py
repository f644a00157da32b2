"""What sparse attention saves, for `train.benchmark --attention`.

    python -m train.benchmark.attention strided 4096

measures one pattern at one length in this process, and prints it as JSON.
"""

import argparse
import json
import math
import resource
import statistics
import sys
import time

from .rounds import answer_of

HIDDEN_DIM, NUM_HEADS, BATCH_SIZE = 512, 8, 1
PATTERNS = ["dense", "chunks", "strided", "fixed", "local"]
LENGTHS = [1024, 2048, 4096]
SUMMARY_SIZE = 8  # of "fixed", the lowest that the paper recommends
DESCRIPTION = (
    f"one layer of causal attention, {HIDDEN_DIM} wide, {NUM_HEADS} heads, batch {BATCH_SIZE}, "
    f"blocks near the square root of the length, summaries of {SUMMARY_SIZE}"
)
WARM_UP_LENGTH = 7


def measure_attention(pattern, length, repeats):
    """Runs one layer in a separate process, because used memory is not given back.

    Args:
        pattern: one of PATTERNS.
        length: tokens of a sequence.
        repeats: number of passes for the median.

    Returns:
        Dictionary of `seconds` of a training pass (outputs, then gradients of inputs and
        weights) and of the `bytes` by which it raised the peak of the process's memory.
    """
    command = [sys.executable, "-m", f"{__package__}.attention", pattern, str(length)]
    command += ["--repeats", str(repeats)]
    return answer_of(command, pattern)


def table(results):
    """Lines of text.

    Args:
        results: results of `measure_attention` by (pattern, length), including dense ones.
    """
    lines = [f"{'length':>6}  {'attention':9} {'ms':>8} {'of dense':>8} {'MB':>7} {'of dense':>8}"]
    for (pattern, length), result in results.items():
        dense = results["dense", length]
        lines.append(
            f"{length:6}  {pattern:9} {1000 * result['seconds']:8.1f} "
            f"{result['seconds'] / dense['seconds']:8.0%} {result['bytes'] / 1e6:7.0f} "
            f"{result['bytes'] / dense['bytes']:8.0%}"
        )
    return lines


def block_size(length):
    """The highest power of two up to the square root of the length."""
    return 2 ** int(math.log2(length) / 2)


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
        sizes = {"block_size": block_size(length), "summary_size": SUMMARY_SIZE}
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("pattern", choices=PATTERNS)
    parser.add_argument("length", type=int)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()

    import tensorflow as tf

    run = training_pass(options.pattern, options.length)
    if options.pattern != "chunks":
        run(tf.random.normal((BATCH_SIZE, WARM_UP_LENGTH, HIDDEN_DIM)))  # traces, loads kernels
    inputs = tf.random.normal((BATCH_SIZE, options.length, HIDDEN_DIM))
    before = _peak_bytes()
    seconds = []
    for _ in range(options.repeats + 1):
        start = time.perf_counter()
        run(inputs)
        seconds.append(time.perf_counter() - start)
    result = {"seconds": statistics.median(seconds[1:]), "bytes": _peak_bytes() - before}
    print(json.dumps(result))


def _peak_bytes():
    """The most memory that this process has ever had; Linux counts it in kilobytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main()
