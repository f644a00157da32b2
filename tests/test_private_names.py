"""Names that other libraries keep to themselves are used in files called `internals.py` alone."""

import ast
import pathlib

import keras
import pytest

import keras_transformer

PACKAGE = pathlib.Path(keras_transformer.__file__).parent
INTERNALS = sorted(PACKAGE.rglob("internals.py"))
ROOT = PACKAGE.parent
PRIVATE_MODULES = (
    *("keras.src", "tensorflow.core", "tensorflow.python", "tensorflow_text.python"),
    *("jax._src", "jaxlib"),
)
BY_NAME = ("getattr", "setattr", "hasattr")
# Of named tuples, whose documentation promises them.
PROMISED = {"_replace", "_asdict", "_fields"}
# Python's, whose documentation promises them.
PROMISED_WHOLE = {"os._exit"}
# Names that our classes share with Keras's by chance.
COMMON = {
    "keras_transformer": {"_model", "_name", "_shape", "_variables"},
    "train": {"_inputs", "_lock", "_path"},
}


def is_private(name):
    return name.startswith("_") and not name.startswith("__") and name not in PROMISED


def names_of_keras():
    """The private attributes of the objects of Keras that we subclass or handle."""
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Dense(2, activity_regularizer="l2")(inputs))
    model.compile(keras.optimizers.Adam(), "mse", metrics=["mae"])
    objects = [
        *(model, model.layers[1], model.optimizer, model.metrics[0], model.inputs[0]),
        *(model.weights[0], keras.losses.CosineSimilarity(), keras.callbacks.Callback()),
        keras.Sequential(),
    ]
    return {name for thing in objects for name in dir(thing) if is_private(name)}


def names_in(tree):
    """Private attributes: (line, name, whether it is one of `self` or a class's own method)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if ast.unparse(node) not in PROMISED_WHOLE:
                yield node.lineno, node.attr, ast.unparse(node.value) in ("self", "cls")
        elif isinstance(node, ast.ClassDef):
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            yield from ((method.lineno, method.name, True) for method in methods)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in BY_NAME:
            owner, name = node.args[:2]
            if isinstance(name, ast.Constant):
                yield node.lineno, name.value, ast.unparse(owner) == "self"


def modules_in(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield node.lineno, ast.unparse(node)


def offences(sources, common=frozenset()):
    """What breaks the rule in sources, a dict from a file's name to its text."""
    trees = {name: ast.parse(source) for name, source in sources.items()}
    theirs = names_of_keras() - common
    ours = {name for t in trees.values() for _, name, own in names_in(t) if own} - theirs
    for file, tree in trees.items():
        for line, name, _ in names_in(tree):
            if is_private(name) and name not in ours:
                yield f"{file}:{line} {name}"
        for line, module in modules_in(tree):
            if module.startswith(PRIVATE_MODULES) or module.startswith("unittest.mock"):
                yield f"{file}:{line} {module}"


@pytest.mark.parametrize("folder", COMMON)
def test_no_other_file_uses_a_private_name_of_keras_or_tensorflow(folder):
    paths = {*(ROOT / folder).rglob("*.py")} - {*INTERNALS}
    sources = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in paths}
    found = sorted(offences(sources, COMMON[folder]))
    assert not found, (
        "Move these behind a function of the room's internals.py, with a docstring that says what "
        "it relies on, and add a canary to tests/test_internals.py:\n" + "\n".join(found)
    )


def test_internals_import_nothing_private_before_it_is_used():
    """A name that has moved fails in its canary, and not in `import keras_transformer`."""
    for path in INTERNALS:
        tree = ast.parse(path.read_text("utf-8"))
        later = {
            inner
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef)
            for inner in ast.walk(node)
        }
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)) and node not in later:
                found = [name for _, name in modules_in(node) if name.startswith(PRIVATE_MODULES)]
                assert not found, f"{path}:{node.lineno}: {found}"


@pytest.mark.parametrize(
    "source",
    [
        "import keras.src.backend",
        "from keras.src.backend import get_keras_mask",
        "from tensorflow.python.eager import context",
        "from tensorflow.core.protobuf import saved_model_pb2",
        "from jax._src import compiler",
        "import unittest.mock",
        "layer._inbound_nodes",
        "getattr(tensor, '_keras_mask', None)",
        "optimizer._all_reduce_sum_gradients = list",
        "class Mine:\n    def fit(self):\n        self._compile_metrics = None",
        "class Mine:\n    def _maybe_symbolic_build(self):\n        pass",
    ],
)
def test_each_way_of_using_one_is_found(source):
    assert list(offences({"file.py": source}))


def test_what_is_ours_or_promised_is_not_found():
    source = "class Mine:\n    def set(self):\n        self._mine = 1\nMine()._mine\nx._replace()"
    assert not list(offences({"file.py": source}))
