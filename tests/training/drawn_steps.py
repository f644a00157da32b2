"""Trains drawn models with `keras.Model`, `kt.Model`, and `kt.Model` on two replicas.

python -m tests.training.drawn_steps FIRST COUNT

Prints a JSON object for each drawn case, numbered from FIRST: what was drawn, and what each of
the three made of the same data and weights. A program of its own, since the devices must be
split before TensorFlow starts.
"""

import inspect
import json
import sys

import keras
import numpy as np
import tensorflow as tf
from keras import losses, ops

from keras_transformer.training import Model, split_cpu

ROWS, LENGTH, CLASSES, BATCH = 7, 5, 3, 4  # batches of 4 and 3 rows
REGRESSION = (
    "mse mae mape msle mean_squared_error huber log_cosh poisson cosine_similarity "
    "MeanSquaredError MeanAbsoluteError MeanAbsolutePercentageError "
    "MeanSquaredLogarithmicError Huber LogCosh Poisson CosineSimilarity squares Squares"
).split()
BINARY = (
    "binary_crossentropy bce hinge squared_hinge binary_focal_crossentropy kl_divergence kld "
    "BinaryCrossentropy Hinge SquaredHinge BinaryFocalCrossentropy KLDivergence Dice Tversky"
).split()
CATEGORICAL = (
    "categorical_crossentropy categorical_hinge categorical_focal_crossentropy "
    "CategoricalCrossentropy CategoricalHinge CategoricalFocalCrossentropy "
    "CategoricalGeneralizedCrossEntropy"
).split()
SPARSE = (
    "sparse_categorical_crossentropy SparseCategoricalCrossentropy ignoring nats circle Circle"
).split()
ARGUMENTS = {"Dice": {"axis": [1, 2]}, "Tversky": {"axis": [1]}, "ignoring": {"ignore_class": 0}}
REDUCTIONS = ("sum_over_batch_size", "mean", "sum", "mean_with_sample_weight", None)


def squares(y_true, y_pred):
    return ops.mean(ops.square(y_true - y_pred), axis=-1)


def nats(labels, probabilities):
    """A function of one's own whose labels may be integers."""
    labels = ops.reshape(ops.cast(labels, "int32"), ops.shape(probabilities)[:-1])
    chosen = ops.one_hot(labels, CLASSES, dtype=probabilities.dtype)
    return -ops.sum(chosen * ops.log(probabilities + 1e-3), axis=-1)


class Squares(losses.Loss):
    def call(self, y_true, y_pred):
        return squares(y_true, y_pred)


def draw(seed):
    """The choices of one case, as a dictionary that JSON can hold."""
    chance = np.random.default_rng([17, seed])

    def pick(options):
        return options[int(chance.integers(len(options)))]

    kind, names = pick(
        [("regression", REGRESSION), ("binary", BINARY)]
        + [("categorical", CATEGORICAL), ("sparse", SPARSE)]
    )
    case = {"seed": seed, "kind": kind, "loss": pick(names)}
    case["reduction"] = pick(REDUCTIONS) if case["loss"][0].isupper() else pick(REDUCTIONS[:3])
    case["sequence"] = pick([False, True])
    case["mask"] = case["sequence"] and pick([False, True])
    case["width"] = CLASSES if kind in ("categorical", "sparse") else pick([1, 1, CLASSES])
    case["rank"] = pick(["same", "same", "less"])  # of the labels, beside the outputs
    case["label_dtype"] = pick(["float32", "float64", "int32", "int64", "uint8"])
    fitting = ["n1", "nt", "nt1"] if case["sequence"] else ["n", "n1", "twos", "class"]
    case["weights"] = pick([None, None, *fitting, *fitting, "n", "nt", "class"])
    case["policy"] = pick(["float32"] * 4 + ["mixed_bfloat16", "float64", "mixed_float16"])
    case["metrics"] = pick([[], [], ["mae"], ["accuracy"], ["mse", "mae"]])
    if case["policy"] in ("mixed_bfloat16", "mixed_float16") and case["metrics"] == ["accuracy"]:
        case["metrics"] = []  # which a rounding can change
    case["weighted"] = pick([False, True])
    case["penalty"] = pick([None, None, None, "kernel", "activity"])
    case["parts"] = pick([1, 1, 2, 3])
    case["frozen"] = pick([False, False, True])
    case["eager"] = pick([False, True, True])
    case["loss_dtype"] = pick([None, None, "float64"])
    case["form"] = pick(["plain", "plain", "list", "tuple", "dict"])
    case["loss_weights"] = pick([None, None, 0.3, [2], (-0.5,), {"out": 3.0}, 0.0])
    return case


def loss_of(case):
    """The loss in the form that was drawn, for the output "out"."""
    loss = single_loss_of(case)
    forms = {"plain": loss, "list": [loss], "tuple": (loss,), "dict": {"out": loss}}
    return forms[case["form"]]


