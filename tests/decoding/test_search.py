import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.decoding import (
    NO_HYPOTHESIS_SCORE,
    BeamSearch,
    GNMTScoring,
    HuggingFaceScoring,
    Sampling,
    Streamer,
    TokenRules,
)
from keras_transformer.decoding.token_rules import NO_RULES
from keras_transformer.serving.settings import scoring_of

START, END = 2, 3
IDS = {"start_id": START, "end_id": END}


def search(
    table, num_beams, limits, rows=None, step=None, num_best=None, scoring="gnmt", alpha=0.6,
    token_rules=NO_RULES, **options,
):  # fmt: skip
    cache = table.cache(num_beams, rows)
    limits = np.array(limits, "int32")
    beam_search = BeamSearch(
        num_beams, num_best or num_beams, scoring_of(scoring, alpha), token_rules
    )
    return beam_search(step or table.step, cache, limits=limits, **IDS, **options)


def assert_same(left, right, message=""):
    for one, other, name in zip(left, right, left._fields, strict=True):
        np.testing.assert_array_equal(one, other, err_msg=f"{name} {message}")


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_beam_finds_the_best_of_all_when_the_vocabulary_is_tiny(prefix_table, ids_of, alpha):
    table = prefix_table(num_rows=3, vocabulary_size=7, max_length=4, seed=11)
    # 4 tokens go on, so that 4 ** 3 beams hold every live sequence.
    found = search(table, 64, [4, 4, 4], alpha=alpha)
    for row in range(3):
        best = table.all_hypotheses(row, 4, alpha)[:64]
        assert ids_of(found, row) == [ids for _, ids in best]
        np.testing.assert_allclose(found.scores[row], [score for score, _ in best], rtol=1e-5)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("num_beams", [1, 2, 3])
def test_early_stop_changes_nothing(prefix_table, ids_of, alpha, num_beams):
    for seed in range(4):
        table = prefix_table(num_rows=5, vocabulary_size=6, max_length=5, seed=seed)
        found = search(table, num_beams, [5, 2, 3, 5, 4], alpha=alpha)
        assert found.token_ids.shape[2] == np.max(found.lengths), "no column is nothing but filling"
        for row, limit in enumerate([5, 2, 3, 5, 4]):
            best = table.textbook_beam(row, limit, alpha, num_beams)
            assert [ids for ids in ids_of(found, row) if ids] == [ids for _, ids in best]
            scores = [score for score, _ in best]
            np.testing.assert_allclose(found.scores[row, : len(best)], scores, rtol=1e-5)


@pytest.mark.parametrize("num_beams", [1, 2, 3])
def test_the_heuristic_ends_a_row_as_the_textbook_does(prefix_table, ids_of, num_beams):
    differences = 0
    for seed in range(4):
        table = prefix_table(num_rows=5, vocabulary_size=6, max_length=5, seed=seed)
        options = {"alpha": 1.4, "scoring": "gnmt_heuristic"}
        found = search(table, num_beams, [5, 2, 3, 5, 4], **options)
        only_best = search(table, num_beams, [5, 2, 3, 5, 4], num_best=1, **options)
        for row, limit in enumerate([5, 2, 3, 5, 4]):
            best = table.textbook_beam(row, limit, 1.4, num_beams, heuristic=True)
            assert [ids for ids in ids_of(found, row) if ids] == [ids for _, ids in best]
            scores = [score for score, _ in best]
            np.testing.assert_allclose(found.scores[row, : len(best)], scores, rtol=1e-5)
            assert ids_of(only_best, row) == ids_of(found, row)[:1]
            differences += best != table.textbook_beam(row, limit, 1.4, num_beams)
    assert differences or num_beams == 1, "it may miss a better sequence"


def test_search_stops_when_no_live_sequence_can_still_win(prefix_table):
    table = prefix_table(num_rows=2, vocabulary_size=5, max_length=5, seed=3)
    table.logits[:, :, END] = 9.0
    calls = []

    def step(token_ids, parents, position, cache):
        calls.append(int(position))
        return table.step(token_ids, parents, position, cache)

    search(table, 2, [50, 50], step=step, num_best=1)
    assert calls == [0], "an end of probability near one settles the row at once"


