"""`kt.Model` gives Keras's numbers wherever Keras is defined on one device, or refuses."""

import json
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.training import Model, TokenAccuracy, TokenCrossentropy

from .conftest import IDS, LABELS, language_model, needs_tensorflow
from .drawn_steps import Squares, squares

pytestmark = needs_tensorflow
ROOT = pathlib.Path(__file__).parents[2]
DRAWN = 30  # cases in the suite; SOAK more where they are asked for
SOAK = 600
REFUSALS = (
    "The shape of sample_weight must be that of",
    "The shape of the mask of the outputs must be that of the losses",
    "The loss of a row must not depend on the other rows",
    "The reduction of the loss must be",
    "The loss must return one value per row or token, not a scalar",
    "Loss scaling is not supported",
    "Labels and predictions must have the same rank",
)


def drawn(first, count):
    """The results of drawn cases, computed in a program of its own with two devices."""
    command = [sys.executable, "-m", "tests.training.drawn_steps", str(first), str(count)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == count
    return results


def difference(results, others):
    """The largest difference of two logs and weights, relative to numbers above 1."""
    assert results["logs"].keys() == others["logs"].keys(), "the names in the logs"
    pairs = [(results["logs"][name], others["logs"][name]) for name in results["logs"]]
    pairs += zip(results["weights"], others["weights"], strict=True)
    largest = 0.0
    for pair in pairs:
        one, other = map(np.array, pair)
        assert (np.isfinite(one) == np.isfinite(other)).all(), pair
        finite = np.isfinite(one)
        gap = np.abs(one - other)[finite] / np.maximum(1, np.abs(one[finite]))
        largest = max(largest, gap.max(initial=0.0))
    return largest


def is_expected(case):
    """Whether a case that Keras can train is one that we refuse."""
    fits = {"n", "n1", "twos", "class"} if not case["sequence"] else {"n1", "nt", "nt1"}
    return (
        case["policy"] == "mixed_float16"
        or case["reduction"] is None
        or case["loss"].lower() == "circle"
        or case["weights"] not in {None, *fits}
        or case["mask"]  # of other axes than the losses
        or (case["loss"] == "Squares" and case["rank"] == "less")
    )


def is_keras_bug(case):
    """Keras cannot add a penalty of another dtype to the loss."""
    other = case["policy"] != "float32" or case["loss_dtype"] is not None
    return case["penalty"] is not None and other


def check(result):
    """Returns what became of a drawn case: "equal", "refused", or "keras fails"."""
    case, theirs, one, two = (result[name] for name in ("case", "keras", "one", "two"))
    assert ("error" in one) == ("error" in two), (case, one.get("error"), two.get("error"))
    if "error" in one:
        if "error" not in theirs:  # both arrangements refuse with the same message
            assert any(message in one["error"] for message in REFUSALS), (case, one["error"])
            assert is_expected(case), (case, one["error"])
            assert one["error"][:60] == two["error"][:60], case
            return "refused"
        return "keras fails"
    half = case["policy"] == "mixed_bfloat16"
    if not ("error" in theirs and is_keras_bug(case)):
        assert "error" not in theirs, (case, theirs)
        assert difference(theirs, one) < (2e-2 if half else 1e-6), case
        assert one["moved"] == pytest.approx(theirs["moved"], rel=0.1, abs=1e-3), case
    assert difference(one, two) < (2e-2 if half else 1e-6), case
    return "equal"


def test_drawn_losses_labels_weights_masks_and_dtypes_give_the_numbers_of_keras():
    results = drawn(0, DRAWN)
    outcomes = [check(result) for result in results]
    assert outcomes.count("equal") >= DRAWN // 2, outcomes
    moved = [r["one"]["moved"] for r, o in zip(results, outcomes, strict=True) if o == "equal"]
    assert np.median(moved) > 1e-3, "the steps moved the weights"


@pytest.mark.soak
def test_hundreds_of_drawn_cases_give_the_numbers_of_keras():
    outcomes = [check(result) for result in drawn(1000, SOAK)]
    print({outcome: outcomes.count(outcome) for outcome in set(outcomes)})
    assert outcomes.count("equal") > SOAK / 2


def pair_of_models(loss="mse", outputs=2, metrics=("mae",), kinds=(Model, keras.Model), **settings):
    """The same model as ours and as Keras's, with the same weights."""
    for kind in kinds:
        keras.utils.set_random_seed(3)
        inputs = keras.Input((3,))
        model = kind(inputs, keras.layers.Dense(outputs)(inputs))
        model.compile(keras.optimizers.SGD(0.1), loss, metrics=list(metrics), **settings)
        yield model


def rows(outputs=2, count=7):
    chance = np.random.default_rng(5)
    return chance.normal(size=(count, 3)), chance.normal(size=(count, outputs))


@pytest.mark.parametrize(
    "loss",
    [squares, "hinge", "kl_divergence", "binary_crossentropy"],
    ids=["function", "hinge", "kl", "binary"],
)
def test_labels_without_a_last_axis_are_not_paired_with_all_outputs(loss):
    x, y = rows(outputs=1)
    y = np.abs(y[:, 0])
    ours, theirs = pair_of_models(loss, outputs=1)
    histories = [m.fit(x, y, epochs=2, verbose=0, shuffle=False).history for m in (ours, theirs)]
    np.testing.assert_allclose(histories[0]["loss"], histories[1]["loss"], rtol=1e-6)
    np.testing.assert_allclose(ours.get_weights()[0], theirs.get_weights()[0], atol=1e-6)


def test_a_loss_of_ones_own_that_would_pair_rows_is_refused():
    x, y = rows(outputs=1)
    [ours] = pair_of_models(Squares(), outputs=1, kinds=[Model])
    with pytest.raises(ValueError, match=r"same rank, or each row.*Received: labels of shape"):
        ours.fit(x, y[:, 0], verbose=0)


def test_weights_with_a_last_axis_count_for_tokens_and_their_metrics():
    logits = np.random.default_rng(5).normal(size=(5, 11)).astype("float32")
    labels, weights = np.array([3, 0, 5, 7, 1]), np.array([2.0, 1, 0, 3, 0.5])
    metric = TokenAccuracy()
    for loss in (TokenCrossentropy(), lambda *args: metric(*args)):
        flat, column = (float(loss(labels, logits, w)) for w in (weights, weights[:, None]))
        assert flat == pytest.approx(column, abs=1e-6)
    with pytest.raises(ValueError, match=r"one number per token, or per row"):
        TokenCrossentropy()(labels, logits, np.ones((5, 2)))
    with pytest.raises(ValueError, match=r"Labels must be integers"):
        TokenCrossentropy()(labels[:, None], logits)


@pytest.mark.parametrize("settings", [{}, {"run_eagerly": True}], ids=["graph", "eager"])
def test_methods_for_one_batch_are_those_of_keras(settings):
    x, y = rows()
    ours, theirs = pair_of_models(**settings)
    weights = np.linspace(0.5, 2, len(x))
    for _ in range(2):
        answers = [
            [
                model.train_on_batch(x, y, sample_weight=weights, return_dict=True),
                model.test_on_batch(x, y, return_dict=True),
            ]
            for model in (ours, theirs)
        ]
        for one, other in zip(*answers, strict=True):
            assert one == pytest.approx(other, abs=1e-6)
    np.testing.assert_allclose(ours.predict(x, verbose=0), theirs.predict(x, verbose=0), atol=1e-6)
    np.testing.assert_allclose(ours.predict_on_batch(x), theirs.predict_on_batch(x), atol=1e-6)


def test_class_weights_of_one_batch_are_those_of_keras_and_refused_for_tokens():
    x, y = rows()[0], np.array([0, 1, 1, 0, 1, 0, 0])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    logs = [
        model.train_on_batch(x, y, class_weight={0: 3.0, 1: 0.5}, return_dict=True)
        for model in pair_of_models(loss, metrics=())
    ]
    assert logs[0] == pytest.approx(logs[1], abs=1e-6)
    model = language_model()
    model.compile("sgd", TokenCrossentropy())
    with pytest.raises(ValueError, match=r"class_weight has no meaning"):
        model.train_on_batch(IDS, LABELS, class_weight={3: 2.0})


def test_arguments_of_compile_stand_in_the_order_of_keras():
    x, y = rows()
    for model in pair_of_models(metrics=()):
        model.compile("sgd", "mse", None, ["mae"])
        assert set(model.fit(x, y, verbose=0).history) == {"loss", "mae"}


def test_metrics_by_the_name_of_the_output_are_those_of_keras():
    x, y = rows()
    for model in pair_of_models(metrics=()):
        model.compile("sgd", "mse", metrics={model.output_names[0]: ["mae"]})
        assert "mae" in model.fit(x, y, verbose=0).history


@pytest.mark.parametrize("method", ["fit", "evaluate", "train_on_batch", "test_on_batch"])
def test_a_model_that_is_not_compiled_says_so(method):
    inputs = keras.Input((3,))
    model = Model(inputs, keras.layers.Dense(2)(inputs))
    with pytest.raises(ValueError, match=rf"Compile the model before {method}: model.compile"):
        getattr(model, method)(*rows())
    assert model.predict(rows()[0], verbose=0).shape == (7, 2), "which needs none"


def test_data_without_labels_are_refused():
    [model] = pair_of_models(kinds=[Model])
    for method in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match=r"need labels.*Received: inputs without labels"):
            method(rows()[0], verbose=0)


