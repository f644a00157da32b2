import concurrent.futures
import io
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import tracemalloc

import keras
import numpy as np
import pytest

from keras_transformer.files import NotWritten
from keras_transformer.training import Model
from keras_transformer.training import checkpoint_files as files
from keras_transformer.training.checkpoints import (
    Checkpoints,
    SaveOnTerminate,
    average_checkpoints,
)

from . import interrupted
from .conftest import (
    IDS,
    LABELS,
    assert_weights_equal,
    compiled,
    language_model,
    needs_tensorflow,
    train_and_save,
    weights_of,
)

pytestmark = needs_tensorflow
ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.slow
def test_a_killed_training_goes_on_to_bit_identical_weights(tmp_path, capsys):
    """Killed at step 9 of 15, in the middle of an epoch and after the checkpoint of step 8."""
    command = [sys.executable, "-m", "tests.training.interrupted"]
    command += [tmp_path / "killed", tmp_path / "killed.npz", "9"]
    killed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    for name in ("whole", "killed"):
        interrupted.main(tmp_path / name, tmp_path / f"{name}.npz")
    assert "restored step 8" in capsys.readouterr().out, "from the last checkpoint, not the start"
    expected, values = np.load(tmp_path / "whole.npz"), np.load(tmp_path / "killed.npz")
    assert len(expected.files) == 3 + 7 + 3, "weights, Adam's state, moving averages"
    for name in expected.files:
        np.testing.assert_array_equal(values[name], expected[name], err_msg=name)


def test_restore_brings_back_every_part_of_a_training(tmp_path):
    model = compiled(language_model(dropout=0.5), ema_momentum=0.75)
    train_and_save(tmp_path, 2, model)
    restored = compiled(language_model(dropout=0.5, seed=5), ema_momentum=0.75)
    assert Checkpoints(tmp_path, restored).restore() == 2, "number of steps taken"
    for _ in range(2):
        model.train_step((IDS, LABELS))
        restored.train_step((IDS, LABELS))
    assert_weights_equal(restored, weights_of(model), atol=0, what="the same dropout and moments")
    model.swap_averaged_weights()
    restored.swap_averaged_weights()
    assert_weights_equal(restored, weights_of(model), atol=0, what="the same moving averages")


def test_that_dropout_draws_other_noise_is_said_once(tmp_path, monkeypatch, caplog):
    model = compiled(language_model(dropout=0.5))
    with monkeypatch.context() as patch:
        patch.setattr("keras_transformer.training.checkpoints._replicas", lambda strategy: 2)
        train_and_save(tmp_path, 1, model)
        Checkpoints(tmp_path, model).restore()
        assert "noise" not in caplog.text
    Checkpoints(tmp_path, model).restore()
    said = "step-1.npz was saved on 2 replicas. On 1, dropout now draws different noise."
    assert caplog.text.count(said) == 1
    model.train_step((IDS, LABELS))
    Checkpoints(tmp_path, model).save()
    Checkpoints(tmp_path, model).restore()
    assert caplog.text.count("noise") == 1


def test_without_a_checkpoint_training_starts_at_step_0(tmp_path):
    model = compiled()
    weights = weights_of(model)
    assert Checkpoints(tmp_path / "none", model).restore() == 0
    assert_weights_equal(model, weights, atol=0, what="weights are left alone")


def test_fit_saves_every_few_steps_alone_and_keeps_the_newest(tmp_path):
    model = compiled()
    checkpoints = Checkpoints(tmp_path, model, every=2, keep=2)

    def saved():
        return sorted(path.name for path in tmp_path.glob("*.npz"))

    # Nothing is saved where `fit` returns: an interrupted training has more calls of it.
    model.fit(IDS, LABELS, batch_size=1, callbacks=[checkpoints], verbose=0)
    assert saved() == ["step-2.npz", "step-4.npz"]
    checkpoints.save()
    assert saved() == ["step-4.npz", "step-5.npz"]