def test_a_settled_row_does_not_keep_the_loop_running(prefix_table):
    table = prefix_table(num_rows=2, vocabulary_size=5, max_length=5, seed=3, scale=0.1)
    calls = []

    def step(token_ids, parents, position, cache):
        calls.append(int(position))
        return table.step(token_ids, parents, position, cache)

    search(table, 3, [2, 4], step=step)
    assert max(calls) < 4
    calls.clear()
    search(table, 3, [2, 2], step=step)
    assert max(calls) < 2


def test_scores_equal_teacher_forced_scores(prefix_table, ids_of):
    table = prefix_table(num_rows=3, vocabulary_size=9, max_length=4, seed=7)
    found = search(table, 5, [4, 4, 3], alpha=0.6)
    for row in range(3):
        exact = [table.score(row, ids, 0.6) for ids in ids_of(found, row)]
        np.testing.assert_allclose(found.scores[row], exact, rtol=1e-5)
        assert np.all(np.diff(found.scores[row]) <= 0), "best first"


def test_beam_of_one_is_greedy(prefix_table, ids_of):
    table = prefix_table(num_rows=7, vocabulary_size=6, max_length=5, seed=5)
    limits = np.full(7, 5, "int32")
    found = BeamSearch(1)(table.step, table.cache(1), limits=limits, **IDS)
    assert_same(found, search(table, 1, limits))
    for row in range(7):
        ids, prefix = [], 0
        while END not in ids:
            scores = table.logits[row, prefix].copy()
            scores[[0, START]] = -np.inf
            ids.append(END if len(ids) == 4 else int(np.argmax(scores)))
            prefix = prefix * 6 + ids[-1] + 1
        assert ids_of(found, row) == [tuple(ids)]


@pytest.mark.parametrize("scoring", ["gnmt", "gnmt_heuristic", "huggingface"])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_a_row_alone_equals_the_row_in_a_batch(prefix_table, num_beams, scoring):
    table = prefix_table(num_rows=5, vocabulary_size=7, max_length=5, seed=13)
    limits = [5, 1, 4, 0, 3]
    prefix = np.array([[0, 0], [4, 0], [5, 1], [0, 0], [6, 0]])
    together = search(table, num_beams, limits, prefix=prefix, scoring=scoring)
    for row in range(5):
        one = {"prefix": prefix[row : row + 1], "scoring": scoring}
        alone = search(table, num_beams, limits[row : row + 1], [row], **one)
        length = alone.token_ids.shape[2]
        assert not np.any(together.token_ids[row, :, length:]), "nothing but filling is cut"
        np.testing.assert_array_equal(alone.token_ids[0], together.token_ids[row, :, :length])
        np.testing.assert_array_equal(alone.scores[0], together.scores[row])


def test_limits_hold_for_each_row_and_force_the_end(prefix_table, ids_of):
    table = prefix_table(num_rows=3, vocabulary_size=5, max_length=5, seed=17)
    table.logits[:, :, END] = -30.0
    found = search(table, 2, [1, 3, 5], forbidden_ids=(0, START, END))
    assert found.lengths.numpy().tolist() == [[1, 0], [3, 3], [5, 5]]
    for row in range(3):
        for ids in ids_of(found, row):
            assert END not in ids[:-1]
            assert ids == () or ids[-1] == END


def test_hypotheses_that_do_not_exist_are_empty(prefix_table):
    table = prefix_table(num_rows=2, vocabulary_size=5, max_length=3, seed=19)
    found = search(table, 3, [1, 0])
    assert found.token_ids.numpy().tolist() == [[[END], [0], [0]], [[0], [0], [0]]]
    assert found.lengths.numpy().tolist() == [[1, 0, 0], [0, 0, 0]]
    assert np.all(found.scores.numpy()[[0, 0, 1], [1, 2, 0]] == NO_HYPOTHESIS_SCORE)


@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_prefix_is_forced_and_counted(prefix_table, ids_of, alpha):
    table = prefix_table(num_rows=3, vocabulary_size=7, max_length=4, seed=23)
    prefix = [[5, 1], [0, 0], [6, 0]]
    found = search(table, 64, [4, 4, 4], alpha=alpha, prefix=prefix)
    for row, start in enumerate([(5, 1), (), (6,)]):
        best = table.all_hypotheses(row, 4, alpha, start)[:64]
        assert [ids for ids in ids_of(found, row) if ids] == [ids for _, ids in best]
        scores = [score for score, _ in best]
        np.testing.assert_allclose(found.scores[row, : len(best)], scores, rtol=1e-5)


