"""Measures this library on a machine with a GPU and without TensorFlow."""
