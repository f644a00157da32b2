"""Checkpoints from which training resumes exactly where it stopped.

Keras's own checkpoints lack the state of dropout and the position in the data. These hold the
weights, the optimizer, the moving average, dropout's random state and whatever the model carries
from batch to batch. They are numbered by optimizer step; the data needs no state, because it is a
pure function of the step.
"""

import concurrent.futures
import itertools
import logging
import os
import signal
import sys
import threading
import time

import keras
import numpy as np

from keras_transformer.arguments import check_integer
from keras_transformer.files import checksum_of
from keras_transformer.training import checkpoint_files as files
from keras_transformer.training.callbacks import check_finite
from keras_transformer.training.distribution import (
    carried_variables,
    check_workers_agree,
    from_all_workers,
    has_workers,
    this_worker,
)
from keras_transformer.training.optimizers import batches_taken

STEPS_BETWEEN_STOP_CHECKS = 10  # how often workers ask each other whether one must stop


class Checkpoints(keras.callbacks.Callback):
    """Saves everything needed to resume training, every few steps; call `save` at the end.

    A checkpoint is copied between two steps, and a thread writes the copy while training goes on.
    The next one waits for it, as do `save`, `wait` and the end of `fit`. What fails in the thread,
    e.g. on a full disk, is raised before the next step. The chief keeps the memory of the copy.

    It does not save when `fit` returns: an interrupted run calls `fit` more often and must leave
    the same checkpoints as an uninterrupted one. A checkpoint whose step is not a multiple of
    `every`, left by an interruption, is therefore deleted at the next save. The last step of an
    epoch is saved after its validation. List this callback after those that measure, so that none
    of them misses an epoch when training restarts.

    It never saves weights that are not finite, and never overwrites or deletes an existing
    checkpoint of this step or a later one.

    With several workers the directory must be on a shared disk: all of them restore from it, and
    only the chief saves. At each restore and save the workers compare checksums of the weights and
    of the optimizer's state, and raise RuntimeError if they differ. A model that carries a memory
    is refused: the chief cannot read the other workers' memories.

    Args:
        directory: folder of the checkpoints.
        model: a compiled and built model of this library.
        every: number of optimizer steps between two checkpoints, at least 1.
        keep: number of checkpoints to keep, the newest; at least 1.

    Attributes:
        notes: dict of numbers to save with each checkpoint, or of functions that return them and
            are called by all workers, by name; `restore` fills it with arrays.
        log_files: text files that get a line for each checkpoint, with its size, the seconds for
            which training waited for the copy, and those of writing it; empty by default.
    """

    def __init__(self, directory, model, every=1000, keep=1):
        super().__init__()
        check_integer("every", every)
        check_integer("keep", keep)
        if not model.compiled or not getattr(model.optimizer, "built", False):
            raise ValueError("Compile the model before you make its Checkpoints.")
        if has_workers(model.distribute_strategy) and carried_variables(model):
            raise ValueError(
                "The memory that a model carries cannot be saved with several workers, because "
                "only the chief writes. Train on one worker, with as many replicas as you like. "
                f"Received: {this_worker(model.distribute_strategy).count} workers."
            )
        if every % (at_once := model.steps_per_execution):
            raise ValueError(
                f"every must be a multiple of the model's steps_per_execution, {at_once}, because "
                f"training can be saved only between executions. Received: every={every}."
            )
        self.every = every
        self.notes, self.log_files = {}, []
        if isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer):
            raise ValueError(
                "Checkpoints count all batches, of which a LossScaleOptimizer skips some. Train "
                "with mixed_bfloat16 on JAX. Received: a LossScaleOptimizer."
            )
        self._directory, self._keep = str(directory), keep
        self._model, self._optimizer = model, model.optimizer
        self._strategy = model.distribute_strategy
        self._seeds = model._step.dropout_seeds
        weights, optimizer = model.weights, model.optimizer.variables
        self._average = average = model._step.average
        averages = [] if average is None else average.values
        loss_scale = model._step.loss_scale
        self._variables = _by_name(
            weights=weights,
            optimizer=optimizer,
            seeds=self._seeds.variables,
            averages=averages,
            carried=carried_variables(model),
            loss_scale=[] if loss_scale is None else loss_scale.variables,
        )
        self._shared = [*weights, *optimizer, *averages]
        learned = {id(v) for v in [*model.trainable_variables, *optimizer, *averages]}
        self._learned = [name for name, v in self._variables.items() if id(v) in learned]
        self._values = {}  # the copy, by the names of the variables
        self._newest = None  # the step that was restored or saved last
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "checkpoints", _yield_to_others)
        self._writing = None  # what the thread does, a Future

    def restore(self):
        """Restores the newest usable checkpoint; warns about damaged ones and sets them aside.

        One of another backend, or of another number of replicas, is restored too: without
        dropout, training goes on with the same numbers but for rounding; with it, a warning says
        that the noise is another. A memory must have been saved by as many replicas. Raises
        ValueError if there are checkpoints but none can be used, or one has another format.

        Returns:
            The number of optimizer steps already taken; 0 if there is no checkpoint.
        """
        self.wait()
        problems = {}
        for step in reversed(files.steps_in(self._directory)):
            path = files.path_of(self._directory, step)
            problem = files.problem_with(path, self._variables)
            if problem is None:
                break
            problems[path] = problem
        else:
            self._check_is_new(problems)
            self._check_workers_agree()  # another worker may have found one
            return 0
        notes = files.read(path, self._variables)
        self.notes.clear()
        self.notes.update(notes)
        self._newest = step
        if self._average is not None:
            self._average.has_begun = True
        saved_on = self.notes.pop("backend"), self.notes.pop("replicas")
        self._warn_of_other_noise(path, *saved_on)
        self._seeds.spread()
        self._check_workers_agree()
        if problems and this_worker(self._strategy).index == 0:
            aside = " and ".join(str(_put_aside(damaged)) for damaged in problems)
            logging.getLogger(__name__).warning(
                "%s Kept as %s. Resuming from %s.", " ".join(problems.values()), aside, path
            )
        return self._step()

    def save(self):
        """Saves now, unless this step is already saved, and waits until it is on disk.

        Raises FloatingPointError if the weights or the state of the optimizer are not finite,
        ValueError if it would overwrite a checkpoint of a different run, OSError if the disk is
        full.
        """
        self._start_saving()
        self.wait()

    def wait(self):
        """Waits until the checkpoint that is being written is on disk; raises as `save`."""
        writing, self._writing = self._writing, None
        if writing is not None:
            try:
                writing.result()
            except BaseException:
                self._newest = None  # the step is not saved
                raise

    def _start_saving(self):
        """Copies what to save, and lets the thread write it."""
        self.wait()
        start = time.perf_counter()
        if keras.backend.backend() == "jax":
            self._model.jax_state_sync()  # the values stay in the loop of `fit`
        if self._average is not None:
            self._average.begin()
        step = self._step()
        notes = {name: note() if callable(note) else note for name, note in self.notes.items()}
        notes = {name: np.array(note) for name, note in notes.items()}  # lists may grow
        notes["backend"] = np.array(keras.backend.backend())
        notes["replicas"] = np.array(_replicas(self._strategy))
        if this_worker(self._strategy).index == 0:
            is_new = step != self._newest
            if is_new:
                files.copy_values(self._variables, self._values)
            copying = time.perf_counter() - start
            self._writing = self._thread.submit(self._write, step, is_new, notes, copying)
        self._newest = step

    def _write(self, step, is_new, notes, copying):
        """Writes the copied values, then deletes the checkpoints that they supersede."""
        if is_new:
            start = time.perf_counter()
            learned = ((self._variables[name].path, self._values[name]) for name in self._learned)
            check_finite(learned, f"The weights are not finite after step {step}")
            self._check_is_newest(step)
            path = files.path_of(self._directory, step)
            files.write(path, self._values, notes)
            writing = time.perf_counter() - start
            for file in self.log_files:
                print(
                    f"checkpoint of step {step:,}: {path.stat().st_size / 1e6:,.1f} MB, "
                    f"copied in {copying:.2f} s, written in {writing:.2f} s",
                    file=file, flush=True,
                )  # fmt: skip
        # Also if this step is already saved: the process may have been killed right here.
        for old in self._superseded(step):
            files.path_of(self._directory, old).unlink()

    def on_train_begin(self, logs=None):
        if not self._values and this_worker(self._strategy).index == 0:
            files.copy_values(self._variables, self._values)  # so that the first is as fast

    def on_epoch_begin(self, epoch, logs=None):
        self._steps_before = self._step()

    def on_train_batch_begin(self, batch, logs=None):
        if self._writing is not None and self._writing.done():
            self.wait()  # raises what failed
        if batch:  # counted, because reading the step would wait for the one that is running
            self._save_if_due(self._steps_before + batch)

    def on_epoch_end(self, epoch, logs=None):
        self._save_if_due(self._step())

    def on_train_end(self, logs=None):
        self.wait()

    def _save_if_due(self, step):
        if step % self.every == 0 and step != self._newest:
            self._check_workers_agree()
            self._start_saving()

    def _step(self):
        return batches_taken(self._model)

    def _superseded(self, step):
        earlier = [number for number in files.steps_in(self._directory) if number < step]
        regular = [number for number in earlier if number % self.every == 0]
        kept = regular[-(self._keep - 1) :] if self._keep > 1 else []  # and this step
        return [number for number in earlier if number not in kept]

    def _check_workers_agree(self):
        if this_worker(self._strategy).count > 1:
            what = f"the checksum of weights and optimizer at step {self._step()}"
            check_workers_agree(self._strategy, checksum_of(v.numpy() for v in self._shared), what)

    def _warn_of_other_noise(self, path, backend, replicas):
        """Warns if dropout has drawn its noise on another backend or on other replicas so far."""
        states = [v for name, v in self._variables.items() if name.startswith("seeds/")]
        drawn = any(int(state.numpy()[1]) for state in states)  # of seed and counter
        now, here = keras.backend.backend(), _replicas(self._strategy)
        if not drawn or this_worker(self._strategy).index > 0:
            return
        if str(backend) != now:
            was, is_now = backend, now
        elif int(replicas) != here:
            was, is_now = f"{replicas} replicas", here
        else:
            return
        logging.getLogger(__name__).warning(
            "%s was saved on %s. On %s, dropout now draws different noise.", path, was, is_now
        )

    def _check_is_new(self, problems):
        """Raises rather than start at step 0 in a folder that holds checkpoints."""
        if problems:
            raise ValueError(
                "No checkpoint can be used. Train into another folder, or with the settings that "
                f"the checkpoints were made with; to restart at step 0, delete {self._directory}. "
                f"Received: {' '.join(problems.values())}"
            )

    def _check_is_newest(self, step):
        later = [number for number in files.steps_in(self._directory) if number >= step]
        if later:
            raise ValueError(
                f"{self._directory} holds a checkpoint of step {later[-1]}, which this run, at "
                f"step {step}, did not make and would overwrite. Call restore before training, "
                "train into another folder, or end the other process that trains into this one."
            )


