"""The gRPC client of the documentation, against a server that answers from a model."""

import contextlib
import pathlib
import re
from concurrent import futures

import pytest
import tensorflow as tf

from keras_transformer.serving import Translator

from .conftest import SETTINGS

pytestmark = pytest.mark.oracle
SERVING = pathlib.Path(__file__).parents[2] / "docs" / "guides" / "serving.md"


@contextlib.contextmanager
def serving(translator):
    """Yields the port of a server that speaks TensorFlow Serving's protocol."""
    grpc = pytest.importorskip("grpc")
    apis = pytest.importorskip("tensorflow_serving.apis")
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

    assert apis

    class Service(prediction_service_pb2_grpc.PredictionServiceServicer):
        def Predict(self, request, context):
            assert request.model_spec.name == "demo"
            inputs = {key: tf.make_ndarray(value) for key, value in request.inputs.items()}
            endpoint = translator.signatures[request.model_spec.signature_name]
            response = predict_pb2.PredictResponse()
            for key, value in endpoint(**inputs).items():
                response.outputs[key].CopyFrom(tf.make_tensor_proto(value.numpy()))
            return response

    server = grpc.server(futures.ThreadPoolExecutor(1))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Service(), server)
    port = server.add_insecure_port("localhost:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(None)


def test_the_client_of_the_documentation_prints_the_translation(model, tokenizer, capsys):
    translator = Translator(model, tokenizer, settings=SETTINGS)
    [client] = re.findall(r'```python title="oracle"\n(.*?)```', SERVING.read_text(), re.DOTALL)
    [text] = re.findall(r"make_tensor_proto\(\[\"(.*?)\"\]\)", client)
    with serving(translator) as port:
        exec(client.replace("localhost:8500", f"localhost:{port}"), {})
    assert capsys.readouterr().out == translator([text])[0] + "\n"
