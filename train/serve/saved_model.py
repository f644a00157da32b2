"""One version of a served model, loaded by TensorFlow."""

import concurrent.futures
import math
import pathlib

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401  # registers the operations of tokenizers
from google.protobuf import json_format

from keras_transformer.files import in_one_line
from keras_transformer.serving.publishing.c_api import STRING, fields, read_signatures
from keras_transformer.serving.publishing.checks import read_meta_graph
from keras_transformer.serving.publishing.export import WARM_UP_FILE
from keras_transformer.serving.served_model import answering_threads

MOST_ROWS_OF_A_PART = 32  # whose scores are in memory together
TENSOR = type(tf.make_tensor_proto(0))  # TensorFlow has no public name for it


def load_models(paths):
    """The models in folders, {name: path}, as {name: `SavedModel`}.

    Raises:
        ValueError: if one of them cannot be loaded.
    """
    models = {}
    for name, path in paths.items():
        try:
            models[name] = SavedModel(name, int(path.name), path)
        except Exception as error:  # whatever is in the folder
            raise ValueError(f"{path} cannot be loaded: {in_one_line(error)}") from error
    return models


class SavedModel:
    """A SavedModel in memory, warmed up.

    Args:
        name: name of the model.
        version: an integer.
        path: path of its folder.
        threads: how many answer a part of a batch each; None for as many as
            `ServedModel.answer` has.

    Attributes:
        signatures: {signature: {"inputs": {key: {"name", "dtype", "shape"}}, "outputs": the same}}.
        weights: those of the model, in its order, tf.Variables; empty in other people's exports.

    Raises:
        OSError, ValueError, tf.errors.OpError: if TensorFlow cannot load it, or a warm-up request
            fails.
    """

    def __init__(self, name, version, path, threads=None):
        self.name, self.version, self.path = name, version, pathlib.Path(path)
        graph = read_meta_graph(self.path)
        self.signatures = read_signatures(graph.SerializeToString())
        self._described = {
            key: json_format.MessageToDict(
                value, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
            )
            for key, value in graph.signature_def.items()
        }
        self._loaded = tf.saved_model.load(str(self.path))
        self.weights = list(getattr(self._loaded, "weights", ()))
        self._threads = threads or answering_threads()
        for signature, inputs in self._warm_up_requests():
            self.run(signature, inputs)

    def run(self, signature, inputs):
        """Answers one request.

        Args:
            signature: its name.
            inputs: {input: array}.

        Returns:
            {output: array}.

        Raises:
            tf.errors.OpError: if the model refuses the inputs.
        """
        tensors = {
            key: tf.constant(array, tf.as_dtype(self.signatures[signature]["inputs"][key]["dtype"]))
            for key, array in inputs.items()
        }
        outputs = self._loaded.signatures[signature](**tensors)
        return {key: tensor.numpy() for key, tensor in outputs.items()}

    def stream(self, inputs):
        """Answers one request of one row for the signature `generate`, token by token.

        Args:
            inputs: {input: array}.

        Yields:
            {output: array}, the answer after each token; of an export of a model without
            `prefill` only the whole one.

        Raises:
            tf.errors.OpError: if the model refuses the inputs.
        """
        if not hasattr(self._loaded, "start_stream"):
            yield self.run("generate", inputs)
            return
        infos = self.signatures["generate"]["inputs"]
        state = self._loaded.start_stream(
            **{
                key: tf.constant(array, tf.as_dtype(infos[key]["dtype"]))
                for key, array in inputs.items()
            }
        )
        while state["goes_on"]:
            outputs, state = self._loaded.continue_stream(state)
            yield {key: tensor.numpy() for key, tensor in outputs.items()}

    def run_merged(self, signature, requests):
        """Answers several requests, as one batch where their answers can be told apart.

        Rows of texts are merged where every output has rows of a known size. Others have as many
        columns as the longest row of their batch needs, and so would depend on their neighbours.

        Args:
            signature: its name.
            requests: a list of {input: array}.

        Returns:
            A list of answers, each {output: array} or an exception of `run`.
        """
        counts = [self._mergeable_rows(signature, inputs) for inputs in requests]
        if None not in counts and sum(counts) > 1:
            merged = {
                key: np.concatenate([inputs[key] for inputs in requests]) for key in requests[0]
            }
            try:
                outputs = self._run_in_parts(signature, merged, sum(counts))
            except tf.errors.OpError as error:  # of one of them: each alone
                if len(requests) == 1:
                    return [error]
            else:
                ends = np.cumsum(counts)[:-1]
                parts = {key: np.split(array, ends) for key, array in outputs.items()}
                return [{key: parts[key][i] for key in parts} for i in range(len(requests))]
        return [self._run_alone(signature, inputs) for inputs in requests]

    def metadata(self):
        """The answer to a request for metadata."""
        return {
            "model_spec": {"name": self.name, "signature_name": "", "version": str(self.version)},
            "metadata": {"signature_def": {"signature_def": self._described}},
        }

    def _run_in_parts(self, signature, inputs, rows):
        parts = max(min(self._threads, rows), math.ceil(rows / MOST_ROWS_OF_A_PART))
        if parts == 1:
            return self.run(signature, inputs)
        split = {key: np.array_split(array, parts) for key, array in inputs.items()}
        requests = [{key: split[key][part] for key in inputs} for part in range(parts)]
        # Of this request alone: others do not wait for it.
        with concurrent.futures.ThreadPoolExecutor(self._threads) as pool:
            outputs = list(pool.map(lambda inputs: self.run(signature, inputs), requests))
        return {key: np.concatenate([part[key] for part in outputs]) for key in outputs[0]}

    def _run_alone(self, signature, inputs):
        try:
            return self.run(signature, inputs)
        except tf.errors.OpError as error:
            return error

    def _mergeable_rows(self, signature, inputs):
        """The number of rows of a request that may be merged with others, or None."""
        infos = self.signatures[signature]
        counts = {
            len(inputs[key]) for key, info in infos["inputs"].items() if len(info["shape"]) == 1
        }
        is_mergeable = (
            any(info["dtype"] == STRING for info in infos["inputs"].values())
            and all(len(info["shape"]) == 1 for info in infos["inputs"].values())
            and all(-1 not in info["shape"][1:] for info in infos["outputs"].values())
            and all(info["shape"][:1] == [-1] for info in infos["outputs"].values())
            and len(counts) == 1
        )
        return counts.pop() if is_mergeable else None

    def _warm_up_requests(self):
        file = self.path / WARM_UP_FILE
        for record in tf.data.TFRecordDataset(str(file)) if file.exists() else ():
            predict_log = dict(fields(record.numpy()))[6]
            request = list(fields(dict(fields(predict_log))[1]))
            spec = dict(fields(dict(request)[1]))
            entries = [dict(fields(value)) for number, value in request if number == 2]
            yield (
                spec[3].decode(),
                {e[1].decode(): tf.make_ndarray(TENSOR.FromString(e[2])) for e in entries},
            )