def test_a_row_without_prefix_is_unchanged(prefix_table):
    table = prefix_table(num_rows=2, vocabulary_size=7, max_length=5, seed=29)
    plain = search(table, 3, [4, 4])
    forced = search(table, 3, [4, 4], prefix=[[0, 0, 0], [4, 4, 1]])
    np.testing.assert_array_equal(plain.token_ids[0], forced.token_ids[0])
    np.testing.assert_array_equal(plain.scores[0], forced.scores[0])
    assert np.any(plain.token_ids[1] != forced.token_ids[1])


def test_the_limit_wins_over_a_longer_prefix(prefix_table, ids_of):
    table = prefix_table(num_rows=2, vocabulary_size=7, max_length=4, seed=31)
    found = search(table, 2, [2, 3], prefix=[[5, 1, 4, 6, 6], [START, 1, 0, 0, 0]])
    assert ids_of(found, 0) == [(5, END), ()]
    assert ids_of(found, 1)[0] == (START, 1, END), "a forbidden id may be forced"
    np.testing.assert_allclose(found.scores[0, 0], table.score(0, (5, END), 0.6), rtol=1e-5)


@pytest.mark.parametrize("scoring", ["gnmt", "huggingface_never"])
@pytest.mark.parametrize("num_best", [1, 2])
def test_fewer_hypotheses_are_the_best_of_many(prefix_table, num_best, scoring):
    table = prefix_table(num_rows=5, vocabulary_size=7, max_length=5, seed=37)
    many, few = (
        search(table, 3, [5] * 5, scoring=scoring, num_best=count) for count in (3, num_best)
    )
    np.testing.assert_array_equal(few.scores, many.scores[:, :num_best])
    np.testing.assert_array_equal(few.lengths, many.lengths[:, :num_best])
    length = few.token_ids.shape[2]
    np.testing.assert_array_equal(few.token_ids, many.token_ids[:, :num_best, :length])


def test_forbidden_ids_are_never_chosen(prefix_table):
    table = prefix_table(num_rows=3, vocabulary_size=7, max_length=5, seed=41)
    table.logits[:, :, [0, START, 5]] += 20.0
    found = search(table, 3, [5, 5, 5], forbidden_ids=(0, START, 5))
    assert set(found.token_ids.numpy().ravel()) <= {0, 1, END, 4, 6}
    assert not np.any(found.token_ids.numpy()[:, :, 0] == 0), "0 is only filling"
    assert np.any(search(table, 3, [5, 5, 5]).token_ids.numpy() == 5)


def test_a_vocabulary_of_one_block_smaller_than_the_candidates():
    def step(token_ids, parents, position, cache):
        return tf.zeros((*token_ids.shape, 2)), cache

    plain = BeamSearch(3, scoring=GNMTScoring(0.0))
    found = plain(step, (), limits=[3], start_id=0, end_id=1, forbidden_ids=())
    assert found.token_ids.numpy().tolist() == [[[1, 0, 0], [0, 1, 0], [0, 0, 1]]]
    np.testing.assert_allclose(found.scores, np.log(2.0) * np.array([[-1, -2, -3]]), rtol=1e-6)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_zero_rows_give_zero_rows(prefix_table, num_beams):
    table = prefix_table(num_rows=1, vocabulary_size=7, max_length=3, seed=43)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)], autograph=False)
    def run(limits):
        cache = {
            "row": tf.zeros((tf.shape(limits)[0], num_beams), tf.int32),
            "prefix": (tf.zeros((tf.shape(limits)[0], num_beams), tf.int32),),
            "history": [tf.zeros((tf.shape(limits)[0], num_beams, 5, 0), tf.int32)],
        }
        return BeamSearch(num_beams)(table.step, cache, limits=limits, **IDS)

    empty = run(tf.zeros([0], tf.int32))
    assert empty.token_ids.shape == (0, num_beams, 0)
    assert empty.scores.shape == empty.lengths.shape == (0, num_beams)
    assert_same(empty, search(table, num_beams, [], rows=[]))
    assert run(tf.constant([3])).lengths[0, 0] > 0


