"""What every docstring example may use, and TensorFlow set up as the commands do it."""

import train  # noqa: F401  # isort: skip  # sets TensorFlow's variables before it is imported

import keras
import pytest


@pytest.fixture(autouse=True)
def names_in_examples(doctest_namespace):
    doctest_namespace["keras"] = keras
