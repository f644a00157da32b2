"""What all served modules share: raw variables, and signatures with the batch first."""

import tensorflow as tf


class ServedModule(tf.Module):
    """A module that `export` can write, check and publish.

    A subclass sets `endpoints`, {signature: tf.function}, and says with what it is warmed up
    and tried out, and what shapes it answers in. The model stays hidden behind functions: a
    `tf.Module` that holds a Keras layer saves each weight as a second variable that only
    Python connects with the first.

    Args:
        weights: Keras variables or tf.Variables that the functions of the model read.
        name: of the module.
    """

    def __init__(self, weights, name):
        super().__init__(name=name)
        # The tensors of the Keras variables: these are what is saved.
        self.weights = [w if isinstance(w, tf.Variable) else w.value for w in weights]
        self.endpoints = {}

    def warm_up_requests(self, texts):
        """Pairs of signature and inputs for the sizes of request that are most common."""
        return [
            ("serving_default", self.default_inputs(texts[:1])),
            ("serving_default", self.default_inputs(texts)),
        ]

    def default_inputs(self, texts):
        """The inputs of `serving_default` for (batch,) texts, an array of bytes."""
        raise NotImplementedError

    def row_shapes(self):
        """{signature: {output: shape}}, stated by hand, for the checks of an export.

        A shape is that of one row, without the batch axis; None is a size that depends on
        the request.
        """
        raise NotImplementedError

    def try_out(self, ask, texts, hard_texts):
        """Asks every signature, with `ask(signature, **arrays)`, which returns the answer."""
        raise NotImplementedError


def signature(method, *specs):
    """A tf.function whose inputs are named as the arguments of the method."""
    names = method.__code__.co_varnames[1 : method.__code__.co_argcount]
    named = [tf.TensorSpec(s.shape, s.dtype, name) for s, name in zip(specs, names, strict=True)]
    return tf.function(method, input_signature=named, autograph=False)


def check_rows(first, *others):
    """A request whose inputs have different numbers of rows is refused, not guessed at."""
    for other in others:
        tf.debugging.assert_equal(
            tf.shape(first)[0], tf.shape(other)[0], "All inputs need the same number of rows."
        )


def at_least_one_column(values):
    """(batch, length, ...) with a column of 0 if there is none: a model needs some position."""
    missing = tf.maximum(0, 1 - tf.shape(values)[1])
    return tf.pad(values, [[0, 0], [0, missing]] + [[0, 0]] * (values.shape.rank - 2))


TEXT = tf.TensorSpec([None], tf.string)
NUMBER = tf.TensorSpec([None], tf.int32)  # one a row, e.g. a length
REAL = tf.TensorSpec([None], tf.float32)
IDS = tf.TensorSpec([None, None], tf.int32)
