"""Plans of batches: the cuts of a plain loop, and arrays in a folder that processes share."""

import functools
import multiprocessing
import re
import shutil
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.data import (
    FewShapes,
    IdRows,
    LabelledBatches,
    PackedDocuments,
    PackedRows,
    PretrainingBatches,
    TextSegments,
    TextWindows,
    TokenBatches,
    batch_plans,
    labelled_batches,
    packed_documents,
    plan_arrays,
    pretraining_batches,
    token_ids,
)
from keras_transformer.data.batch_plans import LengthPlan, TextLengths, _cuts_of
from keras_transformer.data.prepared import Prepared, PreparedWriter
from keras_transformer.files import DamagedFile
from keras_transformer.tokenizers.word_pieces import WordPieceTokenizer

VOCABULARY = 41
SHAPES = {"plain": None, "few": FewShapes(3), "packed": PackedRows()}


def cuts_of_a_loop(lengths, tokens_per_batch):
    cuts, longest = [0], 0
    for place, length in enumerate(lengths):
        longest = max(longest, length)
        if (place + 1 - cuts[-1]) * longest > tokens_per_batch:
            cuts.append(place)
            longest = length
    return [*cuts, len(lengths)]


def test_groups_are_cut_as_their_texts_one_by_one():
    random = np.random.default_rng(3)
    for _ in range(1000):
        lengths, counts = random.integers(1, 12, (2, random.integers(1, 9)))
        tokens = int(lengths.max() * random.integers(1, 6) + random.integers(0, 5))
        cuts = _cuts_of(lengths.tolist(), counts.tolist(), tokens)
        assert cuts.tolist() == cuts_of_a_loop(np.repeat(lengths, counts).tolist(), tokens)


def test_lengths_are_read_some_at_a_time(monkeypatch):
    lengths = np.random.default_rng(3).integers(1, 20, (2, 500))
    texts = TextLengths(500, lambda some: lengths[:, some], longest=17)
    whole = LengthPlan(texts, 60)
    slices = token_ids.parts
    monkeypatch.setattr(batch_plans, "parts", lambda count: slices(count, 7))
    plan = LengthPlan(texts, 60)
    for name in ("_order", "_groups", "_cuts"):
        np.testing.assert_array_equal(getattr(plan, name), getattr(whole, name))
    order = lengths[:, plan._order]
    assert (np.diff(order[1]) >= 0).all(), "by target length"
    kept = np.flatnonzero(lengths.max(axis=0) <= 17)
    batch, count = plan.in_order()
    np.testing.assert_array_equal(np.concatenate([batch(n)[0] for n in range(count)]), kept)
    assert [len(batch(n)[0]) for n in range(count)] == np.diff(
        cuts_of_a_loop(lengths[:, kept].max(axis=0).tolist(), 60)
    ).tolist()


def drawn_rows(count):
    random = np.random.default_rng(7)
    lengths = random.integers(0, 11, count)
    return IdRows(random.integers(5, VOCABULARY, lengths.sum()), lengths)


@pytest.fixture(scope="module")
def rows():
    """Texts, some of which are without tokens, in memory and in a prepared folder."""
    return drawn_rows(90)


