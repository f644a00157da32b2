"""What an editor shows of a public layer, and what its blocks pass on."""

import inspect
import pathlib
import pydoc
import re

import keras
import numpy as np
import pytest

from keras_transformer import layers

ROOT = pathlib.Path(__file__).parents[2]
SEED = 7
REQUIRED = {
    "num_heads": 2, "intermediate_dim": 7, "num_layers": 1, "pattern": "local", "block_size": 3,
    "vocabulary_size": 11, "hidden_dim": 6, "max_sequence_length": 5,
    "rate": 0.1, "pooling": "mean", "method": "mean",
}  # fmt: skip
STACKS = {
    "encoder": lambda **given: layers.Encoder(2, num_heads=2, intermediate_dim=7, **given),
    "decoder": lambda **given: layers.Decoder(2, num_heads=2, intermediate_dim=7, **given),
    "transformer_xl": lambda **given: layers.TransformerXL(
        2, num_heads=2, intermediate_dim=7, **given
    ),
}


@pytest.mark.parametrize("name", layers.__all__)
def test_every_argument_of_a_layer_is_named(name):
    """By itself: an argument that is hidden in **kwargs shows in no editor."""
    layer_class = getattr(layers, name)
    parameters = inspect.signature(layer_class).parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    assert inspect.Parameter.VAR_POSITIONAL not in kinds
    needed = [key for key, each in parameters.items() if each.default is each.empty]
    config = layer_class(**{key: REQUIRED[key] for key in needed if key != "kwargs"}).get_config()
    of_keras = set(keras.layers.Layer().get_config())
    assert set(config) - of_keras == set(parameters) - {"kwargs"}


BLOCKS = "EncoderBlock DecoderBlock TransformerXLBlock Encoder Decoder TransformerXL".split()


@pytest.mark.parametrize("name", BLOCKS)
def test_help_describes_every_argument_of_blocks_and_stacks(name):
    layer_class = getattr(layers, name)
    signature = inspect.signature(layer_class)
    assert f"{name}{signature}" in pydoc.render_doc(layer_class, renderer=pydoc.plaintext)
    described = re.findall(r"^    (\w+): ", arguments_in(layer_class), re.MULTILINE)
    assert {*described, "kwargs"} == set(signature.parameters)
    assert arguments_in(layers.EncoderBlock) in arguments_in(layer_class)


def arguments_in(layer_class):
    """The Args section of a docstring."""
    return inspect.getdoc(layer_class).partition("Args:\n")[2].partition("\n\n")[0]


@pytest.mark.parametrize("name", ["Encoder", "Decoder", "TransformerXL"])
def test_a_stack_names_the_argument_that_it_does_not_know(name):
    sizes = {"num_heads": 2, "intermediate_dim": 7}
    with pytest.raises(ValueError, match=f"passed to {name}: .*'droput': 0.5"):
        getattr(layers, name)(1, **sizes, droput=0.5)


@pytest.mark.oracle
def test_the_reference_shows_what_help_shows():
    griffe = pytest.importorskip("griffe")
    extensions = griffe.load_extensions(str(ROOT / "docs" / "further_arguments.py"))
    package = griffe.load("keras_transformer", search_paths=[ROOT], extensions=extensions)
    for name in BLOCKS:
        shown, layer_class = package[f"layers.{name}"].final_target, getattr(layers, name)
        assert shown.docstring.value == inspect.getdoc(layer_class)
        _, *parameters = shown.all_members["__init__"].parameters
        assert [each.name for each in parameters] == [*inspect.signature(layer_class).parameters]


@pytest.mark.parametrize("stack", STACKS)
def test_a_stack_passes_on_what_its_attention_and_projections_take(stack):
    ones = keras.initializers.Constant(0.5)
    given = {"key_dim": 5, "use_bias": False, "kernel_initializer": ones}
    layer = STACKS[stack](**given)
    layer(np.zeros((1, 3, 6), "float32"))
    block = layer.blocks[1]
    assert block.self_attention.output_projection.kernel.shape == (6, 2 * 5)
    for parts in (block.self_attention.query_key_value, block.feed_forward.widen):
        assert parts.bias is None
        assert (keras.ops.convert_to_numpy(parts.kernel) == 0.5).all()
    again = type(layer).from_config(layer.get_config())
    again(np.zeros((1, 3, 6), "float32"))
    assert [w.shape for w in again.weights] == [w.shape for w in layer.weights]
    wrong = STACKS[stack](use_bias=True)
    wrong(np.zeros((1, 3, 6), "float32"))
    assert wrong.blocks[0].self_attention.query_key_value.bias is not None


def test_cached_steps_equal_one_pass_with_another_key_dim():
    decoder = layers.Decoder(2, num_heads=3, intermediate_dim=7, key_dim=5)
    random = np.random.default_rng(SEED)
    inputs, source = random.normal(size=(2, 5, 6)), random.normal(size=(2, 7, 4))
    inputs, source = inputs.astype("float32"), source.astype("float32")
    expected = keras.ops.convert_to_numpy(decoder(inputs, source))
    keys_values = decoder.source_keys_values(keras.ops.convert_to_tensor(source))
    cache = decoder.empty_cache(2)
    for position in range(5):
        vectors = keras.ops.convert_to_tensor(inputs[:, position, None])
        outputs, cache = decoder.step(vectors, keys_values, None, cache, None)
        found = keras.ops.convert_to_numpy(outputs)[:, 0]
        np.testing.assert_allclose(found, expected[:, position], atol=1e-5)


def test_a_decoder_without_a_source_has_no_attention_to_one():
    block = layers.DecoderBlock(num_heads=2, intermediate_dim=7)
    block(np.zeros((1, 3, 6), "float32"))
    assert block.cross_attention is None
    assert not [weight for weight in block.weights if "cross" in weight.path]


@pytest.mark.parametrize("name", ["EncoderBlock", "DecoderBlock", "TransformerXLBlock"])
def test_the_sizes_of_a_block_are_given_by_name(name):
    """KerasHub has them in the other order."""
    with pytest.raises(TypeError, match="positional"):
        getattr(layers, name)(2, 7)
