"""The files of checkpoints: one for a step, `step-<number>.npz`, of NumPy's own format.

A folder is never read through a list of what is in it, which could be lost: the files
themselves are the truth, and each holds checksums of all that is in it.
"""

import os
import pathlib
import re

import numpy as np

from keras_transformer.files import DamagedFile, read_arrays, save_arrays

# What the arrays of a checkpoint mean. 2 since kernels are kept as (output, input), 3 since a
# checkpoint is one file.
FORMAT = 3

# The kinds of variables that a checkpoint holds, each with a name such as "weights/0".
KINDS = ("weights", "optimizer", "seeds", "averages", "carried")


def path_of(directory, step):
    return pathlib.Path(directory, f"step-{step}.npz")


def steps_in(directory):
    """The steps of the checkpoints in a folder, lowest first; none if there is no folder."""
    if not os.path.isdir(directory):
        return []
    found = (re.fullmatch(r"step-(0|[1-9][0-9]*)\.npz", name) for name in os.listdir(directory))
    return sorted(int(match[1]) for match in found if match)


def earlier_format_in(directory):
    """The name of a checkpoint that an earlier version of this library has saved, or None."""
    names = os.listdir(directory) if os.path.isdir(directory) else []
    return next((name for name in names if re.fullmatch(r"step-[0-9]+\.index", name)), None)


def write(path, variables, notes):
    """Writes the values of variables and notes, both dicts by name, whole or not at all."""

    def arrays():
        yield "format", FORMAT
        for name, variable in variables.items():
            yield name, variable.numpy()
        for name, note in notes.items():
            yield f"notes/{name}", note

    save_arrays(path, arrays())


def read(path, variables):
    """Assigns a checkpoint, of which `problem_with` has found nothing, to variables by name.

    Returns:
        Its notes, a dict from a name to an array.
    """
    notes = {}
    for name, array in read_arrays(path):
        if name in variables:
            variables[name].assign(as_of(array, variables[name]))
        elif name.startswith("notes/"):
            notes[name.removeprefix("notes/")] = array
    return notes


def weights_of(path):
    """Yields the names and values of a checkpoint's weights, in their order."""
    for name, array in read_arrays(path):
        if name.startswith("weights/"):
            yield name, array
        elif name != "format":
            return  # the weights come first


def as_of(array, variable):
    """An array as it was: NumPy's file format knows bfloat16 and the like as bytes only."""
    return array.view(variable.dtype.as_numpy_dtype) if array.dtype.kind == "V" else array


def problem_with(path, variables, kinds=KINDS):
    """Reads a whole checkpoint; says in a sentence why it cannot be used, or returns None.

    Args:
        path: of the checkpoint.
        variables: a dict by name of those that it should fit.
        kinds: the kinds of variables that are compared.
    """
    there, version = {}, None
    try:
        for name, array in read_arrays(path):
            there[name] = array.dtype, list(array.shape)
            version = int(array) if name == "format" else version
    except DamagedFile as error:
        return str(error)
    if version != FORMAT:
        problem = f"its format is number {version}, this library reads {FORMAT}"
    else:
        here = {name: _type_and_shape(variable) for name, variable in variables.items()}
        problem = _difference(there, here, kinds)
    return problem and f"{path} is of another training: {problem}."


def _type_and_shape(variable):
    dtype = np.dtype(variable.dtype.as_numpy_dtype)
    return np.dtype(f"V{dtype.itemsize}") if dtype.kind == "V" else dtype, variable.shape.as_list()


def _difference(there, here, kinds):
    """What differs between the types and shapes of a checkpoint and of a model, or None."""
    for kind in kinds:
        counts = [sum(name.startswith(f"{kind}/") for name in names) for names in (there, here)]
        if counts[0] != counts[1]:
            return f"{kind} are {counts[0]} variables there, {counts[1]} here"
    for name, (dtype, shape) in here.items():
        dtype_there, shape_there = there[name]
        if shape != shape_there:
            return f"{name} has the shape {shape_there} there, {shape} here"
        if dtype != dtype_there:
            # NumPy, which lacks bfloat16, has two bytes of no type for it.
            types = [str(t).replace("|V2", "bfloat16") for t in (dtype_there, dtype)]
            return f"{name} has the type {types[0]} there, {types[1]} here"
    return None
