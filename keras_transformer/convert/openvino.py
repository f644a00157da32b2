"""Our models in the format of OpenVINO, an engine for Intel's processors and others.

Source: https://docs.openvino.ai, by its reader of SavedModels.
"""

import re
import tempfile

from keras_transformer.convert import graphs
from keras_transformer.convert.tables import ConversionError, lines_of, require

LIBRARIES = ("openvino",)
CHECK, example = "graphs", graphs.example


def write(text_model, draft, dtype="float32"):
    """Writes `model.xml` and `model.bin`, of a translation model also those of encoder and decoder.

    All shapes but widths are dynamic. Tokenizers and labels stand beside them. OpenVINO computes in
    lower precision where the processor has it, unless it is told otherwise by
    `{"INFERENCE_PRECISION_HINT": "f32"}`.

    Args:
        text_model: a `serving.Translator`, `Generator` or `Classifier`, or a `Converted`.
        draft: path of the folder.
        dtype: dtype of the weights, "float32".

    Raises:
        ConversionError: if openvino is not installed, or has no operation for a part of the model.
    """
    require("openvino")
    graphs.write_each(text_model, draft, dtype, write_function)


def write_function(function, model, path):
    """Writes a tf.function with an input signature as the two files of OpenVINO."""
    import openvino

    with tempfile.TemporaryDirectory() as folder:
        graphs.saved_model(function, model, folder)
        try:
            read = openvino.Core().read_model(folder)
        except RuntimeError as error:
            raise ConversionError(f"OpenVINO cannot hold {path.name}: {_reason(error)}.") from None
        openvino.save_model(read, path.with_suffix(".xml"), compress_to_fp16=False)


def _reason(error):
    """One line of a message of pages."""
    operations = re.search(r"No conversion rule found for operations: (.*)", str(error))
    if operations:
        return f"it has no operation for {operations[1].rstrip('.')}"
    return lines_of(error)[-1].rstrip(".")
