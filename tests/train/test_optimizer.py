"""`--optimizer muon`: which weights it moves, how far, and that a run can go on with it."""

import inspect

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.training.checkpoints import Checkpoints
from train.experiment import check_model_settings, optimizer_of
from train.translation import TranslationConfig

HAS_MUON = "rms_rate" in inspect.signature(keras.optimizers.Muon).parameters
pytestmark = [
    pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="fits on it"),
    pytest.mark.skipif(not HAS_MUON, reason="needs Keras 3.13"),
]
SIZES = {"num_layers": 2, "hidden_dim": 8, "intermediate_dim": 12, "num_heads": 2}
RATE = 0.0625
MODELS = {
    "translation": lambda: kt.translation(30, **SIZES),
    "two tables": lambda: kt.translation(30, target_vocabulary_size=20, **SIZES),
    "today's blocks": lambda: kt.translation(30, blocks="llama", **SIZES),
    "language model": lambda: kt.language_model(30, 16, tie_output=False, **SIZES),
    "Transformer-XL": lambda: kt.transformer_xl(30, 4, **SIZES),
    "classifier": lambda: kt.classifier(30, 3, **SIZES),
    "biases by distance": lambda: kt.translation(
        30, position_bias={"type": "t5", "num_buckets": 4, "max_distance": 5}, **SIZES
    ),
    "BERT": lambda: kt.bert_pretraining(kt.bert(30, max_sequence_length=16, **SIZES)),
    "LoRA": lambda: kt.add_lora(kt.translation(30, **SIZES), rank=2),
}


def muon(**settings):
    settings = {"schedule": "cosine", "warmup_steps": 0, "peak_rate": RATE, **settings}
    return optimizer_of(TranslationConfig(optimizer="muon", **settings))


def fitted(model, steps, optimizer):
    """Trains a translation model on drawn ids, the same in each call."""
    draw = np.random.default_rng(1)
    model.compile(optimizer, kt.TokenCrossentropy(0.1), clip_norm=1.0, run_eagerly=True)
    for _ in range(steps):
        source, target, labels = draw.integers(4, 30, (3, 6, 7))
        model.train_on_batch({"source_ids": source, "target_ids": target}, labels)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_muon_moves_the_kernels_of_blocks_and_adam_all_else(name):
    weights = MODELS[name]().trainable_weights
    optimizer = muon()
    optimizer.build(weights)
    chosen = [w.path for w, v in zip(weights, optimizer.adam_velocities, strict=True) if v is None]
    assert chosen == [
        w.path for w in weights if "block_" in w.path and w.path.endswith(("_kernel", "down", "up"))
    ]
    assert len(chosen) >= 4


def test_a_step_of_a_kernel_is_a_rotation_of_the_size_of_adams():
    keras.utils.set_random_seed(1)
    model = kt.translation(30, dropout=0.0, **SIZES)
    before = {w.path: w.numpy() for w in model.trainable_weights}
    fitted(model, 1, muon())
    for weight in model.trainable_weights:
        step = before[weight.path] - weight.numpy()
        if weight.path.endswith("kernel"):
            # 0.2 is the usual size of Adam's, by Liu et al. 2025; the iteration is inexact.
            expected = 0.2 * RATE * max(step.shape) ** 0.5
            found = np.linalg.svd(step, compute_uv=False)
            assert np.median(found) == pytest.approx(expected, rel=0.35), weight.path
            assert found.max() < 1.3 * expected
        elif np.abs(step).max():  # Adam's first step; keys have no gradient by their bias
            assert np.abs(step).max() == pytest.approx(RATE, rel=0.01), weight.path


@pytest.mark.parametrize("name", MODELS)
def test_weight_decay_spares_what_adams_spares_and_all_vectors(name):
    model = MODELS[name]()

    def decayed(optimizer, asked):
        optimizer.build(model.trainable_weights)
        weights = model.trainable_weights
        return [w.path for w in weights if optimizer._use_weight_decay(asked(w))]

    ours = decayed(muon(weight_decay=0.5), lambda weight: weight)
    # In a step Adam asks for TensorFlow's variables, whose names are longer.
    for asked in (lambda weight: weight, lambda weight: weight.value):
        assert decayed(optimizer_of(TranslationConfig(weight_decay=0.5)), asked) == ours != []
    vectors = {w.path for w in model.trainable_weights if len(w.shape) < 2}
    assert not vectors & set(ours), "biases, and scales of normalisations"
    assert muon().weight_decay is muon().adam_weight_decay is None


@pytest.mark.slow
def test_a_run_goes_on_with_the_same_numbers(tmp_path):
    keras.utils.set_random_seed(1)
    whole = fitted(kt.translation(30, **SIZES), 2, muon())
    checkpoints = Checkpoints(tmp_path, whole)
    checkpoints.save()
    other = kt.translation(30, **SIZES)
    other.compile(muon(), kt.TokenCrossentropy(0.1), clip_norm=1.0, run_eagerly=True)
    Checkpoints(tmp_path, other).restore()
    ids = np.random.default_rng(2).integers(4, 30, (3, 6, 7))
    for model in (whole, other):
        model.train_on_batch({"source_ids": ids[0], "target_ids": ids[1]}, ids[2])
    for one, two in zip(whole.weights, other.weights, strict=True):
        np.testing.assert_array_equal(one, two)


def test_an_older_keras_is_refused(monkeypatch):
    class OlderMuon(keras.optimizers.Optimizer):
        """Like that of Keras 3.12."""

        def __init__(self, learning_rate=0.001, ns_steps=6):
            super().__init__(learning_rate)

    config = TranslationConfig(optimizer="muon")
    check_model_settings(config, {"base": SIZES})
    monkeypatch.setattr(keras.optimizers, "Muon", OlderMuon)
    with pytest.raises(ValueError, match=r"needs Keras 3\.13 or newer.*Received: Keras 3"):
        check_model_settings(config, {"base": SIZES})
    check_model_settings(TranslationConfig(), {"base": SIZES})
