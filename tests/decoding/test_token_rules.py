"""Rules on tokens, beside the same rules in plain Python and a search of everything."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.decoding import BeamSearch, Sampling, Streamer, TokenRules
from keras_transformer.serving.settings import scoring_of

START, END = 2, 3
IDS = {"start_id": START, "end_id": END}
SIZE, LIMIT = 7, 4
TOKENS = (1, 4, 5, 6)  # those that go on


def obeys(rules, ids, limit, prefix=()):
    """Whether the rules allow a whole sequence of ids, its end included."""
    if rules.forced_bos_token_id is not None and not prefix:
        prefix = (rules.forced_bos_token_id,)
    start = START if rules.start_counts_as is None else rules.start_counts_as
    forced = {**dict(enumerate(prefix)), **({limit - 1: END} if rules.forces_end else {})}
    for position, token_id in enumerate(ids):
        if position in forced:
            if token_id != forced[position]:
                return False
            continue
        before = [start, *ids[:position]]
        if not may_follow(rules, before, token_id, position, len(prefix)):
            return False
    return True


def may_follow(rules, before, token_id, position, first_free):
    if token_id in rules.suppress_tokens:
        return False
    if position == first_free and token_id in rules.begin_suppress_tokens:
        return False
    if token_id == END and position + 1 < rules.min_length:
        return False
    if token_id == END and position - first_free < rules.min_new_tokens:
        return False
    together = [*before, token_id]
    for word in rules.bad_words_ids:
        if list(word) == together[-len(word) :] and word != (END,):
            return False
    size = rules.no_repeat_ngram_size
    if size == 0 or len(together) <= size:
        return True
    runs = [tuple(together[i : i + size]) for i in range(len(together) - size + 1)]
    return runs[-1] not in runs[:-1]


def log_prob(table, row, ids, rules, limit, prefix=(), on_logits=False):
    """The sum of log-probabilities, those of repeated tokens penalised."""
    start = START if rules.start_counts_as is None else rules.start_counts_as
    if rules.forced_bos_token_id is not None and not prefix:
        prefix = (rules.forced_bos_token_id,)
    total, place = 0.0, 0
    for position, token_id in enumerate(ids):
        scores = table.log_probs[row, place].astype("float64")
        normal = float(table.logits[row, place, token_id]) - scores[token_id]
        is_forced = position < len(prefix) or (rules.forces_end and position == limit - 1)
        if not is_forced:
            occurred = sorted({start, *ids[:position]})
            changed = scores[occurred] + normal * on_logits
            penalty = rules.repetition_penalty
            changed = np.where(changed < 0, changed * penalty, changed / penalty)
            scores[occurred] = changed - normal * on_logits
        if rules.renormalize_logits and not is_forced:
            before = [start, *ids[:position]]
            left = [
                each
                for each in range(SIZE)
                if each not in (0, START) and may_follow(rules, before, each, position, len(prefix))
            ]
            scores -= np.log(np.exp(scores[left]).sum())
        total += scores[token_id]
        place = place * table.size + token_id + 1
    return total


def everything(table, row, rules, limit, prefix=()):
    """Every sequence that the rules allow, best first: (score, ids)."""
    found = []
    for length in range(limit):
        for body in itertools.product(TOKENS, repeat=length):
            candidates = [(*body, END)]
            if not rules.forces_end and length + 1 == limit:
                candidates += [(*body, token_id) for token_id in TOKENS]
            for ids in candidates:
                if obeys(rules, ids, limit, prefix):
                    score = log_prob(table, row, ids, rules, limit, prefix)
                    found.append((score / ((5 + len(ids)) / 6) ** 0.6, ids))
    return sorted(found, reverse=True)


def drawn_rules(seed):
    """Any two rules, and each of them alone."""
    draw = np.random.default_rng(seed)
    a, b, c = draw.choice(TOKENS, 3, replace=False).tolist()
    rules = {
        "no_repeat_ngram_size": int(draw.integers(1, 3)),
        "repetition_penalty": float(draw.choice([0.7, 1.3, 2.0])),
        "min_length": int(draw.integers(2, 4)),
        "min_new_tokens": int(draw.integers(1, 3)),
        "bad_words_ids": [[a], [b, c], [c, c], [START, b], [END], [a, b, c]][draw.integers(2) :],
        "suppress_tokens": [c],
        "begin_suppress_tokens": [b, END],
        "forced_bos_token_id": b,
        "forces_end": False,
        "start_counts_as": int(draw.choice([END, a])),
        "renormalize_logits": True,
    }
    names = draw.choice(sorted(rules), draw.integers(1, 4), replace=False)
    return TokenRules(**{str(name): rules[name] for name in names})


def table_of(prefix_table, seed):
    return prefix_table(num_rows=3, vocabulary_size=SIZE, max_length=LIMIT, seed=seed)


@pytest.mark.parametrize("seed", range(10))
def test_beam_finds_the_best_of_all_sequences_that_obey(prefix_table, ids_of, seed):
    table, rules = table_of(prefix_table, seed), drawn_rules(seed)
    limits, prefix = [4, 3, 4], [[0, 0], [0, 0], [5, 1]]
    search = BeamSearch(85, 85, token_rules=rules)
    found = search(table.step, table.cache(85), limits=limits, prefix=prefix, **IDS)
    for row, limit in enumerate(limits):
        start = tuple(token_id for token_id in prefix[row] if token_id)
        best = everything(table, row, rules, limit, start)[:85]
        assert [ids for ids in ids_of(found, row) if ids] == [ids for _, ids in best], rules
        scores = [score for score, _ in best]
        np.testing.assert_allclose(found.scores[row, : len(best)], scores, rtol=1e-4)


@pytest.mark.parametrize("seed", range(10, 16))
def test_greedy_search_and_sampling_take_the_best_token_that_obeys(prefix_table, ids_of, seed):
    table, rules = table_of(prefix_table, seed), drawn_rules(seed)
    limits = [4, 3, 4]
    search, sampling = BeamSearch(1, token_rules=rules), Sampling(1e-4, token_rules=rules)
    greedy = search(table.step, table.cache(1), limits=limits, **IDS)
    sampled = sampling(table.step, table.cache(1), limits=limits, seed=(3, 5), **IDS)
    for row, limit in enumerate(limits):
        ids = []
        while END not in ids and len(ids) < limit:
            longer = [(*ids, token_id) for token_id in (*TOKENS, END)]
            allowed = [one for one in longer if obeys(rules, one, limit)]
            if not allowed:
                break
            ids = max(allowed, key=lambda one: gain(table, row, one, rules, limit))
        if ids and (ids[-1] == END or len(ids) == limit):
            assert ids_of(greedy, row) == ids_of(sampled, row) == [tuple(ids)], rules


def gain(table, row, ids, rules, limit):
    """What the last token adds to the score."""
    whole, before = (log_prob(table, row, one, rules, limit, (), True) for one in (ids, ids[:-1]))
    return whole - before


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("scoring", ["gnmt", "huggingface", "huggingface_never"])
def test_a_row_alone_equals_the_row_in_a_batch(prefix_table, num_beams, scoring):
    table = table_of(prefix_table, 13)
    rules = TokenRules(2, 1.5, min_length=3, bad_words_ids=[[5, 6]], begin_suppress_tokens=[4])
    search = BeamSearch(num_beams, scoring=scoring_of(scoring, 0.6), token_rules=rules)
    limits, prefix = np.array([4, 2, 3]), np.array([[0, 0], [5, 0], [6, 1]])
    together = search(table.step, table.cache(num_beams), limits=limits, prefix=prefix, **IDS)
    for row in range(3):
        rows = slice(row, row + 1)
        cache = table.cache(num_beams, [row])
        alone = search(table.step, cache, limits=limits[rows], prefix=prefix[rows], **IDS)
        length = alone.token_ids.shape[2]
        np.testing.assert_array_equal(alone.token_ids[0], together.token_ids[row, :, :length])
        np.testing.assert_allclose(alone.scores[0], together.scores[row], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "scoring"), [(1, "gnmt"), (2, "huggingface_early_stopping")])
def test_a_search_with_room_under_xla_finds_the_same(seed, scoring):
    draw = np.random.default_rng(seed)
    table = tf.constant(draw.normal(0, 2, (5, 11, 11)), tf.float32)  # by position and last token

    def step(token_ids, parents, position, cache):
        return tf.gather(tf.gather(table, position % 5), token_ids), cache

    rules = TokenRules(
        2, 1.3, min_length=4, min_new_tokens=3, bad_words_ids=[[5, 6], [7], [8, 9, 10]],
        begin_suppress_tokens=[4], forced_bos_token_id=9, start_counts_as=END,
    )  # fmt: skip
    limits = tf.constant([8, 5])

    def search(num_beams, capacity=None):
        options = {"limits": limits, "capacity": capacity, **IDS}
        if num_beams:
            beams = BeamSearch(num_beams, scoring=scoring_of(scoring, 0.6), token_rules=rules)
            return beams(step, (), **options)
        sampling, seed = Sampling(token_rules=rules), tf.constant([[3, 5], [7, 11]])
        return sampling(step, (), seed=seed, num_samples=2, **options)

    for num_beams in (3, 1, 0):
        growing = search(num_beams)
        static = tf.function(search, jit_compile=True, autograph=False)(num_beams, 8)
        width = growing.token_ids.shape[2]
        np.testing.assert_array_equal(static.token_ids[:, :, :width], growing.token_ids)
        np.testing.assert_allclose(static.scores, growing.scores, rtol=1e-5)


@pytest.mark.slow
def test_a_stream_obeys_the_rules_that_sampling_obeys():
    table = tf.constant(np.random.default_rng(5).normal(0, 3, (13, 13)), tf.float32)

    def step(token_ids, parents, position, cache):
        return tf.gather(table, token_ids), cache

    rules = TokenRules(
        2, 1.3, min_new_tokens=9, bad_words_ids=[[5, 6], [7]], begin_suppress_tokens=[8]
    )
    prompt, sampling = [9, 4, 10], Sampling(0.5, token_rules=rules)
    for seed in range(3):
        drawn = sampling(
            step, (), start_id=tf.constant(prompt[:1]), prefix=[prompt[1:]], limits=[11],
            end_id=END, forbidden_ids=(0, 1, 2), seed=[[seed, 0]],
        )  # fmt: skip
        streamer = Streamer(step, tuple, sampling, context=12, forbidden_ids=(0, 1, 2), end_id=END)
        streamed = streamer(prompt, num_tokens=8, seed=tf.constant([[seed, 0]]))
        assert list(streamed) == drawn.token_ids.numpy()[0, 0, 2:10].tolist()
    rules = TokenRules(no_repeat_ngram_size=1, min_length=40, suppress_tokens=(0, 1, 2))
    streamer = Streamer(step, tuple, Sampling(token_rules=rules), context=8, end_id=END)
    longer = streamer(prompt, num_tokens=29, seed=(1, 2))
    ids = [*prompt, *longer]
    assert all(len({*ids[i : i + 4]}) == 4 for i in range(len(ids) - 3)), "of what it reads"
    assert END not in ids


def test_a_hypothesis_may_be_cut_off_where_no_end_is_forced(prefix_table, ids_of):
    table = table_of(prefix_table, 17)
    table.logits[:, :, END] = table.log_probs[:, :, END] = -30.0
    options, rules = {"limits": [4, 2, 3], **IDS}, TokenRules(forces_end=False)
    found = BeamSearch(3, token_rules=rules)(table.step, table.cache(3), **options)
    sampled = Sampling(token_rules=rules)(table.step, table.cache(1), seed=(1, 2), **options)
    for hypotheses in (found, sampled):
        for row, length in enumerate([4, 2, 3]):
            assert {len(ids) for ids in ids_of(hypotheses, row)} == {length}
        assert END not in hypotheses.token_ids.numpy()


def test_rules_that_leave_no_token_leave_no_hypothesis(prefix_table):
    table = table_of(prefix_table, 19)
    rules = TokenRules(suppress_tokens=TOKENS, min_length=3)
    search, sampling = BeamSearch(2, token_rules=rules), Sampling(token_rules=rules)
    found = search(table.step, table.cache(2), limits=[4, 1, 4], **IDS)
    assert found.lengths.numpy().tolist() == [[0, 0], [1, 0], [0, 0]], "the limit is forced"
    drawn = sampling(table.step, table.cache(1), limits=[4] * 3, seed=(1, 2), **IDS)
    assert drawn.token_ids.numpy().tolist() == [[[END]]] * 3


def test_rules_are_told_as_what_differs_from_none():
    rules = TokenRules(min_length=5, bad_words_ids=[[4, 5], [6]])
    assert rules.changed() == {"min_length": 5, "bad_words_ids": ((4, 5), (6,))}
    assert TokenRules(**rules.changed()) == rules
    assert not TokenRules().changed()
    assert dataclasses.replace(rules, min_length=0, bad_words_ids=()) == TokenRules()


@pytest.mark.parametrize(
    "rules, message",
    [
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size must be an integer of at least 0"),
        ({"min_length": 1.5}, "min_length must be an integer.*Received: min_length=1.5"),
        ({"min_new_tokens": True}, "min_new_tokens must be an integer.*True"),
        ({"repetition_penalty": 0}, "repetition_penalty must be a finite number above 0.*=0"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty must be a finite.*inf"),
        ({"bad_words_ids": [5]}, r"bad_words_ids\[0\] must be a list. Received.*5"),
        ({"bad_words_ids": [[5], []]}, r"bad_words_ids\[1\] must have at least 1 id"),
        ({"bad_words_ids": [[-4]]}, r"bad_words_ids\[0\]\[0\] must be an integer of at least 0"),
        ({"suppress_tokens": 4}, "suppress_tokens must be a list. Received: suppress_tokens=4"),
        ({"begin_suppress_tokens": [4.0]}, r"begin_suppress_tokens\[0\] must be an integer"),
        ({"forced_bos_token_id": -1}, "forced_bos_token_id must be an integer of at least 0"),
        ({"forces_end": 1}, "forces_end must be True or False. Received: 1"),
        ({"start_counts_as": "a"}, "start_counts_as must be an integer of at least 0.*'a'"),
    ],
)
def test_bad_rules_are_refused(rules, message):
    with pytest.raises(ValueError, match=message):
        TokenRules(**rules)


def test_ids_beyond_the_vocabulary_are_refused(prefix_table):
    table = table_of(prefix_table, 1)
    search = BeamSearch(1, token_rules=TokenRules(bad_words_ids=[[4, 7]]))
    with pytest.raises(ValueError, match=r"below the vocabulary size 7.*bad_words_ids=.*4, 7"):
        search(table.step, table.cache(1), limits=[3] * 3, **IDS)
