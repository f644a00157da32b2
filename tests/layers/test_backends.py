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


# One test of each layer and mechanism. `--few-cases` chooses the last case of each, since to
# compile the same operations in other shapes takes minutes on JAX.
LAYERS = """
ops/test_masks
ops/test_sparse_attention::test_sparse_attention_equals_numpy_under_the_mask_of_its_name
layers/test_attention::test_self_attention_equals_numpy
layers/test_attention::test_cross_attention_equals_numpy_with_another_width_of_source_and_head
layers/test_attention::test_both_masks_given_allow_what_both_allow
layers/test_attention::test_the_mask_goes_on_to_the_next_layer
layers/test_additive_attention::test_it_passes_every_check
layers/test_sliced_attention::test_it_passes_every_check
layers/test_sparse_attention::test_gradients_are_those_of_the_dense_layer_with_the_same_mask
layers/test_relative_attention::test_both_masks_given_allow_what_both_and_causality_allow
layers/test_relative_attention::test_a_single_beam_needs_no_mask
layers/test_rotary_embedding::test_layer_passes_every_check
layers/test_layer_check
layers/test_pooling::test_the_mask_of_an_embedding_is_used_and_not_handed_on
layers/test_blocks::test_encoder_and_its_scores_equal_numpy
layers/test_blocks::test_decoder_and_its_scores_equal_numpy
layers/test_blocks::test_cached_steps_equal_one_pass_with_embedded_and_positioned_tokens
layers/test_transformer_xl::test_outputs_memories_and_scores_equal_numpy
training/test_subclasses
""".split()
# What is JAX's own, and models; of training, all that is not TensorFlow's own step.
ON_JAX = """
ops/test_fused_attention
layers/test_blocks::test_training_with_rematerialisation_is_training_without
layers/test_segment_recurrence::test_fit_carries_the_memory_on_every_backend
models/test_translation::test_cached_steps_of_a_reloaded_model_equal_one_pass
models/test_todays_blocks::test_steps_equal_one_pass
training/test_losses training/test_projected_loss_on_jax training/test_loss_scale_on_jax
training/test_metrics training/test_schedules training/test_optimizers training/test_consistency
training/test_model
""".split()
FURTHER = {
    "attention": """layers/test_attention layers/test_additive_attention layers/test_arguments
        layers/test_sliced_attention layers/test_relative_attention""",
    "stacks": "ops layers/test_sparse_attention layers/test_transformer_xl models/test_classifier",
}
FAILS_ON_TORCH = (
    "test_an_encoder_with_a_pattern",  # these two give NumPy arrays where tensors are needed,
    "test_arguments_that_do_not_fit",  # and expect the shape as TensorFlow prints it
)
BACKENDS = ["jax", pytest.param("torch", marks=pytest.mark.oracle)]


def needs(backend):
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"could not import {backend!r}")


def passes_on(backend, names):
    """Runs one case of each test, slow ones too, but none that starts another process."""
    needs(backend)
    if keras.backend.backend() == backend:
        pytest.skip("this is the process they run in")
    arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "filterwarnings=default"]
    arguments += ["-n0", "--few-cases", "-m", "not other_backend and (slow or not slow)"]
    # Half precision is rounded by the same code.
    left_out = ["bfloat16", *(FAILS_ON_TORCH if backend == "torch" else ())]
    arguments += ["-k", f"not ({' or '.join(left_out)})"]
    for name in names:
        file, *test = name.split("::")
        path = f"tests/{file}" if file == "ops" else f"tests/{file}.py"
        arguments.append("::".join([path, *test]))
    run = python(*arguments, backend=backend)
    assert run.returncode == 0, f"on {backend}:\n{run.stdout[-6000:]}\n{run.stderr[-2000:]}"


@pytest.mark.parametrize("backend", BACKENDS)
def test_layers_pass_their_tests_on_another_backend(backend):
    passes_on(backend, LAYERS + (ON_JAX if backend == "jax" else []))


@pytest.mark.soak
@pytest.mark.parametrize("part", FURTHER)
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_layers_pass_further_tests_on_another_backend(backend, part):
    passes_on(backend, FURTHER[part].split())


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


