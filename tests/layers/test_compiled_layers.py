"""The gradients written by hand that blocks have under XLA, beside automatic ones."""

import keras
import numpy as np
import pytest

from keras_transformer.layers import DecoderBlock, EncoderBlock, FeedForward
from keras_transformer.layers.normalization import LayerNormalization, RMSNormalization

pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's")


def outputs_and_gradients(layer, inputs, jit_compile, **arguments):
    """Of a weighted sum of the outputs: outputs, and gradients for inputs and weights."""
    import tensorflow as tf

    weights = [variable.value for variable in layer.trainable_variables]

    @tf.function(jit_compile=jit_compile)
    def compute(*inputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = layer(*inputs, **arguments)
            upstream = tf.cos(tf.range(tf.size(outputs)) % 11 / 3)
            upstream = tf.reshape(tf.cast(upstream, outputs.dtype), tf.shape(outputs))
        gradients = tape.gradient(outputs, [*inputs, *weights], output_gradients=upstream)
        return [outputs, *gradients]

    return [np.array(tf.cast(each, tf.float64)) for each in compute(*inputs)]


def check_alike(layer, shapes, atol=1e-5, **arguments):
    inputs = [keras.random.normal(shape, dtype=layer.compute_dtype, seed=5) for shape in shapes]
    layer(*inputs)
    for index, variable in enumerate(layer.trainable_variables):
        drawn = keras.random.normal(variable.shape, dtype=variable.dtype, seed=index)
        variable.assign_add(0.3 * drawn)
    plain, compiled = (
        outputs_and_gradients(layer, inputs, jit_compile, **arguments)
        for jit_compile in (False, True)
    )
    for ours, theirs in zip(compiled, plain, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=atol * max(1, np.abs(theirs).max()))


@pytest.mark.slow
@pytest.mark.parametrize(("normalize_first", "activation"), [(True, "gelu"), (False, "relu")])
def test_blocks_have_the_same_gradients_under_xla(normalize_first, activation):
    settings = {"num_heads": 2, "intermediate_dim": 11, "normalize_first": normalize_first}
    mask = keras.ops.array([[True] * 5, [True] * 3 + [False] * 2, [False] * 5])
    encoder = EncoderBlock(activation=activation, **settings)
    check_alike(encoder, [(3, 5, 4)], padding_mask=mask, training=True)
    decoder = DecoderBlock(activation=activation, **settings)
    check_alike(decoder, [(3, 7, 4), (3, 5, 4)], source_padding_mask=mask, training=True)


LLAMA = {
    "num_heads": 6, "intermediate_dim": 11, "normalization": "rms", "gated": True,
    "activation": "silu", "use_bias": False,
    "attention_arguments": {"rotary": {}, "num_key_value_heads": 2, "query_key_norm": 1e-6},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("soft_cap", "dtype"), [(None, "float32"), (2.0, "float64")])
def test_todays_blocks_have_the_same_gradients_under_xla(soft_cap, dtype):
    settings = {**LLAMA, "dtype": dtype}
    settings["attention_arguments"] = {**LLAMA["attention_arguments"], "soft_cap": soft_cap}
    atol = {"float32": 1e-5, "float64": 1e-12}[dtype]
    mask = keras.ops.array([[True] * 5, [True] * 3 + [False] * 2, [False] * 5])
    encoder = EncoderBlock(**settings)
    check_alike(encoder, [(3, 5, 12)], atol=atol, padding_mask=mask, training=True)
    decoder = DecoderBlock(**settings)
    shapes = [(3, 7, 12), (3, 5, 4)]
    check_alike(decoder, shapes, atol=atol, source_padding_mask=mask, training=True)


def test_rms_normalisation_equals_kerass():
    for inputs in (keras.random.normal((2, 3, 5), seed=3), keras.random.normal((2, 7), seed=4)):
        ours, theirs = RMSNormalization(epsilon=1e-3), keras.layers.RMSNormalization(epsilon=1e-3)
        ours(inputs), theirs(inputs)
        scale = keras.random.normal(inputs.shape[-1:], seed=5)
        ours.scale.assign(scale), theirs.scale.assign(scale)
        np.testing.assert_array_equal(ours(inputs), theirs(inputs))
        compiled = outputs_and_gradients(ours, [inputs], True)
        for one, other in zip(
            compiled, outputs_and_gradients(theirs, [inputs], False), strict=True
        ):
            np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "atol"),
    [("float64", 1e-12), ("mixed_bfloat16", 0.06), ("bfloat16", 0.06), ("float16", 0.01)],
)
def test_in_other_dtypes_they_are_as_near_as_these_allow(dtype, atol):
    block = EncoderBlock(num_heads=2, intermediate_dim=11, activation="gelu", dtype=dtype)
    check_alike(block, [(3, 5, 4)], atol=atol, training=True)


