import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.decoding import Sampling, Streamer, TokenRules
from keras_transformer.models.decoder_only import language_model
from keras_transformer.models.xl_model import transformer_xl
from tests.reference import array, fill

END = 3


@pytest.fixture(scope="module")
def model():
    sizes = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 2}
    return fill(language_model(11, **sizes))


def write(model, prompt, num_tokens, context, seed=(5, 7), end_id=None, **settings):
    streamer = Streamer(
        model.step,
        functools.partial(model.start_cache, 1),
        Sampling(**settings),
        context=context,
        forbidden_ids=(0, END),
        end_id=end_id,
    )
    return list(streamer(prompt, num_tokens=num_tokens, seed=seed))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"temperature": 0.5, "top_k": 4}, {"top_p": 0.7}], ids=str)
def test_streamed_tokens_are_those_that_sampling_draws(model, options):
    prompt, count = [5, 9, 4], 6
    drawn = Sampling(**options)(
        model.step,
        model.start_cache(1),
        limits=[len(prompt) + count],
        start_id=prompt[0],
        end_id=END,
        seed=(5, 7),
        prefix=[prompt[1:]],
        forbidden_ids=(0, END),
    )
    expected = drawn.token_ids.numpy()[0, 0, len(prompt) - 1 : -1]
    np.testing.assert_array_equal(write(model, prompt, count, context=32, **options), expected)


def test_a_forced_first_token_begins_a_stream(model):
    rules = TokenRules(forced_bos_token_id=8)
    alone = write(model, [9], 3, context=32, token_rules=rules)
    assert alone == [8, *write(model, [9, 8], 2, context=32, token_rules=rules)]
    assert write(model, [9, 5], 3, 32, token_rules=rules) == write(model, [9, 5], 3, 32)


def test_a_full_context_continues_from_its_newest_half(model):
    written = write(model, [5, 9], num_tokens=20, context=8, top_k=1)
    text = [5, 9]
    read = 0
    for newest in written:
        scores = array(model(np.array([text[read:]])))[0, -1]
        scores[[0, END]] = -np.inf
        assert newest == scores.argmax()
        text.append(newest)
        if len(text) - read > 8:
            read = len(text) - 4
    assert len(written) == 20


def test_a_prompt_longer_than_the_context_loses_its_beginning(model):
    long, short = [4, 5, 6, 7, 8, 9, 10, 4, 6], [6, 7, 8, 9, 10, 4, 6]
    expected = write(model, short, 3, context=7, top_k=1)
    assert write(model, long, 3, context=7, top_k=1) == expected


def test_a_start_stays_at_the_beginning_of_every_window():
    read = []

    def prefill(token_ids, next_ids, count, cache):
        tf.py_function(lambda ids: read.append(ids.numpy()[0].tolist()), [token_ids], [])
        return None, cache

    def step(token_ids, parents, position, cache):
        return 99.0 * tf.one_hot(token_ids + 1, 40), cache

    streamer = Streamer(step, tuple, Sampling(), context=6, num_starts=1, prefill=prefill)
    written = streamer([2, *range(10, 20)], num_tokens=7, seed=(1, 2))
    assert [*written] == [*range(20, 27)]
    assert read[0] == [2, 15, 16, 17, 18]
    assert len(read) == 3 and all(row[0] == 2 for row in read)


def test_a_token_arrives_as_soon_as_it_is_sampled():
    steps = []

    def counted(token_ids, parents, position, cache):
        tf.py_function(lambda: steps.append(1), [], [])
        return tf.one_hot(token_ids + 1, 9) * 99.0, cache

    streamer = Streamer(counted, tuple, Sampling(), context=5)
    tokens = streamer([3], num_tokens=4, seed=(1, 2))
    assert next(tokens) == 4 and len(steps) == 1
    assert next(tokens) == 5 and len(steps) == 2


def test_an_empty_prompt_is_refused(model):
    with pytest.raises(ValueError, match=r"at least one token\. Received: none"):
        write(model, [], 3, context=7)


@pytest.mark.parametrize("is_compiled", [False, True])
def test_a_second_stream_traces_nothing(model, is_compiled):
    traced = []

    def step(*arguments):
        traced.append("step")
        return model.step(*arguments)

    def prefill(*arguments):
        traced.append("prefill")
        return model.prefill(*arguments)

    room = [7] if is_compiled else []
    streamer = Streamer(
        step, lambda: model.start_cache(1, 1, *room), Sampling(), context=7,
        forbidden_ids=(0, END), jit_compile=is_compiled, prefill=prefill,
    )  # fmt: skip
    growing = Streamer(
        model.step, lambda: model.start_cache(1), Sampling(), context=7, forbidden_ids=(0, END)
    )  # fmt: skip
    for prompt, seed, temperature, top_k in [([5, 9, 4], 1, 0.7, 0), ([8], -2, 1.5, 3)]:
        drawing = {"seed": [[seed, 0]], "temperature": [temperature], "top_k": [top_k]}
        drawing = {name: tf.constant(value) for name, value in drawing.items()}
        found = list(streamer(prompt, num_tokens=12, **drawing))
        assert traced == ["step", "prefill"], prompt
        assert found == list(growing(prompt, num_tokens=12, **drawing))


MODELS = {
    "sinusoids": {},
    "llama": {"blocks": "llama", "attention_arguments": {"num_key_value_heads": 1}},
    "alibi": {"position_bias": {"type": "alibi"}},
    "strided": {"attention_pattern": {"pattern": "strided", "block_size": 3}},
    "transformer_xl": None,
}


@pytest.mark.parametrize(
    "kind",
    [
        "sinusoids",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("llama", "transformer_xl")),
        *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("alibi", "strided")),
    ],
)
def test_prompts_of_a_full_cache_are_padded_to_few_lengths(kind):
    sizes = {"num_layers": 1, "hidden_dim": 12, "intermediate_dim": 7, "num_heads": 2}
    if kind == "transformer_xl":
        model = transformer_xl(11, batch_size=1, **sizes)
    else:
        model = language_model(11, **sizes, **MODELS[kind])
    keras.utils.set_random_seed(3)
    fill(model)
    lengths = []

    class Seen(Streamer):
        def _traced(self, *arguments):
            advance, read_prompt = super()._traced(*arguments)

            def seen(token_ids, *others):
                lengths.append(token_ids.shape[1])
                return read_prompt(token_ids, *others)

            return advance, seen

    def streamer(kind, *room):
        return kind(
            model.step, lambda: model.start_cache(1, 1, *room), Sampling(), context=40,
            forbidden_ids=(0, END), jit_compile=bool(room), prefill=model.prefill,
        )  # fmt: skip

    compiled, growing = streamer(Seen, 40), streamer(Streamer)
    for length in (17, 18, 40):
        prompt = (np.random.default_rng(length).integers(4, 11, length)).tolist()
        drawing = {"seed": tf.constant([[length, 0]]), "num_tokens": 5}
        assert [*compiled(prompt, **drawing)] == [*growing(prompt, **drawing)], length
    # The last text begins again, with its newest 20 tokens.
    assert lengths == [16, 32, 40, 32]


@pytest.mark.parametrize(
    "rules",
    [{"suppress_tokens": (11,)}, {"bad_words_ids": ((4, 99),)}, {"forced_bos_token_id": 11}],
    ids=str,
)
def test_ids_that_the_model_lacks_are_refused(model, rules):
    with pytest.raises(ValueError, match="must be below the vocabulary size 11"):
        write(model, [4], 3, 8, token_rules=TokenRules(**rules), end_id=END)
