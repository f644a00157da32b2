"""The loss together with its projection on JAX, beside whole logits."""

import keras
import numpy as np
import pytest

from keras_transformer import TokenCrossentropy, translation

# Run by layers/test_backends.py: once JAX has computed in a process, it warns of every fork.
pytestmark = pytest.mark.skipif(keras.backend.backend() != "jax", reason="JAX's")
jax = pytest.importorskip("jax")
jnp = jax.numpy
loss_on_jax = pytest.importorskip("keras_transformer.training.projected_loss_on_jax")

VOCABULARY_SIZE, DIM, SHAPE = 23, 5, (3, 7)
DRAW = np.random.default_rng(3)
LABELS = DRAW.integers(0, VOCABULARY_SIZE, SHAPE).astype("int32")
WEIGHTS = np.where(LABELS % 5, DRAW.uniform(0.5, 2.0, SHAPE), 0.0).astype("float32")
FEATURES = DRAW.normal(size=(*SHAPE, DIM)).astype("float32")
TABLE = DRAW.normal(size=(VOCABULARY_SIZE, DIM)).astype("float32")


def plain(features, table, labels, weights, label_smoothing=0.0):
    """The same loss from whole logits."""
    logits = jnp.matmul(features, table.astype(features.dtype).T).astype("float32")
    logs = jax.nn.log_softmax(logits)
    chosen = jnp.take_along_axis(logs, labels[..., None], axis=-1)[..., 0]
    smoothed = (1 - label_smoothing) * chosen + label_smoothing * logs.mean(axis=-1)
    return -jnp.sum(weights * smoothed)


def loss_and_gradients(function, features, labels, *others, table=TABLE):
    """A loss and its gradients for features and table, in float32."""
    of = jax.value_and_grad(lambda h, table: 3.0 * function(h, table, labels, *others), (0, 1))
    loss, gradients = jax.jit(of)(features, jnp.asarray(table))
    return [np.asarray(part, "float32") for part in (loss, *gradients)]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 0.05)])
def test_loss_and_gradients_are_those_of_whole_logits(dtype, tolerance, smoothing):
    arguments = jnp.asarray(FEATURES, dtype), LABELS, WEIGHTS, smoothing
    actual = loss_and_gradients(loss_on_jax.projected_loss_on_jax, *arguments)
    expected = loss_and_gradients(plain, *arguments)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def test_logits_far_above_the_label_do_not_overflow():
    table = 90.0 * TABLE  # some logits are hundreds above their label's
    actual = loss_and_gradients(
        loss_on_jax.projected_loss_on_jax, FEATURES, LABELS, WEIGHTS, table=table
    )
    expected = loss_and_gradients(plain, FEATURES, LABELS, WEIGHTS, table=table)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-2)


def test_padding_counts_nothing_whatever_its_label_and_vector(monkeypatch):
    monkeypatch.setattr(loss_on_jax, "MOST_SHIFTS", 1)  # its large logits need no further pass
    padding = WEIGHTS == 0
    assert padding.any(), "there is padding"
    expected = loss_and_gradients(plain, FEATURES, LABELS, WEIGHTS, 0.1)
    for number in (300.0, np.inf, np.nan):
        arguments = np.where(padding[..., None], number, FEATURES), np.where(padding, -1, LABELS)
        actual = loss_and_gradients(loss_on_jax.projected_loss_on_jax, *arguments, WEIGHTS, 0.1)
        for one, other in zip(actual, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_a_label_outside_of_the_table_shows_as_nan():
    labels = np.full(SHAPE, 1, "int32")
    labels[1, 2] = VOCABULARY_SIZE
    loss = loss_on_jax.projected_loss_on_jax(FEATURES, TABLE, labels, np.ones(SHAPE, "float32"))
    assert np.isnan(loss)


def test_a_step_of_a_gpu_is_that_of_whole_logits(monkeypatch):
    """Dropout, padding, a penalty, weights of tokens and of the loss, and parts included."""
    from keras_transformer.training import jax_step

    ids = np.random.default_rng(5).integers(1, 13, (3, 4, 5)).astype("int32")
    ids[:, 1, 3:] = 0
    x, y = {"source_ids": ids[0], "target_ids": ids[1]}, ids[2]
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        return loss_on_jax.projected_loss_on_jax(*arguments)

    monkeypatch.setattr(jax_step, "projected_loss_on_jax", counted)

    def after_two_steps(has_gpu, labels=y, activity=None):
        monkeypatch.setattr(jax_step, "has_gpu", lambda: has_gpu)
        keras.utils.set_random_seed(2)
        sizes = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 8, "num_heads": 2}
        model = translation(13, dropout=0.2, **sizes)
        model.target_embedding.embeddings.regularizer = keras.regularizers.L2(0.01)
        model.target_embedding.activity_regularizer = activity
        optimizer = keras.optimizers.SGD(0.1, loss_scale_factor=4.0)
        parts = 1 if activity else 2
        model.compile(optimizer, [TokenCrossentropy(0.1)], 0.3, accumulation_steps=parts)
        weights = np.where(y == 3, 2.0, 1.0)
        logs = [model.train_on_batch(x, labels, weights, return_dict=True) for _ in range(2)]
        return [float(each["loss"]) for each in logs], model.get_weights()

    losses, weights = after_two_steps(has_gpu=False)
    assert not calls, "without a GPU, the loss is computed from whole logits"
    fused_losses, fused_weights = after_two_steps(has_gpu=True)
    assert calls, "with a GPU, it is not"
    np.testing.assert_allclose(fused_losses, losses, rtol=1e-5)
    for fused, whole in zip(fused_weights, weights, strict=True):
        np.testing.assert_allclose(fused, whole, rtol=1e-4, atol=1e-6)
    for labels in (y.astype("float32"), y.astype("int8"), [y]):
        assert after_two_steps(has_gpu=True, labels=labels)[0] == fused_losses
    calls.clear()
    after_two_steps(has_gpu=True, activity=keras.regularizers.L2(0.01))
    assert not calls, "a penalty of the logits needs them"
