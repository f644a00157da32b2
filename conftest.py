"""What every docstring example may use without importing it."""

import keras
import pytest


@pytest.fixture(autouse=True)
def names_in_examples(doctest_namespace):
    doctest_namespace["keras"] = keras
