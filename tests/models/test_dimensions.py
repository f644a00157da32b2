"""Arguments of the blocks that every model passes on."""

import re

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.layers.block import TransformerStack

IDS = np.array([[3, 5, 4, 2], [3, 2, 0, 0]], "int32")
MODELS = {
    "translation": (
        kt.translation, {"source_vocabulary_size": 7}, {"source_ids": IDS, "target_ids": IDS},
    ),
    "classifier": (kt.classifier, {"vocabulary_size": 7, "num_labels": 3}, IDS),
    "language_model": (
        kt.language_model, {"vocabulary_size": 7, "max_sequence_length": 4}, IDS,
    ),
    "transformer_xl": (kt.transformer_xl, {"vocabulary_size": 7, "batch_size": 2}, IDS),
    "bert": (
        kt.bert, {"vocabulary_size": 7}, {"token_ids": IDS, "segment_ids": np.zeros_like(IDS)},
    ),
    "gpt2": (kt.gpt2, {"vocabulary_size": 7, "max_sequence_length": 4}, IDS),
}  # fmt: skip
GIVEN = {"key_dim": 5, "use_bias": False, "kernel_initializer": "zeros"}
SMALL = {"num_layers": 1, "hidden_dim": 14, "intermediate_dim": 11, "num_heads": 3}


@pytest.mark.parametrize("name", MODELS)
def test_models_pass_arguments_on_and_keep_them(name, tmp_path):
    """Three heads of width 5 in a model of width 14, which has no third."""
    make, arguments, inputs = MODELS[name]
    model = make(**arguments, **SMALL, **GIVEN)
    kernels = [v for v in model.weights if "query" in v.path and v.path.endswith("kernel")]
    assert kernels and all(kernel.shape[0] in (15, 3 * 15) for kernel in kernels)
    assert not any(np.any(kernel) for kernel in kernels)  # all zero
    assert not [v.path for v in model.weights if "query" in v.path and v.path.endswith("bias")]
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    for one, other in zip(*(keras.tree.flatten(m(inputs)) for m in (model, again)), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", MODELS)
def test_docstrings_name_the_stack_that_takes_every_further_argument(name):
    make, arguments, _ = MODELS[name]
    model = make(**arguments, **SMALL, **GIVEN)
    inner = [getattr(layer, "layer", layer) for layer in model.layers]
    stacks = {type(layer).__name__ for layer in inner if isinstance(layer, TransformerStack)}
    documented = make.__doc__.partition("**dimensions:")[2].partition("Returns:")[0]
    assert stacks and stacks <= set(re.findall(r"`(\w+)`", documented))
