"""Inputs and our model's answers, with which another library is checked."""

import json

import keras
import numpy as np

from keras_transformer.convert.tables import ConversionError
from keras_transformer.models.copies import with_dtype
from keras_transformer.training.id_checks import input_limits
from keras_transformer.training.internals import all_layers

TEXTS = ("A dog runs.", "it is ten past 6", "12,50")
NUM_EXAMPLES, EXAMPLE_LENGTH, FIRST_WORD_ID = 3, 7, 4


def float32_model(text_model):
    """The model of a text model, or a copy of it that computes in float32."""
    model = text_model.model
    if all(layer.compute_dtype == "float32" for layer in model.layers):
        return model
    return with_dtype(model, "float32")


def texts_and_ids(tokenizer, their_id_of=None):
    """Texts and their ids without control tokens, {"texts": JSON in an array}.

    Args:
        tokenizer: of the texts.
        their_id_of: their id for each of ours, if they are others.
    """
    ids = tokenizer.tokenize(list(TEXTS)) - getattr(tokenizer, "first_id", 0)
    rows = ids.to_list()
    if their_id_of is not None:
        added = len(tokenizer.tokenize([""]).to_list()[0])
        rows = [their_id_of[row[added:]].tolist() for row in rows]
    return {"texts": np.array(json.dumps([list(TEXTS), rows]))}


def drawn_inputs(model):
    """Random inputs without padding, {name: (3, 7) int32}; `masked_positions` are all positions.

    An input of a fixed length has that length instead of 7.

    Raises:
        ConversionError: if an input is not a batch of token ids, or no embedding says how many ids
            there are.
    """
    tensors = keras.tree.flatten(model.input)
    num_ids = {name: limits.count for (_, _, name), limits in input_limits(model).items()}
    num_rows = [
        layer.input_dim if isinstance(layer, keras.layers.Embedding) else layer.num_ids
        for layer in all_layers(model)
        if isinstance(layer, keras.layers.Embedding) or hasattr(layer, "num_ids")
    ]
    if not num_rows or any(len(tensor.shape) != 2 for tensor in tensors):
        raise ConversionError(
            "To check a converted model, its inputs must be token ids, (batch, length), and one of "
            "its layers an embedding of them. Received: inputs of the shapes "
            f"{[tuple(tensor.shape) for tensor in tensors]}, {len(num_rows)} embeddings."
        )
    draw, inputs = np.random.default_rng(0), {}
    for tensor in tensors:
        shape = NUM_EXAMPLES, tensor.shape[1] or EXAMPLE_LENGTH
        # The table that reads an input may be out of sight, inside of a layer: any may be it.
        size = num_ids.get(tensor.name) or min(num_rows)
        first = FIRST_WORD_ID if size > FIRST_WORD_ID else 0
        inputs[tensor.name] = draw.integers(first, size, shape, "int32")
        if tensor.name == "masked_positions":
            inputs[tensor.name][:] = np.arange(shape[1])
    return inputs


def answers(model, inputs):
    """The outputs of a model, {name: array}, as `named_outputs` names them."""
    packed = keras.tree.pack_sequence_as(model.input, [*inputs.values()])
    outputs = named_outputs(model(packed, training=False))
    return {name: keras.ops.convert_to_numpy(output) for name, output in outputs.items()}


def named_outputs(outputs):
    """The outputs of a model by name: "logits" if there is one, of a list "output_0" and so on."""
    if isinstance(outputs, dict):
        return outputs
    if isinstance(outputs, (list, tuple)) and len(outputs) > 1:
        return {f"output_{index}": output for index, output in enumerate(outputs)}
    return {"logits": keras.tree.flatten(outputs)[0]}