class SaveOnTerminate(keras.callbacks.Callback):
    """On SIGTERM, saves the current step and exits with the code `os.EX_TEMPFAIL`, 75.

    With several workers it is enough if one receives the signal: all save the same step, the next
    one whose number in its epoch is a multiple of ten.
    """

    def __init__(self, checkpoints):
        super().__init__()
        self._checkpoints = checkpoints
        self._terminated = False
        self._previous_handler = None

    def on_train_begin(self, logs=None):
        self._is_alone = not has_workers(self.model.distribute_strategy)
        self._previous_handler = signal.signal(signal.SIGTERM, self._on_signal)

    def on_train_end(self, logs=None):
        self._exit_if_terminated()  # since the last epoch's end
        signal.signal(signal.SIGTERM, self._previous_handler)

    def on_train_batch_begin(self, batch, logs=None):
        # Asking the other workers at every step would make each wait for the slowest host.
        if batch and (batch % STEPS_BETWEEN_STOP_CHECKS == 0 or self._is_alone):
            self._exit_if_terminated()

    def on_epoch_end(self, epoch, logs=None):
        self._exit_if_terminated()

    def _exit_if_terminated(self):
        if any(from_all_workers(self.model.distribute_strategy, int(self._terminated))):
            self._checkpoints.save()
            signal.signal(signal.SIGTERM, self._previous_handler)
            raise SystemExit(os.EX_TEMPFAIL)

    def _on_signal(self, *_):
        self._terminated = True