def test_several_outputs_are_refused():
    inputs = keras.Input((3,))
    two = [keras.layers.Dense(1)(inputs), keras.layers.Dense(2)(inputs)]
    model = Model(inputs, two)
    model.compile("sgd", "mse")
    x, y = rows()
    with pytest.raises(ValueError, match=r"one loss for one output. Received: 2 outputs"):
        model.fit(x, [y[:, :1], y], verbose=0)


@pytest.mark.parametrize("structure", [lambda t: [t], lambda t: {"out": t}], ids=["list", "dict"])
def test_one_output_in_a_structure_is_one_output(structure):
    losses = []
    for kind in (Model, keras.Model):
        keras.utils.set_random_seed(3)
        inputs = keras.Input((3,))
        model = kind(inputs, structure(keras.layers.Dense(2, name="out")(inputs)))
        model.compile(keras.optimizers.SGD(0.1), "mse")
        x, y = rows()
        losses.append(model.fit(x, structure(y), epochs=2, verbose=0, shuffle=False).history)
    np.testing.assert_allclose(losses[0]["loss"], losses[1]["loss"], atol=1e-6)


class Halved(Model):
    """A model whose `call` differs from its graph."""

    def call(self, inputs, training=None, mask=None):
        return super().call(inputs, training=training, mask=mask) / 2