class Steps(keras.callbacks.Callback):
    """Calls a function with the number of steps before each of them."""

    def __init__(self, function):
        super().__init__()
        self.on_train_batch_begin = lambda batch, logs=None: function(batch)


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    """Step 2 is written only once step 3 is done, and holds what the weights were before it."""
    model, log = compiled(), io.StringIO()
    checkpoints = Checkpoints(tmp_path, model, every=2, keep=2)
    checkpoints.log_files = [log]
    write, three_are_done, weights = files.write, threading.Event(), {}

    def late(path, *args):
        assert three_are_done.wait(timeout=60)
        write(path, *args)

    def step(done):
        weights[done] = weights_of(model)
        if done == 3:
            assert not files.steps_in(tmp_path)
            three_are_done.set()

    monkeypatch.setattr(files, "write", late)
    model.fit(IDS, LABELS, batch_size=1, callbacks=[checkpoints, Steps(step)], verbose=0)
    assert files.steps_in(tmp_path) == [2, 4], "the end of fit waits"
    for done in (2, 4):
        saved = [array for _, array in files.weights_of(files.path_of(tmp_path, done))]
        for array, weight in zip(saved, weights[done], strict=True):
            np.testing.assert_array_equal(array, weight, err_msg="of this step, not a later one")
    lines = log.getvalue().splitlines()
    pattern = r"checkpoint of step {}: 0\.0 MB, copied in 0\.\d\d s, written in \d+\.\d\d s"
    assert len(lines) == 2
    assert all(re.fullmatch(pattern.format(n), line) for n, line in zip((2, 4), lines, strict=True))


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priorities of their own")
@pytest.mark.parametrize("nice", [0, 15, 19])
def test_a_checkpoint_is_written_at_a_lower_priority_than_that_of_training(
    tmp_path, monkeypatch, nice
):
    """Users may lower a priority, but not raise it, so a low one must not become a higher one."""
    found, write = {}, files.write

    def priority():
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    def noted_write(*arguments):
        found["writing"] = priority()
        write(*arguments)

    def train():
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(19, priority() + nice))
        found["training"] = priority()
        Checkpoints(tmp_path, compiled()).save()

    monkeypatch.setattr(files, "write", noted_write)
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        thread.submit(train).result()
    assert found["writing"] == min(19, found["training"] + 10)
    assert files.steps_in(tmp_path) == [0]


@pytest.mark.parametrize("problem", ["full", "not finite"])
def test_what_fails_in_the_thread_stops_training_and_loses_nothing(tmp_path, monkeypatch, problem):
    model, seen, write = compiled(), [], files.write
    checkpoints = Checkpoints(tmp_path, model, every=2)
    monkeypatch.setattr(files, "write", lambda path, *rest: full(path) or write(path, *rest))

    def full(path):
        if problem == "full" and path.name != "step-2.npz":
            raise NotWritten(path, "No space left on device")

    def step(done):
        seen.append(done)
        if done == 3 and problem == "not finite":
            model.trainable_variables[1].assign(np.full((3, 3), np.nan))
        if done == 4:
            concurrent.futures.wait([checkpoints._writing])

    expected = {
        "full": (OSError, r"step-4.npz could not be written: No space left on device\.$"),
        "not finite": (FloatingPointError, r"not finite after step 4, so nothing is saved"),
    }[problem]
    with pytest.raises(expected[0], match=expected[1]):
        data = np.concatenate([IDS, IDS]), np.concatenate([LABELS, LABELS])
        model.fit(*data, batch_size=1, callbacks=[checkpoints, Steps(step)], verbose=0)
    assert seen == [0, 1, 2, 3, 4], "no step was begun after it"
    assert [path.name for path in tmp_path.iterdir()] == ["step-2.npz"]
    checkpoints.wait()  # it is said once
    if problem == "full":
        with pytest.raises(OSError, match=r"step-5.npz could not be written"):
            checkpoints.save()
        monkeypatch.undo()
        checkpoints.save()
        assert files.steps_in(tmp_path) == [5], "once there is room, the same step is saved"


def test_notes_are_kept_with_each_checkpoint(tmp_path):
    model = compiled()
    checkpoints = Checkpoints(tmp_path, model)
    losses = checkpoints.notes["losses"] = [3.0]
    losses.append(2.5)
    checkpoints.save()
    losses.append(1.0)  # of after the checkpoint
    other = Checkpoints(tmp_path, compiled())
    other.restore()
    assert other.notes["losses"].tolist() == [3.0, 2.5]