def test_an_empty_axis_of_the_cache_grows(prefix_table):
    table = prefix_table(num_rows=3, vocabulary_size=6, max_length=5, seed=47)
    expected = search(table, 3, [5, 4, 5], alpha=1.0)
    found = search(table, 3, [5, 4, 5], step=table.step_by_history, alpha=1.0)
    assert_same(found, expected)


def test_a_saved_function_gives_the_same_results_with_core_ops_only(prefix_table, tmp_path):
    table = prefix_table(num_rows=3, vocabulary_size=6, max_length=5, seed=53)
    module = tf.Module()

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.int32), tf.TensorSpec([None, None], tf.int32)],
        autograph=False,
    )
    def run(limits, prefix):
        row = tf.tile(tf.range(tf.shape(limits)[0])[:, None], (1, 3))
        history = tf.zeros((tf.shape(limits)[0], 3, 5, 0), tf.int32)
        cache = {"row": row, "prefix": (tf.zeros_like(row),), "history": [history]}
        found = BeamSearch(3)(table.step_by_history, cache, limits=limits, prefix=prefix, **IDS)
        return found._asdict()

    module.run = run
    tf.saved_model.save(module, str(tmp_path))
    limits, prefix = [5, 2, 4], [[0], [5], [4]]
    loaded = tf.saved_model.load(str(tmp_path)).run(tf.constant(limits), tf.constant(prefix))
    expected = search(table, 3, limits, prefix=prefix)
    np.testing.assert_array_equal(loaded["token_ids"], expected.token_ids)
    np.testing.assert_allclose(loaded["scores"], expected.scores, rtol=1e-6)
    graph = run.get_concrete_function().graph.as_graph_def(add_shapes=False)
    ops = {node.op for function in graph.library.function for node in function.node_def}
    ops |= {node.op for node in graph.node}
    assert "TopKV2" in ops
    assert not [op for op in ops if "Xla" in op or "PyFunc" in op]


def test_half_precision_logits_are_summed_in_float32(prefix_table):
    table = prefix_table(num_rows=2, vocabulary_size=6, max_length=5, seed=59)
    table.logits = table.logits.astype(tf.bfloat16.as_numpy_dtype).astype("float32")

    def step(token_ids, parents, position, cache):
        logits, cache = table.step(token_ids, parents, position, cache)
        return tf.cast(logits, tf.bfloat16), cache

    assert_same(search(table, 3, [5, 5], step=step), search(table, 3, [5, 5]))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_beams": 0}, "num_beams must be an integer of at least 1. Received: num_beams=0"),
        ({"num_beams": 2.0}, "num_beams must be an integer of at least 1. Received: num_beams=2.0"),
        ({"num_best": 4}, "num_best must be at most num_beams.*Received: num_best=4, num_beams=3"),
        ({"scoring": "gnmt"}, "scoring must be GNMTScoring, Hugging.*Received: 'gnmt'"),
        ({"token_rules": {}}, r"token_rules must be TokenRules\. Received: \{\}"),
        ({"num_beams": 2**31}, "num_beams must be an integer from 1 to 2147483647.*2147483648"),
        ({"end_id": 0}, "end_id must be an integer of at least 1.*Received: end_id=0"),
        ({"limits": [1.5, 2.5]}, r"limits must be integers of shape \(batch,\).*float32"),
        ({"limits": 5}, r"limits must be integers of shape \(batch,\).*shape \(\)"),
        ({"prefix": [4, 4]}, r"prefix must be integers of shape \(batch, prefix\)"),
        ({"end_id": 8}, "must be below the vocabulary size 5.*Received.*end_id=8"),
        ({"forbidden_ids": (0, -1)}, r"forbidden_ids\[1\] must be.*Received.*=-1"),
    ],
)
def test_bad_arguments_are_refused(prefix_table, options, message):
    table = prefix_table(num_rows=2, vocabulary_size=5, max_length=3, seed=61)
    arguments = {"limits": [3, 3], **IDS, **options}
    names = {"num_beams", "num_best", "scoring", "token_rules"} & arguments.keys()
    settings = {name: arguments.pop(name) for name in names}
    with pytest.raises(ValueError, match=message):
        BeamSearch(**{"num_beams": 3} | settings)(table.step, table.cache(3), **arguments)


