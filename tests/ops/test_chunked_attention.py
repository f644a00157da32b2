"""Attention in chunks beside attention all at once."""

import keras
import numpy as np
import pytest

from keras_transformer.layers import Decoder, MultiHeadAttention
from keras_transformer.ops import attention, causal_mask, chunked_attention
from keras_transformer.ops.chunked_attention import attend_in_chunks

pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's")
# XLA takes seconds for each; 0 has no mask, 1 and 5 drop weights, 6 is of targets and sources.
CASES = [*((number, False) for number in range(12)), *((number, True) for number in (0, 1, 5, 6))]


def drawn(number):
    """Tensors, mask, rate and the most rows of a chunk."""
    draw = np.random.default_rng(number)
    batch, heads, dim = draw.integers(1, 4, 3)
    target, source = draw.integers(1, 20, 2)
    shapes = [(batch, heads, length, dim) for length in (target, source, source)]
    tensors = [draw.normal(size=shape).astype("float32") for shape in shapes]
    mask = None
    if number % 4:
        mask = draw.random([(batch, 1, target, source), (1, 1, target, source),
                            (batch, 1, 1, source)][number % 3]) < 0.4  # fmt: skip
    return tensors, mask, (0.0, 0.5)[number % 2], int(draw.integers(1, target + 3))