def without_training(base):
    """A subclass of a kind of model, which its first batch builds."""

    class WithoutTraining(base):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(2, kernel_initializer="ones")

        def call(self, inputs):
            return self.dense(inputs)

    return WithoutTraining()


def test_the_call_of_a_subclass_is_what_is_trained():
    model, whole = language_model(), language_model()
    halved = Halved(model.inputs, model.outputs)
    for each in (halved, whole):
        each.compile(keras.optimizers.SGD(0.0), TokenCrossentropy())
    logs = [each.train_on_batch(IDS, LABELS, return_dict=True)["loss"] for each in (halved, whole)]
    expected = TokenCrossentropy()(LABELS, whole(IDS) / 2)
    assert logs[0] == pytest.approx(float(expected), abs=1e-6)
    assert abs(logs[0] - logs[1]) > 1e-3, "which differs from the graph's"


def test_a_subclass_that_is_built_by_its_first_batch_trains_as_in_keras():
    next(pair_of_models(kinds=[Model]))  # after which plain subclasses could not be made
    x, y = rows()
    losses = []
    for model in map(without_training, (Model, keras.Model)):
        model.compile(keras.optimizers.SGD(0.1), "mse")
        losses.append(model.fit(x, y, epochs=2, verbose=0, shuffle=False).history["loss"])
    np.testing.assert_allclose(*losses, atol=1e-6)
    assert losses[0][1] < losses[0][0]
    for settings in ({"ema_momentum": 0.9}, {"accumulation_steps": 2}):
        with pytest.raises(ValueError, match=r"Build the model before compile.*WithoutTraining"):
            without_training(Model).compile("sgd", "mse", **settings)


