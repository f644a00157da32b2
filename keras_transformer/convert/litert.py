"""Our models as LiteRT files (*.tflite), for phones, browsers and small devices.

Source: https://ai.google.dev/edge/litert, by TensorFlow's converter.
"""

import contextlib
import os
import re
import tempfile

from keras_transformer.convert import graphs
from keras_transformer.convert.tables import ConversionError, lines_of

LIBRARIES = ("ai_edge_litert",)
CHECK, example = "graphs", graphs.example


def write(text_model, draft, dtype="float32"):
    """Writes `model.tflite`, of a translation model also `encoder.tflite` and `decoder.tflite`.

    All shapes but widths are dynamic, and every operation is built into LiteRT. Tokenizers and
    labels stand beside them.

    Args:
        text_model: a `serving.Translator`, `Generator` or `Classifier`, or a `Converted`.
        draft: path of the folder.
        dtype: dtype of the weights, "float32".

    Raises:
        ConversionError: if LiteRT has no operation for a part of the model.
    """
    graphs.write_each(text_model, draft, dtype, write_function)


def write_function(function, model, path):
    """Writes a tf.function with an input signature as a LiteRT file."""
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder:
        # From a concrete function the converter leaves variables in, which nothing fills: NaN.
        graphs.saved_model(function, model, folder)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        try:
            with _quiet():
                content = converter.convert()
        except Exception as error:  # the converter's own class is private
            raise ConversionError(f"LiteRT cannot hold {path.name}: {_reason(error)}.") from None
    path.with_suffix(".tflite").write_bytes(content)


@contextlib.contextmanager
def _quiet():
    """Leaves out the pages that the converter writes to standard error when it fails."""
    stderr, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nothing)


def _reason(error):
    """One line of a message of pages."""
    operations = re.search(r"^(?:TF Select|Custom) ops: (.*)$", str(error), re.MULTILINE)
    if operations:
        return f"it has no operation for {operations[1]}"
    return lines_of(error)[0].rstrip(".")
