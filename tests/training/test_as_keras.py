"""`kt.Model` takes what `keras.Model` takes, and gives its numbers on one device."""

import inspect
import itertools
import re
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.training import (
    FunctionalModel,
    Model,
    Perplexity,
    TokenAccuracy,
    TokenCrossentropy,
)

from .conftest import IDS, LABELS, language_model, needs_tensorflow, pair_of_models, rows
from .drawn_steps import squares

pytestmark = needs_tensorflow


def assert_logs_equal(logs, others):
    """Whether they are numbers or arrays without axes, as from earlier versions of Keras."""
    assert {k: float(v) for k, v in logs.items()} == pytest.approx(
        {k: float(v) for k, v in others.items()}, abs=1e-6
    )


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
            assert_logs_equal(one, other)
    np.testing.assert_allclose(ours.predict(x, verbose=0), theirs.predict(x, verbose=0), atol=1e-6)
    np.testing.assert_allclose(ours.predict_on_batch(x), theirs.predict_on_batch(x), atol=1e-6)


def test_class_weights_of_one_batch_are_those_of_keras_and_refused_for_tokens():
    x, y = rows()[0], np.array([0, 1, 1, 0, 1, 0, 0])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    logs = [
        model.train_on_batch(x, y, class_weight={0: 3.0, 1: 0.5}, return_dict=True)
        for model in pair_of_models(loss, metrics=())
    ]
    assert_logs_equal(*logs)
    model = language_model()
    model.compile("sgd", TokenCrossentropy())
    with pytest.raises(ValueError, match=r"class_weight has no meaning"):
        model.train_on_batch(IDS, LABELS, class_weight={3: 2.0})


def test_arguments_of_compile_stand_in_the_order_of_keras():
    x, y = rows()
    for model in pair_of_models(metrics=()):
        model.compile("sgd", "mse", None, ["mae"])
        assert set(model.fit(x, y, verbose=0).history) == {"loss", "mae"}


METRICS = (
    Perplexity,
    TokenAccuracy,
    lambda: Perplexity(pad_id=3, name="other"),
    lambda: TokenAccuracy(name="loss_of_hits"),
    keras.metrics.SparseCategoricalAccuracy,
    lambda: "sparse_categorical_accuracy",
    lambda: "accuracy",
)
STRUCTURES = (list, tuple, lambda metrics: [metrics], lambda metrics: {"out": metrics})


def answers_with_drawn_metrics(kind, seed):
    """All that a model of tokens returns of its loss and metrics, in order."""
    chance = np.random.default_rng(seed)
    graph = language_model()
    model = kind(graph.input, keras.layers.Identity(name="out")(graph.output))

    def metrics(most):
        count = int(chance.integers(most + 1))
        drawn = [METRICS[place]() for place in chance.integers(len(METRICS), size=count)]
        return STRUCTURES[chance.integers(len(STRUCTURES))](drawn)

    settings = {"metrics": metrics(4), "weighted_metrics": chance.choice([False, True])}
    settings["weighted_metrics"] = metrics(3) if settings["weighted_metrics"] else None
    settings["run_eagerly"] = bool(chance.integers(6))
    model.compile(keras.optimizers.SGD(0.1), TokenCrossentropy(), **settings)
    weights = chance.choice([None, 2.0], p=[0.7, 0.3])
    weights = None if weights is None else chance.uniform(0, 2, len(IDS))
    answers = [model.metrics_names]
    for as_dict in (False, True):
        one_batch = {"sample_weight": weights, "return_dict": as_dict}
        answers += [
            model.train_on_batch(IDS, LABELS, **one_batch),
            model.test_on_batch(IDS, LABELS, **one_batch),
            model.evaluate(IDS, LABELS, verbose=0, **one_batch),
        ]
    answers.append(model.fit(IDS, LABELS, sample_weight=weights, verbose=0).history)
    return [*answers, model.metrics_names, [type(metric).__name__ for metric in model.metrics]]