def test_long_sequences_in_float64_are_not_rounded_to_float32():
    block = EncoderBlock(num_heads=2, intermediate_dim=11, dtype="float64")
    check_alike(block, [(1, 1024, 4)], atol=1e-12, training=True)


def test_the_kernels_of_a_frozen_block_cost_no_product_for_their_gradients():
    import tensorflow as tf

    def products(trainable):
        block, inputs = EncoderBlock(num_heads=2, intermediate_dim=11), keras.ops.ones((3, 5, 4))
        block(inputs)
        block.trainable = trainable

        @tf.function(jit_compile=True)
        def compute(inputs):
            weights = [variable.value for variable in block.trainable_variables]
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                outputs = block(inputs, training=True)
            return tape.gradient(outputs, [inputs, *weights])

        return compute.experimental_get_compiler_ir(inputs)("optimized_hlo").count(" dot(")

    assert products(True) == products(False) + 4


@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("gated", [False, True])
def test_the_backward_pass_of_a_network_widens_again(gated, use_bias):
    import tensorflow as tf

    layer = FeedForward(11, "silu", gated=gated, use_bias=use_bias)
    layer(keras.ops.ones((3, 5, 4)))

    @tf.function(jit_compile=True)
    def compute(inputs):
        weights = [variable.value for variable in layer.trainable_variables]
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = layer(inputs, training=True)
        return [outputs, *tape.gradient(outputs, [inputs, *weights])]

    program = compute.experimental_get_compiler_ir(keras.ops.ones((3, 5, 4)))("hlo")
    # Both passes of two products, which XLA has not simplified yet, and two gradients of each.
    assert program.count(" dot(") == 2 * 2 + 4


def test_an_activation_may_have_weights():
    block = EncoderBlock(num_heads=2, intermediate_dim=11, activation=keras.layers.PReLU())
    check_alike(block, [(3, 5, 4)], training=True)


@pytest.mark.filterwarnings("ignore:.*rms_scaling=True:UserWarning")
def test_a_norm_may_leave_the_mean():
    check_alike(LayerNormalization(rms_scaling=True), [(3, 5, 4)])


def test_rows_of_a_high_mean_are_normalised_well():
    layer = LayerNormalization()
    rows = 100 + keras.random.normal((7, 64), seed=3)
    layer(rows)
    plain, compiled = (outputs_and_gradients(layer, [rows], jit)[0] for jit in (False, True))
    np.testing.assert_allclose(compiled, plain, atol=1e-4)


def test_a_batch_without_rows_has_gradients_of_zero():
    block = EncoderBlock(num_heads=2, intermediate_dim=11)
    block(keras.ops.zeros((3, 5, 4)))
    _, of_inputs, *of_weights = outputs_and_gradients(
        block, [keras.ops.zeros((0, 5, 4))], True, training=True
    )
    assert of_inputs.shape == (0, 5, 4)
    assert not any(np.any(each) for each in of_weights)


def test_gradients_of_gradients_are_refused():
    import tensorflow as tf

    block = EncoderBlock(num_heads=2, intermediate_dim=16)
    inputs = tf.random.stateless_normal([3, 5, 8], [1, 2])
    block(inputs)

    @tf.function(jit_compile=True, autograph=False)
    def gradients():
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(inputs)
                loss = tf.reduce_sum(tf.square(block(inputs)))
            norm = tf.reduce_sum(tf.square(inner.gradient(loss, inputs)))
        return outer.gradient(norm, block.trainable_variables)

    with pytest.raises(NotImplementedError, match="need jit_compile=False"):
        gradients()