@pytest.fixture(scope="module")
def column(rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts") / "text"
    with PreparedWriter(folder, ["text"], VOCABULARY) as writer:
        for some in (slice(0, 40), slice(40, 90)):
            writer.append({"text": rows.take(np.arange(90)[some])})
        writer.finish({"kind": "documents"})
    return Prepared(folder).columns["text"]


def every_kind(ids, folder):
    """Makers of batches of all kinds, {name: function without arguments}."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = WordPieceTokenizer([*special, *map(str, range(VOCABULARY - 5))])
    labels = np.eye(2)[np.arange(len(ids)) % 2]
    documents = IdRows(ids, [9] * (len(ids) // 9))

    def planned(name):
        return {"plan_folder": folder and folder / name}

    pairs = {
        name: lambda name=name, shapes=shapes: TokenBatches(
            ids, ids, 48, 10, seed=3, shapes=shapes, **planned(name)
        )
        for name, shapes in SHAPES.items()
    }
    return {
        **pairs,
        "labelled": lambda: LabelledBatches(
            ids, labels, ["a", "b"], 32, 7, seed=3, **planned("labelled")
        ),
        "documents": lambda: PackedDocuments(ids, 6, 4, seed=3, **planned("documents")),
        "pretraining": lambda: PretrainingBatches(
            documents, tokenizer, 4, 16, seed=3, shapes=FewShapes(1), **planned("pretraining")
        ),
        "windows": lambda: TextWindows(ids, 7, 5, seed=3),
        "segments": lambda: TextSegments(ids, 7, 5),
    }


def arrays_of(batches):
    """The arrays of a batch of the second epoch, and what is known of all."""
    known = [getattr(batches, name, None) for name in ("num_tokens", "padding", "steps_per_epoch")]
    batch = next(iter(batches.dataset(batches.steps_per_epoch + 1)))
    return [*map(np.asarray, keras.tree.flatten(batch)), known]


def assert_same(some, others):
    for one, other in zip(some, others, strict=True):
        np.testing.assert_array_equal(one, other)


def test_batches_of_a_folder_are_those_of_memory(rows, column, tmp_path, monkeypatch):
    expected = {name: arrays_of(make()) for name, make in every_kind(rows, None).items()}
    slices = token_ids.parts
    for module in (batch_plans, labelled_batches, packed_documents, pretraining_batches):
        monkeypatch.setattr(module, "parts", lambda count, size=0: slices(count, 7))
    for name, make in every_kind(column, tmp_path).items():
        for _ in ("made", "found"):
            assert_same(arrays_of(make()), expected[name])


def graph_size(make_dataset):
    """Bytes of a graph that reads data, and of what it captures."""
    reads = tf.function(lambda: make_dataset().reduce(0, lambda count, *_: count + 1))
    graph = reads.get_concrete_function().graph
    return graph.as_graph_def().ByteSize(), sum(tensor.nbytes for tensor, _ in graph.captures)


def test_no_graph_grows_with_the_text():
    sizes = []
    for count in (90, 9000):
        kinds = [make() for make in every_kind(drawn_rows(count), None).values()]
        readers = [functools.partial(batches.dataset, 3) for batches in kinds]
        readers += [batches.epoch for batches in kinds if hasattr(batches, "epoch")]
        sizes.append([graph_size(reader) for reader in readers])
    assert len(sizes[0]) > len(kinds)
    np.testing.assert_allclose(sizes[1], sizes[0], atol=20)  # other digits of a number


def test_a_plan_is_made_once_and_again_for_other_texts_or_settings(
    rows, column, tmp_path, monkeypatch
):
    sorts, sort = [], batch_plans._sort
    monkeypatch.setattr(batch_plans, "_sort", lambda *some: sorts.append(1) or sort(*some))
    folder = tmp_path / "plan"

    def made(ids, *sizes):
        sorts.clear()
        batches = TokenBatches(ids, ids, *sizes, plan_folder=folder)
        assert_same(arrays_of(batches), arrays_of(TokenBatches(ids, ids, *sizes)))
        assert [path.name for path in tmp_path.iterdir() if path.name[0] != "."] == ["plan"]
        return len(sorts) - 1  # the plan in memory is one

    assert made(column, 48, 10) == 1
    assert made(column, 48, 10) == 0, "another process finds it"
    assert made(column, 60, 10) == made(column, 60, 9) == 1, "other settings"
    assert made(rows.take(np.arange(60)), 60, 9) == 1, "other texts"
    assert made(rows, 60, 9) == 1


def test_a_damaged_file_of_a_plan_is_named_with_what_to_delete(rows, tmp_path):
    folder = tmp_path / "plan"
    TokenBatches(rows, rows, 60, 9, plan_folder=folder)
    for file in sorted(folder.iterdir()):
        content = file.read_bytes()
        flipped = [bytearray(content) for _ in range(3)]
        for damaged, place in zip(flipped, (0, len(content) // 2, len(content) - 3), strict=True):
            damaged[place] ^= 1
        for damaged in (content[:-4], b"", *flipped):
            file.write_bytes(damaged)
            said = f"^{re.escape(str(file))} is damaged. Delete {re.escape(str(folder))}, which"
            with pytest.raises(DamagedFile, match=said):
                TokenBatches(rows, rows, 60, 9, plan_folder=folder)
            assert file.read_bytes() == damaged
        file.write_bytes(content)
    (folder / "order.npy").unlink()
    with pytest.raises(DamagedFile, match=r"order\.npy is damaged"):
        TokenBatches(rows, rows, 60, 9, plan_folder=folder)


def test_a_plan_that_the_disk_has_no_room_for_is_said_and_not_begun(small_disk):
    lengths = np.ones((1, 500_000), int)
    texts = TextLengths(500_000, lambda some: lengths[:, some], longest=9)
    with pytest.raises(OSError, match="plan could not be written: No space left on device"):
        LengthPlan(texts, 60, folder=small_disk / "plan")
    assert not list(small_disk.iterdir())


def test_masks_and_pairs_do_not_depend_on_the_batch_size(rows):
    found = []
    for batch_size in (3, 11):
        make = every_kind(rows, None)["pretraining"]
        batches = make()
        batches._batch_size = batch_size
        batches.steps_per_epoch = -(-batches.num_passages // batch_size)
        epoch = batches.epoch()
        parts = [np.concatenate([inputs["token_ids"] for inputs, _, _ in epoch])]
        found.append(parts[0][: batches.num_passages])
    np.testing.assert_array_equal(*found)


def test_windows_begin_anywhere_in_a_text_of_more_tokens_than_an_int32_holds():
    text = np.broadcast_to(np.int32(4), 2**33)
    windows = TextWindows(text, 7, 1000, seed=3)
    starts = np.concatenate([windows._starts(step) for step in range(4)]) / 2**33
    assert abs(starts.mean() - 0.5) < 0.02 and starts.max() > 0.99
    assert next(iter(windows.dataset()))[0].shape == (1000, 7)


def _plan_of(folder, number, all_have_read=None):
    """The numbers of a plan; it is replaced after all processes have read the one before."""
    kept = plan_arrays._kept

    def read_together(*arguments):
        found = kept(*arguments)
        if found is None and not read_together.calls:
            all_have_read.wait(60)
        read_together.calls += 1
        return found

    read_together.calls = 0
    if all_have_read is not None:
        plan_arrays._kept = read_together  # of a process of its own

    def make(new):
        for name in range(99):
            new(f"array{name}", (3,), np.int32)[:] = number
        return {"number": number}

    facts, arrays = plan_arrays.plan_arrays(make, folder, lambda: {"number": number})
    assert facts == {"number": number}
    assert all(array.tolist() == [number] * 3 for array in arrays.values()) and len(arrays) == 99


def test_processes_replace_a_plan_of_other_settings_together(tmp_path):
    processes, _ = multiprocessing.get_context("fork"), _plan_of(tmp_path / "plan", 0)
    for number in (1, 2, 3):
        barrier = processes.Barrier(5)
        arguments = (tmp_path / "plan", number, barrier)
        several = [processes.Process(target=_plan_of, args=arguments) for _ in range(5)]
        for process in several:
            process.start()
        for process in several:
            process.join()
        assert [process.exitcode for process in several] == [0] * 5
    assert sorted(path.name for path in tmp_path.iterdir()) == [".plan.lock", "plan"]


def test_a_plan_is_replaced_while_another_process_looks(tmp_path, monkeypatch):
    _plan_of(tmp_path / "plan", 0)

    def remove_and_look(folder):
        (folder / plan_arrays.PLAN).unlink()
        with multiprocessing.get_context("fork").Pool(1) as other:
            other.apply(_plan_of, (tmp_path / "plan", 1))
        shutil.rmtree(folder)

    monkeypatch.setattr(plan_arrays, "shutil", types.SimpleNamespace(rmtree=remove_and_look))
    _plan_of(tmp_path / "plan", 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".plan.lock", "plan"]


def test_a_folder_of_something_else_is_kept(tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"already exists\. Choose another folder for the plan"):
        TokenBatches([[4, 5]], [[6]], 20, 9, plan_folder=tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "mine"