def assert_drawn_metrics_are_as_in_keras(seed):
    answers = [answers_with_drawn_metrics(kind, seed) for kind in (Model, keras.Model)]
    for ours, theirs in zip(*answers, strict=True):
        assert type(ours) is type(theirs), (seed, ours, theirs)
        if isinstance(theirs, dict):
            assert list(ours) == list(theirs), seed
            ours, theirs = list(ours.values()), list(theirs.values())
        if not isinstance(theirs, list) or not isinstance(theirs[0], str):
            ours, theirs = np.ravel(ours), pytest.approx(np.ravel(theirs), rel=1e-5)
        assert ours == theirs, seed


@pytest.mark.parametrize("seed", range(3))
def test_metrics_come_in_the_order_of_keras(seed):
    assert_drawn_metrics_are_as_in_keras(seed)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(2))
def test_more_drawn_metrics_come_in_the_order_of_keras(part):
    for seed in range(100 + 20 * part, 120 + 20 * part):
        assert_drawn_metrics_are_as_in_keras(seed)


def test_a_model_without_an_optimizer_can_be_evaluated_but_not_trained(tmp_path):
    x, y = rows()
    ours, theirs = pair_of_models()
    for model in (ours, theirs):
        model.compile(None, "mse", metrics=["mae"])
    assert ours.evaluate(x, y, verbose=0) == pytest.approx(theirs.evaluate(x, y, verbose=0))
    ours.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.test_on_batch(x, y) == pytest.approx(theirs.test_on_batch(x, y))
    for method in (loaded.fit, loaded.train_on_batch):
        with pytest.raises(ValueError, match=r"needs an optimizer.*Received: optimizer=None"):
            method(x, y)


ODD = (None, 5, 0.5, -1, "odd", "", [], {}, (), [None], [5], ["odd"], {"odd": None}, True, False)
ARGUMENTS = """optimizer loss loss_weights metrics weighted_metrics run_eagerly steps_per_execution
    jit_compile auto_scale_loss""".split()


def outcome_with(kind, argument, value, method):
    """What a method returns with an argument of `compile`, or the error of either."""
    [graph] = pair_of_models(kinds=[Model])
    model = kind(graph.input, graph.output)
    settings = {"optimizer": keras.optimizers.SGD(0.1), "loss": "mse"}
    settings["run_eagerly"] = argument not in ("steps_per_execution", "jit_compile")
    settings[argument] = value
    try:
        model.compile(**settings)
        answer = getattr(model, method)(*rows(), verbose=0)
        return answer.history["loss"] if method == "fit" else answer
    except Exception as error:
        return error


def assert_argument_is_as_in_keras(argument, value, method):
    case = argument, value, method
    ours, theirs = (outcome_with(kind, *case) for kind in (Model, keras.Model))
    if isinstance(ours, Exception):
        assert type(ours) in (type(theirs), ValueError), (case, ours, theirs)
        is_named = isinstance(theirs, Exception) or "Received: " in str(ours)
        assert is_named and str(ours), (case, ours, theirs)
    else:
        assert ours == pytest.approx(theirs, rel=1e-5), (case, ours, theirs)


@pytest.mark.soak
@pytest.mark.parametrize("argument", ARGUMENTS)
def test_every_odd_argument_of_compile_is_as_in_keras_or_named(argument):
    for value, method in itertools.product(ODD, ("fit", "evaluate")):
        assert_argument_is_as_in_keras(argument, value, method)


def test_metrics_by_the_name_of_the_output_are_those_of_keras():
    x, y = rows()
    for model in pair_of_models(metrics=()):
        model.compile("sgd", "mse", metrics={model.output_names[0]: ["mae"]})
        assert "mae" in model.fit(x, y, verbose=0).history


STRUCTURES_OF_ONE = (lambda t: t, lambda t: [t], lambda t: (t,), lambda t: {"out": t})
FORMS_OF_A_LOSS = ("mse", ["mse"], ("mse",), {"out": "mse"}, {"odd": "mse"}, [["mse"]])
FORMS_OF_A_LOSS += ({"out": ["mse"]}, ["mse", "mae"], {"out": "mse", "odd": "mae"}, [None], [])
LOSS_WEIGHTS = (None, 0.3, [2], (0.5,), {"out": 3.0}, {"odd": 3.0}, [1.0, 2.0], [None], 2, 0.0)
FORMS = list(
    itertools.product((0, 1), STRUCTURES_OF_ONE, FORMS_OF_A_LOSS, LOSS_WEIGHTS, STRUCTURES_OF_ONE)
)