def noise(seed, shape, rate, rows):
    """The factors of all chunks of an attention, side by side."""
    import tensorflow as tf

    from keras_transformer.ops.internals import keep_mask

    batch, heads, target, source = shape
    chunks = [
        keep_mask((batch, heads, rows, source), rate, seed + [chunk, 0])
        for chunk in range(-(-target // rows))
    ]
    return tf.cast(tf.concat(chunks, axis=2)[:, :, :target], "float32") / (1 - rate)


@pytest.mark.parametrize(("number", "jit_compile"), CASES)
def test_chunks_equal_the_whole_and_so_do_gradients(number, jit_compile, monkeypatch):
    import tensorflow as tf

    from keras_transformer.ops.internals import draw_seed
    from keras_transformer.ops.softmax import attention_weights

    tensors, mask, rate, most = drawn(number)
    monkeypatch.setattr(chunked_attention, "CHUNK_ROWS", most)
    shape = (*tensors[0].shape[:3], tensors[1].shape[2])
    chunks = -(-shape[2] // most)
    rows = -(-shape[2] // chunks)
    seed = draw_seed(keras.random.SeedGenerator(number))
    upstream = np.random.default_rng(7).normal(size=(*shape[:3], tensors[2].shape[3]))

    def whole(queries, keys, values):
        factors = noise(seed, shape, rate, rows) if rate else 1.0
        return tf.matmul(attention_weights(queries, keys, mask) * factors, values)

    def in_chunks(queries, keys, values):
        return attend_in_chunks(queries, keys, values, mask, rate=rate, seed=seed)

    def results(function):
        variables = [tf.constant(tensor) for tensor in tensors]
        with tf.GradientTape() as tape:
            tape.watch(variables)
            outputs = function(*variables)
        return [outputs, *tape.gradient(outputs, variables, tf.cast(upstream, "float32"))]

    compiled = tf.function(lambda: results(in_chunks), jit_compile=True)
    ours = compiled() if jit_compile else results(in_chunks)
    for one, other in zip(ours, results(whole), strict=True):
        # Of one source position alone the weight is 1, whatever the scores.
        np.testing.assert_allclose(one, 0 * one if other is None else other, atol=1e-5)


@pytest.mark.parametrize("training", [False, True])
def test_a_layer_of_long_sequences_chooses_chunks_unless_scores_are_asked_for(
    monkeypatch, training
):
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    layer, inputs = MultiHeadAttention(2), keras.random.normal((2, 9, 4))
    mask = causal_mask(9)
    expected = layer(inputs, attention_mask=mask, padding_mask=inputs[..., 0] > -1)
    expected_scores = layer.attention_scores(inputs, attention_mask=mask)
    monkeypatch.setattr(attention, "MIN_WEIGHTS", 81)
    monkeypatch.setattr(chunked_attention, "CHUNK_ROWS", 3)

    @tf.function
    def call(inputs):
        masks = {"attention_mask": mask, "padding_mask": inputs[..., 0] > -1}
        return layer(inputs, **masks, training=training)

    graph = call.get_concrete_function(inputs).graph
    assert any("While" in node.op for node in graph.as_graph_def().node)
    np.testing.assert_allclose(call(inputs), expected, atol=1e-6)
    np.testing.assert_allclose(layer.attention_scores(inputs, attention_mask=mask), expected_scores)


def test_dropout_drops_the_same_weights_forward_and_backward(monkeypatch):
    """A linear function of the values: its gradient is what it multiplies them by."""
    import tensorflow as tf

    from keras_transformer.ops.internals import draw_seed

    monkeypatch.setattr(chunked_attention, "CHUNK_ROWS", 3)
    queries, keys = keras.random.normal((1, 1, 8, 3)), keras.random.normal((1, 1, 7, 3))
    values = tf.random.normal((1, 1, 7, 3))
    seed = draw_seed(keras.random.SeedGenerator(3))
    with tf.GradientTape() as tape:
        tape.watch(values)
        outputs = attend_in_chunks(queries, keys, values, rate=0.5, seed=seed)
        total = tf.reduce_sum(outputs)
    slope = tape.gradient(total, values)
    np.testing.assert_allclose(tf.reduce_sum(slope * values), total, rtol=1e-5)
    assert not np.allclose(np.array(slope)[0, 0, :, 0].sum(), 8), "some were dropped"


@pytest.mark.parametrize("jit_compile", [False, True])
def test_no_rows_of_targets_share_noise_within_a_step_or_between_steps(monkeypatch, jit_compile):
    """Equal weights of equal sources: the context of a target is how its row was dropped."""
    import tensorflow as tf

    monkeypatch.setattr(attention, "MIN_WEIGHTS", 0)
    monkeypatch.setattr(chunked_attention, "CHUNK_ROWS", 3)
    generator, zeros = keras.random.SeedGenerator(3), tf.zeros([1, 1, 9, 64])

    @tf.function(jit_compile=jit_compile)
    def kept_at_a_step():
        values = tf.eye(64)[None, None]
        keys = tf.zeros_like(values)
        return attention.attend(zeros, keys, values, rate=0.5, seed_generator=generator)[0]

    rows = np.concatenate([kept_at_a_step()[0, 0] for _ in range(4)]) > 0
    assert len(np.unique(rows, axis=0)) == len(rows)


@pytest.mark.parametrize("lengths", [(3, 5), (8, 9)], ids=["short", "long"])
def test_lengths_that_vary_choose_chunks_when_xla_compiles_for_them(monkeypatch, lengths):
    import tensorflow as tf

    monkeypatch.setattr(attention, "MIN_WEIGHTS", 40)
    monkeypatch.setattr(chunked_attention, "CHUNK_ROWS", 3)
    draw = np.random.default_rng(3)
    target, source = (draw.normal(size=(2, n, 4)).astype("float32") for n in lengths)
    mask = draw.random((2, lengths[1])) < 0.7
    layer = MultiHeadAttention(2)
    layer.build(target.shape, source.shape)

    def gradients(target, source, mask):
        with tf.GradientTape() as tape:
            tape.watch([target, source])
            outputs = layer(target, source, padding_mask=mask, training=True)
            loss = tf.reduce_sum(outputs * tf.sin(outputs))
        return [outputs, *tape.gradient(loss, [target, source])]

    vectors, flags = tf.TensorSpec([None, None, 4]), tf.TensorSpec([None, None], tf.bool)
    signature = [vectors, vectors, flags]
    compiled = tf.function(gradients, input_signature=signature, jit_compile=True)
    plain = tf.function(gradients, input_signature=signature)
    for one, other in zip(compiled(target, source, mask), plain(target, source, mask), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    program = compiled.experimental_get_compiler_ir(target, source, mask)(stage="hlo")
    assert (" while(" in program) == (lengths == (8, 9))


@pytest.mark.parametrize("soft_cap", [None, 0.5])
def test_a_soft_cap_and_values_of_another_width_are_the_same_in_chunks(monkeypatch, soft_cap):
    import tensorflow as tf

    from keras_transformer.ops.softmax import attention_weights

    monkeypatch.setattr(chunked_attention, "CHUNK_ROWS", 3)
    tensors = [tf.random.normal((2, 3, n, d), seed=d) for n, d in ((8, 4), (7, 4), (7, 5))]
    mask = tf.random.uniform((2, 1, 8, 7), seed=3) < 0.7

    def at_once(queries, keys, values):
        return tf.matmul(attention_weights(queries, keys, mask, soft_cap=soft_cap), values)

    def in_chunks(*tensors):
        return attend_in_chunks(*tensors, mask, soft_cap=soft_cap)

    def outputs_and_gradients(function):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            outputs = function(*tensors)
            loss = tf.reduce_sum(outputs * tf.sin(outputs))
        return [outputs, *tape.gradient(loss, tensors)]

    every = zip(outputs_and_gradients(in_chunks), outputs_and_gradients(at_once), strict=True)
    for one, other in every:
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize(
    ("number", "jit_compile"), [*((number, False) for number in range(6)), (1, True), (5, True)]
)
def test_biases_by_distance_are_the_same_in_chunks(monkeypatch, number, jit_compile):
    import tensorflow as tf

    from keras_transformer.ops.internals import draw_seed
    from keras_transformer.ops.positions import spread_by_distance
    from keras_transformer.ops.softmax import attention_weights

    tensors, mask, rate, most = drawn(number)
    monkeypatch.setattr(chunked_attention, "CHUNK_ROWS", most)
    batch, heads, target, _ = tensors[0].shape
    source, soft_cap = tensors[1].shape[2], (None, 0.7)[number % 3 == 1]
    rows = -(-target // -(-target // most))
    seed = draw_seed(keras.random.SeedGenerator(number))
    draw = np.random.default_rng(number)
    tensors.append(draw.normal(size=(1, heads, target + source)).astype("float32"))

    def whole(queries, keys, values, bias):
        factors = noise(seed, (batch, heads, target, source), rate, rows) if rate else 1.0
        weights = attention_weights(queries, keys, mask, spread_by_distance(bias, target), soft_cap)
        return tf.matmul(weights * factors, values)

    def in_chunks(*three_and_bias):
        *three, bias = three_and_bias
        return attend_in_chunks(*three, mask, bias, soft_cap, rate, seed)

    def results(function):
        variables = [tf.constant(tensor) for tensor in tensors]
        with tf.GradientTape() as tape:
            tape.watch(variables)
            outputs = function(*variables)
            loss = tf.reduce_sum(outputs * tf.sin(outputs))
        return [outputs, *tape.gradient(loss, variables)]

    ours = tf.function(lambda: results(in_chunks), jit_compile=jit_compile)()
    for one, other in zip(ours, results(whole), strict=True):
        np.testing.assert_allclose(one, 0 * one if other is None else other, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "jit_compile"), [("t5", True), ("alibi", False)])
def test_a_long_stack_with_a_bias_attends_in_chunks(monkeypatch, kind, jit_compile):
    import tensorflow as tf

    def results():
        keras.utils.set_random_seed(5)
        arguments = {"num_key_value_heads": 2, "rotary": {}, "query_key_norm": 1e-6}
        stack = Decoder(
            2, num_heads=4, intermediate_dim=5, position_bias={"type": kind},
            attention_arguments=arguments,
        )  # fmt: skip
        stack(inputs)

        @tf.function(jit_compile=jit_compile)
        def compute(inputs):
            weights = [variable.value for variable in stack.trainable_variables]
            with tf.GradientTape() as tape:
                tape.watch(inputs)
                outputs = stack(inputs, training=True)
                loss = tf.reduce_sum(outputs * tf.sin(outputs))
            gradients = tape.gradient(loss, [inputs, *weights])
            return [tf.convert_to_tensor(each) for each in (outputs, *gradients)]

        graph = compute.get_concrete_function(inputs).graph.as_graph_def()
        loops = sum("While" in node.op for node in graph.node)
        return loops, compute(inputs)

    inputs = keras.random.normal((2, 9, 8), seed=3)
    no_loops, expected = results()
    monkeypatch.setattr(attention, "MIN_WEIGHTS", 81)
    monkeypatch.setattr(chunked_attention, "CHUNK_ROWS", 4)
    loops, found = results()
    assert no_loops == 0 and loops > 0
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_heads_that_share_keys_need_no_chunks_sooner_than_others(monkeypatch):
    monkeypatch.setattr(attention, "MIN_WEIGHTS", 82)
    queries, keys = keras.ops.zeros((1, 2, 36, 3)), keras.ops.zeros((1, 2, 9, 3))
    assert attention.is_long(queries, keys)
    assert not attention.is_long(queries, keys, sharing=4)


@pytest.mark.soak
def test_4096_tokens_hold_a_fifth_of_the_memory_of_all_weights_at_once():
    import os
    import subprocess
    import sys

    def megabytes(least):
        command = [sys.executable, "-m", "tests.ops.attention_memory", "4096", str(least)]
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return float(done.stdout.splitlines()[-1])

    in_chunks, at_once = megabytes(attention.MIN_WEIGHTS), megabytes(10**9)
    assert in_chunks <= at_once / 5
