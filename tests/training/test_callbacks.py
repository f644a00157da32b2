import keras
import numpy as np
import pytest

from keras_transformer.training import Model, TokenCrossentropy
from keras_transformer.training.callbacks import BestScore, StopOnNonFiniteLoss, TokensPerSecond

from .conftest import (
    IDS,
    LABELS,
    assert_weights_equal,
    language_model,
    needs_tensorflow,
    weights_of,
)

pytestmark = needs_tensorflow


def compiled():
    model = language_model()
    model.compile(keras.optimizers.SGD(0.5), TokenCrossentropy())
    return model


class Spoil(keras.callbacks.Callback):
    """Spoils a weight before the given batch."""

    def __init__(self, batch):
        super().__init__()
        self.batch = batch

    def on_train_batch_begin(self, batch, logs=None):
        if batch == self.batch:
            self.model.layers[-1].bias.assign([np.nan] * 3)


def test_a_loss_that_is_not_finite_stops_training_at_its_step():
    callbacks = [Spoil(batch=2), StopOnNonFiniteLoss()]
    with pytest.raises(FloatingPointError, match=r"not finite at step 3. Lower the learning rate"):
        compiled().fit(IDS, LABELS, batch_size=1, callbacks=callbacks)


@pytest.mark.slow
def test_finite_losses_do_not_stop_training():
    model = compiled()
    model.fit(IDS, LABELS, batch_size=2, callbacks=[StopOnNonFiniteLoss()], verbose=0)
    assert int(model.optimizer.iterations) == 3, "all batches were seen"


def test_tokens_per_second_counts_real_tokens_of_the_epoch(monkeypatch):
    from keras_transformer.training import callbacks

    clock = iter([0.0, 1.0, 2.0, 10.0, 12.0, 14.0])
    monkeypatch.setattr(callbacks.time, "perf_counter", lambda: next(clock))
    rates = []

    class Note(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            rates.append(logs["tokens_per_second"])

    history = compiled().fit(
        IDS[:4], LABELS[:4], batch_size=2, epochs=2, shuffle=False, verbose=0,
        callbacks=[TokensPerSecond(), Note()],
    ).history  # fmt: skip
    # 6 and 5 real tokens; two epochs of 2 and of 4 seconds.
    assert rates == [6, round(11 / 2), 3, round(11 / 4)], "rates after each batch"
    assert history["tokens_per_second"] == [round(11 / 2), round(11 / 4)], "rates of the epochs"


def test_without_tokens_examples_are_counted():
    inputs = keras.Input((3,))
    model = Model(inputs, keras.layers.Dense(2)(inputs))
    model.compile("sgd", loss="mse")
    ones = np.ones((5, 3), "float32")
    history = model.fit(ones, ones[:, :2], callbacks=[TokensPerSecond()], verbose=0).history
    assert history["examples_per_second"][0] > 0 and "tokens_per_second" not in history


def test_best_score_saves_the_model_that_had_the_highest(tmp_path):
    model = compiled()
    scores, seen = iter([1.0, 3.0, 2.0]), []

    def score(model):
        seen.append(weights_of(model))
        return next(scores)

    best = BestScore(score, tmp_path / "best.keras", every=2, name="val_bleu")
    history = model.fit(IDS, LABELS, epochs=6, callbacks=[best], verbose=0).history
    np.testing.assert_array_equal(history["val_bleu"], [np.nan, 1, 1, 3, 3, 2])
    assert [path.name for path in tmp_path.iterdir()] == ["best.keras"], "no drafts are left"
    saved = keras.models.load_model(tmp_path / "best.keras")
    assert_weights_equal(saved, seen[1], atol=0, what="the model of the second score")


def test_best_score_every_zero_epochs_is_refused():
    with pytest.raises(ValueError, match=r"every must be at least 1 epoch. Received: every=0"):
        BestScore(len, every=0)