def assert_forms_are_as_in_keras(is_subclass, structure, loss, loss_weights, labels):
    """A loss, its weight, the labels and the output are one, whatever they are wrapped in."""
    x, y = rows()
    outcomes = []
    for kind in (Model, keras.Model):
        if is_subclass:
            model = without_training(kind, structure)
        else:
            inputs = keras.Input((3,))
            outputs = keras.layers.Dense(2, kernel_initializer="ones", name="out")(inputs)
            model = kind(inputs, structure(outputs))
        try:
            model.compile(keras.optimizers.SGD(0.1), loss, loss_weights, run_eagerly=True)
            values = [float(model.train_on_batch(x, labels(y))) for _ in range(2)]
            outcomes.append([*values, *np.ravel(model.get_weights()[0])])
        except Exception as error:
            outcomes.append(error)
    ours, theirs = outcomes
    if isinstance(ours, Exception):
        is_expected = isinstance(theirs, Exception) or loss_weights == {"odd": 3.0}
        assert is_expected and type(ours) in (ValueError, type(theirs)), (ours, theirs)
    elif not isinstance(theirs, Exception):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    else:  # Keras does not look into structures for the one label, nor know the name of an output
        assert type(theirs) in (TypeError, KeyError, ValueError), theirs
        assert isinstance(labels(0), dict) or isinstance(loss, dict), theirs


def test_one_loss_in_a_structure_is_one_loss():
    for case in FORMS[::131]:
        assert_forms_are_as_in_keras(*case)


@pytest.mark.soak
def test_many_structures_of_one_loss_are_as_in_keras():
    for case in FORMS[::13]:
        assert_forms_are_as_in_keras(*case)


class Halved(FunctionalModel):
    """A model whose `call` differs from its graph."""

    def call(self, inputs, training=None, mask=None):
        return super().call(inputs, training=training, mask=mask) / 2


def without_training(base, structure=lambda outputs: outputs):
    """A model of a subclass of a kind of model, which its first batch builds."""

    class WithoutTraining(base):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(2, kernel_initializer="ones")

        def call(self, inputs):
            return structure(self.dense(inputs))

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


@keras.saving.register_keras_serializable(package="tests")
class CompiledByRate(FunctionalModel):
    def compile(self, rate=0.1):
        super().compile(keras.optimizers.SGD(rate), "mse")


def twice(self, outputs):
    return keras.tree.map_structure(lambda each: each * 2, outputs)


def with_a_constant(self, logs):
    return {**logs, "constant": keras.ops.ones(())}


def own_step(self, data):
    x, y = data[:2]
    with tf.GradientTape() as tape:
        outputs = self(x, training=True)
        loss = self.compute_loss(y=y, y_pred=outputs)
    self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
    for metric in self.metrics:
        metric.update_state(*((loss,) if metric.name == "loss" else (y, outputs)))
    return {metric.name: metric.result() for metric in self.metrics}


# Methods that replace one of `keras.Model`, and functions of a model and of what Keras's returns.
REPLACED = {
    "train_step": own_step,
    "test_step": lambda self, data: {"mine": keras.ops.sum(self(data[0], training=False))},
    "metrics": property(lambda self: keras.Model.metrics.fget(self)[1:]),  # without the loss
    "get_compile_config": lambda self: None,
    "compile_from_config": lambda self, config: self.compile(keras.optimizers.SGD(0.3), "mae"),
}
EXTENDED = {
    "train_step": with_a_constant,
    "test_step": with_a_constant,
    "predict_step": twice,
    "get_metrics_result": with_a_constant,
    "get_compile_config": lambda self, config: {**config, "run_eagerly": True},
    "metrics": lambda self, metrics: metrics[::-1],
    "metrics_names": lambda self, names: names[::-1],
    "reset_metrics": lambda self, nothing: setattr(self, "resets", getattr(self, "resets", 0) + 1),
    "call": twice,
    "make_train_function": lambda self, function: function,
    "get_build_config": lambda self, config: {**config, "mark": 1},
    "build_from_config": lambda self, nothing: setattr(self, "is_rebuilt", True),
    "fit": lambda self, history: history,
}


