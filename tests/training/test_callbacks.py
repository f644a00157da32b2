import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.training import Model, TokenCrossentropy
from keras_transformer.training.callbacks import (
    BestScore,
    StopOnNonFiniteLoss,
    TokensPerSecond,
    accepts_late_logs,
)
from keras_transformer.training.checkpoints import Checkpoints, SaveOnTerminate

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


class Note(keras.callbacks.Callback):
    """Notes in which order it is called, and the logs."""

    def __init__(self, async_safe):
        super().__init__()
        self.async_safe, self.order, self.logs = async_safe, [], []

    def on_train_batch_begin(self, batch, logs=None):
        self.order.append(f"begin {batch}")

    def on_train_batch_end(self, batch, logs=None):
        self.order.append(f"end {batch}")
        self.logs.append(logs)

    def on_test_begin(self, logs=None):
        self.order.append("validation")

    def on_epoch_end(self, epoch, logs=None):
        self.logs.append(logs)


def test_no_step_waits_for_the_logs_of_the_one_before_if_all_callbacks_allow_it(tmp_path):
    notes = Note(async_safe=False), Note(async_safe=True)
    for index, note in enumerate(notes):
        model = compiled()
        checkpoints = Checkpoints(tmp_path / str(index), model, every=2)
        ours = [StopOnNonFiniteLoss(), TokensPerSecond(), SaveOnTerminate(checkpoints), note]
        data = tf.data.Dataset.from_tensor_slices((IDS, LABELS)).batch(2).repeat()
        settings = {"validation_data": (IDS, LABELS), "steps_per_epoch": 3, "epochs": 2}
        history = model.fit(data, callbacks=[checkpoints, *ours], verbose=0, **settings).history
        assert len(history["loss"]) == 2
    waited, late = notes
    begins = ["begin 0", "begin 1", "end 0", "begin 2", "end 1", "end 2", "validation"]
    assert late.order == begins * 2
    assert waited.order[:4] == ["begin 0", "end 0", "begin 1", "end 1"]
    for one, other in zip(waited.logs, late.logs, strict=True):
        assert one.pop("tokens_per_second", 1) > 0 and other.pop("tokens_per_second", 1) > 0
        assert one == other, "every step has its own logs"
    names = [sorted(path.name for path in (tmp_path / name).iterdir()) for name in "01"]
    assert names == [["step-6.npz"]] * 2


def test_tokens_per_second_counts_real_tokens_of_the_epoch(monkeypatch):
    from keras_transformer.training import callbacks

    clock = iter([0.0, 1.0, 2.0, 2.0, 10.0, 12.0, 14.0, 14.0])  # two batches an epoch
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
    nan = np.nan
    np.testing.assert_array_equal(history["val_bleu"], [nan, 1.0, nan, 3.0, nan, 2.0])
    assert [path.name for path in tmp_path.iterdir()] == ["best.keras"], "no drafts are left"
    saved = keras.models.load_model(tmp_path / "best.keras")
    assert_weights_equal(saved, seen[1], atol=0, what="the model of the second score")


def test_best_score_every_zero_epochs_is_refused():
    with pytest.raises(ValueError, match=r"every must be an integer.*Received: \w+=0"):
        BestScore(len, every=0)


@pytest.mark.parametrize("name", ["on_train_batch_end", "on_batch_end", "on_epoch_end"])
def test_a_function_of_steps_is_called_before_the_next_step(name):
    def note(batch, logs):
        return None

    of_class = type("Mine", (keras.callbacks.Callback,), {name: lambda self, *_: None})()
    of_instance = keras.callbacks.Callback()
    setattr(of_instance, name, note)
    for callback in of_class, of_instance, keras.callbacks.LambdaCallback(**{name: note}):
        assert accepts_late_logs(callback) == (name == "on_epoch_end")


def test_tensorboard_that_writes_epochs_makes_no_step_wait(tmp_path):
    note = Note(async_safe=True)
    board = keras.callbacks.TensorBoard(str(tmp_path))
    data = tf.data.Dataset.from_tensor_slices((IDS, LABELS)).batch(2).repeat()
    compiled().fit(data, callbacks=[board, note], steps_per_epoch=3, epochs=2, verbose=0)
    assert note.order[:3] == ["begin 0", "begin 1", "end 0"]
    files = list((tmp_path / "train").glob("events*"))
    events = [e for path in files for e in tf.compat.v1.train.summary_iterator(str(path))]
    steps = [e.step for e in events for v in e.summary.value if v.tag == "epoch_loss"]
    assert steps == [0, 1]
    assert not accepts_late_logs(keras.callbacks.TensorBoard(str(tmp_path), update_freq=1))


def test_workers_ask_each_other_every_ten_steps_and_gather_when_a_checkpoint_is_written(
    tmp_path, monkeypatch
):
    from keras_transformer.training import checkpoints as module

    model, asked, saved, step = compiled(), [], [], [0]

    class Count(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            step[0] = batch

    def ask(strategy, value):
        asked.append(step[0])
        return [value]

    monkeypatch.setattr(module, "has_workers", lambda strategy: True)
    monkeypatch.setattr(module, "from_all_workers", ask)
    checkpoints = Checkpoints(tmp_path, model, every=8)
    save = checkpoints.save
    monkeypatch.setattr(checkpoints, "save", lambda: (saved.append(step[0]), save()))
    data = tf.data.Dataset.from_tensor_slices((IDS, LABELS)).batch(2).repeat()
    asking = [Count(), checkpoints, SaveOnTerminate(checkpoints)]
    model.fit(data, callbacks=asking, steps_per_epoch=25, verbose=0)
    assert asked == [10, 20, 24, 24], "and at the ends of the epoch and of the training"
    assert len(list(tmp_path.iterdir())) >= 1
