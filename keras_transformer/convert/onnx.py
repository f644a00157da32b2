"""Our models as ONNX files, for onnxruntime and other engines.

Source: https://onnx.ai, through tf2onnx.
"""

import logging

import numpy as np

from keras_transformer.convert import graphs
from keras_transformer.convert.tables import ConversionError, require

LIBRARIES = ("onnxruntime",)
OPSET = 15
CHECK, example = "graphs", graphs.example


def write(text_model, draft, dtype="float32"):
    """Writes `model.onnx`, and for a translation model also `encoder.onnx` and `decoder.onnx`.

    All shapes but widths are dynamic. Tokenizers and labels stand beside them.

    Args:
        text_model: a `serving.Translator`, `Generator` or `Classifier`, or a `Converted`.
        draft: path of the folder.
        dtype: dtype of the weights, "float32".

    Raises:
        ConversionError: if tf2onnx is not installed, or ONNX lacks an operation of the model.
    """
    require("tf2onnx")
    graphs.write_each(text_model, draft, dtype, write_function)


def write_function(function, model, path):
    """Writes a tf.function with an input signature as an ONNX file."""
    import tensorflow as tf
    import tf2onnx

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
        reason = f"it has no operation for {', '.join(others)}"
        raise ConversionError(f"ONNX cannot hold {path.name}: {reason}.")
    path.with_suffix(".onnx").write_bytes(proto.SerializeToString())


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
