import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.training import (
    Model,
    Perplexity,
    TokenAccuracy,
    TokenCrossentropy,
)

from .conftest import (
    IDS,
    LABELS,
    assert_weights_equal,
    language_model,
    logits_by_hand,
    loss_by_hand,
    needs_tensorflow,
    norm,
    weights_of,
)

pytestmark = needs_tensorflow
RATE = 0.5


def compiled(model=None, smoothing=0.0, **settings):
    model = model or language_model()
    model.compile(keras.optimizers.SGD(RATE), TokenCrossentropy(smoothing), **settings)
    return model


def descend(weights, gradients, scale=1.0):
    return [w - RATE * scale * g for w, g in zip(weights, gradients, strict=True)]


def loss_of(logs):
    return float(logs["loss"])


@pytest.fixture(params=["projected", "logits"])
def path(request, monkeypatch):
    """Both ways to the loss: through the fused projection and through whole logits."""
    if request.param == "logits":
        module = "keras_transformer.training.compile"
        monkeypatch.setattr(f"{module}.find_projection", lambda model, loss: None)
    return request.param


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_one_step_is_the_one_computed_by_hand(path, tied, smoothing):
    model = compiled(language_model(tied), smoothing)
    assert (model._step.projected_loss is not None) == (path == "projected"), "the path meant"
    weights = weights_of(model)
    loss, gradients = loss_by_hand(weights, IDS, LABELS, smoothing)
    logs = model.train_step((IDS, LABELS))
    assert loss_of(logs) == pytest.approx(loss, abs=1e-6), "mean over all real tokens"
    assert_weights_equal(model, descend(weights, gradients))
    assert norm(gradients) > 0.1, "the step moved the weights"


def test_fit_takes_the_same_steps_as_by_hand():
    model = compiled()
    weights, losses = weights_of(model), []
    for _ in range(3):
        loss, gradients = loss_by_hand(weights, IDS, LABELS)
        losses.append(loss)
        weights = descend(weights, gradients)
    history = model.fit(IDS, LABELS, batch_size=5, epochs=3, shuffle=False, verbose=0).history
    np.testing.assert_allclose(history["loss"], losses, atol=1e-6)
    assert_weights_equal(model, weights)


def test_a_gradient_longer_than_clip_norm_is_shortened_to_it(path):
    model = compiled(clip_norm=0.125)
    weights = weights_of(model)
    _, gradients = loss_by_hand(weights, IDS, LABELS)
    assert norm(gradients) > 0.25, "the limit binds"
    model.train_step((IDS, LABELS))
    assert_weights_equal(model, descend(weights, gradients, 0.125 / norm(gradients)))


def test_a_gradient_shorter_than_clip_norm_is_left_alone():
    model = compiled(clip_norm=100.0)
    weights = weights_of(model)
    model.train_step((IDS, LABELS))
    assert_weights_equal(model, descend(weights, loss_by_hand(weights, IDS, LABELS)[1]))


@pytest.mark.parametrize("parts", [2, 3, 7])
def test_accumulated_parts_with_different_tokens_equal_the_whole_batch(path, parts):
    """Parts of 6, 9 or, with more parts than rows, sometimes no tokens at all."""
    model = compiled(smoothing=0.1, accumulation_steps=parts, clip_norm=0.125)
    weights = weights_of(model)
    loss, gradients = loss_by_hand(weights, IDS, LABELS, 0.1)
    logs = model.train_step((IDS, LABELS))
    assert loss_of(logs) == pytest.approx(loss, abs=1e-6), "loss of the whole batch"
    assert_weights_equal(model, descend(weights, gradients, 0.125 / norm(gradients)))
    assert int(model.optimizer.iterations) == 1, "one batch is one optimizer step"


@pytest.mark.parametrize("wrap", [lambda step: step, tf.function], ids=["eager", "a function"])
def test_moving_average_follows_its_recursion_and_swaps_in_and_out(wrap):
    model = compiled(ema_momentum=0.75)
    model.set_weights([weight + 0.25 for weight in model.get_weights()])  # after compile
    step, averages = wrap(model.train_step), weights_of(model)
    for _ in range(3):
        step((IDS, LABELS))
        averages = [0.75 * a + 0.25 * w for a, w in zip(averages, weights_of(model), strict=True)]
    weights = weights_of(model)
    assert norm([a - w for a, w in zip(averages, weights, strict=True)]) > 1e-2, "they differ"
    model.swap_averaged_weights()
    assert_weights_equal(model, averages, what="after one swap the weights are the average")
    model.swap_averaged_weights()
    assert_weights_equal(model, weights, atol=0, what="two swaps change nothing")


def test_swapping_without_an_average_is_refused():
    with pytest.raises(ValueError, match=r"Compile with e.g. ema_momentum=0.999"):
        compiled().swap_averaged_weights()


@pytest.mark.parametrize("rows", [5, 0], ids=["all padding", "no rows"])
def test_a_batch_without_tokens_changes_nothing(path, rows):
    model = compiled(smoothing=0.1, clip_norm=1.0, metrics=[TokenAccuracy(), Perplexity()])
    weights = weights_of(model)
    nothing = np.zeros((rows, 5), dtype="int32")
    logs = model.train_step((nothing, nothing))
    assert loss_of(logs) == 0.0, "no tokens, no loss"
    assert_weights_equal(model, weights, atol=0, what="no tokens, no change, no NaN")
    assert loss_of(model.test_step((nothing, nothing))) == 0.0, "nor in evaluation"