def single_loss_of(case):
    name, reduction = case["loss"], case["reduction"]
    if name in ("squares", "nats"):
        return globals()[name]
    arguments = {**ARGUMENTS.get(name, {}), "dtype": case["loss_dtype"]}
    if name == "ignoring":
        return losses.SparseCategoricalCrossentropy(reduction=reduction, **arguments)
    if name == "Squares":
        return Squares(reduction=reduction, dtype=case["loss_dtype"])
    if not name[0].isupper():
        return name
    return getattr(losses, name)(reduction=reduction, **arguments)


def data_of(case):
    """Inputs, labels and sample weights, arrays."""
    chance = np.random.default_rng([23, case["seed"]])
    inner = (LENGTH,) if case["sequence"] else ()
    x = chance.normal(size=(ROWS, *inner, 4)).astype("float32")
    if case["mask"]:
        x[np.arange(ROWS)[:, None] % LENGTH + 1 <= np.arange(LENGTH)] = 0  # 1 to 5 real steps
    shape = (ROWS, *inner, case["width"])
    if case["kind"] == "sparse":
        y = chance.integers(0, CLASSES, shape[:-1])
        y = y if case["rank"] == "less" else y[..., None]
    elif case["kind"] == "categorical":
        y = np.eye(CLASSES)[chance.integers(0, CLASSES, shape[:-1])]
    else:
        y = chance.integers(0, 2, shape)
        if case["kind"] == "regression":  # away from zero, by which some losses divide
            y = chance.uniform(1, 3, shape) * (2 * y - 1)
        if case["rank"] == "less" and case["width"] == 1:
            y = y[..., 0]
    if case["label_dtype"] == "uint8" or "oisson" in case["loss"]:
        y = np.abs(y)
    weights = chance.uniform(0.1, 2.0, (ROWS, LENGTH, 1)).astype("float32")
    weights = {
        "n": weights[:, 0, 0], "n1": weights[:, 0], "nt": weights[..., 0], "nt1": weights,
        "twos": np.full(ROWS, 2.0, "float32"),
    }.get(case["weights"])  # fmt: skip
    return x, y.astype(case["label_dtype"]), weights


def model_of(case, kind):
    keras.utils.set_random_seed(case["seed"])
    regularizer = keras.regularizers.L1L2(0.01, 0.02)
    inputs = keras.Input((LENGTH, 4) if case["sequence"] else (4,))
    hidden = keras.layers.Masking()(inputs) if case["mask"] else inputs
    hidden = keras.layers.Dense(
        5,
        "tanh",
        kernel_regularizer=regularizer if case["penalty"] == "kernel" else None,
        activity_regularizer=regularizer if case["penalty"] == "activity" else None,
        trainable=not case["frozen"],
    )(hidden)
    is_choice = case["kind"] in ("categorical", "sparse")
    last = "softmax" if is_choice else "sigmoid"
    outputs = keras.layers.Dense(case["width"], last, name="out")(hidden)
    model = kind(inputs, outputs)
    # A seed alone does not make initial weights equal where names count layers.
    for index, weight in enumerate(model.trainable_variables):
        numbers = np.random.default_rng([29, case["seed"], index]).normal(size=weight.shape)
        weight.assign(numbers.astype("float32") * 0.5)
    return model


def trained(case, kind, strategy):
    """Logs and weights after an epoch of two batches, or the error."""
    keras.config.set_dtype_policy(case["policy"])
    x, y, weights = data_of(case)
    try:
        with strategy.scope():
            model = model_of(case, kind)
            before = [w.numpy() for w in model.trainable_variables]
            metrics = {"weighted_metrics" if case["weighted"] else "metrics": case["metrics"]}
            metrics = {name: list(values) or None for name, values in metrics.items()}
            if "accumulation_steps" in inspect.signature(model.compile).parameters:
                metrics["accumulation_steps"] = case["parts"]
            eager = case["eager"] and strategy.num_replicas_in_sync == 1
            loss, loss_weights = loss_of(case), case["loss_weights"]
            settings = {"run_eagerly": eager, **metrics}
            model.compile(keras.optimizers.SGD(0.1), loss, loss_weights, **settings)
        fit = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
        if case["weights"] == "class":
            fit["class_weight"] = {0: 0.5, 1: 3.0, 2: 1.5}
        elif weights is not None:
            fit["sample_weight"] = weights
        logs = dict(model.fit(x, y, **fit).history.items())
        logs = {name: [float(v) for v in values] for name, values in logs.items()}
        fit.pop("class_weight", None), fit.pop("shuffle")
        evaluated = model.evaluate(x, y, return_dict=True, **fit)
        logs |= {f"evaluated {name}": [float(value)] for name, value in evaluated.items()}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        keras.config.set_dtype_policy("float32")
    after = [w.numpy().astype("float64") for w in model.trainable_variables]
    moved = max(np.abs(a - b).max() for a, b in zip(after, before, strict=True))
    return {"logs": logs, "weights": [w.ravel().tolist() for w in after], "moved": float(moved)}


def main(first, count):
    split_cpu(2)
    one = tf.distribute.get_strategy()
    two = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    for seed in range(int(first), int(first) + int(count)):
        case = draw(seed)
        results = {
            "keras": trained(case, keras.Model, one),
            "one": trained(case, Model, one),
            "two": trained(case, Model, two),
        }
        print(json.dumps({"case": case, **results}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
