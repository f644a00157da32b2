"""Checkpoints that hold everything, to go on exactly where a training was stopped.

Keras's own leave out the state of dropout and the place in the data. Here a checkpoint
holds weights, optimizer, moving averages, dropout's random state and what a model carries from
batch to batch, and its number is the optimizer step; data that is a pure function of that step
completes it.
"""

import logging
import os
import pathlib
import signal

import keras
import tensorflow as tf

from keras_transformer.training.distribution import (
    check_workers_agree,
    checksum,
    from_all_workers,
    has_workers,
    this_worker,
)
from keras_transformer.training.replicas import carried_variables

# What the variables of a checkpoint mean; 2 since kernels are kept as (output, input).
FORMAT = 2

_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"  # how TensorFlow ends the name of a variable's value


class Checkpoints(keras.callbacks.Callback):
    """Saves everything that training needs to go on, every few steps; call `save` at the end.

    It does not save by itself where `fit` returns: a training that was interrupted takes more
    calls of `fit`, and must leave the same checkpoints as one that was not. A step that is no
    multiple of `every`, where one was interrupted, is therefore kept only until the next save.

    With several workers all restore from the same directory, so it must be on a disk that all
    see, and the chief alone saves. Wherever a checkpoint is restored or due, the workers prove
    by a checksum that they hold the same weights and the same state of the optimizer.

    Args:
        directory: where to keep the checkpoints.
        model: a compiled and built model of this library.
        every: number of optimizer steps between two checkpoints, at least 1.
        keep: number of checkpoints to keep, the newest; at least 1.

    Raises:
        ValueError: if `every` or `keep` is below 1, the model is not compiled, or it carries a
            memory on several workers, of which the chief knows its own alone.
        RuntimeError: in training, if the workers hold different weights.
    """

    def __init__(self, directory, model, every=1000, keep=1):
        super().__init__()
        if every < 1 or keep < 1:
            raise ValueError(
                f"every and keep must be at least 1. Received: every={every}, keep={keep}."
            )
        if not model.compiled or not model.optimizer.built:
            raise ValueError("Compile the model before its checkpoints are made.")
        if has_workers(model.distribute_strategy) and carried_variables(model):
            raise ValueError(
                "The memory that a model carries cannot be saved from several workers, since only "
                "the chief writes. Train on one worker, with as many replicas as you like. "
                f"Received: {this_worker(model.distribute_strategy).count} workers."
            )
        self.every = every
        self._directory, self._keep = str(directory), keep
        self._optimizer = model.optimizer
        self._strategy = model.distribute_strategy
        self._seeds = model._step.dropout_seeds
        self._shared = [v.value for v in [*model.weights, *model.optimizer.variables]]
        self._shared += model._step.averages or []
        self._state = tf.train.Checkpoint(**_state(model))
        self._manager = self._new_manager()

    def restore(self):
        """Restores the newest checkpoint; one that cannot be used is left out with a warning.

        Returns:
            The number of optimizer steps already taken; 0 if there is no checkpoint.

        Raises:
            ValueError: if there are checkpoints and none can be used.
            RuntimeError: if workers have restored different ones.
        """
        problems = []
        for path in reversed(self._manager.checkpoints):
            problem = self._problem_with(path)
            if problem is None:
                break
            problems.append(problem)
        else:
            if problems:
                raise ValueError(
                    "No checkpoint can be used. Train into another folder, or with the settings "
                    f"they were made with. Received: {' '.join(problems)}"
                )
            self._check_workers_agree()  # another worker may have found one
            return 0
        if problems:
            logging.getLogger(__name__).warning("%s Going on from %s.", " ".join(problems), path)
            newer = self._manager.checkpoints[self._manager.checkpoints.index(path) + 1 :]
            if this_worker(self._strategy).index == 0:
                self._leave_out(newer)
        self._seeds.restored()
        self._check_workers_agree()
        return self._step()

    def save(self):
        """Saves now, unless this step is saved already."""
        if this_worker(self._strategy).index > 0:
            return
        newest = self._manager.latest_checkpoint
        if newest is not None and _step_of(newest) == self._step():
            return
        if between := [p for p in self._manager.checkpoints if _step_of(p) % self.every]:
            self._leave_out(between)
        for path in between:
            for file in pathlib.Path(self._directory).glob(pathlib.Path(path).name + ".*"):
                file.unlink()
        self._manager.save(checkpoint_number=self._step())

    def on_train_batch_end(self, batch, logs=None):
        if self._step() % self.every == 0:
            self._check_workers_agree()
            self.save()

    def _step(self):
        return int(self._optimizer.iterations.numpy())

    def _check_workers_agree(self):
        if this_worker(self._strategy).count > 1:
            what = f"the checksum of weights and optimizer at step {self._step()}"
            check_workers_agree(self._strategy, checksum(self._shared), what)

    def _problem_with(self, path):
        """Restores a checkpoint, or says in a sentence why it cannot."""
        try:
            _check_fits(path, self._state)
            self._state.restore(path).assert_consumed().assert_existing_objects_matched()
        except ValueError as error:
            return f"{path} is of another training: {error}."
        except (AssertionError, tf.errors.OpError, IndexError) as error:
            return f"{path} is damaged: {str(error).splitlines()[0]}."
        return None

    def _leave_out(self, paths):
        """Takes checkpoints out of the list of those there are; the files stay."""
        listing = pathlib.Path(self._directory, "checkpoint")
        there = self._manager.checkpoints
        left_out = [index for index, path in enumerate(there) if path in paths]
        if len(left_out) == len(there):
            listing.unlink()
        else:
            state = tf.train.get_checkpoint_state(self._directory)
            for index in reversed(left_out):
                del state.all_model_checkpoint_paths[index]
                del state.all_model_checkpoint_timestamps[index]
            state.model_checkpoint_path = state.all_model_checkpoint_paths[-1]
            draft = listing.with_name(".checkpoint")
            draft.write_text(str(state))
            draft.replace(listing)
        self._manager = self._new_manager()

    def _new_manager(self):
        return tf.train.CheckpointManager(
            self._state, self._directory, max_to_keep=self._keep, checkpoint_name="step"
        )


