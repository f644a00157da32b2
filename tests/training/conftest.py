"""A model so small that its training can be computed by hand, and that computation."""

import keras
import numpy as np
import pytest

from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.training import Adam, Model, TokenCrossentropy

VOCABULARY_SIZE, DIM = 11, 3
# Rows with 5, 1, 3, 2 and 4 real tokens.
IDS = np.array(
    [[2, 7, 3, 5, 10], [2, 0, 0, 0, 0], [2, 4, 9, 0, 0], [2, 6, 0, 0, 0], [2, 8, 8, 3, 0]],
    dtype="int32",
)
LABELS = np.array(
    [[7, 3, 5, 10, 3], [3, 0, 0, 0, 0], [4, 9, 3, 0, 0], [6, 3, 0, 0, 0], [8, 8, 3, 3, 0]],
    dtype="int32",
)

needs_tensorflow = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="the exact train step is TensorFlow's"
)


def language_model(tied=True, dropout=0.0, dtype=None, seed=3):
    """Embedding, one tanh layer, projection: weights E, W, b and, untied, P."""
    keras.utils.set_random_seed(seed)
    ids = keras.Input((None,), dtype="int32")
    embedding = TokenEmbedding(VOCABULARY_SIZE, DIM, dtype=dtype)
    hidden = keras.layers.Dense(DIM, "tanh", dtype=dtype)(embedding(ids))
    if dropout:
        hidden = keras.layers.Dropout(dropout, dtype=dtype)(hidden)
    projection = embedding if tied else TokenEmbedding(VOCABULARY_SIZE, DIM, dtype=dtype)
    return Model(ids, projection(hidden, reverse=True))


class SecondViewTimes(keras.layers.Layer):
    """Noise that is known: in training, the second view of each row is multiplied by a factor."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor
        self.supports_masking = True
        self.seed_generator = keras.random.SeedGenerator(5)

    def call(self, inputs, training=False):
        is_second = keras.ops.arange(keras.ops.shape(inputs)[0]) % 2 == 1
        factors = keras.ops.where(is_second, self.factor, 1.0)[:, None, None]
        return inputs * keras.ops.cast(factors, inputs.dtype) if training else inputs


def numpy_of(variable):
    return keras.ops.convert_to_numpy(variable).astype("float64")  # a copy


def weights_of(model):
    return [numpy_of(weight) for weight in model.trainable_variables]


def logits_by_hand(weights, ids):
    embedding, kernel, bias = weights[:3]
    looked_up = embedding[ids] * DIM**0.5  # (batch, target, dim)
    hidden = np.tanh(looked_up @ kernel + bias)
    return looked_up, hidden, hidden @ weights[-1 if len(weights) == 4 else 0].T


def loss_by_hand(weights, ids, labels, smoothing=0.0, token_weights=None):
    """Mean loss of a real token, and its gradients for all weights."""
    looked_up, hidden, logits = logits_by_hand(weights, ids)
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities = shifted / shifted.sum(-1, keepdims=True)
    real = (labels != 0) * (1.0 if token_weights is None else token_weights)
    wanted = (1 - smoothing) * np.eye(VOCABULARY_SIZE)[labels] + smoothing / VOCABULARY_SIZE
    loss = -(wanted * np.log(probabilities)).sum(-1)
    loss = (loss * real).sum() / max(real.sum(), 1e-9)

    slope = (probabilities - wanted) * real[..., None] / max(real.sum(), 1e-9)
    projection = weights[-1 if len(weights) == 4 else 0]
    projection_slope = np.einsum("btv,btd->vd", slope, hidden)
    inner = (slope @ projection) * (1 - hidden**2)
    embedding_slope = np.zeros_like(weights[0])
    np.add.at(embedding_slope, ids, inner @ weights[1].T * DIM**0.5)
    kernel_slope = np.einsum("bti,bto->io", looked_up, inner)
    gradients = [embedding_slope, kernel_slope, inner.sum((0, 1))]
    if len(weights) == 4:
        return loss, [*gradients, projection_slope]
    gradients[0] += projection_slope
    return loss, gradients


def norm(arrays):
    return sum((array**2).sum() for array in arrays) ** 0.5


def assert_weights_equal(model, expected, atol=1e-6, what="the weights are those by hand"):
    for variable, value in zip(model.trainable_variables, expected, strict=True):
        np.testing.assert_allclose(numpy_of(variable), value, atol=atol, rtol=0, err_msg=what)


def compiled(model=None, optimizer=None, **settings):
    model = model or language_model()
    model.compile(optimizer or Adam(0.1), TokenCrossentropy(), **settings)
    return model


def train_and_save(directory, steps=3, model=None):
    """One checkpoint after each step; returns the model and its weights after each."""
    from keras_transformer.training.checkpoints import Checkpoints  # TensorFlow's alone

    model = model or compiled()
    checkpoints = Checkpoints(directory, model, every=1, keep=steps)
    weights = []
    for _ in range(steps):
        model.train_step((IDS, LABELS))
        checkpoints.save()
        weights.append(weights_of(model))
    return model, weights


def pair_of_models(loss="mse", outputs=2, metrics=("mae",), kinds=(Model, keras.Model), **settings):
    """The same model as ours and as Keras's, with the same weights."""
    for kind in kinds:
        keras.utils.set_random_seed(3)
        inputs = keras.Input((3,))
        model = kind(inputs, keras.layers.Dense(outputs)(inputs))
        model.compile(keras.optimizers.SGD(0.1), loss, metrics=list(metrics), **settings)
        yield model


def rows(outputs=2, count=7):
    chance = np.random.default_rng(5)
    return chance.normal(size=(count, 3)), chance.normal(size=(count, outputs))
