"""The checks before a SavedModel is published: its graph, size and answers."""

import os

import numpy as np
import tensorflow as tf

from keras_transformer.serving.publishing import c_api
from keras_transformer.serving.publishing.c_api import fields, shorten

LARGEST_CONSTANT = 100_000  # bytes
PREDICT = "tensorflow/serving/predict"


def read_meta_graph(path):
    """The `tf.compat.v1.MetaGraphDef` of a SavedModel that has one, as ours have.

    It is read from field 2 of saved_model.pb, for whose message TensorFlow has no public name.
    Raises ValueError if the file is damaged, or has another number of graphs.
    """
    with open(os.path.join(path, "saved_model.pb"), "rb") as file:
        content = file.read()
    try:
        [meta_graph] = (value for number, value in fields(content) if number == 2)
        return tf.compat.v1.MetaGraphDef.FromString(meta_graph)
    except Exception as error:  # protobuf's DecodeError, or one of a message that ends too early
        raise ValueError(f"saved_model.pb in {path} is damaged: {error!r}") from error


def check_graph(path):
    """Rejects a graph that TensorFlow Serving cannot run, batch, or write as JSON.

    The RuntimeError lists every XLA operation, Python function and large constant, and every input
    or output in half precision or without the batch as first axis.
    """
    meta_graph = read_meta_graph(path)
    faults = _operation_faults(meta_graph.graph_def)
    for name, signature in meta_graph.signature_def.items():
        if signature.method_name == PREDICT:
            faults += [f"{name} {fault}" for fault in _signature_faults(signature)]
    if faults:
        raise RuntimeError("TensorFlow Serving could not run the graph: " + "; ".join(faults))


def check_size(path, weights):
    """Raises RuntimeError if the variables take more than 1.05 times the bytes of the weights."""
    reader = tf.train.load_checkpoint(os.path.join(path, "variables", "variables"))
    dtypes = reader.get_variable_to_dtype_map()
    stored = sum(
        int(np.prod(shape)) * dtypes[key].size
        for key, shape in reader.get_variable_to_shape_map().items()
        if dtypes[key] != tf.string  # the object graph
    )
    needed = sum(w.shape.num_elements() * w.dtype.size for w in weights)
    if stored > 1.05 * needed:
        raise RuntimeError(
            f"The weights must be stored once. Received: {stored} bytes of variables for "
            f"{needed} bytes of weights."
        )


def check_answers(path, requests, expected, tolerance=1e-4, timeout=600, packages=None):
    """Rejects a SavedModel that gives unexpected answers in a fresh process.

    Shapes are compared separately, because JSON hides those of empty arrays.

    Args:
        path: folder of the SavedModel.
        requests: pairs of a signature and a dictionary of its input arrays.
        expected: for each request a dictionary of its output arrays.
        tolerance: relative and absolute tolerance of floats; all else must be equal.
        timeout: for all requests together, in seconds.
        packages: folder of another TensorFlow, as for `c_api.find_libraries`.

    Raises:
        RuntimeError: with TensorFlow's message, or the first difference.
    """
    lines = [
        {
            "signature_name": name,
            "inputs": {key: values.tolist() for key, values in inputs.items()},
            "shapes": True,
        }
        for name, inputs in requests
    ]
    answers = c_api.ask(path, lines, timeout, packages)
    for (name, inputs), outputs, answer in zip(requests, expected, answers, strict=True):
        rows = len(next(iter(inputs.values())))
        if "error" in answer:
            raise RuntimeError(f"{name}, batch of {rows}: {answer['error']}")
        if answer["outputs"].keys() != outputs.keys():
            raise RuntimeError(f"{name} gave {sorted(answer['outputs'])}, not {sorted(outputs)}.")
        for key, values in outputs.items():
            if answer["shapes"][key] != list(values.shape):
                raise RuntimeError(
                    f"{name}, batch of {rows}: {key} has a different shape than in this process. "
                    f"Expected: {list(values.shape)}. Received: {answer['shapes'][key]}."
                )
            if not _equal(answer["outputs"][key], values, tolerance):
                raise RuntimeError(
                    f"{name}, batch of {rows}: {key} differs from the answer of the model in "
                    f"this process. Expected: {shorten(values.tolist())}. "
                    f"Received: {shorten(answer['outputs'][key])}."
                )


def check_shapes(requests, answers, row_shapes):
    """Rejects answers whose shapes differ from a `ServedModel`'s `row_shapes`, even without rows.

    The RuntimeError names the first output with a wrong number of rows or shape.
    """
    for (name, inputs), outputs in zip(requests, answers, strict=True):
        rows = len(next(iter(inputs.values())))
        if outputs.keys() != row_shapes[name].keys():
            raise RuntimeError(f"{name} gave {sorted(outputs)}, not {sorted(row_shapes[name])}.")
        for key, row_shape in row_shapes[name].items():
            expected = (rows, *row_shape)
            if not tf.TensorShape(expected).is_compatible_with(outputs[key].shape):
                raise RuntimeError(
                    f"{name}, batch of {rows}: {key} must have the shape {expected}. "
                    f"Received: {outputs[key].shape}."
                )


def _operation_faults(graph):
    nodes = list(graph.node)
    faults = set()
    for function in graph.library.function:
        nodes.extend(function.node_def)
        if function.attr["_XlaMustCompile"].b:
            faults.add("jit-compiled function needs XLA, which is disabled there")
    for node in nodes:
        if node.op.startswith(("Xla", "_Xla")) or node.attr["_XlaMustCompile"].b:
            faults.add(f"operation {node.op} ({node.name}) needs XLA, which is disabled there")
        if "PyFunc" in node.op:
            faults.add(f"operation {node.op} ({node.name}) calls Python")
        size = node.attr["value"].tensor.ByteSize() if node.op == "Const" else 0
        # Large constants of other types are not weights but vocabularies: characters, hashes and
        # strings. (The vocabulary of SentencePiece is an attribute of its operation.)
        is_weight = node.op == "Const" and tf.as_dtype(node.attr["dtype"].type).is_floating
        if size > LARGEST_CONSTANT and is_weight:
            faults.add(f"constant {node.name} of {size} bytes should be a weight")
    return sorted(faults)


def _signature_faults(signature):
    faults = []
    for side in (signature.inputs, signature.outputs):
        for key, info in side.items():
            sizes = [size.size for size in info.tensor_shape.dim]
            if info.tensor_shape.unknown_rank or not sizes or sizes[0] != -1:
                faults.append(f"{key} needs the batch as first axis but has shape {sizes}")
            if tf.as_dtype(info.dtype) in (tf.bfloat16, tf.float16):
                faults.append(f"{key} is {tf.as_dtype(info.dtype).name}, which JSON cannot carry")
    return faults


def _equal(answer, expected, tolerance):
    """Whether nested lists equal an array of the same shape."""
    if expected.dtype == object:
        expected = np.array([text.decode() for text in expected.flat], object).reshape(
            expected.shape
        )
    if expected.dtype.kind != "f":
        return answer == expected.tolist()
    received = np.array(answer, expected.dtype).reshape(expected.shape)
    return bool(np.isfinite(received).all()) and np.allclose(
        received, expected, rtol=tolerance, atol=tolerance
    )
