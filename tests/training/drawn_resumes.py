"""Saves drawn models between two epochs, with `keras.Model` and `kt.Model`, and resumes them.

python -m tests.training.drawn_resumes FIRST COUNT

Prints a JSON object for each drawn case, numbered from FIRST: what was drawn, and for each of both
classes what it held after two epochs, with and without the file between them. A program of its
own, since the devices must be split before TensorFlow starts.
"""

import contextlib
import json
import pathlib
import sys
import tempfile
import warnings

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.training import Model, split_cpu
from keras_transformer.training.checkpoints import Checkpoints

ROWS, WIDTH, BATCH = 8, 3, 4
OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.5),
    "adam": lambda: keras.optimizers.Adam(0.05),
    "adamw": lambda: keras.optimizers.AdamW(0.05, weight_decay=0.1),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.02),
}
WAYS = ("keras", "weights", "backup", "checkpoints")
LAYERS = ("dense", "shared", "unused", "frozen", "stopped", "thawed", "nested")


def draw(seed):
    """The choices of one case, as a dictionary that JSON can hold."""
    chance = np.random.default_rng([31, seed])

    def pick(options):
        return options[int(chance.integers(len(options)))]

    return {
        "seed": seed,
        "way": pick(WAYS),
        "optimizer": pick(list(OPTIMIZERS)),
        "layers": [pick(LAYERS) for _ in range(int(chance.integers(1, 5)))],
        "subclass": pick([False, True]),
        "policy": pick(["float32", "float32", "mixed_bfloat16", "mixed_float16", "float64"]),
        "parts": pick([1, 1, 2]),
        "average": pick([None, None, 0.9]),
        "replicas": pick([1, 1, 2]),
        "clip_norm": pick([None, 1e9]),
        "eager": pick([True, True, False]),
    }


@keras.saving.register_keras_serializable(package="tests")
class Stack(keras.layers.Layer):
    """Layers by their names, some of whose weights get no gradient."""

    def __init__(self, names, **kwargs):
        super().__init__(**kwargs)
        self.names, self.stack = list(names), []
        for index, name in enumerate(names):
            if name == "nested":
                self.stack.append(Stack(["dense", "unused"], name=f"nested_{index}"))
            else:
                dense = keras.layers.Dense(WIDTH, "tanh", name=f"dense_{index}")
                dense.trainable = name not in ("frozen", "thawed")
                self.stack.append(dense)
        self.last = keras.layers.Dense(WIDTH, name="last")

    def build(self, shape):
        for layer in (*self.stack, self.last):
            layer.build(shape)
        if "unused" in self.names:
            self.unused = self.add_weight(shape=(2,), initializer="ones", name="unused")

    def call(self, inputs):
        for name, layer in zip(self.names, self.stack, strict=True):
            if name == "stopped":
                inputs = inputs + keras.ops.stop_gradient(layer(inputs))
            elif name != "unused":
                inputs = layer(inputs)
            if name == "shared":
                inputs = layer(inputs)
        return self.last(inputs)

    def compute_output_shape(self, shape):
        return shape

    def thaw(self):
        self.names = ["dense" if name == "thawed" else name for name in self.names]
        for name, layer in zip(self.names, self.stack, strict=True):
            layer.trainable = name != "frozen"

    def get_config(self):
        return {**super().get_config(), "names": self.names}


def subclass_of(kind):
    @keras.saving.register_keras_serializable(package=kind.__module__)
    class Stacked(kind):
        def __init__(self, names, **kwargs):
            super().__init__(**kwargs)
            self.stack = Stack(names)

        def call(self, inputs):
            return self.stack(inputs)

        def get_config(self):
            return {"names": self.stack.names}

    return Stacked


SUBCLASSES = {kind: subclass_of(kind) for kind in (Model, keras.Model)}


