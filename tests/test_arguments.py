"""An editor shows every argument of what the library exports: none hides in *args or **kwargs."""

import importlib
import inspect

import pytest

from keras_transformer import layers
from keras_transformer.layers.checks import InputChecksMixin
from keras_transformer.layers.projection import LoRAMixin

ROOMS = "ops layers models training tokenizers data decoding serving convert figures".split()
VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
# What takes any number of things of one kind, or names documented as another's.
WITH_MANY = {
    "ops.combine_masks": "any number of masks",
    **{
        f"layers.{name}.attention_scores": "the arguments of a call"
        for name in layers.__all__
        if hasattr(getattr(layers, name), "attention_scores")
    },
    **{
        f"layers.{name}.add_weight": "the arguments of Keras's method"
        for name in layers.__all__
        if issubclass(getattr(layers, name), LoRAMixin)
    },
    **{
        f"layers.{name}.compute_output_shape": "any number of shapes"
        for name in layers.__all__
        if getattr(layers, name).compute_output_shape is InputChecksMixin.compute_output_shape
    },
    **{
        f"layers.{name}.compute_output_spec": "the arguments of a call"
        for name in layers.__all__
        if issubclass(getattr(layers, name), layers.MultiHeadAttention)
    },
    "training.FunctionalModel.evaluate": "by which Keras validates",
    "training.Model.evaluate": "by which Keras validates",
    **{
        f"models.{name}": "the dimensions of a size"
        for name in "bert classifier gpt2 language_model transformer_xl translation".split()
    },
    **{
        f"serving.{name}.answer": "the inputs of a signature of the model"
        for name in ("Answerer", "Classifier", "Generator", "Translator")
    },
    "training.Model.stateless_call": "the arguments of a call",
    "training.FunctionalModel.stateless_call": "the arguments of a call",
}


def routines(room):
    """(name, function) of the functions and the methods, of ours, of what a room exports.

    Constructors are left out: those of layers hand **kwargs to Keras.
    """
    module = importlib.import_module(f"keras_transformer.{room}")
    for name in module.__all__:
        thing = getattr(module, name)
        if not inspect.isclass(thing):
            if inspect.isroutine(thing):
                yield f"{room}.{name}", thing
            continue
        for method, function in inspect.getmembers(thing, inspect.isroutine):
            of_room = f"keras_transformer.{room}."  # inherited methods belong to their own room
            ours = (getattr(function, "__module__", None) or "").startswith(of_room)
            if ours and not method.startswith("_"):
                yield f"{room}.{name}.{method}", function


@pytest.mark.parametrize("room", ROOMS)
def test_every_argument_is_named(room):
    hidden = set()
    for name, function in routines(room):
        parameters = inspect.signature(function).parameters.values()
        if any(parameter.kind in VARIABLE for parameter in parameters):
            hidden.add(name)
    assert hidden == {name for name in WITH_MANY if name.startswith(f"{room}.")}
