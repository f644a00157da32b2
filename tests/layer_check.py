"""Everything that is asked of every layer, in one call."""

import json

import keras
import numpy as np

from tests.reference import array

POLICIES = {"float32": 1e-5, "mixed_bfloat16": 0.1, "bfloat16": 0.1}


def check_layer(layer_class, arguments, inputs, output_shape, num_weights, folder, logits=False):
    """Checks build, shape, dtype policies, config, files, gradients and one fit step.

    Args:
        layer_class: the class.
        arguments: of its constructor, a dictionary; dropout is checked elsewhere.
        inputs: a tuple of NumPy arrays, the positional arguments of a call.
        output_shape: what a call must return, the batch included.
        num_weights: how many weights the layer has; all are trained.
        folder: where a model may be saved.
        logits: whether outputs are float32 under every policy.
    """
    layer = layer_class(**arguments)
    outputs = layer(*inputs)
    assert tuple(outputs.shape) == output_shape, "the shape of the outputs"
    assert len(layer.weights) == num_weights, "the number of weights"
    assert len(layer.trainable_weights) == num_weights, "every weight is trainable"
    model = _check_symbolic_call(layer, inputs, array(outputs))
    _check_config(layer)
    _check_file(model, inputs, folder / "layer.keras")
    if keras.backend.backend() == "tensorflow":
        _check_checkpoint(model, inputs, folder / "checkpoint")
    _check_policies(layer, inputs, array(outputs), "float32" if logits else None)
    _check_fit_step(model, layer, inputs, output_shape)


def _check_symbolic_call(layer, inputs, outputs):
    """The functional model of the layer; lengths are unknown in it, as in translation."""
    symbols = [
        keras.Input((*(None for _ in x.shape[1:-1]), x.shape[-1]), dtype=x.dtype.name)
        if x.dtype.kind == "f"
        else keras.Input((None,), dtype=x.dtype.name)
        for x in inputs
    ]
    symbolic = layer(*symbols)
    assert len(symbolic.shape) == outputs.ndim, "the rank of the symbolic output"
    assert symbolic.shape[0] is None, "the batch size stays unknown"
    assert symbolic.shape[-1] == outputs.shape[-1], "the width is known"
    model = keras.Model(symbols, symbolic)
    np.testing.assert_allclose(
        model.predict(list(inputs), verbose=0),
        outputs,
        atol=1e-5,
        err_msg="a compiled model computes what the eager layer does",
    )
    return model


def _check_config(layer):
    config = layer.get_config()
    again = type(layer).from_config(json.loads(json.dumps(config)))
    assert json.dumps(again.get_config()) == json.dumps(config), "the config survives JSON"


def _check_file(model, inputs, path):
    before = model.predict(list(inputs), verbose=0)
    model.save(path)
    loaded = keras.saving.load_model(path)
    np.testing.assert_array_equal(
        loaded.predict(list(inputs), verbose=0), before, err_msg="a reloaded model is the same"
    )


def _check_checkpoint(model, inputs, path):
    """TensorFlow's checkpoints hold every weight, which they find by attributes."""
    import tensorflow as tf

    before = model.predict(list(inputs), verbose=0)
    weights = model.get_weights()
    checkpoint = tf.train.Checkpoint(model=model)
    saved = checkpoint.write(path)
    model.set_weights([np.zeros_like(weight) for weight in weights])
    checkpoint.restore(saved)
    for weight, restored in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(restored, weight, err_msg="a checkpoint holds all weights")
    np.testing.assert_array_equal(model.predict(list(inputs), verbose=0), before)


def _check_policies(layer, inputs, outputs, output_dtype):
    scale = np.abs(outputs).max()
    for policy, tolerance in POLICIES.items():
        other = type(layer).from_config({**layer.get_config(), "dtype": policy})
        computed = other(*inputs)
        other.set_weights([array(weight) for weight in layer.weights])
        computed = other(*inputs)
        expected = output_dtype or other.compute_dtype
        assert keras.backend.standardize_dtype(computed.dtype) == expected, f"dtype, {policy}"
        for weight in other.weights:
            assert weight.dtype == other.variable_dtype, f"dtype of {weight.path}, {policy}"
        np.testing.assert_allclose(
            array(computed), outputs, atol=tolerance * scale, err_msg=f"outputs under {policy}"
        )


def _check_fit_step(model, layer, inputs, output_shape):
    before = [array(weight) for weight in layer.trainable_weights]
    model.compile("sgd", loss="mse", jit_compile=keras.backend.backend() == "jax")
    targets = np.random.normal(size=output_shape)
    history = model.fit(list(inputs), targets, batch_size=len(targets), verbose=0)
    assert np.isfinite(history.history["loss"][0]), "the loss is a number"
    for old, weight in zip(before, layer.trainable_weights, strict=True):
        assert np.isfinite(array(weight)).all(), f"{weight.path} stays a number"
        assert (array(weight) != old).any(), f"a gradient reaches {weight.path}"
