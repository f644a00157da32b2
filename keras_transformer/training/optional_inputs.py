"""Inputs that a batch may bring or leave out, such as the segments of packed rows.

With `keras.Input(optional=True)` each batch would need the key, if only for None, each export would
ask for the input, and a model of one array would take a dictionary. An `OptionalInput` is a layer:
without it in a batch, data, `model.input` and exports are those of a model that lacks it.
"""

import contextlib
import contextvars

import keras

# What the batch of the current call brings, {name: integers}.
_BROUGHT = contextvars.ContextVar("brought")


@keras.saving.register_keras_serializable(package="keras_transformer")
class OptionalInput(keras.layers.Layer):
    """Integers that a batch may bring for each token of an input of a functional `Model`.

    Its name is their key in the dictionary of a batch. For a batch without them it returns None and
    adds nothing to the graph, so pass its output only to arguments of layers that may be None.

    Call arguments:
        inputs: the input that they belong to, (batch, length).

    Returns:
        Integers (batch, length), or None.

    Examples:
        >>> import keras_transformer as kt
        >>> ids = keras.Input((None,), dtype="int32", name="ids")
        >>> segments = OptionalInput(name="segment_ids")(ids)
        >>> vectors = keras.layers.Embedding(7, 4)(ids)
        >>> vectors = kt.layers.SinusoidalEncoding()(vectors, segments=segments)
        >>> model = kt.Model(ids, vectors)
        >>> ids = keras.ops.array([[5, 5]])
        >>> together = model({"ids": ids, "segment_ids": keras.ops.array([[0, 1]])})
        >>> bool(keras.ops.all(together[:, 1] == model(ids)[:, 0]))
        True
    """

    def call(self, inputs):
        return _BROUGHT.get({}).get(self.name)

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape, "int32")


class OptionalInputsMixin:
    """For Keras models: takes what `OptionalInput`s read out of the batch of a call."""

    def __call__(self, *args, **kwargs):
        with optional_inputs_of(self, args) as args:
            return super().__call__(*args, **kwargs)

    def stateless_call(self, weights, others, *args, **kwargs):  # by which Keras trains on JAX
        with optional_inputs_of(self, args) as args:
            return super().stateless_call(weights, others, *args, **kwargs)


@contextlib.contextmanager
def optional_inputs_of(model, args):
    """Yields the arguments of a call without what the model's `OptionalInput`s return meanwhile.

    Raises ValueError if the batch brings segments that the model does not read.
    """
    brought = {}
    if args and isinstance(args[0], dict) and getattr(model, "inputs", None):
        names = {layer.name for layer in model.layers if isinstance(layer, OptionalInput)}
        brought = {name: args[0][name] for name in names & args[0].keys()}
        rest = {name: part for name, part in args[0].items() if name not in brought}
        _check_segments(model, brought, rest)
        if rest.keys() == {getattr(model.input, "name", None)}:
            rest = rest[model.input.name]  # Keras warns of a dictionary for one tensor
        args = (rest, *args[1:])
    token = _BROUGHT.set(brought)
    try:
        yield args
    finally:
        _BROUGHT.reset(token)


def _check_segments(model, brought, rest):
    others = rest.keys() - {tensor.name for tensor in model.inputs}
    if unread := sorted(name for name in others if name.endswith("segment_ids")):
        raise ValueError(
            "The rows of the batch hold several texts, which this model would mix. Only models of "
            "language_model, gpt2 and translation without an attention_pattern tell them apart; "
            f"others need batches that are not packed. Received: {', '.join(unread)} for "
            f"{model.name}."
        )
    if any(isinstance(each, keras.KerasTensor) for each in brought.values()):
        raise ValueError(
            "A model called within another reads no segments. Build the outer one from its graph, "
            f"as kt.Model(model.input, ...). Received: symbolic {', '.join(sorted(brought))}."
        )
