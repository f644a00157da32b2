"""The base class of exported modules, and signatures with the batch axis first."""

import tensorflow as tf

TEXT = tf.TensorSpec([None], tf.string)
NUMBER = tf.TensorSpec([None], tf.int32)  # one per row, e.g. a length
REAL = tf.TensorSpec([None], tf.float32)
IDS = tf.TensorSpec([None, None], tf.int32)


class ServedModule(tf.Module):
    """A module that `export` can write, check and publish.

    A subclass sets `endpoints`, {signature: tf.function}, and defines the inputs for warm-up and
    checks and the shapes of its outputs.

    Args:
        model: with the methods and the `weights` that `models.TextModel` documents.
        name: of the module.
    """

    def __init__(self, model, name):
        super().__init__(name=name)
        # Behind a function, so that the module does not track it: a `tf.Module` with a Keras layer
        # saves each weight twice, and the second copy is linked to the first in Python only.
        self._model = lambda: model
        # The tensors behind the Keras variables, which is what a SavedModel stores.
        self.weights = [w if isinstance(w, tf.Variable) else w.value for w in model.weights]
        self.endpoints = {}

    @property
    def model(self):
        """The model, which is not part of an export."""
        return self._model()

    def warm_up_requests(self, texts):
        """Pairs of a signature and its inputs, for the most common request sizes."""
        return [
            ("serving_default", self.default_inputs(texts[:1])),
            ("serving_default", self.default_inputs(texts)),
        ]

    def default_inputs(self, texts):
        """The inputs of `serving_default` for texts, a (batch,) array of bytes."""
        raise NotImplementedError

    def row_shapes(self):
        """The expected output shapes of one row, {signature: {output: shape}}, to check exports.

        Shapes have no batch axis; None is a size that depends on the request.
        """
        raise NotImplementedError

    def exercise(self, ask, texts, hard_texts):
        """Sends requests to every signature with `ask(signature, **arrays)`, which answers them.

        Args:
            ask: returns the outputs of a signature, {output: array}.
            texts: (batch,) ordinary texts, bytes.
            hard_texts: (batch,) texts that must not harm the batch they are in, bytes.
        """
        raise NotImplementedError


def signature(method, **specs):
    """A tf.function of a bound method, whose arguments the specs name, in the method's order."""
    named = [tf.TensorSpec(spec.shape, spec.dtype, name) for name, spec in specs.items()]
    return tf.function(method, input_signature=named, autograph=False)


def check_rows(first, *others):
    """Fails if the inputs of a request have different numbers of rows."""
    for other in others:
        tf.debugging.assert_equal(
            tf.shape(first)[0], tf.shape(other)[0], "All inputs need the same number of rows."
        )


def at_least_one_column(values):
    """Pads (batch, length, ...) with a column of 0 if length is 0: models need some position."""
    missing = tf.maximum(0, 1 - tf.shape(values)[1])
    return tf.pad(values, [[0, 0], [0, missing]] + [[0, 0]] * (values.shape.rank - 2))
