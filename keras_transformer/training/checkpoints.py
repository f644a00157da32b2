"""Checkpoints that hold everything, to go on exactly where a training was stopped.

Keras's own leave out the state of dropout and the place in the data. Here a checkpoint
holds weights, optimizer, moving averages and dropout's random state, and its number is the
optimizer step; data that is a pure function of that step completes it.
"""

import pathlib

import keras
import tensorflow as tf


class Checkpoints(keras.callbacks.Callback):
    """Saves everything that training needs to go on, every few steps; call `save` at the end.

    It does not save by itself where `fit` returns: a training that was interrupted takes more
    calls of `fit`, and must leave the same checkpoints as one that was not.

    Args:
        directory: where to keep the checkpoints.
        model: a compiled and built model of this library.
        every: number of optimizer steps between two checkpoints, at least 1.
        keep: number of checkpoints to keep, the newest; at least 1.

    Raises:
        ValueError: if `every` or `keep` is below 1, or the model is not compiled.
    """

    def __init__(self, directory, model, every=1000, keep=1):
        super().__init__()
        if every < 1 or keep < 1:
            raise ValueError(
                f"every and keep must be at least 1. Received: every={every}, keep={keep}."
            )
        if not model.compiled or not model.optimizer.built:
            raise ValueError("Compile the model before its checkpoints are made.")
        self.every = every
        self._optimizer = model.optimizer
        self._checkpoint = tf.train.Checkpoint(**_state(model))
        self._manager = tf.train.CheckpointManager(
            self._checkpoint, str(directory), max_to_keep=keep, checkpoint_name="step"
        )

    def restore(self):
        """Restores the newest checkpoint.

        Returns:
            The number of optimizer steps already taken; 0 if there is no checkpoint.

        Raises:
            ValueError: if the checkpoint is of another model, or damaged.
        """
        newest = self._manager.latest_checkpoint
        if newest is None:
            return 0
        try:
            # Nothing may be left over either: the numbering of another model may begin alike.
            self._checkpoint.restore(newest).assert_consumed()
        except (AssertionError, ValueError) as error:
            raise ValueError(
                f"The checkpoint {newest} is of another model or optimizer. Train into another "
                f"folder, or with the settings it was made with. Received: {error}"
            ) from error
        except (tf.errors.OpError, IndexError) as error:
            raise ValueError(
                f"The checkpoint {newest} is damaged. Take its name out of the file 'checkpoint' "
                "beside it to go on from an older one, or train into another folder. "
                f"Received: {error}"
            ) from error
        return int(self._optimizer.iterations.numpy())

    def save(self):
        """Saves now, unless this step is saved already."""
        step = int(self._optimizer.iterations.numpy())
        newest = self._manager.latest_checkpoint
        if newest is None or int(newest.rsplit("-", 1)[1]) != step:
            self._manager.save(checkpoint_number=step)

    def on_train_batch_end(self, batch, logs=None):
        if int(self._optimizer.iterations.numpy()) % self.every == 0:
            self.save()


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
        name = f"weights/{index}/.ATTRIBUTES/VARIABLE_VALUE"
        variable.assign(sum(reader.get_tensor(name) for reader in readers) / len(readers))
    return [int(path.rsplit("-", 1)[1]) for path in paths]


def _state(model):
    """The variables of a training, as lists, so that names may change between versions."""
    seeds = [v for v in model.variables if "seed_generator" in v.path]
    return {
        "weights": _numbered(v.value for v in model.weights),
        "optimizer": _numbered(v.value for v in model.optimizer.variables),
        "seeds": _numbered(v.value for v in seeds),
        "averages": _numbered(model._step.averages or []),
    }


def _numbered(variables):
    return tf.train.Checkpoint(**{str(index): v for index, v in enumerate(variables)})