def with_an_override(kind, name, is_extended):
    """A subclass of a kind of model with one method, or property, of its own."""
    if not is_extended:
        method = REPLACED[name]
    elif isinstance(getattr(kind, name, None), property):
        theirs = getattr(kind, name)
        method = property(lambda self: EXTENDED[name](self, theirs.fget(self)))
    else:

        def method(self, *args, **settings):
            return EXTENDED[name](self, getattr(super(own, self), name)(*args, **settings))

    own = type(
        f"Own{kind.__module__.replace('.', '_')}{name}{is_extended}", (kind,), {name: method}
    )
    return keras.saving.register_keras_serializable(package="tests")(own)


def outcomes_with_an_override(kind, name, is_extended, folder):
    """What a subclass answers before it is saved and after it is loaded, or the error."""
    x, y = rows()
    [graph] = pair_of_models(kinds=[Model])
    base = FunctionalModel if kind is Model else kind
    model = with_an_override(base, name, is_extended)(graph.input, graph.output)
    answers = []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            optimizer = keras.optimizers.SGD(0.1, momentum=0.5)
            model.compile(optimizer, "mse", metrics=["mae"], run_eagerly=name != "train_step")
            for _ in range(2):
                if model.compiled:
                    fit = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0}
                    answers.append(model.fit(x, y, **fit).history)
                    answers += [model.evaluate(x, y, verbose=0), model.train_on_batch(x, y)]
                    answers += [model.metrics_names, int(model.optimizer.iterations)]
                answers += [model.predict(x, verbose=0).tolist(), model.compiled]
                answers += [getattr(model, "resets", 0), getattr(model, "is_rebuilt", False)]
                model.save(folder / "model.keras")
                model = keras.models.load_model(folder / "model.keras")
        except Exception as error:
            answers.append(f"{type(error).__name__}: {error}".replace(type(model).__name__, ""))
    return answers, sorted(re.sub("'[a-z]+(_[0-9]+)?'", "", str(each.message)) for each in warned)


def assert_override_is_as_in_keras(name, is_extended, folder):
    ours, theirs = (
        outcomes_with_an_override(kind, name, is_extended, folder) for kind in (Model, keras.Model)
    )
    assert ours[1] == theirs[1], name
    assert len(ours[0]) == len(theirs[0]) > 5, (name, ours[0], theirs[0])
    for one, other in zip(ours[0], theirs[0], strict=True):
        if isinstance(other, dict):
            assert list(one) == list(other), name
            one, other = list(one.values()), list(other.values())
        if isinstance(other, str) or (isinstance(other, list) and isinstance(other[0], str)):
            assert one == other, name
        else:
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6, err_msg=name)


OVERRIDES = [*((name, False) for name in REPLACED), *((name, True) for name in EXTENDED)]


def test_a_subclass_without_the_loss_in_its_metrics_trains_as_in_keras(tmp_path):
    assert_override_is_as_in_keras("metrics", False, tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("override", OVERRIDES, ids=str)
def test_each_method_of_a_subclass_does_what_it_does_in_keras(override, tmp_path):
    assert_override_is_as_in_keras(*override, tmp_path)


def test_a_model_with_a_compile_of_its_own_is_loaded_uncompiled_as_in_keras(tmp_path):
    [graph] = pair_of_models(kinds=[Model])
    model = CompiledByRate(graph.input, graph.output)
    model.compile(0.5)
    model.fit(*rows(), verbose=0)
    model.save(tmp_path / "model.keras")
    with pytest.warns(UserWarning, match=r"`compile\(\)` was not called as part of model loading"):
        loaded = keras.models.load_model(tmp_path / "model.keras")
    for method in (loaded.fit, loaded.evaluate, loaded.train_on_batch):
        with pytest.raises(ValueError, match=r"Compile the model before"):
            method(*rows())
    x = rows()[0]
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))


@pytest.mark.slow
@pytest.mark.parametrize("where", ["kernel_regularizer", "activity_regularizer"])
@pytest.mark.parametrize("parts", [1, 3])
def test_regularisers_count_as_in_keras(where, parts):
    (x, y), regularizer = rows(), keras.regularizers.L1L2(0.1, 0.2)
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


