"""Training in float16: what is scaled, what a step that overflows leaves, what is kept."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.training import Adam, Model, TokenCrossentropy
from keras_transformer.training.callbacks import StopOnNonFiniteLoss
from keras_transformer.training.optimizers import batches_taken

from .conftest import (
    IDS,
    LABELS,
    assert_weights_equal,
    compiled,
    language_model,
    needs_tensorflow,
    weights_of,
)

pytestmark = needs_tensorflow


def in_float16(**settings):
    model = language_model(dtype="mixed_float16")
    return compiled(model, Adam(0.1, weight_decay=0.01), **settings)


def state(model):
    """All that a step may change but the scale, as arrays."""
    averages = [] if model._step.average is None else model._step.average.values
    return [np.array(v) for v in (*model.weights, *model.optimizer.variables, *averages)]


def scale(model):
    value, _, skipped = model._step.loss_scale.variables
    return float(value), int(skipped)


def set_scale(model, value):
    model._step.loss_scale.variables[0].assign(value)


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_float16_learns_what_float32_learns(jit_compile):
    losses = []
    for dtype in ("float32", "mixed_float16"):
        settings = {"clip_norm": 1.0, "ema_momentum": 0.5, "jit_compile": jit_compile}
        model = compiled(language_model(dtype=dtype), Adam(0.05), **settings)
        fit = model.fit(IDS, LABELS, batch_size=2, epochs=4, shuffle=False, verbose=0)
        losses.append(fit.history["loss"])
    np.testing.assert_allclose(losses[1], losses[0], atol=2e-3)
    assert losses[0][-1] < losses[0][0] - 0.2, "the training lowered the loss"
    assert scale(model) == (2.0**15, 0)


def test_the_scale_alone_changes_no_bit():
    results = []
    for value in (2.0**12, 2.0**16):
        model = in_float16(accumulation_steps=3)
        set_scale(model, value)
        model.fit(IDS, LABELS, epochs=3, verbose=0)
        assert scale(model) == (value, 0)
        results.append(state(model))
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_gradients_too_small_for_float16_are_kept():
    """Weights of 2^-20 for each token, of which half precision would keep one bit in sixteen."""
    moves = []
    weight = np.full(LABELS.shape, 2.0**-20, "float32") * (LABELS != 0)
    for dtype in ("float32", "mixed_float16"):
        model = language_model(dtype=dtype)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(2.0**20), loss)
        before = weights_of(model)
        model.train_on_batch(IDS, LABELS, sample_weight=weight)
        moves.append([a - b for a, b in zip(weights_of(model), before, strict=True)])
    for one, other in zip(*moves, strict=True):
        np.testing.assert_allclose(other, one, atol=0.02 * np.abs(one).max())


def test_a_large_batch_does_not_overflow_at_the_first_scale():
    """Of a sum over 32,768 tokens, the largest scale without overflow would be near 8."""
    model = in_float16()
    model.fit(np.tile(IDS[:4], (2048, 1)), np.tile(LABELS[:4], (2048, 1)), batch_size=8192)
    assert scale(model) == (2.0**15, 0)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_step_that_overflows_changes_nothing_and_halves_the_scale(jit_compile):
    model = in_float16(ema_momentum=0.5, clip_norm=1.0, jit_compile=jit_compile)
    model.fit(IDS, LABELS, verbose=0)
    set_scale(model, 2.0**29)
    before = state(model)
    history = model.fit(IDS, LABELS, verbose=0).history
    assert np.isfinite(history["loss"][0])
    assert scale(model) == (2.0**28, 1)
    for one, other in zip(before, state(model), strict=True):
        np.testing.assert_array_equal(one, other)
    model.fit(IDS, LABELS, epochs=20, verbose=0)
    value, skipped = scale(model)
    assert value == 2.0 ** (29 - skipped) and 1 < skipped < 15, "until gradients fit"
    assert int(model.optimizer.iterations) + skipped == 22, "batches"
    assert not np.array_equal(before[0], state(model)[0])


def test_steps_are_skipped_by_the_gradient_of_the_whole_batch():
    """Each of three parts alone would fit where all of them together do not."""
    skipped = []
    for parts in (1, 3):
        model = in_float16(accumulation_steps=parts)
        set_scale(model, 2.0**29)
        ids, labels = np.repeat(IDS[:1], 6, 0), np.repeat(LABELS[:1], 6, 0)
        model.fit(ids, labels, batch_size=6, epochs=18, verbose=0)
        skipped.append(scale(model))
    assert skipped[0] == skipped[1]
    assert skipped[0][1] > 3


def test_the_scale_doubles_after_many_steps_without_overflow(monkeypatch):
    from keras_transformer.training import optimizers

    monkeypatch.setattr(optimizers, "STEPS_TO_DOUBLE", 3)
    model = in_float16()
    set_scale(model, 4.0)
    seen = []
    note = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: seen.append(scale(model)[0]))
    model.fit(IDS, LABELS, epochs=7, callbacks=[note], verbose=0)
    assert seen == [4, 4, 8, 8, 8, 16, 16]


def test_a_checkpoint_holds_the_scale_and_counts_skipped_batches(tmp_path):
    from keras_transformer.training.checkpoints import Checkpoints

    model = in_float16()
    checkpoints = Checkpoints(tmp_path, model, every=2)
    set_scale(model, 2.0**29)
    model.fit(IDS, LABELS, epochs=2, callbacks=[checkpoints], verbose=0)
    assert scale(model) == (2.0**27, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["step-2.npz"]
    restored = in_float16()
    assert Checkpoints(tmp_path, restored).restore() == 2
    assert scale(restored) == (2.0**27, 2)
    for each in (model, restored):
        each.fit(IDS, LABELS, epochs=16, verbose=0)
    assert scale(restored) == scale(model)
    assert scale(model)[1] < 18, "some steps were not skipped"
    assert_weights_equal(restored, weights_of(model), atol=0)


def test_keras_adds_no_scale_of_its_own_nor_may_you():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = compiled()
        assert isinstance(model.optimizer, Adam) and scale(model) == (2.0**15, 0)
        assert compiled(auto_scale_loss=False)._step.loss_scale is None
    finally:
        keras.config.set_dtype_policy("float32")
    assert compiled()._step.loss_scale is None
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    with pytest.raises(ValueError, match="itself scales the loss of models in float16"):
        compiled(optimizer=scaled)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_without_a_scale_a_label_of_a_low_logit_has_its_loss(jit_compile):
    """Exponentials of logits this far above the label's would overflow in float16."""
    model = in_float16(auto_scale_loss=False, jit_compile=jit_compile)
    [table] = [weight for weight in model.weights if "embeddings" in weight.path]
    table.assign(30 * table)
    loss = model.evaluate(IDS, LABELS, verbose=0)
    expected = float(TokenCrossentropy()(LABELS, model.predict(IDS, verbose=0)))
    assert expected > 11.1 and loss == pytest.approx(expected, rel=1e-2)


