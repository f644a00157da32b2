"""Our models as graphs: ONNX, LiteRT and OpenVINO.

Each is made from a TensorFlow function of the model, ONNX by tf2onnx (https://onnx.ai), LiteRT, for
phones, browsers and small devices, by TensorFlow's converter (https://ai.google.dev/edge/litert),
OpenVINO, for Intel's processors and others, by its reader of SavedModels (https://docs.openvino.ai).
All shapes but widths are dynamic. Tokenizers and labels are written beside the files.
"""

import contextlib
import json
import logging
import os
import re
import tempfile

import keras
import numpy as np

from keras_transformer.convert.examples import answers, drawn_inputs, float32_model, named_outputs
from keras_transformer.convert.tables import ConversionError, require
from keras_transformer.files import in_one_line
from keras_transformer.models.encoder_decoder import TranslationModel
from keras_transformer.tokenizers.control_ids import END_ID, START_ID

ONNX_OPSET = 15
TOLERANCE = 1e-4  # of an engine's answers: its rounding differs in a deep model


def write(text_model, draft, write_file):
    """Writes `model`, of a translation model also `encoder` and `decoder`, and the files beside.

    Args:
        text_model: with a functional `model`, a `tokenizer`, and perhaps `target_tokenizer` and
            `labels`.
        draft: path of the folder.
        write_file: function of the format, `write_onnx`, `write_litert` or `write_openvino`. It
            takes a tf.function, the model, and a path without suffix.
    """
    if not hasattr(text_model.model, "input"):  # a Sequential, or a subclass with a `call`
        raise ConversionError(
            "Only a functional model can be written as a graph. Build it as keras.Model(inputs, "
            f"outputs). Received: {text_model.model!r}."
        )
    is_translation = isinstance(text_model.model, TranslationModel)
    pattern = text_model.model.decoder.attention_pattern if is_translation else None
    if pattern is not None and pattern["pattern"] == "fixed":
        raise ConversionError(  # the cache of a graph has one position more, which moves its blocks
            "A graph that decodes token by token cannot hold a decoder's pattern of fixed blocks. "
            f"Received: attention_pattern={pattern}."
        )
    model = float32_model(text_model)
    functions = {"model": forward(model)}
    if is_translation:
        functions |= zip(("encoder", "decoder"), encoder_and_decoder(model), strict=True)
    for name, function in functions.items():
        write_file(function, model, draft / name)
    save_beside(text_model, draft)


def write_onnx(function, model, path):
    """Writes *.onnx."""
    require("tf2onnx")
    import onnx
    import tensorflow as tf
    import tf2onnx

    logger = logging.getLogger("tf2onnx")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # errors are reported below
    try:
        proto, _ = tf2onnx.convert.from_function(
            function,
            input_signature=function.input_signature,
            opset=ONNX_OPSET,
            custom_op_handlers={"Erfc": (_erfc, [])},
        )
    finally:
        logger.setLevel(level)
        tf.compat.v1.reset_default_graph()
    known = {schema.name for schema in onnx.defs.get_all_schemas()}
    if others := sorted({node.op_type for node in proto.graph.node} - known):
        raise _refusal("ONNX", path, ", ".join(others))
    path.with_suffix(".onnx").write_bytes(proto.SerializeToString())


def _erfc(context, node, name, args):
    """Replaces erfc(x), which no engine supports, by 1 - erf(x)."""
    [output], [dtype] = node.output, [context.get_dtype(node.output[0])]
    node.type = "Erf"
    one = context.make_const(f"{name}_one", np.ones((), "float32")).output[0]
    after = context.insert_new_node_on_output(
        "Sub", output, inputs=[one, output], name=f"{name}_sub"
    )
    context.set_dtype(after.output[0], dtype)
    context.copy_shape(output, after.output[0])


def write_litert(function, model, path):
    """Writes *.tflite, whose operations are all built into LiteRT."""
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder:
        # From a concrete function the converter leaves variables in, which nothing fills: NaN.
        _save_saved_model(function, model, folder)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        try:
            with _quiet():
                content = converter.convert()
        except Exception as error:  # the converter's own class is private
            operations = re.search(r"^(?:TF Select|Custom) ops: (.*)$", str(error), re.MULTILINE)
            raise _refusal("LiteRT", path, operations and operations[1], error) from None
    path.with_suffix(".tflite").write_bytes(content)


