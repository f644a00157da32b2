"""The files next to a SavedModel that TensorFlow Serving reads: warm-up and batching."""

import pathlib

import tensorflow as tf

# The first request takes seconds, because it chooses kernels and allocates buffers. TensorFlow
# Serving replays these requests before it accepts others (tensorflow_serving/apis/*.proto).
WARM_UP_FILE = "assets.extra/tf_serving_warmup_requests"

# Read with --enable_batching --enable_per_model_batching_parameters. A merged batch takes as long
# as its longest request, so batches stay moderate; rows of ids are padded to equal length.
BATCHING_FILE = "batching_params.pbtxt"
BATCHING = """\
max_batch_size { value: 32 }
batch_timeout_micros { value: 2000 }
max_enqueued_batches { value: 1000 }
num_batch_threads { value: 2 }
pad_variable_length_inputs: true
"""


def write_warm_up(path, name, requests):
    """Writes the requests that TensorFlow Serving replays when it loads the model.

    They are at most 1000 pairs of a signature and its input arrays. One that fails keeps the model
    from loading.
    """
    file = pathlib.Path(path) / WARM_UP_FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(file)) as writer:
        for signature, inputs in requests:
            writer.write(prediction_log(name, signature, inputs))


def write_batching(path):
    """Writes the batching parameters into the folder of a SavedModel."""
    (pathlib.Path(path) / BATCHING_FILE).write_text(BATCHING)


def prediction_log(name, signature, inputs):
    """A serialised tensorflow.serving.PredictionLog of a request, with its inputs {name: array}.

    It is encoded by hand, because tensorflow-serving-api would add gRPC as a dependency for four
    messages of two fields.

    Examples:
        >>> prediction_log("demo", "serving_default", {})
        b'2\\x1b\\n\\x19\\n\\x17\\n\\x04demo\\x1a\\x0fserving_default'
    """
    model_spec = _field(1, name.encode()) + _field(3, signature.encode())
    request = _field(1, model_spec)
    for key, values in inputs.items():
        tensor = tf.make_tensor_proto(values).SerializeToString()
        request += _field(2, _field(1, key.encode()) + _field(2, tensor))  # an entry of a map
    predict_log = _field(1, request)
    return _field(6, predict_log)


def _field(number, content):
    """A protobuf field of bytes: number and wire type 2, length, content."""
    length, encoded = len(content), b""
    while length > 127:
        encoded, length = encoded + bytes([length & 127 | 128]), length >> 7
    return bytes([number << 3 | 2]) + encoded + bytes([length]) + content