def test_the_last_step_of_an_epoch_is_saved_behind_what_is_measured_of_it(tmp_path):
    model = compiled()
    checkpoints = Checkpoints(tmp_path, model, every=1)
    seen = []

    class Measure(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            checkpoints.wait()
            seen.append(sorted(path.name for path in tmp_path.iterdir()))

    model.fit(IDS, LABELS, batch_size=2, epochs=2, callbacks=[Measure(), checkpoints], verbose=0)
    assert seen == [["step-2.npz"], ["step-5.npz"]]
    assert [path.name for path in tmp_path.iterdir()] == ["step-6.npz"]


def test_told_at_the_last_step_of_an_epoch_it_is_saved_behind_what_is_measured(tmp_path):
    model, seen = compiled(), []
    checkpoints = Checkpoints(tmp_path, model)

    class Measure(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(epoch)

    class Tell(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit):
        callbacks = [Measure(), checkpoints, SaveOnTerminate(checkpoints), Tell()]
        model.fit(IDS, LABELS, batch_size=2, epochs=2, callbacks=callbacks, verbose=0)
    assert seen == [0] and (tmp_path / "step-3.npz").exists()


def test_killed_between_saving_and_deleting_the_old_are_deleted_by_the_next_save(tmp_path):
    model = compiled()
    checkpoints = Checkpoints(tmp_path, model, every=2, keep=2)
    for step in (2, 4, 5, 6):
        model.optimizer.iterations.assign(step)
        files.copy_values(checkpoints._variables, values := {})
        notes = {"backend": keras.backend.backend(), "replicas": 1}
        files.write(files.path_of(tmp_path, step), values, notes)
    again = Checkpoints(tmp_path, compiled(), every=2, keep=2)
    assert again.restore() == 6
    again.save()
    assert files.steps_in(tmp_path) == [4, 6]


def test_an_average_holds_one_weight_of_each_checkpoint_in_memory(tmp_path):
    """Five checkpoints of eight weights of 1 MB each."""
    ids = keras.Input((512,))
    hidden = ids
    for _ in range(8):
        hidden = keras.layers.Dense(512, use_bias=False)(hidden)
    model = Model(ids, hidden)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    for step in range(5):
        model.optimizer.iterations.assign(step)
        Checkpoints(tmp_path, model, every=1, keep=5).save()
    tracemalloc.start()
    average_checkpoints(tmp_path, model, count=5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * 2**20, "of 40 MB"


def test_a_process_told_to_end_saves_its_step_and_says_so_by_its_code(tmp_path):
    model = compiled()
    checkpoints = Checkpoints(tmp_path, model)

    class Tell(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 3:
                os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught:
        callbacks = [checkpoints, SaveOnTerminate(checkpoints), Tell()]
        model.fit(IDS, LABELS, batch_size=1, callbacks=callbacks, verbose=0)
    assert caught.value.code == 75
    assert Checkpoints(tmp_path, compiled()).restore() == 4, "the step it was in"
    assert signal.getsignal(signal.SIGTERM) == before, "as it was"


def test_a_process_told_to_end_after_the_last_epoch_of_a_fit_ends(tmp_path):
    model = compiled()
    checkpoints = Checkpoints(tmp_path, model)

    class Tell(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as caught:
        callbacks = [Tell(), checkpoints, SaveOnTerminate(checkpoints)]
        model.fit(IDS, LABELS, batch_size=2, callbacks=callbacks, verbose=0)
    assert caught.value.code == 75 and (tmp_path / "step-3.npz").exists()
    assert signal.getsignal(signal.SIGTERM) == before, "as it was"


def test_a_training_told_to_end_leaves_the_checkpoints_of_one_that_was_not(tmp_path):
    """Every second step of 7, the newest three: those are averaged."""

    def train(directory, *told_at):
        for until in (*told_at, 7):
            model = compiled()
            checkpoints = Checkpoints(directory, model, every=2, keep=3)
            for _ in range(checkpoints.restore(), until):
                model.train_step((IDS, LABELS))
                checkpoints.on_epoch_end(0)
            checkpoints.save()
        return {path.name for path in directory.glob("step-*")}, model

    files, model = train(tmp_path / "whole")
    assert {name.split(".")[0] for name in files} == {"step-4", "step-6", "step-7"}
    again, told = train(tmp_path / "told", 1, 3, 5)
    assert again == files
    assert average_checkpoints(tmp_path / "whole", model, count=3) == [4, 6, 7]
    assert average_checkpoints(tmp_path / "told", told, count=3) == [4, 6, 7]
    assert_weights_equal(told, weights_of(model), atol=0)


def test_average_is_the_mean_of_the_newest_checkpoints(tmp_path):
    model, weights = train_and_save(tmp_path, 3)
    assert average_checkpoints(tmp_path, model, count=2) == [2, 3], "steps of the newest two"
    mean = [(a + b) / 2 for a, b in zip(weights[1], weights[2], strict=True)]
    assert_weights_equal(model, mean, what="mean of the last two")
    assert average_checkpoints(tmp_path, model, count=7) == [1, 2, 3], "all there are"
    mean = [sum(values) / 3 for values in zip(*weights, strict=True)]
    assert_weights_equal(model, mean, what="mean of all three")


def test_average_works_in_a_folder_that_was_moved(tmp_path):
    model, _ = train_and_save(tmp_path / "here", 1)
    (tmp_path / "here").rename(tmp_path / "there")
    assert average_checkpoints(tmp_path / "there", model, count=1) == [1]
    assert Checkpoints(tmp_path / "there", model).restore() == 1, "and so does going on"


def test_average_without_checkpoints_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"at least one checkpoint. Received: count=3, directory="):
        average_checkpoints(tmp_path, compiled(), count=3)


def test_numbers_below_one_and_models_not_compiled_are_refused(tmp_path):
    for settings in ({"every": 0}, {"keep": 0}):
        with pytest.raises(ValueError, match=r"must be an integer of at least 1\. Received: "):
            Checkpoints(tmp_path, compiled(), **settings)
    with pytest.raises(ValueError, match=r"Compile the model before"):
        Checkpoints(tmp_path, language_model())


def test_checkpoints_that_would_never_be_due_are_refused(tmp_path):
    model = compiled(language_model(), steps_per_execution=8)
    with pytest.raises(ValueError, match="multiple of the model's steps_per_execution, 8"):
        Checkpoints(tmp_path, model, every=999)
    Checkpoints(tmp_path, model, every=16)
