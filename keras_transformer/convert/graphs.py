"""Our models as TensorFlow functions, for formats that describe a graph."""

import json

import keras
import numpy as np

from keras_transformer.convert.tables import ConversionError
from keras_transformer.models.encoder_decoder import END_ID, START_ID
from keras_transformer.models.functions import layer_names

NUM_EXAMPLES, EXAMPLE_LENGTH, FIRST_WORD_ID = 3, 7, 4
TOLERANCE = 1e-4  # of an engine's answers: its rounding differs in a deep model


def write_each(text_model, draft, dtype, write_function):
    """Writes `model`, of a translation model also `encoder` and `decoder`, and what stands beside.

    Args:
        text_model: a `serving.Translator`, `Generator` or `Classifier`, or a `Converted`.
        draft: path of the folder.
        dtype: dtype of the weights, "float32".
        write_function: called with a tf.function, the model, and a path without suffix.

    Raises:
        ConversionError: if the dtype is another one.
    """
    if dtype != "float32":
        raise ConversionError(f"dtype must be float32 in this format. Received: {dtype!r}.")
    model = in_float32(text_model)
    functions = {"model": forward(model)}
    if is_translation(model):
        functions |= zip(("encoder", "decoder"), encoder_and_decoder(model), strict=True)
    for name, function in functions.items():
        write_function(function, model, draft / name)
    save_beside(text_model, draft)


def save_beside(text_model, folder):
    """Saves what is needed besides a model: tokenizers, and names of labels.

    The tokenizer stands in "tokenizer.model", that of another target vocabulary in
    "target_tokenizer.model", the names of labels in "labels.json".
    """
    text_model.tokenizer.save(folder / "tokenizer.model")
    module = getattr(text_model, "module", None)
    target = getattr(module, "target_tokenizer", None)
    if target is not None and target is not text_model.tokenizer:
        target.save(folder / "target_tokenizer.model")
    if labels := getattr(text_model, "labels", ()):
        names = json.dumps([str(label) for label in labels], ensure_ascii=False)
        (folder / "labels.json").write_text(names + "\n", "utf-8")


def saved_model(function, model, folder):
    """Saves a tf.function of a model as a SavedModel, for converters that read one."""
    import tensorflow as tf

    module = tf.Module()
    module.function, module.variables_used = function, [v.value for v in model.variables]
    tf.saved_model.save(module, str(folder), {"serving_default": function})


def in_float32(text_model):
    """The model of a text model, or a copy of it that computes in float32."""
    from keras_transformer.models.copies import with_dtype

    model = text_model.model
    if all(layer.compute_dtype == "float32" for layer in model.layers):
        return model
    return with_dtype(model, "float32")


def forward(model):
    """The forward pass of a model as a tf.function with an input signature.

    Args:
        model: a functional Keras model.

    Returns:
        A function from the inputs, by name, to a dictionary of outputs; a single output without a
        name is called `logits`.
    """
    import tensorflow as tf

    spec = [tf.TensorSpec(x.shape, x.dtype, x.name) for x in keras.tree.flatten(model.input)]

    @tf.function(input_signature=spec, autograph=False)
    def compute(*tensors):
        outputs = model(keras.tree.pack_sequence_as(model.input, tensors), training=False)
        return outputs if isinstance(outputs, dict) else {"logits": outputs}

    return compute


def encoder_and_decoder(model):
    """The two functions with which a model of translation() decodes token by token.

    Args:
        model: a model of translation().

    Returns:
        A pair of tf.functions with input signatures. The first maps `source_ids` (batch, source)
        to a dictionary: the encoded source, `encoded_0` and so on, and a cache of one position
        that no token sees, `cache_0` and so on. The second is given all of these, the newest
        token of each row, `token_ids` (batch,), at first the start token, and `position`, the
        number of tokens before it. It returns `logits` (batch, vocabulary) and the longer cache,
        `next_cache_0` and so on.
    """
    import tensorflow as tf

    source = tf.TensorSpec((None, None), tf.int32, "source_ids")
    spec = [tf.TensorSpec([None], tf.int32, "token_ids"), tf.TensorSpec([], tf.int32, "position")]
    nested = []

    def with_hidden_position(cached):
        return tf.pad(cached, [[0, int(size == 0)] for size in cached.shape])

    @tf.function(input_signature=[source], autograph=False)
    def encoder(source_ids):
        encoded = model.encode(source_ids)
        cache = model.start_cache(encoded, 1)
        nested[:] = encoded, cache
        spec[2:] = [  # axes of size 0 grow
            tf.TensorSpec([size or None for size in tensor.shape], tensor.dtype, name)
            for name, tensor in (_named(encoded, "encoded") | _named(cache, "cache")).items()
        ]
        # LiteRT cannot hold an empty cache. The mask is part of it: False, like all that is added.
        cache = keras.tree.map_structure(with_hidden_position, cache)
        return _named(encoded, "encoded") | _named(cache, "cache")

    encoder.get_concrete_function()
    structure = keras.tree.map_structure(lambda tensor: None, tuple(nested))

    @tf.function(input_signature=spec, autograph=False)
    def decoder(token_ids, position, *tensors):
        encoded, cache = keras.tree.pack_sequence_as(structure, tensors)
        tokens = token_ids[:, None]
        logits, longer = model.step(encoded, tokens, tokens * 0, position, cache)
        return {"logits": logits[:, 0]} | _named(longer, "next_cache")

    return encoder, decoder


def _named(structure, name):
    return {f"{name}_{index}": x for index, x in enumerate(keras.tree.flatten(structure))}


def is_translation(model):
    return {"target_embedding", "encoder", "decoder"} <= set(layer_names(model))


def example(text_model, dtype="float32"):
    """Inputs with padding and the model's answers, to check a folder with.

    The first row of a translation holds two pairs, which only a packed model tells apart.

    Args:
        text_model: as in `in_float32`.
        dtype: dtype of the weights, "float32".

    Returns:
        A dictionary of arrays: "input.NAME" (3, 7) for each input, "output.NAME" for each output,
        and "tolerance", the largest difference that an engine's rounding may cause.
    """
    model, draw, arrays = in_float32(text_model), np.random.default_rng(0), {}
    tables = [layer for layer in model.layers if hasattr(layer, "vocabulary_size")]
    num_ids = min(table.vocabulary_size for table in tables)
    shape = NUM_EXAMPLES, EXAMPLE_LENGTH
    for tensor in keras.tree.flatten(model.input):
        ids = draw.integers(FIRST_WORD_ID, num_ids, shape)
        if tensor.name in ("source_ids", "token_ids"):
            ids[1, -2:] = 0
        if tensor.name == "source_ids":
            ids[[0, 0, 1, 2], [2, -1, -3, -1]] = END_ID
        if tensor.name == "target_ids":
            ids[:, 0] = ids[0, 3] = START_ID
        if tensor.name == "segment_ids":
            ids %= 2
        if tensor.name == "masked_positions":
            ids[:] = np.arange(EXAMPLE_LENGTH)
        arrays[f"input.{tensor.name}"] = ids.astype("int32")
    outputs = forward(model)(*arrays.values())
    arrays |= {f"output.{name}": array.numpy() for name, array in outputs.items()}
    return arrays | {"tolerance": np.float32(TOLERANCE)}
