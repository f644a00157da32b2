"""What every docstring example may use, and TensorFlow set up as the commands do it."""

import train  # noqa: F401  # isort: skip  # sets TensorFlow's variables before it is imported

import os

import keras
import pytest

# Tests compile thousands of small programs and run each a few times: what XLA does to make the code
# of a CPU fast would take two thirds of their time. Processes that tests start inherit it.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
)


@pytest.fixture(autouse=True)
def names_in_examples(doctest_namespace):
    doctest_namespace["keras"] = keras
