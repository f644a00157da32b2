"""A prefix read in one pass gives what it gives token by token."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.decoding import BeamSearch, Sampling, Streamer, TokenRules
from keras_transformer.serving.settings import scoring_of

SIZE, LENGTH = 23, 11
DIMENSIONS = {"num_layers": 2, "hidden_dim": 12, "intermediate_dim": 17, "num_heads": 3}
PREFIX = np.array([[5, 7, 9, 11, 4], [6, 5, 8, 0, 0], [9, 4, 7, 7, 0], [5, 5, 5, 5, 5]], "int32")
START_ID, END_ID = 2, 3


def shaken(model):
    draw = np.random.default_rng(3)
    for weight in model.weights:
        weight.assign(weight + draw.normal(0, 0.3, weight.shape))
    return model


@pytest.fixture(scope="module")
def translation():
    keras.utils.set_random_seed(3)
    model = shaken(kt.translation(SIZE, size="tiny", dropout=0.0, **DIMENSIONS))
    source_ids = tf.constant([[5, 7, 3, 0], [9, 9, 4, 3], [8, 3, 0, 0], [6, 7, 8, 3]])
    return model, model.encode(source_ids)


def language_model(kind):
    keras.utils.set_random_seed(5)
    options = dict(DIMENSIONS)
    if kind not in ("transformer_xl", "learned positions"):
        options["num_layers"] = 1
    if kind == "transformer_xl":  # whose documents begin with 9, as one prompt does in its middle
        return shaken(kt.transformer_xl(SIZE, batch_size=2, start_id=9, **options))
    if kind == "learned positions":
        options["max_sequence_length"] = LENGTH
    elif kind == "rotary positions":
        options["blocks"] = "llama"
    elif kind == "bias by distance":
        options["position_bias"] = {"type": "alibi"}
    elif kind != "sinusoids":
        options["attention_pattern"] = {"pattern": kind, "block_size": 3, "summary_size": 1}
    return shaken(kt.language_model(SIZE, **options))


def compared(search, prefill):
    """Both results, and how many steps the search took with `prefill`."""
    with_one, alone = (search(prefill=each) for each in (prefill, None))
    np.testing.assert_array_equal(with_one.token_ids, alone.token_ids)
    np.testing.assert_array_equal(with_one.lengths, alone.lengths)
    np.testing.assert_allclose(with_one.scores, alone.scores, rtol=1e-5, atol=1e-5)
    return alone


CASES = [  # limits, prefix, rules
    ([9, 11, 7, 6], PREFIX, TokenRules()),
    ([9, 0, 7, 6], PREFIX * [[1], [0], [1], [1]], TokenRules()),
    ([9, 3, 7, 6], PREFIX, TokenRules(no_repeat_ngram_size=2, forces_end=False)),
    ([9, 11, 1, 6], PREFIX, TokenRules()),
    ([9, 11, 8, 6], PREFIX[:, :0], TokenRules(forced_bos_token_id=7)),
]
HOW = {
    "eager": lambda search: search,
    "graph": functools.partial(tf.function, autograph=False),
    "xla": functools.partial(tf.function, autograph=False, jit_compile=True),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_beams", "scoring"),
    [
        pytest.param(1, "gnmt", marks=pytest.mark.soak),
        pytest.param(3, "gnmt", marks=pytest.mark.soak),
        pytest.param(3, "huggingface", marks=pytest.mark.soak),
        (3, "huggingface_early_stopping"),
    ],
)
def test_a_forced_prefix_of_a_translation(translation, num_beams, scoring):
    for case in CASES:
        check_translation(translation, "eager", num_beams, scoring, *case)


@pytest.mark.slow
@pytest.mark.parametrize(("how", "scoring"), [("graph", "gnmt"), ("xla", "huggingface")])
def test_a_forced_prefix_of_a_compiled_search(translation, scoring, how):
    for case in CASES[:2]:
        check_translation(translation, how, 3, scoring, *case)


def check_translation(translation, how, num_beams, scoring, limits, prefix, rules):
    model, encoded = translation
    room = [LENGTH] if how == "xla" else []
    beam_search = BeamSearch(num_beams, scoring=scoring_of(scoring, 0.6), token_rules=rules)

    @HOW[how]
    def search(prefill):
        return beam_search(
            functools.partial(model.step, encoded),
            model.start_cache(encoded, num_beams, *room),
            limits=limits,
            start_id=START_ID,
            end_id=END_ID,
            prefix=prefix,
            capacity=LENGTH if room else None,
            prefill=prefill,
        )

    found = compared(search, functools.partial(model.prefill, encoded))
    assert found.lengths.numpy().max() > 5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "how"),
    [
        *((kind, "eager") for kind in ("sinusoids", "learned positions", "local", "fixed")),
        ("strided", "xla"),
        ("transformer_xl", "xla"),
    ],
)
def test_a_prompt_of_a_language_model(kind, how):
    model = language_model(kind)
    room = [LENGTH] if how == "xla" else []

    @HOW[how]
    def search(prefill):
        return Sampling()(
            model.step,
            model.start_cache(4, 2, *room),
            limits=[9, 11, 0, 8],
            start_id=tf.constant([5, 6, 7, 8]),
            end_id=END_ID,
            seed=tf.constant([[n, 1] for n in range(4)]),
            num_samples=2,
            prefix=PREFIX,
            capacity=LENGTH if room else None,
            prefill=prefill,
        )

    found = compared(search, model.prefill)
    assert found.lengths.numpy()[2].tolist() == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "is_compiled"),
    [
        ("learned positions", True),
        pytest.param("fixed", False, marks=pytest.mark.soak),
        ("transformer_xl", True),
        pytest.param("transformer_xl", False, marks=pytest.mark.soak),
    ],
)
def test_a_streamed_text_may_outgrow_its_context(kind, is_compiled):
    model = language_model(kind)
    room = [LENGTH] if is_compiled else []
    one_pass, by_steps = (
        Streamer(
            model.step,
            lambda: model.start_cache(1, 1, *room),
            Sampling(),
            context=LENGTH,
            jit_compile=is_compiled,
            prefill=prefill,
        )([5, 7, 9, 4, 8], num_tokens=15, seed=tf.constant([[3, 0]]))
        for prefill in (model.prefill, None)
    )
    assert list(one_pass) == list(by_steps)


def test_what_is_read_in_one_pass_takes_no_step(translation):
    model, encoded = translation
    positions = []

    def step(token_ids, parents, position, cache):
        positions.append(int(position))
        return model.step(encoded, token_ids, parents, position, cache)

    prefill = functools.partial(model.prefill, encoded)
    options = {"start_id": START_ID, "end_id": END_ID, "prefix": PREFIX, "prefill": prefill}
    BeamSearch(2)(step, model.start_cache(encoded, 2), limits=[9, 9, 9, 9], **options)
    assert positions[0] == 3, "the row with the shortest prefix decides"
    positions.clear()
    BeamSearch(2)(step, model.start_cache(encoded, 2), limits=[9, 2, 9, 9], **options)
    assert positions[0] == 1, "the end of the row with the lowest limit is left to the search"


@pytest.mark.parametrize(
    "kind", ["learned positions", "rotary positions", "bias by distance", "transformer_xl"]
)
def test_prompts_of_different_lengths_are_read_in_one_pass(kind):
    model, positions = language_model(kind), []
    rules = TokenRules(no_repeat_ngram_size=2, min_length=6, start_counts_as=9)
    prompts, new = [[5, 7, 9, 11, 4], [6, 5, 8], [9]], 4
    longest = max(map(len, prompts))

    def step(token_ids, parents, position, cache):
        positions.append(int(position))
        return model.step(token_ids, parents, position, cache)

    def drawn(rows, longest):
        starts = [longest - len(prompts[row]) for row in rows]
        ids = np.array([[1] * n + prompts[row] for n, row in zip(starts, rows, strict=True)])
        found = Sampling(token_rules=rules)(
            step,
            model.start_cache(len(rows), 2, starts=tf.constant(starts)),
            limits=[longest + new] * len(rows),
            start_id=tf.constant(ids[:, 0]),
            end_id=END_ID,
            seed=tf.constant([[row, 1] for row in rows]),
            num_samples=2,
            prefix=ids[:, 1:],
            prefill=model.prefill,
            starts=starts,
        )
        return found.token_ids.numpy()[:, :, longest - 1 :]

    assert model.pads_left
    together = drawn(range(3), longest)
    assert positions == list(range(longest - 1, longest + new)), "the shortest prompt has one token"
    for row, prompt in enumerate(prompts):
        alone = drawn([row], len(prompt))[0]
        np.testing.assert_array_equal(together[row, :, : alone.shape[1]], alone)


def test_patterns_are_not_read_behind_padding():
    assert not language_model("fixed").pads_left