def average_checkpoints(directory, model, count):
    """Sets the weights of a model to their mean over its newest checkpoints.

    Takes all if there are fewer than `count`, and skips damaged ones with a warning; raises
    ValueError if none is left. Integer weights come from the newest checkpoint. Returns the steps
    that were averaged.

    Source: Vaswani et al. 2017, section 6.1 (https://arxiv.org/abs/1706.03762).
    """
    weights = _by_name(weights=model.weights)
    good, problems = [], []
    for step in files.steps_in(directory)[-max(count, 0) :]:
        problem = files.problem_with(files.path_of(directory, step), weights, ["weights"])
        if problem is None:
            good.append(step)
        else:
            problems.append(problem)
    if count < 1 or not good:
        raise ValueError(
            "Averaging needs at least one checkpoint. "
            f"Received: count={count}, directory={str(directory)!r}. {' '.join(problems)}".strip()
        )
    if problems:
        logging.getLogger(__name__).warning("%s Averaging without it.", " ".join(problems))
    # One weight at a time from all checkpoints, which are in the same order.
    for parts in zip(*(files.weights_of(files.path_of(directory, s)) for s in good), strict=True):
        name = parts[0][0]
        arrays = [files.in_dtype_of(array, weights[name]) for _, array in parts]
        weights[name].assign(_mean(arrays, weights[name].dtype))
    return good


def _yield_to_others():
    """Gives this thread less of a core than those that compute a step, where that can be done."""
    if sys.platform == "linux":  # elsewhere, all threads have one priority
        thread = threading.get_native_id()
        # Never less than before, which users may not set.
        nice = min(19, os.getpriority(os.PRIO_PROCESS, thread) + 10)
        os.setpriority(os.PRIO_PROCESS, thread, nice)


def _replicas(strategy):
    """Replicas that each draw noise of their own; on JAX all devices draw that of one batch."""
    return 1 if strategy is None else strategy.num_replicas_in_sync


def _mean(arrays, dtype):
    if not keras.backend.is_float_dtype(dtype):
        return arrays[-1]
    # Half precision is summed in float32.
    wide = np.result_type(arrays[0].dtype, np.float32)
    return sum(array.astype(wide, copy=False) for array in arrays) / len(arrays)


def _by_name(**variables):
    return {f"{kind}/{i}": v for kind, of_kind in variables.items() for i, v in enumerate(of_kind)}


def _put_aside(path):
    """Renames a file so that nothing overwrites it; returns the new path."""
    names = (path.with_name(f"{path.name}.aside{number or ''}") for number in itertools.count())
    return path.rename(next(name for name in names if not name.exists()))
