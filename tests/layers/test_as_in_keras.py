"""Every public layer where one of Keras's could stand: in wrappers and models, and masked."""

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest

from keras_transformer import layers
from tests.layers.test_inputs import ATTENTIONS, BLOCKS, OF_IDS, OF_VECTORS, made
from tests.reference import array, fill, normal

MORE = {"FeedForward": (7,), "ReproducibleDropout": (0.5,), "RotaryEmbedding": ()}
ALL = [*OF_VECTORS, *OF_IDS, *MORE]
# These give a pair of outputs and memories, as a recurrent layer with its states.
ONE_OUTPUT = [name for name in ALL if name != "TransformerXL"]
REPRESENTATIVES = ("MultiHeadAttention", "DecoderBlock", "TokenEmbedding", "TokenDropout")


def cases(names, arguments=lambda name: [()]):
    """A case for each name and arguments; those that represent no other are slow."""
    return [
        pytest.param(name, *given, marks=() if name in REPRESENTATIVES else pytest.mark.slow)
        for name in names
        for given in arguments(name)
    ]


def layer_of(name):
    return getattr(layers, name)(*MORE[name]) if name in MORE else made(name)


def inputs_of(name, *before):
    if name in OF_IDS:
        return np.random.default_rng(0).integers(1, 11, (*before, 5))
    return normal(*before, 5, 8) if name != "RotaryEmbedding" else normal(*before, 2, 5, 8)


def symbol_of(inputs):
    return keras.Input(inputs.shape[1:], dtype=inputs.dtype.name)


@pytest.mark.parametrize("name", cases(ONE_OUTPUT))
def test_a_layer_applies_to_each_step_of_time(name):
    layer, inputs = layer_of(name), inputs_of(name, 2, 3)
    apart = np.stack([array(layer(inputs[:, step])) for step in range(3)], axis=1)
    wrapper = keras.layers.TimeDistributed(layer)
    np.testing.assert_allclose(array(wrapper(inputs)), apart, atol=1e-6)
    symbol = symbol_of(inputs)
    model = keras.Model(symbol, wrapper(symbol))
    assert model.output_shape[1:] == apart.shape[1:]
    np.testing.assert_allclose(array(model(inputs)), apart, atol=1e-6)


@pytest.mark.parametrize("name", cases(ONE_OUTPUT))
def test_shapes_are_known_before_a_call(name):
    inputs = inputs_of(name, 2)
    expected = layer_of(name)(inputs)
    dtype = keras.backend.standardize_dtype(expected.dtype)
    assert tuple(layer_of(name).compute_output_shape(inputs.shape)) == expected.shape
    sequence = keras.Sequential([layer_of(name)])
    assert tuple(sequence.compute_output_shape(inputs.shape)) == expected.shape
    spec = layer_of(name).compute_output_spec(keras.KerasTensor(inputs.shape, inputs.dtype.name))
    assert (tuple(spec.shape), spec.dtype) == (expected.shape, dtype)
    sequence.build(inputs.shape)
    assert sequence.output_shape[1:] == expected.shape[1:]


@pytest.mark.parametrize("name", cases(ONE_OUTPUT))
def test_a_layer_is_shared_in_a_subclassed_model(name):
    class Twice(keras.Model):
        def __init__(self):
            super().__init__()
            self.shared = layer_of(name)

        def call(self, inputs):
            return [self.shared(each) for each in inputs]

    inputs = inputs_of(name, 2)
    model = Twice()
    first, second = model([inputs, inputs])
    np.testing.assert_array_equal(array(first), array(second))
    assert len(model.weights) == len(model.shared.weights)


KINDS = {
    "a list": lambda mask: mask.tolist(),
    "a list of numbers": lambda mask: mask.astype(int).tolist(),
    "integers": lambda mask: mask.astype("int32"),
    "bytes": lambda mask: mask.astype("uint8"),
    "a tensor": keras.ops.convert_to_tensor,
    "a tensor of integers": lambda mask: keras.ops.convert_to_tensor(mask.astype("int64")),
}
# A mask's argument, and its shape for 2 rows of 5 tokens.
PADDING = {"padding_mask": (2, 5)}
MASKS = dict.fromkeys([*ATTENTIONS, *BLOCKS, "SequencePooling"], PADDING)
for _name in [*ATTENTIONS, *BLOCKS]:
    if _name != "SparseAttention":
        MASKS[_name] = {**PADDING, "attention_mask": (2, 5, 5)}
MASKS["MultiHeadAttention"] |= {"query_mask": (2, 5), "value_mask": (2, 5), "key_mask": (2, 5)}
OF_SOURCE = {"source_padding_mask": (2, 5), "source_attention_mask": (2, 5, 5)}
MASKS["DecoderBlock"] = MASKS["Decoder"] = MASKS["Decoder"] | OF_SOURCE


def drawn_mask(shape, seed=0):
    mask = np.random.default_rng(seed).random(shape) < 0.6
    mask[..., 0] = True
    return mask


def first_of(layer, *inputs, **masks):
    return array(keras.tree.flatten(layer(*inputs, **masks))[0])


