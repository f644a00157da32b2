"""Checkpoint files: one per step, `step-<number>.npz`, in NumPy's format.

There is no index file, because it could get lost: the files in the folder are the list, and each
holds checksums of its content.
"""

import concurrent.futures
import os
import pathlib
import re

import keras
import numpy as np

from keras_transformer.files import DamagedFile, check_format, read_arrays, save_arrays

FORMAT = 1  # of the files; others are refused

COPYING_THREADS = 4  # one does not use all of the memory's bandwidth

# The kinds of variables in a checkpoint; their names are e.g. "weights/0".
KINDS = ("weights", "optimizer", "seeds", "averages", "carried", "loss_scale")


def path_of(directory, step):
    return pathlib.Path(directory, f"step-{step}.npz")


def steps_in(directory):
    """Steps of the checkpoints in a folder, in ascending order; empty if there is no folder."""
    if not os.path.isdir(directory):
        return []
    matches = (re.fullmatch(r"step-(0|[1-9][0-9]*)\.npz", name) for name in os.listdir(directory))
    return sorted(int(match[1]) for match in matches if match)


def copy_values(variables, arrays):
    """Copies the values of variables into arrays of the same names, both dicts.

    Arrays are added where there are none. Keep them for the next copy: memory that is new to the
    process is several times slower.
    """

    def copy(name):
        np.copyto(arrays[name], np.asarray(variables[name]))

    for name, variable in variables.items():
        if name not in arrays:
            arrays[name] = np.empty(tuple(variable.shape), _dtype(variable))
    with concurrent.futures.ThreadPoolExecutor(COPYING_THREADS) as pool:
        list(pool.map(copy, variables))  # raises what failed


def write(path, values, notes):
    """Atomically writes the values of variables, and notes, both dicts of arrays by name."""
    notes = {f"notes/{name}": note for name, note in notes.items()}
    save_arrays(path, {"format": FORMAT, **values, **notes}.items())


def read(path, variables):
    """Assigns a checkpoint without problems to a dict of variables, and returns its notes."""
    notes = {}
    for name, array in read_arrays(path):
        if name in variables:
            variables[name].assign(in_dtype_of(array, variables[name]))
        elif name.startswith("notes/"):
            notes[name.removeprefix("notes/")] = array
    return notes


def weights_of(path):
    """Yields name and value of each weight in a checkpoint, in order."""
    for name, array in read_arrays(path):
        if name.startswith("weights/"):
            yield name, array
        elif name != "format":
            return  # the weights come first


def in_dtype_of(array, variable):
    """An array in the dtype of a variable; NumPy's files store bfloat16 as untyped bytes."""
    return array.view(_dtype(variable)) if array.dtype.kind == "V" else array


def _dtype(variable):
    """The NumPy dtype in which the value of a Keras or TensorFlow variable is kept."""
    name = keras.backend.standardize_dtype(variable.dtype)
    # JAX counts in 32 bits; checkpoints hold 64 bits, as on TensorFlow.
    is_short = keras.backend.backend() == "jax" and keras.backend.is_int_dtype(name)
    return np.dtype("int64" if is_short else name)


def problem_with(path, variables, kinds=KINDS):
    """Reads a whole checkpoint and returns a sentence on why it cannot be used, or None.

    It must fit `variables`, a dict by name, as far as they are of these kinds. Raises ValueError if
    it has another format.
    """
    stored, format = {}, None
    try:
        for name, array in read_arrays(path):
            stored[name] = array.dtype, list(array.shape)
            format = int(array) if name == "format" else format
    except DamagedFile as error:
        return str(error)
    check_format(path, format, FORMAT)
    expected = {name: _type_and_shape(variable) for name, variable in variables.items()}
    problem = _difference(stored, expected, kinds)
    return problem and f"{path} is from a different run: {problem}."


def _type_and_shape(variable):
    dtype = _dtype(variable)
    return np.dtype(f"V{dtype.itemsize}") if dtype.kind == "V" else dtype, list(variable.shape)


def _difference(stored, expected, kinds):
    """The first difference in types and shapes between a checkpoint and a model, or None."""
    for kind in kinds:
        counts = [
            sum(name.startswith(f"{kind}/") for name in names) for names in (stored, expected)
        ]
        if counts[0] != counts[1]:
            return f"it has {counts[0]} variables for {kind}, the model has {counts[1]}"
    for name, (dtype, shape) in expected.items():
        stored_dtype, stored_shape = stored[name]
        if shape != stored_shape:
            hint = " (the memory of each replica: go on with as many)" * name.startswith("carried/")
            return f"{name} has the shape {stored_shape} there, {shape} here{hint}"
        if dtype != stored_dtype:
            # NumPy lacks bfloat16 and calls it two untyped bytes.
            types = [str(t).replace("|V2", "bfloat16") for t in (stored_dtype, dtype)]
            return f"{name} has the type {types[0]} there, {types[1]} here"
    return None