@pytest.mark.parametrize(
    "method", ["compile", "fit", "evaluate", "train_on_batch", "test_on_batch", "predict_on_batch"]
)
def test_methods_name_the_arguments_of_keras_in_its_order(method):
    ours, theirs = (inspect.signature(getattr(c, method)).parameters for c in (Model, keras.Model))
    named = [parameter for parameter in theirs.values() if parameter.kind != parameter.VAR_KEYWORD]
    assert list(ours.values())[: len(named)] == named


def faults(data):
    """Wrong data instead of an array, and how it is called."""
    return {
        "None": None,
        "a list of None": [None],
        "a tuple of None": (None,),
        "an empty list": [],
        "an empty dict": {},
        "a dict of None": {"data": None},
        "two arrays, one absent": [data, None],
        "two arrays": [data, data],
        "a number": 5,
        "a text": "a",
        "texts": np.array(["a"] * len(data)),
        "lists": data.tolist(),
        "no array": np.array(3),
        "fewer rows": data[:2],
        "no rows": data[:0],
    }


METHODS = ("fit", "evaluate", "train_on_batch", "test_on_batch", "predict", "predict_on_batch")


def error_of(kind, of_tokens, method, argument, fault, parts):
    """The error of a method that gets wrong data as x, y, or for validation, or None."""
    if of_tokens:
        graph, x, y, loss = language_model(), IDS, LABELS, TokenCrossentropy()
    else:
        (x, y), loss = rows(), "mse"
        [graph] = pair_of_models(kinds=[Model])
    model = kind(graph.input, graph.output)
    model.compile("sgd", loss, **({"accumulation_steps": parts} if kind is Model else {}))
    wrong = {"x": x, "y": y, argument: faults(y if argument == "y" else x)[fault]}
    settings = {} if "batch" in method else {"verbose": 0}
    if argument == "validation":
        wrong = {"x": x, "y": y}
        settings["validation_data"] = (faults(x)[fault], y)
    if "predict" in method:
        del wrong["y"]
    try:
        getattr(model, method)(**wrong, **settings)
    except Exception as error:
        return error


def message_of(error):
    """Without the names and numbers of objects, which differ, and with one name for models."""
    text = re.sub(r"\bcall(ing|ed by) \w+", "call", str(error))
    text = re.sub(r"(?:(?:functional|model|dense|keras_tensor|input_layer)[_\d]*)+", "name", text)
    return re.sub(r"(?:compile_loss|node)[/\w]*|0x\w+", "", text)


def assert_fault_is_keras_error(of_tokens, method, argument, fault, parts=1):
    case = of_tokens, method, argument, fault, parts
    ours, theirs = (error_of(kind, *case) for kind in (Model, keras.Model))
    assert (ours is not None) >= (theirs is not None), (case, theirs)
    if parts == 1 and argument != "y" and theirs is not None:
        is_same = type(ours) is type(theirs) and message_of(ours)[:40] == message_of(theirs)[:40]
        assert is_same or "Received: " in str(ours), (case, ours, theirs)
    elif ours is not None:  # we say more of labels, and may refuse more
        named = ValueError, tf.errors.InvalidArgumentError
        assert isinstance(ours, (type(theirs), *named)), (case, ours, theirs)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("parts", [1, 2])
def test_data_that_are_absent_reach_the_error_of_keras(method, parts):
    assert_fault_is_keras_error(parts == 2, method, "x", "a list of None", parts)


@pytest.mark.parametrize("fault", ["fewer rows", "a list of None", "a text"])
def test_labels_that_fit_no_rows_are_refused(fault):
    for of_tokens, parts in ((True, 1), (True, 2), (False, 2)):
        assert_fault_is_keras_error(of_tokens, "train_on_batch", "y", fault, parts)


@pytest.mark.soak
@pytest.mark.parametrize("method", METHODS)
def test_every_fault_of_data_reaches_the_error_of_keras(method):
    arguments = ["x", *["y"] * ("predict" not in method), *["validation"] * (method == "fit")]
    for count, (argument, fault) in enumerate(itertools.product(arguments, faults(IDS))):
        assert_fault_is_keras_error(count % 2 == 0, method, argument, fault)
        if argument != "x":
            assert_fault_is_keras_error(count % 2 == 1, method, argument, fault, parts=2)
