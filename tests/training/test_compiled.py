"""The forward and backward pass compiled by XLA, the rest of the step outside of it."""

import re
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.models.encoder_decoder import translation
from keras_transformer.training import PretrainingLoss, TokenAccuracy, TokenCrossentropy

from . import memories
from .conftest import IDS, LABELS, compiled, needs_tensorflow, pair_of_models, rows

pytestmark = [needs_tensorflow, pytest.mark.slow]
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
        model = memories.compiled(tf.distribute.get_strategy(), dropout=0.25, dtype="float64")
        sgd = keras.optimizers.SGD(0.5)
        model.compile(sgd, TokenCrossentropy(), jit_compile=jit_compile)
        model.fit(memories.batches(last=3), verbose=0)
        results.append(memories.weights_of(model, "weights") | memories.memories_of(model))
    for name, values in results[0].items():
        np.testing.assert_allclose(results[1][name], values, 1e-6, 1e-6, err_msg=name)


def test_metrics_and_losses_of_keras_are_those_of_keras():
    logs = []
    for model in pair_of_models(jit_compile=True):
        assert model.jit_compile
        logs.append(model.fit(*rows(), epochs=2, shuffle=False, verbose=0).history)
    for name, values in logs[1].items():
        np.testing.assert_allclose(logs[0][name], values, atol=1e-6, err_msg=name)


def test_the_forward_and_backward_pass_are_one_compiled_function():
    model = compiled(jit_compile=True)
    compute = model._step.loss_from(None).sums_and_gradients
    text = compute.experimental_get_compiler_ir(IDS, LABELS, None, None)(stage="hlo")
    assert "dot(" in text
    model.fit(IDS, LABELS, verbose=0)
    assert model.jit_compile, "what compile was given"


def scatter_shapes(model, *data):
    """The shapes of all sums that XLA scatters into, in a compiled step."""
    compute = model._step.loss_from(data[2]).sums_and_gradients
    program = compute.experimental_get_compiler_ir(*data, None)("hlo")
    scatters = [line for line in program.splitlines() if " scatter(" in line]
    return [re.search(r"[a-z]+[0-9]+\[([0-9,]*)\]", line)[1] for line in scatters]


def step_of(kind):
    """A compiled model of 13 ids and what its step is given: 21 tokens."""
    ids = np.tile(IDS[:3], (1, 2))[:, :7]
    small, loss = {"size": "tiny", "num_layers": 1}, TokenCrossentropy(0.1)
    inputs = {"source_ids": ids, "target_ids": ids}
    metrics, weight = [TokenAccuracy()], None
    if kind == "of logits":
        weight = np.ones((3, 7), "float32")
    if kind in ("projected", "of logits"):
        model = translation(13, **small)
    elif kind == "Keras's loss":
        model, inputs, metrics = kt.language_model(13, **{**small, "size": "small"}), ids, []
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    elif kind == "Transformer-XL":
        model = kt.transformer_xl(13, memory_length=5, batch_size=3, num_layers=1, num_heads=2,
                                  hidden_dim=8, intermediate_dim=8)  # fmt: skip
        inputs = ids
    else:
        model = kt.bert_pretraining(kt.bert(13, **small, max_sequence_length=7))
        zeros = np.zeros_like(ids)
        places = np.tile(np.arange(7, dtype="int32"), (3, 1))
        inputs = {"token_ids": ids, "segment_ids": zeros, "masked_positions": places}
        ids = {
            "masked_tokens": ids,
            "masked_weights": np.ones((3, 7), "float32"),
            "next_sentence": np.ones(3, "int32"),
        }
        loss, metrics = PretrainingLoss(), None
    model.compile("sgd", loss, metrics=metrics, jit_compile=True)
    return model, (inputs, ids, weight)


@pytest.mark.parametrize(
    "kind", ["projected", "of logits", "Keras's loss", "Transformer-XL", "BERT"]
)
def test_nothing_is_scattered_over_tokens_and_vocabulary(kind):
    """On a GPU, such sums vary from run to run."""
    model, data = step_of(kind)
    shapes = scatter_shapes(model, *data)
    assert shapes, "the embedding's gradient is scattered over the vocabulary"
    wide = [shape for shape in shapes if shape.endswith(",13")]
    assert not wide, shapes


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