def model_of(case, kind):
    keras.utils.set_random_seed(case["seed"])
    if case["subclass"]:
        model = SUBCLASSES[kind](case["layers"])
        model.build((None, WIDTH))
        model(np.zeros((1, WIDTH), "float32"))
    else:
        inputs = keras.Input((WIDTH,))
        model = kind(inputs, Stack(case["layers"])(inputs))
    for index, weight in enumerate(model.weights):
        numbers = np.random.default_rng([37, case["seed"], index]).normal(size=weight.shape)
        weight.assign(numbers.astype("float32") * 0.5)
    return model


def compiled(case, model, kind):
    settings = {"run_eagerly": case["eager"] and case["replicas"] == 1}
    if kind is Model:
        settings |= {"clip_norm": case["clip_norm"], "accumulation_steps": case["parts"]}
        settings["ema_momentum"] = case["average"]
    model.compile(OPTIMIZERS[case["optimizer"]](), "mse", **settings)


def stack_of(model):
    return next(layer for layer in model.layers if isinstance(layer, Stack))


def prepared(case, kind):
    """A compiled model; where layers were frozen at first, after an epoch without them."""
    model = model_of(case, kind)
    compiled(case, model, kind)
    if "thawed" in case["layers"]:
        trained(case, model, 0, 1)
        stack_of(model).thaw()
        compiled(case, model, kind)
    return model


def trained(case, model, first, last, callbacks=()):
    chance = np.random.default_rng([41, case["seed"]])
    x, y = chance.normal(size=(2, ROWS, WIDTH)).astype("float32")
    epochs = {"initial_epoch": first, "epochs": last, "callbacks": list(callbacks)}
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0, **epochs)
    return model


def after_a_file(case, kind, folder):
    """The model after an epoch, a file of the drawn kind, and another epoch."""
    way = case["way"]
    first = prepared(case, kind)
    if way == "backup":
        backup = folder / "backup"
        callback = keras.callbacks.BackupAndRestore(backup, delete_checkpoint=False)
        trained(case, first, 0, 1, [callback])
        second = prepared(case, kind)
        return trained(case, second, 0, 2, [keras.callbacks.BackupAndRestore(backup)])
    trained(case, first, 0, 1)
    if way == "keras":
        first.save(folder / "model.keras")
        second = keras.models.load_model(folder / "model.keras")
    elif way == "weights":
        first.save_weights(folder / "model.weights.h5")
        second = prepared(case, kind)
        if not second.optimizer.built:  # or Keras would skip its state, with a warning
            second.optimizer.build(second.trainable_variables)
        second.load_weights(folder / "model.weights.h5")
    else:
        Checkpoints(folder, first, every=1).save()
        second = prepared(case, kind)
        Checkpoints(folder, second, every=1).restore()
    return trained(case, second, 1, 2)


def held(model):
    """All numbers that a model, its optimizer and its average hold."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    step = getattr(model, "_step", None)
    averages = [] if step is None or step.average is None else step.average.values
    variables = {"weights": model.weights, "optimizer": optimizer.variables, "average": averages}
    return {
        name: [keras.ops.convert_to_numpy(each).astype("float64").ravel().tolist() for each in some]
        for name, some in variables.items()
    }


def outcomes(case, kind, strategy):
    """What the model holds after two epochs, whole and with a file, and all warnings."""
    keras.config.set_dtype_policy(case["policy"])
    try:
        with warnings.catch_warnings(record=True) as warned, contextlib.ExitStack() as stack:
            warnings.simplefilter("always")
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
            with strategy.scope():
                whole = prepared(case, kind)
                trained(case, whole, 0, 2)
                resumed = after_a_file(case, kind, folder)
            said = sorted({str(warning.message)[:30] for warning in warned})
            return {"whole": held(whole), "resumed": held(resumed), "said": said}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        keras.config.set_dtype_policy("float32")


def main(first, count):
    split_cpu(2)
    strategies = {
        1: tf.distribute.get_strategy(),
        2: tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]),
    }
    for seed in range(int(first), int(first) + int(count)):
        case = draw(seed)
        result = {"case": case, "ours": outcomes(case, Model, strategies[case["replicas"]])}
        if case["way"] != "checkpoints":
            result["keras"] = outcomes(case, keras.Model, strategies[1])
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
