"""Two views of each batch, against the formula of the paper; tests/layers/ runs it on JAX too."""

import keras
import numpy as np
import pytest

from keras_transformer import transformer_xl, translation
from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.training import Adam, Model, Perplexity, TokenAccuracy, TokenCrossentropy
from keras_transformer.training.consistency import Consistency, symmetric_divergence

from .conftest import (
    DIM,
    IDS,
    LABELS,
    VOCABULARY_SIZE,
    SecondViewTimes,
    assert_weights_equal,
    loss_by_hand,
    needs_tensorflow,
    numpy_of,
    weights_of,
)

RATE, FACTOR = 0.5, 1.75
TINY = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 12, "num_heads": 2}
SPARSE = keras.losses.SparseCategoricalCrossentropy
GENERATOR = np.random.default_rng(3)


def noisy_model(factor=FACTOR, dtype=None):
    """Weights E, W and b; E also projects."""
    keras.utils.set_random_seed(3)
    ids = keras.Input((None,), dtype="int32")
    embedding = TokenEmbedding(VOCABULARY_SIZE, DIM, dtype=dtype)
    hidden = keras.layers.Dense(DIM, "tanh", dtype=dtype)(embedding(ids))
    return Model(ids, embedding(SecondViewTimes(factor)(hidden), reverse=True))


def step_by_hand(weights, weight, smoothing=0.0):
    """The loss of a step, its gradients and the divergence, with both views of `IDS`."""
    table, kernel, bias = weights
    factors, looked_up = (1, FACTOR), table[IDS] * DIM**0.5
    tanh = np.tanh(looked_up @ kernel + bias)
    logits = [factor * tanh @ table.T for factor in factors]
    logs = [z - np.log(np.exp(z).sum(-1, keepdims=True)) for z in logits]
    p, q = map(np.exp, logs)
    real = (LABELS != 0).astype("float64") / (LABELS != 0).sum()
    wanted = (1 - smoothing) * np.eye(VOCABULARY_SIZE)[LABELS] + smoothing / VOCABULARY_SIZE
    crossentropies = [-(wanted * each).sum(-1) for each in logs]
    d = logs[0] - logs[1]
    apart = ((p * d).sum(-1) - (q * d).sum(-1)) / 2  # both KL divergences
    slopes = [
        (p * (d - (p * d).sum(-1, keepdims=True)) + p - q) / 2,
        (-q * (d - (q * d).sum(-1, keepdims=True)) - p + q) / 2,
    ]
    loss = ((sum(crossentropies) + weight * apart) / 2 * real).sum()
    gradients = [np.zeros_like(each) for each in weights]
    for view in range(2):
        slope = (np.exp(logs[view]) - wanted + weight * slopes[view]) / 2 * real[..., None]
        gradients[0] += np.einsum("btv,btd->vd", slope, factors[view] * tanh)
        inner = factors[view] * (slope @ table) * (1 - tanh**2)
        np.add.at(gradients[0], IDS, inner @ kernel.T * DIM**0.5)
        gradients[1] += np.einsum("bti,bto->io", looked_up, inner)
        gradients[2] += inner.sum((0, 1))
    return loss, gradients, (apart * real).sum()


def fit_one_step(model, settings, smoothing=0.0, **views):
    """The loss that `fit` logs; the optimizer is plain gradient descent."""
    model.compile(keras.optimizers.SGD(RATE), TokenCrossentropy(smoothing), **views, **settings)
    return model.fit(IDS, LABELS, batch_size=len(IDS), shuffle=False, verbose=0).history


def descend(weights, gradients):
    return [w - RATE * g for w, g in zip(weights, gradients, strict=True)]


SETTINGS = [{}, {"jit_compile": True}, {"accumulation_steps": 2}, {"loss_weights": 0.25}]
if keras.backend.backend() == "tensorflow":
    SETTINGS.append({"run_eagerly": True})


@pytest.fixture(params=["projected", "logits"])
def path(request, monkeypatch):
    """Both ways to the loss: through the fused projection and through whole logits."""
    if request.param == "logits" and keras.backend.backend() == "tensorflow":
        module = "keras_transformer.training.compile"
        monkeypatch.setattr(f"{module}.find_projection", lambda model, loss: None)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_step_with_r_drop_is_the_papers(path, settings):
    model = noisy_model()
    weights = weights_of(model)
    loss, gradients, apart = step_by_hand(weights, 5.0, smoothing=0.1)
    assert apart > 0.01, "the views differ"
    history = fit_one_step(model, settings, smoothing=0.1, r_drop=5.0)
    times = settings.get("loss_weights", 1)
    assert history["loss"][0] == pytest.approx(times * loss, abs=1e-5)
    assert_weights_equal(model, descend(weights, [times * each for each in gradients]))


def test_views_without_a_difference_make_the_plain_step(path):
    model = noisy_model(factor=1.0)
    weights = weights_of(model)
    loss, gradients = loss_by_hand(weights, IDS, LABELS, 0.1)
    history = fit_one_step(model, {}, smoothing=0.1, r_drop=5.0)
    assert history["loss"][0] == pytest.approx(loss, abs=1e-5)
    assert_weights_equal(model, descend(weights, gradients))


