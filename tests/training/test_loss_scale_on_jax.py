"""Losses in float16 on JAX, which Keras's `LossScaleOptimizer` scales."""

import keras
import pytest

from keras_transformer import TokenCrossentropy, language_model

# Run by layers/test_backends.py: once JAX has computed in a process, it warns of every fork.
pytestmark = pytest.mark.skipif(keras.backend.backend() != "jax", reason="JAX's")
SIZES = {"num_layers": 1, "hidden_dim": 4, "intermediate_dim": 4, "num_heads": 2}


def compiled(dtype="mixed_float16", optimizer="sgd", **settings):
    model = language_model(11, dtype=dtype, **SIZES)
    model.compile(optimizer, TokenCrossentropy(), **settings)
    return model


def test_layers_in_float16_have_a_scale_whatever_the_policy_of_the_model():
    scaled = keras.optimizers.LossScaleOptimizer
    model = compiled()
    assert model.dtype_policy.name == "float32" and isinstance(model.optimizer, scaled)
    assert not isinstance(compiled("float32").optimizer, scaled)
    assert not isinstance(compiled(auto_scale_loss=False).optimizer, scaled)
    given = scaled(keras.optimizers.SGD(0.1))
    assert compiled(optimizer=given).optimizer is given


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
def test_what_is_scaled_is_not_clipped(dtype):
    optimizer = keras.optimizers.SGD(0.1, loss_scale_factor=8.0 if dtype == "float32" else None)
    with pytest.raises(ValueError, match="clip_norm would see scaled gradients"):
        compiled(dtype, optimizer, clip_norm=1.0)


def test_checkpoints_need_steps_that_are_all_counted(tmp_path):
    checkpoints = pytest.importorskip("keras_transformer.training.checkpoints")
    with pytest.raises(ValueError, match="count all batches, of which a LossScaleOptimizer skips"):
        checkpoints.Checkpoints(tmp_path, compiled())