@pytest.mark.parametrize("method", ["compute_loss", "compute_metrics"])
def test_methods_that_the_step_does_not_call_cannot_be_overridden(method):
    kind = type("Mine", (Model,), {method: lambda self, *args, **kwargs: None})
    inputs = keras.Input((3,))
    with pytest.raises(ValueError, match=rf"cannot include a {method} of your own.*Received: Mine"):
        kind(inputs, keras.layers.Dense(2)(inputs)).compile("sgd", "mse")


@pytest.mark.parametrize(
    "regularizer", ["l1", "l2", keras.regularizers.L1L2(0.1, 0.2)], ids=["l1", "l2", "both"]
)
@pytest.mark.parametrize("where", ["kernel_regularizer", "activity_regularizer"])
@pytest.mark.parametrize("parts", [1, 3])
def test_regularisers_count_as_in_keras(regularizer, where, parts):
    x, y = rows()
    results = []
    for kind in (Model, keras.Model):
        keras.utils.set_random_seed(3)
        inputs = keras.Input((3,))
        hidden = keras.layers.Dense(5, "tanh", **{where: regularizer})(inputs)
        model = kind(inputs, keras.layers.Dense(2)(hidden))
        settings = {"accumulation_steps": parts} if kind is Model else {}
        model.compile(keras.optimizers.SGD(0.1), "mse", **settings)
        history = model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0).history
        results.append((history["loss"], model.evaluate(x, y, verbose=0), model.get_weights()))
    (ours, our_value, our_weights), (theirs, their_value, their_weights) = results
    np.testing.assert_allclose(ours, theirs, atol=1e-6)
    assert our_value == pytest.approx(their_value, abs=1e-6)
    for one, other in zip(our_weights, their_weights, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


class Penalised(keras.layers.Layer):
    def call(self, inputs):
        self.add_loss(keras.ops.sum(inputs))
        return inputs


def test_penalties_that_may_be_no_sum_over_rows_are_refused():
    inputs = keras.Input((3,))
    for layer in (Penalised(), keras.layers.Dense(2, activity_regularizer=keras.ops.max)):
        model = Model(inputs, keras.layers.Dense(2)(layer(inputs)))
        model.compile("sgd", "mse")
        with pytest.raises(ValueError, match=rf"penalties of rows.*the layer {layer.name}"):
            model.fit(*rows(), verbose=0)


def test_batch_normalisation_of_a_part_of_a_batch_is_refused():
    inputs = keras.Input((3,))
    norm = keras.layers.BatchNormalization()
    model = Model(inputs, keras.layers.Dense(2)(norm(inputs)))
    model.compile("sgd", "mse")  # of whole batches it is Keras's
    with pytest.raises(ValueError, match=r"BatchNormalization would see a part.*the layer batch"):
        model.compile("sgd", "mse", accumulation_steps=2)
    norm.trainable = False
    model.compile("sgd", "mse", accumulation_steps=2)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (keras.losses.Circle(), "must not depend on the other rows.*Received: circle"),
        ("circle", "must not depend on the other rows.*Received: circle"),
        (keras.losses.MeanSquaredError(reduction=None), "Received: reduction=None"),
        (type("Own", (keras.losses.Loss,), {"__call__": lambda *a: 0.0})(), "must define call"),
    ],
)
def test_losses_that_do_not_add_up_are_refused(loss, message):
    with pytest.raises(ValueError, match=message):
        next(pair_of_models(loss, kinds=[Model]))


@pytest.mark.parametrize("axis", [0, -2])
def test_losses_along_the_rows_are_refused(axis):
    [model] = pair_of_models(keras.losses.CosineSimilarity(axis=axis), kinds=[Model])
    with pytest.raises(ValueError, match=rf"must not depend on the other rows.*axis={axis}"):
        model.fit(*rows(), verbose=0)


def test_a_loss_with_fewer_values_than_rows_is_refused():
    [model] = pair_of_models(lambda y, p: keras.ops.mean(y - p, axis=0), kinds=[Model])
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=r"for each row"):
        model.fit(*rows(), verbose=0)
