"""`ops/`, `layers/`, `models/` run on every Keras backend: their tests once more, on others."""

import ast
import importlib.util
import os
import pathlib
import subprocess
import sys

import keras
import pytest

import keras_transformer

REPOSITORY = pathlib.Path(__file__).parents[2]
# The packages whose files may name nothing but Keras, the standard library and each other.
ROOMS = {"ops": {"ops"}, "layers": {"ops", "layers"}}
pytestmark = pytest.mark.other_backend


def python(*arguments, backend):
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "PYTHONPATH": str(REPOSITORY),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        # Compiling is most of the time under JAX, and nothing here is run twice.
        "XLA_FLAGS": "--xla_backend_optimization_level=0",
    }
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_layers_pass_their_tests_on_another_backend(backend):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"needs {backend}")
    if keras.backend.backend() == backend:
        pytest.skip("this is the process they run in")
    arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not other_backend"]
    # The oracles of other libraries agree with NumPy's; once is enough.
    arguments += ["tests/ops", "tests/layers", "--ignore-glob=*/test_against_*.py"]
    if backend == "jax":
        arguments += ["tests/models"]
    run = python(*arguments, backend=backend)
    assert run.returncode == 0, f"on {backend}:\n{run.stdout[-6000:]}\n{run.stderr[-2000:]}"


def test_the_package_does_not_import_tensorflow_on_another_backend():
    if importlib.util.find_spec("jax") is None:
        pytest.skip("needs jax")
    code = "import sys, keras_transformer; print('tensorflow' in sys.modules)"
    run = python("-c", code, backend="jax")
    assert run.stdout.strip() == "False", f"imported or failed:\n{run.stdout}{run.stderr}"


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_keras_and_the_rooms_below(room):
    package = pathlib.Path(keras_transformer.__file__).parent
    for path in sorted((package / room).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module]
            else:
                continue
            for name in names:
                top, *below = name.split(".")
                allowed = top == "keras" or top in sys.stdlib_module_names
                ours = top == "keras_transformer" and below and below[0] in ROOMS[room]
                assert allowed or ours, f"{path.name} may not import {name}"
