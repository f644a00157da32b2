import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.decoding import NO_HYPOTHESIS_SCORE, Sampling, TokenRules, sampling

START, END = 2, 3
IDS = {"start_id": START, "end_id": END}


def draw(
    table, num_samples, limits, rows=None, seed=(5, 7), temperature=1.0, top_k=None, top_p=1.0,
    **options,
):  # fmt: skip
    cache = table.cache(num_samples, rows)
    options |= {"limits": np.array(limits, "int32"), "num_samples": num_samples, **IDS}
    return Sampling(temperature, top_k, top_p)(table.step, cache, seed=seed, **options)


def exact_probabilities(logits, temperature=1.0, top_k=None, top_p=1.0):
    """What may be drawn and how often, with plain loops."""
    scores = logits.astype("float64") / temperature
    scores[[0, START]] = -np.inf
    order = np.argsort(-scores)
    scores[order[top_k:]] = -np.inf if top_k else scores[order[top_k:]]
    probabilities = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
    kept, total = [], 0.0
    for token_id in order:
        if total < top_p:
            kept.append(token_id)
        total += probabilities[token_id]
    cut = np.zeros_like(probabilities)
    cut[kept] = probabilities[kept]
    return cut / cut.sum()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.5},
        {"top_k": 3},
        {"top_p": 0.8},
        {"temperature": 2.0, "top_k": 4, "top_p": 0.7},
    ],
    ids=str,
)
def test_tokens_are_sampled_with_their_probability(prefix_table, options):
    table = prefix_table(num_rows=2, vocabulary_size=7, max_length=2, seed=1, scale=1.0)
    num_samples = 4001
    drawn = draw(table, num_samples, [3, 3], **options).token_ids.numpy()
    for row in range(2):
        first = exact_probabilities(table.logits[row, 0], **options)
        for token_id in range(7):
            had_it = drawn[row, :, 0] == token_id
            p = first[token_id]
            error = 5 * np.sqrt(num_samples * p * (1 - p))
            assert abs(np.sum(had_it) - num_samples * p) <= error, (row, token_id)
            if token_id == END or not np.any(had_it):
                continue
            second = exact_probabilities(table.logits[row, token_id + 1], **options)
            counts = np.bincount(drawn[row, had_it, 1], minlength=7)
            errors = 5 * np.sqrt(np.sum(had_it) * second * (1 - second))
            assert np.all(np.abs(counts - np.sum(had_it) * second) <= errors), (row, token_id)


def test_a_prefill_without_log_probabilities_leaves_the_prefix_out_of_the_score(prefix_table):
    table = prefix_table(num_rows=2, vocabulary_size=7, max_length=4, seed=3)
    prefix = np.array([[4, 5], [6, 1]], "int32")

    def prefill(token_ids, next_ids, count, cache):
        for position in range(count):
            newest, parents = token_ids[:, position, None], tf.zeros((2, 1), tf.int32)
            _, cache = table.step(newest, parents, position, cache)
        return None, cache

    alone, read = (draw(table, 1, [4, 4], prefix=prefix, prefill=p) for p in (None, prefill))
    np.testing.assert_array_equal(read.token_ids, alone.token_ids)
    left_out = [[table.score(row, prefix[row])] for row in range(2)]
    np.testing.assert_allclose(read.scores, alone.scores - left_out, rtol=1e-5, atol=1e-5)


def test_top_k_keeps_no_more_than_k_ties():
    def step(token_ids, parents, position, cache):
        return tf.zeros((*token_ids.shape, 11)), cache

    drawn = Sampling(top_k=3)(step, (), limits=[2], seed=(1, 2), num_samples=301, **IDS)
    assert set(drawn.token_ids.numpy()[0, :, 0]) == {1, END, 4}


def test_the_best_token_always_remains(prefix_table):
    table = prefix_table(num_rows=3, vocabulary_size=7, max_length=4, seed=2)
    drawn = [draw(table, 5, [4, 4, 4], **cut).token_ids for cut in ({"top_k": 1}, {"top_p": 1e-6})]
    np.testing.assert_array_equal(*drawn)
    for row in range(3):
        first = table.logits[row, 0].copy()
        first[[0, START]] = -np.inf
        assert set(drawn[0].numpy()[row, :, 0]) == {np.argmax(first)}


