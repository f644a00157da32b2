"""The same models under `keras.distribution` on the JAX backend, and its refusal elsewhere."""

import functools
import importlib.util
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_transformer import TokenCrossentropy
from keras_transformer.training.layouts import layout_map

from . import on_jax
from .conftest import language_model, needs_tensorflow

pytestmark = [
    pytest.mark.slow,
    needs_tensorflow,
    pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="needs jax"),
]
ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("jax")
    environment = {
        **os.environ,
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=4",
    }

    def run(arrangement):
        output = folder / f"{arrangement}.npz"
        command = [sys.executable, "-m", "tests.training.on_jax", arrangement, str(output)]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return dict(np.load(output))

    return functools.cache(run)


@pytest.mark.parametrize("arrangement", [pytest.param("data", marks=pytest.mark.soak), "model"])
def test_several_devices_equal_one(results, arrangement):
    found, one = results(arrangement), results("one")
    assert_equal(found, one, atol=1e-6)
    assert bool(found["cut"].size) == (arrangement == "model") and not one["cut"].size


def test_twenty_steps_are_those_of_tensorflow(results):
    """Clipped, accumulated and averaged; what is logged, too."""
    one = results("one")
    start = [one[name] for name in one if name.startswith("start/")]
    moved = [np.abs(one[f"weight/{i}"] - weight).max() for i, weight in enumerate(start)]
    assert max(moved) > 1e-2, "the training moved the weights"
    assert_equal(on_jax.results(start), one, atol=1e-5)


def assert_equal(ours, theirs, atol):
    assert ours.keys() == theirs.keys()
    for name in ours.keys() - {"cut"}:
        np.testing.assert_allclose(ours[name], theirs[name], atol, atol, err_msg=name)


def test_a_layout_cuts_every_large_weight(results):
    cut = set(results("model")["cut"])
    ends = {path.rsplit("/", 1)[1] for path in cut}
    assert ends == {
        "embeddings", "query_key_value_kernel", "query_key_value_bias", "query_kernel",
        "query_bias", "key_value_kernel", "key_value_bias", "output_kernel", "widen_kernel",
        "widen_bias", "narrow_kernel",
    }  # fmt: skip
    # A table; an encoder block of 6 weights; a decoder block of these and 5 of cross-attention.
    assert len(cut) == 1 + 6 + (6 + 5)


def test_layouts_and_distributions_are_refused_on_tensorflow():
    with pytest.raises(ValueError, match=r"need the JAX backend.*Received: backend 'tensorflow'"):
        layout_map(None)
    mesh = keras.distribution.DeviceMesh((1,), ["batch"], ["cpu:0"])
    keras.distribution.set_distribution(keras.distribution.DataParallel(device_mesh=mesh))
    try:
        with pytest.raises(ValueError, match=r"does nothing on the TensorFlow backend.*DataPara"):
            language_model().compile("sgd", TokenCrossentropy())
    finally:
        keras.distribution.set_distribution(None)
