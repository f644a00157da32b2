import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import tensor_pb2

from keras_transformer.serving.publishing import c_api
from keras_transformer.serving.publishing.export import WARM_UP_FILE, prediction_log, write_warm_up

INPUTS = {
    "text": np.array([b"a dog", b"\xff" * 300, b""], object),
    "max_length": np.array([2, 3, 5], np.int32),
}


def read_log(record):
    """The name, signature and inputs of a PredictionLog, read with TensorFlow's own messages."""
    predict_log = dict(c_api.fields(record))[6]
    request = dict(c_api.fields(predict_log))[1]
    model_spec = dict(c_api.fields(dict(c_api.fields(request))[1]))
    inputs = {}
    for number, value in c_api.fields(request):
        if number == 2:
            entry = dict(c_api.fields(value))
            tensor = tensor_pb2.TensorProto.FromString(entry[2])
            inputs[entry[1].decode()] = tf.make_ndarray(tensor)
    return model_spec[1].decode(), model_spec[3].decode(), inputs


def test_a_record_holds_model_signature_and_inputs():
    name, signature, inputs = read_log(prediction_log("demo", "translate_nbest", INPUTS))
    assert (name, signature) == ("demo", "translate_nbest")
    assert {key: values.tolist() for key, values in inputs.items()} == {
        key: values.tolist() for key, values in INPUTS.items()
    }


@pytest.mark.oracle
def test_a_record_is_the_one_that_tensorflow_serving_defines():
    predict_pb2 = pytest.importorskip("tensorflow_serving.apis.predict_pb2")
    from tensorflow_serving.apis import prediction_log_pb2

    request = predict_pb2.PredictRequest()
    request.model_spec.name = "demo"
    request.model_spec.signature_name = "translate_nbest"
    for key, values in INPUTS.items():
        request.inputs[key].CopyFrom(tf.make_tensor_proto(values))
    ours = prediction_log("demo", "translate_nbest", INPUTS)
    log = prediction_log_pb2.PredictionLog.FromString(ours)
    assert log.predict_log.request == request


def test_all_requests_are_written(tmp_path):
    write_warm_up(
        tmp_path, "demo", [("serving_default", {"text": INPUTS["text"][:n]}) for n in (1, 3)]
    )
    records = [record.numpy() for record in tf.data.TFRecordDataset(str(tmp_path / WARM_UP_FILE))]
    assert [len(read_log(record)[2]["text"]) for record in records] == [1, 3]