def test_logged_values_count_every_token_once_over_batches_of_different_size(path):
    model = compiled(smoothing=0.1, metrics=[TokenAccuracy(), Perplexity()])
    model.optimizer.learning_rate = 0.0
    weights = weights_of(model)
    real = LABELS != 0
    logits = logits_by_hand(weights, IDS)[2]
    expected = {
        "loss": loss_by_hand(weights, IDS, LABELS, 0.1)[0],
        "perplexity": np.exp(loss_by_hand(weights, IDS, LABELS)[0]),
        "token_accuracy": ((logits.argmax(-1) == LABELS) & real).sum() / real.sum(),
    }
    history = model.fit(IDS, LABELS, batch_size=2, shuffle=False, verbose=0).history
    trained = {name: values[0] for name, values in history.items()}
    evaluated = model.evaluate(IDS, LABELS, batch_size=3, verbose=0, return_dict=True)
    assert trained == pytest.approx(expected, abs=1e-5), "epoch values while training"
    assert evaluated == pytest.approx(expected, abs=1e-5), "values of evaluate"


@pytest.mark.parametrize("shape", ["row", "token"])
def test_sample_weights_weigh_rows_or_tokens(shape):
    model = compiled(smoothing=0.1)
    weights = weights_of(model)
    token_weights = np.array([[2.0], [0.0], [1.0], [3.0], [0.5]]) * np.ones((5, 5))
    if shape == "token":
        token_weights[:, 1] = 7.0
    loss, gradients = loss_by_hand(weights, IDS, LABELS, 0.1, token_weights)
    given = (token_weights if shape == "token" else token_weights[:, 0]).astype("float32")
    logs = model.train_step((IDS, LABELS, given))
    assert loss_of(logs) == pytest.approx(loss, abs=1e-6), "weighted mean"
    assert_weights_equal(model, descend(weights, gradients))


def test_steps_executed_together_equal_steps_one_by_one():
    together, alone = compiled(steps_per_execution=2), compiled()
    for model in (together, alone):
        model.fit(IDS, LABELS, batch_size=2, epochs=2, shuffle=False, verbose=0)
    assert_weights_equal(together, weights_of(alone))


def test_xla_gives_the_same_step():
    compiled_by_xla, plain = compiled(jit_compile=True), compiled()
    for model in (compiled_by_xla, plain):
        model.fit(IDS, LABELS, batch_size=5, verbose=0)
    assert_weights_equal(compiled_by_xla, weights_of(plain))


def test_a_frozen_table_stays_and_the_rest_learns(path):
    model = language_model()
    model.layers[1].trainable = False
    table = model.layers[1].embeddings.numpy().copy()
    weights = weights_of(model)
    compiled(model).fit(IDS, LABELS, verbose=0)
    np.testing.assert_array_equal(model.layers[1].embeddings.numpy(), table, "frozen")
    moved = [new - old for new, old in zip(weights_of(model), weights, strict=True)]
    assert len(moved) == 2 and norm(moved) > 1e-2, "the dense layer was trained"


def test_bfloat16_takes_nearly_the_same_step(path):
    half, single = language_model(dtype="mixed_bfloat16"), language_model()
    losses = [loss_of(compiled(m, 0.1).train_step((IDS, LABELS))) for m in (half, single)]
    assert losses[0] == pytest.approx(losses[1], abs=0.02), "the loss itself is float32"
    assert_weights_equal(half, weights_of(single), atol=0.02)


def test_a_loss_that_is_a_scalar_is_refused():
    inputs = keras.Input((3,))
    model = Model(inputs, keras.layers.Dense(2)(inputs))

    def mean_error(y_true, y_pred):
        return keras.ops.mean(keras.ops.abs(y_true - y_pred))

    model.compile("sgd", mean_error)
    with pytest.raises(ValueError, match=r"not a scalar.* Received: a scalar from mean_error"):
        model.fit(np.ones((5, 3)), np.ones((5, 2)), verbose=0)


@pytest.mark.parametrize(
    ("optimizer", "ours"),
    [
        ({"clipnorm": 1.0}, "Set clip_norm in compile.*Received: clipnorm=1.0"),
        ({"global_clipnorm": 1.0}, "Set clip_norm in compile.*Received: global_clipnorm=1.0"),
        ({"clipvalue": 1.0}, "Set clip_norm in compile.*Received: clipvalue=1.0"),
        ({"gradient_accumulation_steps": 2}, "Set accumulation_steps in compile"),
        ({"use_ema": True}, "Set ema_momentum in compile.*Received: use_ema=True"),
    ],
)
def test_settings_on_the_optimizer_are_refused(optimizer, ours):
    with pytest.raises(ValueError, match=ours):
        language_model().compile(keras.optimizers.SGD(0.1, **optimizer), TokenCrossentropy())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip_norm": 0.0}, "clip_norm must be a finite number above 0. Received: clip_norm=0.0"),
        ({"accumulation_steps": 0}, "at least 1. Received: accumulation_steps=0"),
        ({"ema_momentum": 1.0}, r"above 0 and below 1\. Received: ema_momentum=1.0"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        compiled(**settings)


def test_class_weights_of_tokens_are_refused():
    with pytest.raises(ValueError, match=r"class_weight"):
        compiled().fit(IDS, LABELS, class_weight={3: 2.0}, verbose=0)


def test_a_model_whose_weights_are_bfloat16_is_evaluated():
    model = compiled(language_model(dtype="bfloat16"))
    loss = model.evaluate(IDS, LABELS, verbose=0)
    expected = float(TokenCrossentropy()(LABELS, model.predict(IDS, verbose=0)))
    assert loss == pytest.approx(expected, rel=1e-2)
