"""Plans of batches that are computed place by place, in memory and in files."""

import functools
import itertools

import numpy as np
import pytest

from keras_transformer.data import (
    FewShapes,
    IdRows,
    PackedRows,
    TokenBatches,
    batch_plans,
    prepared,
)
from keras_transformer.data.batch_plans import LengthPlan, TextLengths, _cuts_of
from keras_transformer.data.draws import key_of, permuted
from keras_transformer.data.prepared import Prepared, PreparedWriter
from keras_transformer.data.token_ids import parts

SHAPES = [None, FewShapes(4, row_multiple=3), PackedRows(row_multiple=3)]
SIZES = {"tokens_per_batch": 400, "max_length": 30, "seed": 5}


def drawn_ids(count, seed=3):
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, 33, count)
    return IdRows(draw.integers(4, 90, lengths.sum()), lengths)


@pytest.fixture(scope="module")
def sides():
    return drawn_ids(700, 3), drawn_ids(700, 4)


@pytest.fixture(scope="module")
def folder(sides, tmp_path_factory):
    path = tmp_path_factory.mktemp("prepared") / "text"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepared, "ROWS_PER_SHARD", 150)
        with PreparedWriter(path, ("source", "target"), 90) as writer:
            for start in range(0, 700, 100):
                rows = np.arange(start, start + 100)
                writer.append({"source": sides[0].take(rows), "target": sides[1].take(rows)})
            writer.finish({"kind": "translation"})
    return Prepared(path)


def test_keys_and_sizes_may_differ_from_place_to_place():
    sizes = np.array([3, 700, 5, 700])
    places, keys = np.array([1, 699, 4, 0]), key_of(1, np.array([4, 4, 9, 2]))
    alone = [permuted([p], s, key)[0] for p, s, key in zip(places, sizes, keys, strict=True)]
    assert permuted(places, sizes, keys).tolist() == alone


def plain_cuts(lengths, budget):
    """Row by row: a batch ends before the row that would exceed the budget."""
    cuts, longest = [0], 0
    for place, length in enumerate(lengths):
        longest = max(longest, length)
        if (place + 1 - cuts[-1]) * longest > budget:
            cuts.append(place)
            longest = length
    return [*cuts, len(lengths)]


@pytest.mark.parametrize("seed", range(30))
def test_groups_are_cut_where_rows_would_be(seed):
    draw = np.random.default_rng(seed)
    budget = int(draw.integers(20, 200))
    lengths, counts = draw.integers(1, 21, 40), draw.integers(1, draw.integers(2, 60), 40)
    cuts = _cuts_of(lengths.tolist(), counts.tolist(), budget)
    assert cuts.tolist() == plain_cuts(np.repeat(lengths, counts).tolist(), budget)


def test_texts_are_sorted_a_slice_at_a_time(monkeypatch):
    sides = np.random.default_rng(2).integers(1, 9, (2, 500))
    texts = TextLengths(500, lambda some: sides[:, some], longest=7)
    whole = LengthPlan(texts, 60)
    monkeypatch.setattr(batch_plans, "parts", functools.partial(parts, size=17))
    plan = LengthPlan(texts, 60)
    np.testing.assert_array_equal(plan._order, whole._order)
    kept = np.flatnonzero(sides.max(axis=0) <= 7)
    assert sorted(plan._order.tolist()) == kept.tolist()
    lengths = sides[:, plan._order]
    assert (np.diff(lengths[1]) >= 0).all(), "by target"
    np.testing.assert_array_equal(whole._cuts, plain_cuts(lengths.max(axis=0).tolist(), 60))
    used = [lengths[:, a:b] for a, b in itertools.pairwise(plan._cuts)]
    size = sum(batch.max(axis=1).sum() * batch.shape[1] for batch in used)
    assert plan.padding == pytest.approx(1 - lengths.sum() / size)


def batches_of(batches, count):
    return [
        [np.asarray(part) for part in (inputs["source_ids"], inputs["target_ids"], labels)]
        for inputs, labels in batches.dataset().take(count)
    ]


@pytest.mark.parametrize("shapes", SHAPES)
def test_a_prepared_folder_makes_the_batches_of_its_ids(sides, folder, tmp_path, shapes):
    expected = TokenBatches(*sides, **SIZES, shapes=shapes)
    columns = folder.columns["source"], folder.columns["target"]
    actual = TokenBatches(*columns, **SIZES, shapes=shapes, plan_folder=tmp_path / "plan")
    names = ("num_pairs", "num_dropped", "num_target_tokens", "steps_per_epoch", "padding")
    assert [getattr(actual, n) for n in names] == [getattr(expected, n) for n in names]
    count = 2 * expected.steps_per_epoch + 3
    for one, other in zip(batches_of(actual, count), batches_of(expected, count), strict=True):
        for part, expected_part in zip(one, other, strict=True):
            np.testing.assert_array_equal(part, expected_part)


@pytest.mark.parametrize("shapes", SHAPES)
def test_an_epoch_holds_each_pair_once_in_another_order(sides, shapes):
    batches = TokenBatches(*sides, **SIZES, shapes=shapes)
    plan, epochs = batches._plan, []
    for epoch in range(2):
        steps = range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch)
        rows = [plan.batch(step)[0] for step in steps]
        rows = [each.values if isinstance(each, IdRows) else each for each in rows]
        epochs.append(np.concatenate(rows).tolist())
        assert sorted(epochs[-1]) == sorted(np.asarray(plan._order).tolist())
    assert epochs[0] != epochs[1]


def test_a_plan_in_files_is_made_once_for_each_text(sides, folder, tmp_path, monkeypatch):
    columns = folder.columns["source"], folder.columns["target"]
    path = tmp_path / "plan"
    TokenBatches(*columns, **SIZES, plan_folder=path)
    made = {file: file.stat().st_mtime_ns for file in path.iterdir()}
    TokenBatches(*columns, **{**SIZES, "seed": 6}, plan_folder=path)
    assert {file: file.stat().st_mtime_ns for file in path.iterdir()} == made
    for text, sizes in ((columns[::-1], SIZES), (columns, {**SIZES, "max_length": 20})):
        batches = TokenBatches(*text, **sizes, plan_folder=path)
        assert batches.num_pairs == TokenBatches(*text, **sizes).num_pairs
        now = {file: file.stat().st_mtime_ns for file in path.iterdir()}
        assert now != made
        made = now
    assert [file.name for file in tmp_path.iterdir()] == ["plan"], "no draft is left"