def test_importing_the_package_imports_no_tensorflow():
    needs("jax")
    code = "import sys, keras_transformer; print('tensorflow' in sys.modules)"
    run = python("-c", code, backend="jax")
    assert run.stdout.strip() == "False", f"imported or failed:\n{run.stdout}{run.stderr}"


# Last, because it is an error.
COMPILE_WHAT_PYTORCH_CANNOT_TRAIN = """
inputs = keras.Input((3,))
config = {"optimizer": "sgd", "loss": "mse", "clip_norm": 1.0, "accumulation_steps": 1}
kt.Model(inputs, keras.layers.Dense(1)(inputs)).compile_from_config(config)
"""


def test_layers_and_models_work_where_tensorflow_is_not_installed():
    needs("jax")
    run = python("-c", HIDE_TENSORFLOW + USE_LAYERS_AND_FIT_A_MODEL, backend="jax")
    assert run.stdout.strip() == "learnt with jax", run.stderr[-3000:]


@pytest.mark.oracle
def test_they_work_with_pytorch_alone_which_says_what_it_cannot_train():
    needs("torch")
    code = USE_LAYERS_AND_FIT_A_MODEL + COMPILE_WHAT_PYTORCH_CANNOT_TRAIN
    run = python("-c", HIDE_TENSORFLOW + code, backend="torch")
    assert run.stdout.strip() == "learnt with torch", run.stderr[-3000:]
    assert "on TensorFlow or JAX. Load it there, or with compile=False" in run.stderr
    assert "Received: {'clip_norm': 1.0" in run.stderr


def test_what_hides_tensorflow_hides_it():
    run = python("-c", HIDE_TENSORFLOW + "import keras", backend="tensorflow")
    assert "No module named 'tensorflow'" in run.stderr


LOAD_AND_SAVE = """
import glob, sys
import keras, numpy as np
import keras_transformer as kt

[folder] = sys.argv[1:]
ids = np.array([[7, 3, 0, 0], [2, 9, 4, 5]])
labels = np.array([2, 0])
SIZES = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 3}

for path in sorted(glob.glob(folder + "/*.keras")):
    model = keras.saving.load_model(path)
    expected = np.load(path.replace(".keras", ".npy"))
    np.testing.assert_allclose(model.predict(ids, verbose=0), expected, atol=1e-5)
    if "own" in path:
        assert int(model.optimizer.iterations) == 2
        state = [np.abs(keras.ops.convert_to_numpy(v)).max() for v in model.optimizer.variables]
        assert len(state) > 6 and sum(map(bool, state)) > 6, path
        print(model.train_on_batch(ids, labels)[0], path)

inputs = keras.Input((4,), dtype="int32")
vectors = kt.EncoderBlock(num_heads=2, intermediate_dim=7)(kt.TokenEmbedding(11, 6)(inputs))
own = kt.Model(inputs, keras.layers.Dense(3)(kt.SequencePooling()(vectors)))
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
own.compile(kt.Adam(0.01), loss, metrics=["accuracy"])
own.fit(ids, labels, epochs=2, verbose=0)
for name, model in {"own": own, "ready": kt.classifier(11, 3, **SIZES)}.items():
    path = f"{folder}/{keras.backend.backend()} {name}"
    model.save(path + ".keras")
    np.save(path + ".npy", model.predict(ids, verbose=0))
"""


@pytest.mark.parametrize(
    "backends",
    [
        pytest.param(("tensorflow", "torch", "jax"), marks=pytest.mark.oracle),
        pytest.param(("jax", "torch", "tensorflow"), marks=pytest.mark.soak),
    ],
    ids=" ".join,
)
def test_files_of_each_backend_are_loaded_on_others(backends, tmp_path):
    """Each loads the files of those before it: a model that trains on, and one to predict with."""
    losses = {}
    for count, backend in enumerate(backends):
        run = python("-c", LOAD_AND_SAVE, str(tmp_path), backend=backend)
        assert run.returncode == 0, f"{backend}: {run.stderr[-3000:]}"
        lines = [line.split() for line in run.stdout.splitlines() if ".keras" in line]
        assert len(lines) == count
        for loss, *path in lines:
            losses.setdefault(" ".join(path), []).append(float(loss))
    [several] = [values for values in losses.values() if len(values) > 1]
    assert several[1] == pytest.approx(several[0], abs=1e-5), "on both that load it"
