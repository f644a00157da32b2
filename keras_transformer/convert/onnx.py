"""Our models as ONNX files, for onnxruntime and other engines.

Source: https://onnx.ai, through tf2onnx.
"""

import json
import logging

import numpy as np

from keras_transformer.convert import graphs
from keras_transformer.convert.tables import ConversionError

LIBRARIES = ("onnxruntime",)
OPSET = 15


def write(text_model, draft, dtype="float32"):
    """Writes `model.onnx`, and for a translation model also `encoder.onnx` and `decoder.onnx`.

    All axes except widths are dynamic. The folder also gets the tokenizer, "tokenizer.model", that
    of a separate target vocabulary, "target_tokenizer.model", and label names, "labels.json".

    Args:
        text_model: a `serving.Translator`, `Generator` or `Classifier`, or a `Converted`.
        draft: path of the folder.
        dtype: dtype of the weights, "float32".

    Raises:
        ConversionError: if tf2onnx is not installed, or ONNX lacks an operation of the model.
    """
    if dtype != "float32":
        raise ConversionError(f"dtype must be float32 for ONNX. Received: {dtype!r}.")
    model = graphs.in_float32(text_model)
    functions = {"model": graphs.forward(model)}
    if graphs.is_translation(model):
        functions |= zip(("encoder", "decoder"), graphs.encoder_and_decoder(model), strict=True)
    for name, function in functions.items():
        write_function(function, draft / f"{name}.onnx")
    save_beside(text_model, draft)


def write_function(function, file):
    """Writes a tf.function with an input signature as an ONNX file."""
    try:
        import tf2onnx
    except ImportError:
        raise ConversionError("This format needs tf2onnx. Install it.") from None
    import tensorflow as tf

    logger = logging.getLogger("tf2onnx")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # errors are reported below
    try:
        proto, _ = tf2onnx.convert.from_function(
            function,
            input_signature=function.input_signature,
            opset=OPSET,
            custom_op_handlers={"Erfc": (_erfc, [])},
        )
    finally:
        logger.setLevel(level)
        tf.compat.v1.reset_default_graph()
    known = {*_onnx_operations()}
    if others := sorted({node.op_type for node in proto.graph.node} - known):
        raise ConversionError(f"ONNX has no operation for {', '.join(others)} in {file.stem}.")
    file.write_bytes(proto.SerializeToString())


def save_beside(text_model, folder):
    """Saves what a model needs besides its weights: tokenizers and label names."""
    text_model.tokenizer.save(folder / "tokenizer.model")
    module = getattr(text_model, "module", None)
    target = getattr(module, "target_tokenizer", None)
    if target is not None and target is not text_model.tokenizer:
        target.save(folder / "target_tokenizer.model")
    if labels := getattr(text_model, "labels", ()):
        names = json.dumps([str(label) for label in labels], ensure_ascii=False)
        (folder / "labels.json").write_text(names + "\n", "utf-8")


def example(text_model, dtype="float32"):
    """Inputs and answers, for the check of a folder."""
    return graphs.example(text_model)


def _onnx_operations():
    import onnx

    return (schema.name for schema in onnx.defs.get_all_schemas())


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