@needs_tensorflow
def test_few_tokens_at_a_time_are_the_same_step(monkeypatch):
    monkeypatch.setattr("keras_transformer.training.projected_loss.CHUNK_NUMBERS", 88)
    test_a_step_with_r_drop_is_the_papers(None, {})
    monkeypatch.setattr("keras_transformer.training.projected_loss.COMPILED_CHUNK_NUMBERS", 3)
    test_a_step_with_r_drop_is_the_papers(None, {"jit_compile": True})


@needs_tensorflow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_a_batch_of_padding_has_no_gradient(jit_compile):
    model = noisy_model()
    weights = weights_of(model)
    model.compile(
        keras.optimizers.SGD(RATE), TokenCrossentropy(), jit_compile=jit_compile, r_drop=1
    )
    assert float(model.train_step((IDS, 0 * LABELS))["loss"]) == 0
    assert_weights_equal(model, weights)


KERAS_METRICS = pytest.param(  # which on JAX see masks in evaluation, but not in training
    ("sparse_categorical_accuracy",), marks=needs_tensorflow, id="Keras's"
)


@pytest.mark.parametrize("metrics", [pytest.param((), id="own"), KERAS_METRICS])
def test_metrics_are_those_of_the_first_view(metrics):
    model = noisy_model()
    plain = noisy_model()
    for each, views in ((model, {"r_drop": 3.0}), (plain, {})):
        own = [TokenAccuracy(), Perplexity()]
        settings = {"metrics": [*own, *metrics], **views}
        each.compile(keras.optimizers.SGD(0.0), TokenCrossentropy(), **settings)
    # The plain model has one row where the other has two: its first view is that of evaluation.
    expected = plain.evaluate(IDS, LABELS, batch_size=5, verbose=0, return_dict=True)
    history = model.fit(IDS, LABELS, batch_size=5, verbose=0).history
    for name, value in expected.items():
        if name != "loss":
            assert history[name][0] == pytest.approx(value, abs=1e-5), name
    evaluated = model.evaluate(IDS, LABELS, batch_size=5, verbose=0, return_dict=True)
    assert evaluated == pytest.approx(expected, abs=1e-6), "evaluation has one view"


def kl(p, q):
    return (p * np.log(p / q)).sum(-1)


def test_the_divergence_is_that_of_probabilities():
    first, second = GENERATOR.normal(size=(2, 3, 5, 7)) * 3
    p, q = (np.exp(z) / np.exp(z).sum(-1, keepdims=True) for z in (first, second))
    ours = numpy_of(symmetric_divergence(*map(keras.ops.convert_to_tensor, (first, second))))
    np.testing.assert_allclose(ours, (kl(p, q) + kl(q, p)) / 2, rtol=1e-4)


def probabilities_model(activation):
    inputs = keras.Input((3,))
    outputs = keras.layers.Dense(4, activation)(inputs)
    return Model(inputs, keras.layers.Dropout(0.5)(outputs))


KERAS_LOSSES = {
    "categorical": (keras.losses.CategoricalCrossentropy, "softmax"),
    "sparse": (keras.losses.SparseCategoricalCrossentropy, "softmax"),
    "binary": (keras.losses.BinaryCrossentropy, "sigmoid"),
}


@pytest.mark.parametrize("from_logits", [True, False])
@pytest.mark.parametrize("kind", KERAS_LOSSES)
@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean_with_sample_weight", "sum"])
def test_rows_of_keras_losses(kind, from_logits, reduction):
    """One label per row, or several: KL of both, weighted and reduced as the loss is."""
    cls, activation = KERAS_LOSSES[kind]
    keras.utils.set_random_seed(2)
    inputs = keras.Input((3, 1))
    noisy = keras.layers.Flatten()(SecondViewTimes(FACTOR)(inputs))
    logits = keras.layers.Dense(4)(noisy)
    activated = keras.layers.Activation(activation)(logits)
    model = Model(inputs, logits if from_logits else activated)
    x = GENERATOR.normal(size=(5, 3, 1)).astype("float32")
    labels = np.array([0, 3, 1, 1, 2])
    y = labels if kind == "sparse" else np.eye(4)[labels]
    sample_weight = np.array([1.0, 0.5, 0, 2, 3], "float32")
    kernel, bias = map(numpy_of, model.trainable_variables)
    z = [f * x[..., 0] @ kernel + bias for f in (1, FACTOR)]
    if kind == "binary":
        p, q = (np.stack([1 / (1 + np.exp(-each)), 1 / (1 + np.exp(each))], -1) for each in z)
        wanted = np.stack([np.eye(4)[labels], 1 - np.eye(4)[labels]], -1)
    else:
        p, q = (np.exp(each) / np.exp(each).sum(-1, keepdims=True) for each in z)
        wanted = np.eye(4)[labels]
    values = -(wanted * np.log(p)).sum(-1) - (wanted * np.log(q)).sum(-1)
    values = (values + 2.0 * (kl(p, q) + kl(q, p)) / 2) / 2
    values = (values.mean(-1) if kind == "binary" else values) * sample_weight
    divisors = {"sum_over_batch_size": 5, "mean_with_sample_weight": 6.5, "sum": 1}
    model.compile("sgd", cls(from_logits=from_logits, reduction=reduction), r_drop=2.0)
    history = model.fit(x, y, sample_weight=sample_weight, batch_size=5, verbose=0).history
    assert history["loss"][0] == pytest.approx(values.sum() / divisors[reduction], rel=1e-5)


