"""Subclasses of the library's models are copied as those of `keras.Model`."""

import copy
import itertools
import pickle
import warnings

import keras
import numpy as np
import pytest

from keras_transformer.training import FunctionalModel, Model

X = np.random.default_rng(5).normal(size=(5, 3)).astype("float32")
CASES = list(
    itertools.product(
        ("none", "any", "size", "size in its config", "a call and no graph"),  # its constructor
        ("none", "first", "last"),  # a further base class
        (False, True),  # has it been compiled?
        (False, True),  # does it override `call`?
    )
)


class Marked:
    """A further base class, whose constructor passes on what it does not need."""

    def __init__(self, *args, mark=7, **kwargs):
        super().__init__(*args, **kwargs)
        self.mark = mark


class AnyArguments:
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


class Sized:
    def __init__(self, size=2, **kwargs):
        inputs = keras.Input((3,))
        super().__init__(inputs=inputs, outputs=keras.layers.Dense(size)(inputs), **kwargs)
        self.size = size


class SizedInConfig(Sized):
    def get_config(self):
        return {"size": self.size, "name": self.name}


class Called:
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(2)

    def call(self, inputs, training=None, mask=None):
        return self.dense(inputs)

    def get_config(self):
        return {"name": self.name}


class Halved:
    def call(self, inputs, training=None, mask=None):
        return super().call(inputs, training=training, mask=mask) / 2


CONSTRUCTORS = dict(zip(dict.fromkeys(case[0] for case in CASES), (
    object, AnyArguments, Sized, SizedInConfig, Called
), strict=True))  # fmt: skip


def class_of(library, constructor, further, overrides):
    """A subclass of a library's model, by a name under which pickle finds it here."""
    graph, plain = {"ours": (FunctionalModel, Model), "keras": (keras.Model,) * 2}[library]
    base = plain if constructor == "a call and no graph" else graph
    bases = [*([Halved] if overrides else []), CONSTRUCTORS[constructor], base]
    bases = [each for each in bases if each is not object]
    if further != "none":
        bases.insert(0 if further == "first" else len(bases), Marked)
    name = f"{library}_{constructor}_{further}_{overrides}".replace(" ", "_")
    if name not in globals():
        made = type(name, tuple(bases), {"__module__": __name__})
        globals()[name] = keras.saving.register_keras_serializable("subclasses")(made)
    return globals()[name]


def copies(model, folder):
    """(way, function that copies the model)."""

    def saved():
        model.save(folder / "model.keras")
        return keras.saving.load_model(folder / "model.keras")

    def by_function(layer):
        return type(layer).from_config(layer.get_config())

    return {
        "saved": saved,
        "pickled": lambda: pickle.loads(pickle.dumps(model)),
        "copied": lambda: copy.deepcopy(model),
        "from its config": lambda: type(model).from_config(model.get_config()),
        "cloned": lambda: keras.models.clone_model(model),
        "cloned by a function": lambda: keras.models.clone_model(model, clone_function=by_function),
    }.items()


def outputs_of(model):
    return keras.ops.convert_to_numpy(model(X, training=False))


def outcomes(library, constructor, further, is_compiled, overrides, folder):
    """Of each way to copy a model: what the copy is, or the error."""
    keras.utils.set_random_seed(3)
    cls = class_of(library, constructor, further, overrides)
    if constructor in ("none", "any"):
        inputs = keras.Input((3,))
        model = cls(inputs, outputs=keras.layers.Dense(2)(inputs), name="named")
    else:
        model = cls(name="named")
    assert type(model) is cls
    answers = {"itself": outputs_of(model).tolist()}
    if is_compiled:
        model.compile(keras.optimizers.SGD(0.1), "mse")
    for way, make in copies(model, folder):
        try:
            made = make()
            outputs = outputs_of(made)
            keeps_weights = np.array_equal(outputs, outputs_of(model))
            made.set_weights(model.get_weights())
            answers[way] = (
                *(type(made) is cls, made.name, made.compiled, keeps_weights),
                np.abs(outputs_of(made) - outputs_of(model)).max() < 1e-6,
            )
        except Exception as error:
            answers[way] = type(error)
    return answers


def assert_copies_are_as_in_keras(case, folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours, theirs = (outcomes(library, *case, folder) for library in ("ours", "keras"))
    assert ours == theirs, case


@pytest.mark.parametrize("case", CASES[::7], ids=str)
def test_copies_of_a_subclass_are_as_in_keras(case, tmp_path):
    assert_copies_are_as_in_keras(case, tmp_path)


@pytest.mark.soak
def test_copies_of_all_subclasses_are_as_in_keras(tmp_path):
    for case in CASES:
        assert_copies_are_as_in_keras(case, tmp_path)


@pytest.mark.parametrize("constructor", ["none", "any", "size"])
@pytest.mark.parametrize("further", ["none", "first", "last"])
def test_a_subclass_with_a_graph_is_told_which_class_to_inherit_from(constructor, further):
    bases = [CONSTRUCTORS[constructor], Model][constructor == "none" :]
    if further != "none":
        bases.insert(0 if further == "first" else len(bases), Marked)
    cls = type("Mine", tuple(bases), {})
    bases_of_model = Model.__bases__
    inputs = keras.Input((3,))
    calls = [
        ((inputs, inputs), {}),
        ((inputs,), {"outputs": inputs}),
        ((), {"inputs": inputs, "outputs": inputs, "name": "named"}),
    ]
    for args, kwargs in [((), {})] if constructor == "size" else calls:
        with pytest.raises(ValueError, match=r"Subclass kt\.FunctionalModel .*Received: .* Mine\."):
            cls(*args, **kwargs)
    assert Model.__bases__ == bases_of_model, "as Keras would have changed them"


def test_a_model_of_inputs_and_outputs_is_a_functional_model(tmp_path):
    inputs = keras.Input((3,))
    outputs = keras.layers.Dense(2)(inputs)
    models = [
        Model(inputs, outputs),
        Model(inputs, outputs=outputs, name="named"),
        Model(inputs=inputs, outputs=outputs, trainable=False),
        FunctionalModel(inputs, outputs, "named"),
    ]
    for model in models:
        assert type(model) is FunctionalModel
        for _, make in copies(model, tmp_path):
            made = make()
            assert type(made) is FunctionalModel
            assert made.name == model.name
            made.set_weights(model.get_weights())
            np.testing.assert_array_equal(outputs_of(made), outputs_of(model))
    assert type(Model.from_config(models[0].get_config())) is FunctionalModel
    assert type(Model()) is Model
