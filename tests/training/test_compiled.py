"""The forward and backward pass compiled by XLA, the rest of the step outside of it."""

import re
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.models.encoder_decoder import translation
from keras_transformer.training import TokenAccuracy, TokenCrossentropy

from . import memories
from .conftest import IDS, LABELS, compiled, needs_tensorflow, pair_of_models, rows

pytestmark = needs_tensorflow
INPUTS = {"source_ids": IDS[:, ::-1], "target_ids": IDS}


@pytest.mark.slow
def test_a_compiled_model_trains_to_the_same_numbers_with_dropout():
    logs = []
    for jit_compile in (False, True):
        keras.utils.set_random_seed(3)
        model = translation(11, size="tiny", num_layers=1, dropout=0.25)
        settings = {"metrics": [TokenAccuracy()], "clip_norm": 1.0, "jit_compile": jit_compile}
        model.compile(keras.optimizers.SGD(0.5), TokenCrossentropy(0.1), **settings)
        history = model.fit(INPUTS, LABELS, batch_size=5, epochs=4, shuffle=False, verbose=0)
        logs.append([*history.history["loss"], *history.history["token_accuracy"]])
        logs[-1].append(model.evaluate(INPUTS, LABELS, verbose=0)[0])
    np.testing.assert_allclose(logs[1], logs[0], atol=1e-5)
    assert logs[0][3] < logs[0][0] - 0.1, "the training lowered the loss"


def test_a_memory_is_carried_from_one_compiled_step_to_the_next():
    results = []
    for jit_compile in (False, True):
        model = memories.compiled(tf.distribute.get_strategy(), dropout=0.25)
        sgd = keras.optimizers.SGD(0.5)
        model.compile(sgd, TokenCrossentropy(), jit_compile=jit_compile)
        model.fit(memories.batches(last=3), verbose=0)
        results.append(memories.weights_of(model, "weights") | memories.memories_of(model))
    for name, values in results[0].items():
        np.testing.assert_allclose(results[1][name], values, atol=1e-5, err_msg=name)


def test_metrics_and_losses_of_keras_are_those_of_keras():
    logs = []
    for model in pair_of_models(jit_compile=True):
        assert model.jit_compile
        logs.append(model.fit(*rows(), epochs=2, shuffle=False, verbose=0).history)
    for name, values in logs[1].items():
        np.testing.assert_allclose(logs[0][name], values, atol=1e-6, err_msg=name)


def test_the_forward_and_backward_pass_are_one_compiled_function():
    model = compiled(jit_compile=True)
    compute = model._step.objective.sums_and_gradients
    text = compute.experimental_get_compiler_ir(IDS, LABELS, None)(stage="hlo")
    assert "dot(" in text
    model.fit(IDS, LABELS, verbose=0)
    assert model.jit_compile, "what compile was given"


@pytest.mark.parametrize("weighed", [False, True], ids=["projected", "of logits"])
def test_nothing_is_scattered_over_tokens_and_vocabulary(weighed):
    """On a GPU, such sums vary from run to run."""
    model = translation(13, size="tiny", num_layers=1)
    model.compile("sgd", TokenCrossentropy(0.1), metrics=[TokenAccuracy()], jit_compile=True)
    ids = np.tile(IDS[:3], (1, 2))[:, :7]  # 21 tokens, 13 ids
    inputs, weight = {"source_ids": ids, "target_ids": ids}, np.ones((3, 7), "float32")
    compute = model._step.objective.sums_and_gradients
    compile_ = compute.experimental_get_compiler_ir(inputs, ids, weight if weighed else None)
    scatters = [line for line in compile_("hlo").splitlines() if " scatter(" in line]
    shapes = [re.search(r"f32\[([0-9,]*)\]", line)[1] for line in scatters]
    assert shapes, "the embedding's gradient is scattered over the vocabulary"
    assert all(shape.startswith("13,") for shape in shapes), shapes


def test_by_itself_a_step_is_not_compiled_on_cpus():
    model = compiled()
    assert model.jit_compile is bool(tf.config.list_logical_devices("GPU"))


def test_eager_steps_are_not_compiled_and_keras_says_so():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = compiled(jit_compile=True, run_eagerly=True)
    assert any("`jit_compile` cannot also be True" in str(w.message) for w in caught)
    assert not model.jit_compile
    model.fit(IDS, LABELS, verbose=0)