def test_the_same_seed_draws_the_same_text(prefix_table):
    table = prefix_table(num_rows=3, vocabulary_size=9, max_length=4, seed=3, scale=0.1)
    one, same, other = (draw(table, 5, [4, 4, 4], seed=seed) for seed in ((1, 2), (1, 2), (1, 3)))
    np.testing.assert_array_equal(one.token_ids, same.token_ids)
    np.testing.assert_array_equal(one.scores, same.scores)
    assert np.any(one.token_ids.numpy()[:, :, 0] != other.token_ids.numpy()[:, :, 0])


def test_other_rows_do_not_change_what_a_row_draws(prefix_table):
    table = prefix_table(num_rows=3, vocabulary_size=9, max_length=5, seed=4, scale=0.1)
    together, alone = draw(table, 2, [3, 5, 5]), draw(table, 2, [3], rows=[0])
    length = alone.token_ids.shape[2]
    np.testing.assert_array_equal(alone.token_ids[0], together.token_ids[0, :, :length])
    np.testing.assert_allclose(alone.scores[0], together.scores[0], rtol=1e-6)


def test_steps_of_one_text_are_drawn_independently():
    def step(token_ids, parents, position, cache):
        return tf.zeros((*token_ids.shape, 101)), cache

    drawn = Sampling()(step, (), limits=[30], seed=(1, 2), forbidden_ids=(0, START, END), **IDS)
    assert len(set(drawn.token_ids.numpy().ravel())) > 15


def test_scores_are_the_log_probabilities_of_the_model(prefix_table, ids_of):
    table = prefix_table(num_rows=2, vocabulary_size=7, max_length=4, seed=6)
    drawn = draw(table, 5, [4, 3], temperature=0.7, top_k=3, top_p=0.9)
    for row in range(2):
        exact = [table.score(row, ids) for ids in ids_of(drawn, row)]
        np.testing.assert_allclose(drawn.scores[row], exact, rtol=1e-5)


def test_rows_stop_at_their_end_or_limit(prefix_table, ids_of):
    table = prefix_table(num_rows=4, vocabulary_size=7, max_length=6, seed=8, scale=0.5)
    drawn = draw(table, 5, [6, 1, 0, 3])
    for row, limit in enumerate([6, 1, 0, 3]):
        for ids in ids_of(drawn, row):
            assert len(ids) <= limit
            assert ids == () or (ids[-1] == END and END not in ids[:-1])
            assert START not in ids and 0 not in ids
    assert np.all(drawn.lengths[2] == 0)
    assert np.all(drawn.scores[2] == NO_HYPOTHESIS_SCORE)
    assert not np.any(drawn.token_ids.numpy()[1, :, 1:])


def test_another_end_ends_a_text_unless_it_is_in_the_prefix():
    def step(token_ids, parents, position, cache):
        return 99.0 * tf.one_hot(token_ids + 1, 9), cache

    prefix = [[4, 5, 6, 0, 0]]
    several = Sampling(end_ids=(5, 8))
    drawn = several(step, (), limits=[9], seed=(1, 2), prefix=prefix, **IDS)
    assert drawn.token_ids.numpy().tolist() == [[[4, 5, 6, 7, END]]]
    # Of the prefix, which the step does not expect, and of the end that was drawn, which it does.
    np.testing.assert_allclose(drawn.scores, -99, atol=1e-4)


def test_prefix_is_forced_and_counted(prefix_table, ids_of):
    table = prefix_table(num_rows=2, vocabulary_size=7, max_length=4, seed=9)
    drawn = draw(table, 3, [4, 4], prefix=[[5, 1], [0, 0]])
    assert {ids[:2] for ids in ids_of(drawn, 0)} == {(5, 1)}
    exact = [table.score(0, ids) for ids in ids_of(drawn, 0)]
    np.testing.assert_allclose(drawn.scores[0], exact, rtol=1e-5)
    free = draw(table, 3, [4, 4])
    np.testing.assert_array_equal(free.scores[1], drawn.scores[1])


