"""Variables in the form that checkpoints write and read, on TensorFlow and JAX."""

import keras
import numpy as np
import tensorflow as tf


def stored(variables):
    """The objects that hold the values of variables.

    Args:
        variables: list of Keras or TensorFlow variables.

    Returns:
        List of TensorFlow variables; on JAX, of objects with the methods of these that
        checkpoints use.
    """
    if keras.backend.backend() == "jax":
        return [StoredOnJax(variable) for variable in variables]
    return [v.value if isinstance(v, keras.Variable) else v for v in variables]


def synchronize(model):
    """Writes the values of a model's variables, which on JAX stay in the loop of `fit`."""
    if keras.backend.backend() == "jax":
        model.jax_state_sync()


class StoredOnJax:
    """A Keras variable on JAX, wherever its value currently is, as a TensorFlow variable.

    Args:
        variable: the Keras variable.
    """

    def __init__(self, variable):
        self._variable = variable
        self.name = variable.path
        # JAX counts in 32 bits; checkpoints hold 64 bits, as on TensorFlow.
        is_integer = keras.backend.is_int_dtype(variable.dtype)
        self.dtype = tf.int64 if is_integer else tf.as_dtype(variable.dtype)
        self.shape = tf.TensorShape(variable.shape)

    def numpy(self):
        """Its value, gathered from all devices."""
        return np.asarray(self._variable.value).astype(self.dtype.as_numpy_dtype)

    def assign(self, value):
        """Puts a value on the devices that its layout names."""
        self._variable.assign(value)

    def __array__(self, dtype=None, copy=None):
        return np.array(self.numpy(), dtype=dtype, copy=copy)
