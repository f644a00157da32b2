"""Which devices a strategy may have; those of a machine with GPUs are given by name."""

import keras
import pytest

from keras_transformer.training import Model

from .conftest import needs_tensorflow

pytestmark = needs_tensorflow
GPUS = [f"/job:localhost/replica:0/task:0/device:GPU:{index}" for index in range(3)]


def test_a_strategy_over_a_cpu_and_a_gpu_is_refused_when_a_model_is_compiled():
    import tensorflow as tf

    with tf.distribute.MirroredStrategy(["/cpu:0", "/gpu:0"]).scope():
        inputs = keras.Input((3,))
        model = Model(inputs, keras.layers.Flatten()(inputs))
        with pytest.raises(ValueError, match=r"devices of one type.*Received: CPU:0, GPU:0\.$"):
            model.compile("sgd", "mse")


def test_unequal_gpus_are_told_in_one_line(caplog):
    from keras_transformer.training.distribution import check_devices

    check_devices(GPUS[:2], ["NVIDIA A100", "NVIDIA A100", "NVIDIA T4"])
    check_devices(["/device:CPU:0", "/device:CPU:1"], [])
    assert not caplog.messages, "the third is not of this strategy"
    check_devices(GPUS, ["NVIDIA A100", "NVIDIA A100", "NVIDIA T4"])
    assert caplog.messages == [
        "The GPUs differ, and every step waits for the slowest: 2 x NVIDIA A100, 1 x NVIDIA T4. "
        "Choose equal ones with the environment variable CUDA_VISIBLE_DEVICES."
    ]