def test_zero_rows_and_a_compiled_function(prefix_table):
    table = prefix_table(num_rows=3, vocabulary_size=7, max_length=4, seed=10)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32), tf.TensorSpec([2], tf.int32)])
    def run(limits, seed):
        row = tf.tile(tf.range(tf.shape(limits)[0])[:, None], (1, 5))
        history = tf.zeros((tf.shape(limits)[0], 5, 5, 0), tf.int32)
        cache = {"row": row, "prefix": (tf.zeros_like(row),), "history": [history]}
        options = {"limits": limits, "num_samples": 5, "seed": seed, **IDS}
        return Sampling(top_p=0.9)(table.step, cache, **options)

    assert run(tf.zeros([0], tf.int32), [5, 7]).token_ids.shape == (0, 5, 0)
    compiled, eager = run([4, 2, 4], [5, 7]), draw(table, 5, [4, 2, 4], top_p=0.9)
    np.testing.assert_array_equal(compiled.token_ids, eager.token_ids)
    ops = {node.op for node in run.get_concrete_function().graph.as_graph_def().node}
    for function in run.get_concrete_function().graph.as_graph_def().library.function:
        ops |= {node.op for node in function.node_def}
    assert "StatelessMultinomial" in ops
    assert not [op for op in ops if "Xla" in op or "PyFunc" in op]


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"temperature": 0},
            "temperature must be a finite number above 0. Received: temperature=0",
        ),
        ({"temperature": float("inf")}, "temperature must be a finite number.*inf"),
        ({"top_k": 0}, "top_k must be an integer of at least 1. Received: top_k=0"),
        (
            {"top_p": 0.0},
            "top_p must be.*above 0 and of at most 1. Received: top_p=0.0",
        ),
        (
            {"top_p": 1.1},
            "top_p must be.*above 0 and of at most 1. Received: top_p=1.1",
        ),
        ({"seed": 3}, r"seed must be two integers.*Received: int32 of shape \(\)"),
        (
            {"num_samples": 0},
            "num_samples must be an integer.*Received: num_samples=0",
        ),
        ({"forbidden_ids": (0, 1, 2, 3, 4)}, "must leave a token to draw. Received: all 5 ids"),
    ],
)
def test_bad_arguments_are_refused(prefix_table, options, message):
    table = prefix_table(num_rows=2, vocabulary_size=5, max_length=3, seed=11)
    arguments = {"limits": [3, 3], "seed": (1, 2), "num_samples": 3, **IDS, **options}
    names = {"temperature", "top_k", "top_p"} & arguments.keys()
    settings = {name: arguments.pop(name) for name in names}
    with pytest.raises(ValueError, match=message):
        Sampling(**settings)(table.step, table.cache(3), **arguments)


def by_row(table, rows, seeds, temperature, top_k, top_p, num_samples=1):
    return of_rows(temperature, top_k, top_p)(
        table.step,
        table.cache(num_samples, rows),
        limits=np.full(len(seeds), 2),
        num_samples=num_samples,
        seed=np.array(seeds, "int32"),
        **IDS,
    ).token_ids.numpy()


def of_rows(temperature, top_k, top_p):
    """`Sampling` with settings for each row."""
    return Sampling(
        tf.constant(temperature, tf.float32),
        tf.constant(top_k, tf.int32),
        tf.constant(top_p, tf.float32),
    )


def test_rows_with_their_own_settings_sample_with_their_probability(prefix_table):
    table = prefix_table(num_rows=3, vocabulary_size=7, max_length=2, seed=1, scale=1.0)
    settings = [(0.5, 0, 1.0), (2.0, 3, 1.0), (1.0, 0, 0.7)]
    seeds = [(1, 1), (1, 2), (1, 3)]
    num_samples = 4001
    drawn = by_row(table, [0, 1, 2], seeds, *zip(*settings, strict=True), num_samples)
    for row, (temperature, top_k, top_p) in enumerate(settings):
        expected = exact_probabilities(table.logits[row, 0], temperature, top_k or None, top_p)
        counts = np.bincount(drawn[row, :, 0], minlength=7)
        errors = 5 * np.sqrt(num_samples * expected * (1 - expected))
        assert np.all(np.abs(counts - num_samples * expected) <= errors), row


