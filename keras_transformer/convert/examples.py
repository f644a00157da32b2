"""Inputs and our model's answers, with which another library is checked."""

import json

import keras
import numpy as np

from keras_transformer.models.copies import with_dtype

TEXTS = ("A dog runs.", "it is ten past 6", "12,50")
NUM_EXAMPLES, EXAMPLE_LENGTH, FIRST_WORD_ID = 3, 7, 4


def float32_model(text_model):
    """The model of a text model, or a copy of it that computes in float32."""
    model = text_model.model
    if all(layer.compute_dtype == "float32" for layer in model.layers):
        return model
    return with_dtype(model, "float32")


def texts_and_ids(tokenizer):
    """Texts and their ids without control tokens, {"texts": JSON in an array}."""
    ids = tokenizer.tokenize(list(TEXTS)) - getattr(tokenizer, "first_id", 0)
    return {"texts": np.array(json.dumps([list(TEXTS), ids.to_list()]))}


def drawn_inputs(model):
    """Random inputs without padding, {name: (3, 7) int32}; every position is masked."""
    draw = np.random.default_rng(0)
    tables = (layer for layer in model.layers if hasattr(layer, "vocabulary_size"))
    size, inputs = min(table.vocabulary_size for table in tables), {}
    for tensor in keras.tree.flatten(model.input):
        ids = draw.integers(FIRST_WORD_ID, size, (NUM_EXAMPLES, EXAMPLE_LENGTH), "int32")
        if tensor.name == "segment_ids":
            ids %= 2
        if tensor.name == "masked_positions":
            ids[:] = np.arange(EXAMPLE_LENGTH)
        inputs[tensor.name] = ids
    return inputs


def answers(model, inputs):
    """The outputs of a model, {name: array}; a single one is called "logits"."""
    packed = keras.tree.pack_sequence_as(model.input, [*inputs.values()])
    outputs = model(packed, training=False)
    outputs = outputs if isinstance(outputs, dict) else {"logits": outputs}
    return {name: keras.ops.convert_to_numpy(output) for name, output in outputs.items()}
