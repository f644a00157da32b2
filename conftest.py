"""What every docstring example may use, and TensorFlow set up as the commands do it."""

import train  # noqa: F401  # isort: skip  # sets TensorFlow's variables before it is imported

import gc
import importlib.metadata
import os
import tempfile

import keras
import pytest

# Tests compile thousands of small programs and run each a few times: what XLA does to make the code
# of a CPU fast would take two thirds of their time. Processes that tests start inherit it.
FLAGS = "--xla_backend_optimization_level=0"
JAX = [each.version for each in importlib.metadata.distributions(name="jaxlib")][:1]
if not JAX or [int(part) for part in JAX[0].split(".")[:2]] < [0, 11]:
    FLAGS += " --xla_cpu_use_fusion_emitters=false"  # XLA stops at a flag that it does not know
os.environ.setdefault("XLA_FLAGS", FLAGS)


# What one process compiles with JAX, the others of this run load: workers and commands that tests
# start compile mostly the same.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    programs = tempfile.TemporaryDirectory()
    os.environ |= {
        "JAX_COMPILATION_CACHE_DIR": programs.name,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }

# Tracing makes millions of objects that live on, and the usual thresholds have the collector look
# through all of them again and again.
gc.set_threshold(100_000, 20, 10)


@pytest.fixture(autouse=True)
def names_in_examples(doctest_namespace):
    doctest_namespace["keras"] = keras