def test_a_row_with_its_own_seed_draws_the_same_wherever_it_stands(prefix_table):
    table = prefix_table(num_rows=3, vocabulary_size=9, max_length=2, seed=4, scale=0.1)
    settings = ([0.9, 1.5, 1.0], [0, 5, 3], [0.9, 1.0, 0.8])
    together = by_row(table, [0, 1, 2], [(7, 0), (8, 0), (9, 0)], *settings, num_samples=5)
    turned = [values[::-1] for values in settings]
    other = by_row(table, [2, 1, 0], [(9, 0), (8, 0), (7, 0)], *turned, num_samples=5)
    np.testing.assert_array_equal(together, other[::-1])


def test_a_temperature_near_zero_takes_the_best_token(prefix_table):
    table = prefix_table(num_rows=2, vocabulary_size=7, max_length=2, seed=2)
    drawn = by_row(table, [0, 1], [(1, 1), (2, 2)], [0.0, 0.0], [0, 0], [1.0, 1.0], 11)
    for row in range(2):
        first = table.logits[row, 0].copy()
        first[[0, START]] = -np.inf
        assert set(drawn[row, :, 0]) == {np.argmax(first)}


DRAWN = [  # temperature, top_k, top_p; and whether the best few tokens must settle the draw
    (1.0, 5, 1.0, True),
    (0.7, 128, 0.9, True),
    (1e-9, 0, 1.0, True),
    (0.5, 0, 0.8, True),
    (0.7, 0, 1.0, None),
    (1.0, 129, 0.9, None),
    (9.0, 0, 1.0, None),
    (9.0, 0, 0.99, False),
]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["eager", "xla"])
def test_the_best_few_tokens_settle_a_draw_as_the_sorted_vocabulary_does(how):
    rows, size = 40, 3001
    logits = np.random.default_rng(7).normal(0, 4, (rows, 3, size)).astype("float32")
    logits[:, :, 3::4] = -np.inf
    seeds = tf.stack([tf.range(rows), tf.zeros(rows, tf.int32)], axis=1)

    def compared(temperature, top_k, top_p):
        found = sampling._draw_by_row(seeds, temperature, top_k, top_p, logits, tf.constant(9))
        drawn = sampling.uniform(sampling.fold_in(seeds, 9), 3)[..., None]
        scaled = logits / tf.maximum(temperature, 1e-4)
        arguments = scaled, drawn, top_k, top_p
        return found, *sampling._draw_of_best(*arguments), sampling._draw_sorted(*arguments)

    if how == "xla":
        compared = tf.function(compared, jit_compile=True)
    for *settings, expected in DRAWN:
        found, best, is_settled, whole = compared(*map(tf.constant, settings))
        np.testing.assert_array_equal(found, whole)
        np.testing.assert_array_equal(best.numpy()[is_settled], whole.numpy()[is_settled])
        if expected is not None:
            assert np.all(is_settled.numpy() == expected), settings


def test_a_small_top_k_sorts_no_vocabulary(monkeypatch):
    monkeypatch.setattr(sampling, "_draw_sorted", None)
    logits, seeds = tf.random.stateless_normal((2, 1, 999), (1, 2)), [(1, 2), (3, 4)]
    draw = of_rows([0.9, 0.0], [7, 128], [0.5, 1.0]).sampler(seeds)
    assert draw(logits, 5).shape == (2, 1)
    with pytest.raises(TypeError):  # the counter-example
        of_rows([0.9, 0.9], [7, 129], [0.5, 1.0]).sampler(seeds)(logits, 5)


def test_a_row_draws_the_same_beside_one_that_needs_the_whole_vocabulary():
    logits = tf.random.stateless_normal((2, 1, 999), (1, 2)) * 3
    for number in range(20):
        seeds = [(number, 0), (7, 7)]
        one, two = (
            of_rows([1.0, 9.0][:rows], [9, 0][:rows], 1.0).sampler(seeds[:rows]) for rows in (1, 2)
        )
        assert one(logits[:1], 3)[0, 0] == two(logits, 3)[0, 0]


def test_a_least_length_with_several_ends_is_refused():
    for rules in TokenRules(min_length=4), TokenRules(min_new_tokens=4):
        with pytest.raises(ValueError, match=r"one end token for a while.*end_ids=\(8,\)"):
            Sampling(end_ids=[8], token_rules=rules)