def test_weights_in_float16_are_refused():
    inputs = keras.Input((3,))
    model = Model(inputs, keras.layers.Dense(2, dtype="float16")(inputs))
    with pytest.raises(ValueError, match="Use the mixed_float16 policy"):
        model.compile("sgd", "mse")


@pytest.mark.skipif(bool(tf.config.list_physical_devices("GPU")), reason="on GPUs it is fast")
def test_float16_on_a_cpu_is_warned_of(caplog):
    in_float16()
    [record] = caplog.records
    assert "float16 is slow on CPUs" in record.message


def test_a_reloaded_model_scales_again(tmp_path):
    model = in_float16()
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert isinstance(loaded.loss, TokenCrossentropy)
    assert scale(loaded) == (2.0**15, 0)


def test_a_reloaded_model_that_does_not_scale_goes_on_without(tmp_path):
    model = in_float16()
    model.compile("sgd", TokenCrossentropy(), auto_scale_loss=False)
    model.save(tmp_path / "model.keras")
    assert keras.models.load_model(tmp_path / "model.keras")._step.loss_scale is None


@pytest.mark.parametrize(("labels", "factor"), [(4, 2.0**13), (5, 2.0**12), (0, 2.0**15)])
def test_the_factor_of_a_sum_is_a_power_of_two(labels, factor):
    from keras_transformer.training.optimizers import LossScale

    assert float(LossScale().factor(labels)) == factor


def test_the_step_of_a_loss_that_is_not_finite_counts_skipped_batches():
    model = in_float16()
    set_scale(model, 2.0**30)
    model.fit(IDS, LABELS, epochs=3, verbose=0)
    steps, skipped = int(model.optimizer.iterations), scale(model)[1]
    assert skipped > 0 and batches_taken(model) == 3 == steps + skipped
    stop = StopOnNonFiniteLoss()
    stop.set_model(model)
    stop.on_epoch_begin(3)
    with pytest.raises(FloatingPointError, match="at step 4"):
        stop.on_train_batch_end(0, {"loss": float("nan")})