@pytest.mark.parametrize("kind", [GNMTScoring, HuggingFaceScoring])
def test_bad_scorings_are_refused(kind):
    for penalty in (-0.5, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"length_penalty must be a finite.*={penalty}"):
            kind(penalty)
    with pytest.raises(ValueError, match=r"early_stopping must be one of.*False, 'never'.*: 1"):
        kind(early_stopping=1)
    with pytest.raises(ValueError, match=r"scoring must be one of gnmt, gnmt_heur.*: 'mine'"):
        scoring_of("mine", 1.0)


def test_gnmt_has_no_end_at_enough_finished_sequences():
    with pytest.raises(ValueError, match=r"one of False, 'never'\. Received: True"):
        GNMTScoring(early_stopping=True)


def test_other_backends_are_refused_before_a_step(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    message = r"needs Keras's TensorFlow backend.*KERAS_BACKEND=tensorflow\. Received: jax\."
    with pytest.raises(ValueError, match=message):
        BeamSearch(2)(None, (), limits=[3], **IDS)
    with pytest.raises(ValueError, match=message):
        Sampling()(None, (), limits=[3], seed=(1, 2), **IDS)
    with pytest.raises(ValueError, match=message):
        Streamer(None, tuple, Sampling(), context=3)


def test_a_stream_takes_a_sampling_and_no_other_arguments():
    with pytest.raises(ValueError, match=r"sampling must be a Sampling\. Received: None\."):
        Streamer(None, tuple, None, context=3)
    with pytest.raises(TypeError, match="token_rules"):
        Streamer(None, tuple, Sampling(), context=3)([1], num_tokens=1, seed=1, token_rules=None)


def test_logits_of_the_wrong_shape_are_refused():
    with pytest.raises(ValueError, match=r"logits of shape \(batch, 3, vocabulary\).*\(2, 5\)"):
        BeamSearch(3)(lambda *_: (tf.zeros((2, 5)), ()), (), limits=[3, 3], **IDS)


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


LEAVING = [
    (2, 4, 2, "gnmt"),
    (2, 4, 2, "huggingface_early_stopping"),
    slow(1, 3, 3, "gnmt_heuristic"),
    slow(1, 3, 3, "huggingface_never"),
    slow(0, 1, 1, "huggingface"),
]


@pytest.mark.parametrize(("seed", "num_beams", "num_best", "scoring"), LEAVING)
def test_rows_that_leave_the_batch_change_nothing(prefix_table, seed, num_beams, num_best, scoring):
    table = prefix_table(num_rows=24, vocabulary_size=7, max_length=6, seed=seed)
    rng = np.random.default_rng(seed)
    limits = rng.integers(0, 7, 24)
    prefix = rng.integers(4, 7, (24, 2)) * (rng.random((24, 2)) < [0.5, 0.2])
    prefix[:, 1] *= prefix[:, 0] > 0
    rules = TokenRules(no_repeat_ngram_size=2, min_new_tokens=1)
    sizes = []

    def step(*args):
        logits, cache = table.step(*args)
        if tf.executing_eagerly():
            sizes.append(len(logits))
        return logits, cache

    def found(rows_leave):
        options = {"num_best": num_best, "prefix": prefix, "scoring": scoring, "token_rules": rules}
        return search(table, num_beams, limits, step=step, rows_leave=rows_leave, **options)

    staying = found(False)
    assert set(sizes) == {24}
    sizes.clear()
    in_graph = tf.function(found, autograph=False)
    for leaving in (found(True), in_graph(True)):
        np.testing.assert_array_equal(leaving.token_ids, staying.token_ids)
        np.testing.assert_array_equal(leaving.lengths, staying.lengths)
        np.testing.assert_allclose(leaving.scores, staying.scores, rtol=1e-6)
    outputs = in_graph.get_concrete_function(True).structured_outputs
    assert outputs.scores.shape[1] == num_best, "known, for signatures"
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < 24


def test_rows_cannot_leave_a_cache_of_full_size(prefix_table):
    table = prefix_table(num_rows=2, vocabulary_size=5, max_length=3, seed=0)
    with pytest.raises(ValueError, match="rows_leave needs a cache that grows"):
        search(table, 2, [2, 2], capacity=3, rows_leave=True)
