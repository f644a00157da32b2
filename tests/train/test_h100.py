"""What XLA's compiler for an H100 makes of the training step; no H100 is needed.

H100_COMPILER=h100/bin/python pytest -m h100

The environment of the compiler is described in `train/benchmark/h100.py`.
"""

import functools
import os
import re

import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.decoding import beam_search
from keras_transformer.layers import memory_efficient_attention
from train.benchmark.engines import SIZES
from train.benchmark.h100 import COLUMNS, compiled, figures_of, main, program_of, row

FOUND = {
    "gflop": 989.0, "gib_moved": 3.35e10 / 2**30, "temporary_mib": 1234.4, "fusions": 56,
    "fused_attention": 7, "scatters": [],
}  # fmt: skip


def test_the_time_is_bound_by_what_takes_longer():
    line = row("a step", FOUND)
    assert line == "| a step | 989 | 31.2 | 10.00 | 1.00 | 1,234 | 56 | 7 |"
    assert {each.count("|") for each in [line, *COLUMNS.splitlines()]} == {9}


def test_without_a_compiler_it_says_what_it_needs(capsys):
    with pytest.raises(SystemExit):
        main([])
    assert "--compiler is required: the Python of" in capsys.readouterr().err


@pytest.mark.slow
def test_a_program_holds_the_whole_step_with_the_optimizer():
    program = program_of("ours", "toy")
    assert program[:4] == b"ML\xefR", "MLIR bytecode"
    assert len(program) > 10_000


@pytest.fixture(scope="module")
def compiler():
    path = os.environ.get("H100_COMPILER")
    if not path:
        pytest.skip("needs the compiler's Python in H100_COMPILER")
    return path


@pytest.mark.h100
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_base_step_moves_half_of_what_that_of_kerashub_does(compiler):
    ours = figures_of("ours", "base", compiler)
    assert ours["gib_moved"] < 25 and ours["temporary_mib"] < 1200
    assert ours["gflop"] < 3300, "nothing but the inside of feed-forward networks is computed twice"
    size = SIZES["base"]
    wide = [re.findall(r"\d+", shape)[1:] for shape in ours["scatters"]]
    assert [str(size.vocabulary_size), str(size.hidden_dim)] in wide, "of the embedding's gradient"
    assert not any(sizes[-1] == str(size.vocabulary_size) for sizes in wide), "of the logits"
    alike = figures_of("ours, with dropout of attention weights", "base", compiler)
    theirs = figures_of("KerasHub's layers, with dropout of attention weights", "base", compiler)
    assert alike["gib_moved"] < 0.48 * theirs["gib_moved"]
    assert alike["temporary_mib"] < 0.28 * theirs["temporary_mib"]


@pytest.mark.h100
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_beam_search_holds_one_cache(compiler):
    model = kt.translation(32000, size="base", dtype="bfloat16")

    @tf.function(jit_compile=True, autograph=False)
    def search(source_ids, limits, steps):
        encoded, capacity = model.encode(source_ids), tf.size(steps)
        step = functools.partial(model.step, encoded)
        cache = model.start_cache(encoded, 4, capacity)
        ids = {"start_id": 2, "end_id": 3}
        return beam_search(step, cache, num_beams=4, limits=limits, capacity=capacity, **ids)

    arguments = (tf.ones([64, 32], tf.int32), tf.fill([64], 72), tf.range(72))
    program = search.experimental_get_compiler_ir(*arguments)(stage="stablehlo_serialized")
    found = compiled(program, compiler)
    # Keys and values: 6 layers x 2 x 64 rows x 72 steps x 4 beams x 512 numbers are 216 MiB.
    assert 216 < found["temporary_mib"] < 300
    assert not found["scatters"]


@pytest.mark.h100
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_attention_of_long_sequences_holds_less_than_half_in_chunks(compiler, monkeypatch):
    """2 + 2 blocks of base width, 8 x 1024 tokens, bfloat16, without vocabulary and loss."""
    settings = {"num_heads": 8, "intermediate_dim": 2048, "dropout": 0.1, "dtype": "mixed_bfloat16"}
    inputs, mask = tf.zeros([8, 1024, 512], tf.bfloat16), tf.ones([8, 1024], tf.bool)

    def temporary_mib():
        encoder, decoder = kt.Encoder(2, **settings), kt.Decoder(2, **settings)
        encoder.build(inputs.shape)
        decoder.build(inputs.shape, inputs.shape)
        weights = [v.value for v in encoder.trainable_variables + decoder.trainable_variables]

        @tf.function(jit_compile=True, autograph=False)
        def gradients(source, target, mask):
            with tf.GradientTape() as tape:
                encoded = encoder(source, padding_mask=mask, training=True)
                masks = {"padding_mask": mask, "source_padding_mask": mask}
                decoded = decoder(target, encoded, **masks, training=True)
                loss = tf.reduce_sum(tf.cast(decoded, tf.float32) ** 2)
            return tape.gradient(loss, weights)

        ir = gradients.experimental_get_compiler_ir(inputs, inputs, mask)
        return compiled(ir(stage="stablehlo_serialized"), compiler)["temporary_mib"]

    in_chunks = temporary_mib()
    assert in_chunks < 500
    monkeypatch.setattr(memory_efficient_attention, "MIN_WEIGHTS", 10**9)
    assert in_chunks < temporary_mib() / 2
