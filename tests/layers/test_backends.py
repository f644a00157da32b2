"""`ops/`, `layers/`, `models/` and losses run on every backend: runs their tests on the others."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import keras
import pytest

REPOSITORY = pathlib.Path(__file__).parents[2]
pytestmark = [pytest.mark.other_backend, pytest.mark.slow]


def python(*arguments, backend):
    environment = {
        **os.environ,
        "KERAS_BACKEND": backend,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(REPOSITORY),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


FAILS_ON_TORCH = (
    "rematerialisation",  # keras.remat draws from the random states a second time there
    "test_fit_carries_the_memory",  # the memory is assigned in place, before the backward pass
    "test_an_encoder_with_a_pattern",  # these two give NumPy arrays where tensors are needed,
    "test_arguments_that_do_not_fit",  # and expect the shape as TensorFlow prints it
)


# What says the most about a backend; of training, all that is not TensorFlow's own step.
SELECTION = "every_check or cache or steps_equal or mask or numpy or fused or remat or training"
# Of JAX's own these compile most, and share what the others test.
LONGEST_ON_JAX = ("todays_blocks", "sparse_attention", "segment_recurrence", "transformer_xl",
                  "freezing")  # fmt: skip
TRAINING = ("test_losses", "test_projected_loss_on_jax", "test_loss_scale_on_jax", "test_metrics",
            "test_schedules", "test_optimizers", "test_consistency", "test_model")  # fmt: skip
BACKENDS = ["jax", pytest.param("torch", marks=pytest.mark.oracle)]


def needs(backend):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"could not import {backend!r}")


@pytest.mark.timeout(2400)
@pytest.mark.parametrize(
    ("backend", "selection"),
    [
        ("jax", SELECTION),
        pytest.param("torch", SELECTION, marks=pytest.mark.oracle),
        pytest.param("jax", "", marks=pytest.mark.soak),
        pytest.param("torch", "", marks=pytest.mark.soak),
    ],
)
def test_layers_pass_their_tests_on_another_backend(backend, selection):
    needs(backend)
    if keras.backend.backend() == backend:
        pytest.skip("this is the process they run in")
    arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "filterwarnings=default"]
    # The oracles of other libraries agree with NumPy's; once is enough.
    arguments += ["tests/ops", "tests/layers", "--ignore-glob=*/test_against_*.py"]
    if backend == "jax":
        arguments += ["tests/models", *(f"tests/training/{name}.py" for name in TRAINING)]
    # Slow tests, too, but none that starts another process.
    arguments += ["-m", "not other_backend and (slow or not slow)"]
    # Half precision is rounded by the same code, and most cases of a test compile the same
    # operations in other shapes: to do so once more takes minutes.
    left_out = ["bfloat16"] if selection else []
    left_out += [] if backend == "jax" else FAILS_ON_TORCH
    names = [f"({selection})"] if selection else []
    names += [f"not ({' or '.join(left_out)})"] if left_out else []
    arguments += ["-k", " and ".join(names)]
    if selection:
        arguments += ["-n0", "--few-cases"]
        arguments += [f"--ignore-glob=*/test_{name}.py" for name in LONGEST_ON_JAX]
    run = python(*arguments, backend=backend)
    assert run.returncode == 0, f"on {backend}:\n{run.stdout[-6000:]}\n{run.stderr[-2000:]}"


# As if TensorFlow were not installed, whatever else is.
HIDE_TENSORFLOW = """
import importlib.machinery
import sys