@contextlib.contextmanager
def _quiet():
    """Hides the pages that the converter writes to standard error when it fails."""
    stderr, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nothing)


def write_openvino(function, model, path):
    """Writes *.xml and *.bin.

    OpenVINO computes in lower precision where the processor has it, unless it is told otherwise by
    `{"INFERENCE_PRECISION_HINT": "f32"}`.
    """
    require("openvino")
    import openvino

    with tempfile.TemporaryDirectory() as folder:
        _save_saved_model(function, model, folder)
        try:
            graph = openvino.Core().read_model(folder)
        except RuntimeError as error:
            operations = re.search(r"No conversion rule found for operations: (.*)", str(error))
            raise _refusal("OpenVINO", path, operations and operations[1], error) from None
        openvino.save_model(graph, path.with_suffix(".xml"), compress_to_fp16=False)


def _save_saved_model(function, model, folder):
    """Saves a tf.function of a model as a SavedModel, for converters that read one."""
    import tensorflow as tf

    module = tf.Module()
    module.function, module.variables_used = function, [v.value for v in model.variables]
    tf.saved_model.save(module, str(folder), {"serving_default": function})


def _refusal(engine, path, operations, error=""):
    """The ConversionError for operations that an engine lacks or, without any, for its error."""
    reason = in_one_line(error).rstrip(".")
    if operations:
        reason = f"it has no operation for {operations.rstrip('.')}"
    return ConversionError(f"{engine} cannot hold {path.name}: {reason}.")


def save_beside(text_model, folder):
    """Saves what is needed besides a model: tokenizers, and names of labels.

    The tokenizer is in "tokenizer.model", that of another target vocabulary in
    "target_tokenizer.model"; the names of labels are in "labels.json".
    """
    tokenizer, target = text_model.tokenizer, getattr(text_model, "target_tokenizer", None)
    tokenizer.save(folder / "tokenizer.model")
    prefix = warn_of_prefix(tokenizer)
    is_same = target is tokenizer or (prefix and target.model == tokenizer.model)
    if target is not None and not is_same:
        target.save(folder / "target_tokenizer.model")
    if labels := getattr(text_model, "labels", ()):
        names = json.dumps([str(label) for label in labels], ensure_ascii=False)
        (folder / "labels.json").write_text(names + "\n", "utf-8")


def warn_of_prefix(tokenizer):
    """The prefix of a tokenizer, "" for none; a warning says that a folder lacks it."""
    prefix = getattr(tokenizer, "prefix", "")
    if prefix:
        logging.getLogger(__name__).warning(
            "The folder does not hold the source prefix %r: put it before each text.", prefix
        )
    return prefix


def forward(model):
    """The forward pass of a model as a tf.function with an input signature.

    Args:
        model: a functional Keras model.

    Returns:
        A function from the inputs, by name, to a dictionary of outputs; see `named_outputs`.
    """
    import tensorflow as tf

    spec = [tf.TensorSpec(x.shape, x.dtype, x.name) for x in keras.tree.flatten(model.input)]

    @tf.function(input_signature=spec, autograph=False)
    def compute(*tensors):
        inputs = keras.tree.pack_sequence_as(model.input, tensors)
        return named_outputs(model(inputs, training=False))

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


def example(text_model):
    """Inputs with padding and the model's answers, to check a folder with.

    Returns:
        A dictionary of arrays: "input.NAME" (3, 7) for each input, "output.NAME" for each output,
        and "tolerance", the largest difference that an engine's rounding may cause.
    """
    model = float32_model(text_model)
    inputs = drawn_inputs(model)
    for name, ids in inputs.items():
        if name in ("source_ids", "token_ids"):
            ids[1, -2:] = 0
        if name == "source_ids":
            ids[[0, 1, 2], [-1, -3, -1]] = END_ID
        if name == "target_ids":
            ids[:, 0] = START_ID
    return {
        **{f"input.{name}": ids for name, ids in inputs.items()},
        **{f"output.{name}": array for name, array in answers(model, inputs).items()},
        "tolerance": np.float32(TOLERANCE),
    }