def test_masked_tokens_of_a_keras_loss_do_not_count():
    """Keras leaves a masked output out of its loss, and the divergence is left out as well."""
    model = noisy_model()
    loss, _, _ = step_by_hand(weights_of(model), 2.0)
    model.compile("sgd", SPARSE(True, reduction="mean_with_sample_weight"), r_drop=2.0)
    history = model.fit(IDS, LABELS, batch_size=5, verbose=0).history
    assert history["loss"][0] == pytest.approx(loss, abs=1e-5)


def translation_data():
    ids = np.random.default_rng(5).integers(4, 17, (3, 6, 5)).astype("int32")
    ids[:, 3:, 3:] = 0
    return {"source_ids": ids[0], "target_ids": ids[1]}, ids[2]


def tiny_translation(optimizer=None, r_drop=5.0, **settings):
    keras.utils.set_random_seed(3)
    model = translation(17, **TINY, dropout=0.3)
    model.compile(optimizer or Adam(0.01), TokenCrossentropy(0.1), r_drop=r_drop, **settings)
    return model


@needs_tensorflow
def test_models_with_two_inputs_train_in_a_graph_as_eagerly():
    """A stack of each input with itself would give the first input twice in a graph."""
    x, y = translation_data()
    models = [  # not Adam's, which would magnify the rounding of keys' biases
        tiny_translation(keras.optimizers.SGD(0.1), run_eagerly=eagerly)
        for eagerly in (False, True)
    ]
    for model in models:
        model.fit(x, y, batch_size=3, shuffle=False, epochs=2, verbose=0)
    for graph, eager in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_allclose(graph, eager, atol=1e-4)


def test_a_resumed_training_equals_an_uninterrupted_one(tmp_path):
    from keras_transformer.training.checkpoints import Checkpoints

    x, y = translation_data()
    whole, first, second = (tiny_translation() for _ in range(3))
    whole.fit(x, y, batch_size=3, shuffle=False, epochs=2, verbose=0)
    checkpoints = Checkpoints(tmp_path, first, every=2)
    first.fit(x, y, batch_size=3, shuffle=False, verbose=0, callbacks=[checkpoints])
    keras.utils.set_random_seed(99)
    second = translation(17, **TINY, dropout=0.3)
    second.compile(Adam(0.01), TokenCrossentropy(0.1), r_drop=5.0)
    assert Checkpoints(tmp_path, second, every=2).restore() == 2
    second.fit(x, y, batch_size=3, shuffle=False, verbose=0)
    for one, other in zip(whole.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_saved_model_keeps_the_setting(tmp_path):
    model = tiny_translation()
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded._step.r_drop == loaded._step.consistency.weight == 5.0


def no_dropout():
    return translation(11, **TINY, dropout=0.0)


def regularised():
    inputs = keras.Input((3,))
    outputs = keras.layers.Dense(4, activity_regularizer="l2")(inputs)
    return Model(inputs, keras.layers.Dropout(0.5)(outputs))


def plain():
    return probabilities_model(None)


TOKENS = TokenCrossentropy()


@pytest.mark.parametrize(
    "build, loss, weight, expected",
    [
        (tiny_translation, TOKENS, 0, "r_drop must be .*above 0"),
        (tiny_translation, TOKENS, float("nan"), "r_drop must be"),
        (no_dropout, TOKENS, 1.0, "Build the model with dropout above 0"),
        (plain, "mse", 1.0, "r_drop compares probabilities.*loss=mean_squared_error"),
        (plain, SPARSE(ignore_class=3), 1.0, "ignore_class=3"),
        (plain, keras.losses.CategoricalCrossentropy(axis=1), 1.0, "axis=1"),
        (regularised, SPARSE(), 1.0, "activity regularisers"),
        (
            lambda: transformer_xl(11, memory_length=2, batch_size=2, **TINY, dropout=0.1),
            TOKENS,
            1.0,
            "without a memory",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_in_a_line(build, loss, weight, expected):
    with pytest.raises(ValueError, match=expected):
        build().compile("sgd", loss, r_drop=weight)


def test_the_pair_of_views_is_told_apart_by_rows():
    consistency = Consistency(noisy_model(), TOKENS, r_drop=1.0)
    rows = keras.ops.convert_to_tensor(np.arange(6.0).reshape(6, 1))
    first, second = consistency.pair(rows)
    assert numpy_of(first).tolist() == [[0], [2], [4]]
    assert numpy_of(second).tolist() == [[1], [3], [5]]