@pytest.mark.parametrize(("name", "argument"), cases(MASKS, lambda n: [[a] for a in MASKS[n]]))
def test_a_mask_may_be_booleans_or_integers_of_any_kind(name, argument):
    layer, mask = layer_of(name), drawn_mask(MASKS[name][argument])
    inputs = [normal(2, 5, 8), normal(2, 5, 8)][: 2 if argument.startswith("source") else 1]
    layer(*inputs)
    fill(layer)
    expected = first_of(layer, *inputs, **{argument: mask})
    assert not np.allclose(expected, first_of(layer, *inputs))
    for kind, of in KINDS.items():
        received = first_of(layer, *inputs, **{argument: of(mask)})
        np.testing.assert_array_equal(received, expected, err_msg=kind)
    for wrong in (mask.astype("float32"), np.where(mask, 0.0, -1e9).tolist()):
        with pytest.raises(ValueError, match=r"must be boolean, .*or zeros and ones in integers"):
            layer(*inputs, **{argument: wrong})


@pytest.mark.parametrize("name", cases(n for n in MASKS if "attention_mask" in MASKS[n]))
def test_an_attention_mask_of_two_axes_is_of_targets_and_sources(name):
    layer, inputs, mask = layer_of(name), normal(2, 5, 8), drawn_mask((5, 5))
    layer(inputs)
    expected = first_of(layer, inputs, attention_mask=np.stack([mask, mask]))
    for same in (mask, mask[None], mask[None, None], mask.astype("int32").tolist()):
        np.testing.assert_array_equal(first_of(layer, inputs, attention_mask=same), expected)
    for shape in ((2, 2, 5, 5), (5,), (2, 1, 1, 5, 5)):
        with pytest.raises(ValueError, match=r"attention_mask must have the shape .*heads share"):
            layer(inputs, attention_mask=np.ones(shape, bool))


def test_a_penalty_of_activities_that_keras_means_otherwise_is_refused():
    """Keras's attention hands the argument to its four projections."""
    inputs = keras.Input((5, 8))
    theirs = keras.layers.MultiHeadAttention(2, 4, activity_regularizer="l2")
    theirs(inputs, inputs)
    assert sum(layer.activity_regularizer is not None for layer in theirs._flatten_layers()) > 2
    for name in ATTENTIONS:
        if name != "SlicedAttention":
            with pytest.raises(ValueError, match=r"activity_regularizer.*four projections"):
                getattr(layers, name)(*ATTENTIONS[name], activity_regularizer="l2")


KEYWORDS = {"name": "mine", "trainable": False, "dtype": "float64", "autocast": False}


@pytest.mark.parametrize("name", cases(ALL))
def test_keywords_of_layers_mean_what_they_mean_in_keras(name):
    named = {"num_heads": 2, "intermediate_dim": 7} if name in BLOCKS else {}
    arguments = {**OF_VECTORS, **OF_IDS, **MORE}[name]
    for keyword, value in KEYWORDS.items():
        if keyword == "autocast" and name in OF_IDS:
            continue  # they have it themselves
        layer = getattr(layers, name)(*arguments, **named, **{keyword: value})
        theirs = keras.layers.Dense(3, **{keyword: value})
        inputs = inputs_of(name, 2)
        layer(inputs)
        theirs(normal(2, 3))
        for attribute in ("trainable", "dtype", "compute_dtype", "autocast"):
            if keyword != "name" and not (name in OF_IDS and attribute == "autocast"):
                assert getattr(layer, attribute) == getattr(theirs, attribute), attribute
        assert layer.name == "mine" or keyword != "name"
        assert len(layer.trainable_weights) == len(layer.weights) or not layer.trainable
    with pytest.raises(ValueError, match="Unrecognized keyword arguments"):
        getattr(layers, name)(*arguments, **named, no_such_keyword=1)


WHAT_AN_IMPORT_LEAVES = """
import json, logging, os, random, warnings
import keras, numpy
if keras.backend.backend() == "tensorflow":
    import tensorflow

def state():
    loggers = [logging.getLogger(name) for name in (None, "absl", "tensorflow", "jax")]
    return json.dumps([
        list(map(str, warnings.filters)), [(each.level, len(each.handlers)) for each in loggers],
        dict(os.environ), keras.backend.backend(), keras.config.floatx(), random.getstate(),
        numpy.random.get_state()[1].tolist(),
    ])

random.seed(3), numpy.random.seed(3)
before = state()
import keras_transformer
for name in keras_transformer.__all__:
    getattr(keras_transformer, name)
assert state() == before
for floatx in ("float64", "bfloat16"):  # the first would be too late if a layer had been made
    if floatx == "bfloat16":
        keras.config.set_dtype_policy("bfloat16")
    keras.config.set_floatx(floatx)
    print(json.dumps([keras.layers.Dense(3).dtype, keras_transformer.FeedForward(3).dtype]))
"""


@pytest.mark.other_backend
def test_an_import_changes_nothing_of_keras_and_of_the_process():
    done = subprocess.run(
        [sys.executable, "-c", WHAT_AN_IMPORT_LEAVES],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    dtypes = [json.loads(line) for line in done.stdout.split("\n") if line]
    assert dtypes == [["float64"] * 2, ["bfloat16"] * 2]


@pytest.fixture(params=["float64", "float16", "bfloat16"])
def floatx(request):
    before, policy = keras.config.floatx(), keras.config.dtype_policy()
    keras.config.set_floatx(request.param)
    keras.config.set_dtype_policy(request.param)
    yield request.param
    keras.config.set_floatx(before)
    keras.config.set_dtype_policy(policy)


@pytest.mark.parametrize("name", cases(ALL))
def test_a_layer_is_of_the_float_type_of_keras(name, floatx):
    layer = layer_of(name)
    outputs = keras.tree.flatten(layer(inputs_of(name, 2)))
    assert {weight.dtype for weight in layer.weights} <= {floatx}
    if name != "TokenDropout":
        assert {keras.backend.standardize_dtype(each.dtype) for each in outputs} == {floatx}
