"""The files that speak keras.ops pass their tests on JAX as well."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

from .conftest import needs_tensorflow

pytestmark = pytest.mark.slow

HERE = pathlib.Path(__file__).parent
FILES = ["test_losses.py", "test_metrics.py", "test_schedules.py", "test_optimizers.py"]
FILES += ["test_projected_loss_on_jax.py", "test_consistency.py", "test_loss_scale_on_jax.py"]


@needs_tensorflow
@pytest.mark.other_backend
@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs jax")
def test_losses_metrics_schedules_optimizer_and_fit_on_jax():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += [*(str(HERE / name) for name in FILES), str(HERE / "test_model.py")]
    environment = {**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}
    process = subprocess.run(
        command, cwd=HERE.parents[1], env=environment, capture_output=True, text=True, timeout=600
    )
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-1000:]