class SaveOnTerminate(keras.callbacks.Callback):
    """When the process is told to end (SIGTERM), saves the current step and leaves.

    With several workers it is enough that one of them is told: all save the same step.

    Args:
        checkpoints: the `Checkpoints` to save to.

    Raises:
        SystemExit: with the code `os.EX_TEMPFAIL`, 75, once the step is saved.
    """

    def __init__(self, checkpoints):
        super().__init__()
        self._checkpoints = checkpoints
        self._told = False
        self._before = None

    def on_train_begin(self, logs=None):
        self._before = signal.signal(signal.SIGTERM, self._remember)

    def on_train_end(self, logs=None):
        signal.signal(signal.SIGTERM, self._before)

    def on_train_batch_end(self, batch, logs=None):
        if any(from_all_workers(self.model.distribute_strategy, int(self._told))):
            self._checkpoints.save()
            signal.signal(signal.SIGTERM, self._before)
            raise SystemExit(os.EX_TEMPFAIL)

    def _remember(self, *_):
        self._told = True


def average_checkpoints(directory, model, count):
    """Sets the weights of a model to their mean over its newest checkpoints.

    Source: Vaswani et al. 2017, section 6.1 (https://arxiv.org/abs/1706.03762).

    Args:
        directory: where `Checkpoints` keeps them.
        model: the model they are of.
        count: number of checkpoints; all there are, if fewer.

    Returns:
        The steps of the checkpoints that were averaged, a list of integers.

    Raises:
        ValueError: if there is no checkpoint, or `count` is below 1.
    """
    state = tf.train.get_checkpoint_state(str(directory))
    if state is None or count < 1:
        raise ValueError(
            "Averaging needs at least one checkpoint. "
            f"Received: count={count}, directory={str(directory)!r}."
        )
    # The names in the state may be relative, and the folder may have been moved since.
    paths = [
        str(pathlib.Path(directory) / pathlib.Path(path).name)
        for path in state.all_model_checkpoint_paths
    ][-count:]
    readers = [tf.train.load_checkpoint(path) for path in paths]
    for index, variable in enumerate(model.weights):
        name = f"weights/{index}{_VALUE}"
        variable.assign(sum(reader.get_tensor(name) for reader in readers) / len(readers))
    return [_step_of(path) for path in paths]


def _state(model):
    """The variables of a training, as lists, so that names may change between versions."""
    return {
        "format": tf.Variable(FORMAT, dtype=tf.int64, trainable=False),
        "weights": _numbered(v.value for v in model.weights),
        "optimizer": _numbered(v.value for v in model.optimizer.variables),
        "seeds": _numbered(model._step.dropout_seeds.variables),
        "averages": _numbered(model._step.averages or []),
        "carried": _numbered(carried_variables(model)),
    }


def _numbered(variables):
    return tf.train.Checkpoint(**{str(index): v for index, v in enumerate(variables)})


def _check_fits(path, state):
    """Raises a ValueError that says what differs, before anything is restored."""
    reader = tf.train.load_checkpoint(path)
    there = reader.get_variable_to_shape_map()
    version = "format" + _VALUE
    if version not in there or reader.get_tensor(version) != FORMAT:
        found = int(reader.get_tensor(version)) if version in there else 1
        raise ValueError(f"its format is number {found}, this library reads {FORMAT}")
    for part in ("weights", "optimizer", "seeds", "averages", "carried"):
        variables = vars(getattr(state, part))
        here = {
            f"{part}/{name}{_VALUE}": variable.shape.as_list()
            for name, variable in variables.items()
            if name.isdigit()
        }
        shapes = {name: shape for name, shape in there.items() if name.startswith(f"{part}/")}
        if here.keys() != shapes.keys():
            raise ValueError(f"{part} are {len(shapes)} variables there, {len(here)} here")
        for name, shape in here.items():
            if shape != shapes[name]:
                raise ValueError(
                    f"{name.removesuffix(_VALUE)} has the shape {shapes[name]} there, {shape} here"
                )


def _step_of(path):
    return int(path.rsplit("-", 1)[1])