class Others(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.split(".")[0] in ("tensorflow", "tensorflow_text"):
            return None
        return super().find_spec(name, path, target)

files = sys.meta_path.index(importlib.machinery.PathFinder)
sys.meta_path[files] = Others
"""
USE_LAYERS_AND_FIT_A_MODEL = """
import keras
import keras_transformer as kt

keras.utils.set_random_seed(1)
inputs = keras.ops.ones((3, 5, 4))
assert tuple(kt.EncoderBlock(num_heads=2, intermediate_dim=7)(inputs).shape) == (3, 5, 4)
sizes = {"num_layers": 1, "hidden_dim": 4, "num_heads": 2, "intermediate_dim": 5, "dropout": 0.0}
model = kt.classifier(11, 2, **sizes)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(kt.Adam(0.01), loss)
ids, labels = keras.ops.ones((3, 5), "int32"), keras.ops.zeros((3,), "int32")
history = model.fit(ids, labels, epochs=3, verbose=0).history["loss"]
assert history[-1] < history[0], history
kt.figures
print("learnt with", keras.backend.backend())
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_importing_the_package_imports_no_tensorflow(backend):
    needs(backend)
    code = "import sys, keras_transformer; print('tensorflow' in sys.modules)"
    run = python("-c", code, backend=backend)
    assert run.stdout.strip() == "False", f"imported or failed:\n{run.stdout}{run.stderr}"


@pytest.mark.parametrize("backend", BACKENDS)
def test_layers_and_models_work_where_tensorflow_is_not_installed(backend):
    needs(backend)
    run = python("-c", HIDE_TENSORFLOW + USE_LAYERS_AND_FIT_A_MODEL, backend=backend)
    assert run.stdout.strip() == f"learnt with {backend}", run.stderr[-3000:]


def test_what_hides_tensorflow_hides_it():
    run = python("-c", HIDE_TENSORFLOW + "import keras", backend="tensorflow")
    assert "No module named 'tensorflow'" in run.stderr


SAVE_OR_LOAD = """
import sys
import keras, numpy as np
import keras_transformer as kt

folder, does = sys.argv[1:]
ids = np.array([[7, 3, 0, 0], [2, 9, 4, 5]])
labels = np.array([2, 0])
SIZES = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 3}
INPUTS = keras.Input((4,), dtype="int32")

def models():
    vectors = kt.EncoderBlock(num_heads=2, intermediate_dim=7)(kt.TokenEmbedding(11, 6)(INPUTS))
    own = kt.Model(INPUTS, keras.layers.Dense(3)(kt.SequencePooling()(vectors)))
    return {"own": own, "ready": kt.classifier(11, 3, **SIZES)}

if does == "save":
    for name, model in [*models().items(), *((f"plain {n}", m) for n, m in models().items())]:
        if "plain" not in name:
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(kt.Adam(0.01), loss, metrics=["accuracy"])
            model.fit(ids, labels, epochs=2, verbose=0)
        path = f"{folder}/{keras.backend.backend()} {name}"
        model.save(path + ".keras")
        np.save(path + ".npy", model.predict(ids, verbose=0))
else:
    import glob
    for path in sorted(glob.glob(folder + "/*.keras")):
        model = keras.saving.load_model(path)
        expected = np.load(path.replace(".keras", ".npy"))
        np.testing.assert_allclose(model.predict(ids, verbose=0), expected, atol=1e-5)
        if "plain" not in path:
            assert int(model.optimizer.iterations) == 2
            state = [np.abs(keras.ops.convert_to_numpy(v)).max() for v in model.optimizer.variables]
            assert len(state) > 6 and sum(map(bool, state)) > 6, path
            print(model.train_on_batch(ids, labels)[0], path)
"""


ON_TWO = pytest.param(("tensorflow", "torch"), ("torch", "jax"), marks=pytest.mark.oracle)
ON_ALL = pytest.param(*[("tensorflow", "jax", "torch")] * 2, marks=pytest.mark.soak)


@pytest.mark.parametrize(("save", "load"), [ON_TWO, ON_ALL])
def test_files_of_each_backend_are_loaded_on_others(save, load, tmp_path):
    for backend in save:
        run = python("-c", SAVE_OR_LOAD, str(tmp_path), "save", backend=backend)
        assert run.returncode == 0, run.stderr[-3000:]
    losses = []
    for backend in load:
        run = python("-c", SAVE_OR_LOAD, str(tmp_path), "load", backend=backend)
        assert run.returncode == 0, f"{backend}: {run.stderr[-3000:]}"
        losses.append([float(line.split()[0]) for line in run.stdout.splitlines() if "." in line])
        assert len(losses[-1]) == 2 * len(save)
    for row in losses[1:]:
        assert row[::2] == pytest.approx(losses[0][::2], abs=1e-5), "of those without dropout"


REFUSES = """
import keras, keras_transformer as kt
inputs = keras.Input((3,))
config = {"optimizer": "sgd", "loss": "mse", "clip_norm": 1.0, "accumulation_steps": 1}
kt.Model(inputs, keras.layers.Dense(1)(inputs)).compile_from_config(config)
"""


@pytest.mark.oracle
def test_what_pytorch_cannot_train_is_said():
    run = python("-c", REFUSES, backend="torch")
    assert "on TensorFlow or JAX. Load it there, or with compile=False" in run.stderr
    assert "Received: {'clip_norm': 1.0" in run.stderr
