"""The most memory that one step of attention over a long sequence takes.

python -m tests.ops.attention_memory LENGTH MIN_WEIGHTS

Prints MB that the step adds to what the process held before, with chunks from MIN_WEIGHTS on.
"""

import resource
import sys

import tensorflow as tf

from keras_transformer.layers import MultiHeadAttention
from keras_transformer.ops import attention


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(length, least):
    attention.MIN_WEIGHTS = int(least)
    layer = MultiHeadAttention(8)
    inputs = tf.random.stateless_normal([1, int(length), 64], [1, 2])

    @tf.function
    def gradient(inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = tf.reduce_sum(layer(inputs, training=True) ** 2)
        return tape.gradient(loss, inputs)

    gradient(inputs[:, :16])
    traced = gradient.get_concrete_function(inputs)
    before = peak()
    traced(inputs)
    print(peak() - before)


if __name__ == "__main__":
    main(*sys.argv[1:])
