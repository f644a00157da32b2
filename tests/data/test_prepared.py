"""Folders of prepared text: written in blocks, mapped into memory, checked when read."""

import json
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

from keras_transformer.data import IdRows, prepared
from keras_transformer.data.prepared import Prepared, PreparedWriter
from keras_transformer.files import DamagedFile

VOCABULARY_SIZE = 70_000


def blocks_of(count, vocabulary_size=VOCABULARY_SIZE):
    """Blocks of random rows, some of them empty."""
    draw = np.random.default_rng(count)
    for number in range(count):
        rows = 20 + number
        block = {}
        for name in ("source", "target"):
            lengths = draw.integers(0, 9, rows)
            block[name] = IdRows(draw.integers(1, vocabulary_size, lengths.sum()), lengths)
        yield block, {"labels": draw.random((rows, 2), np.float32)}


def write(path, blocks, vocabulary_size=VOCABULARY_SIZE, stop=None):
    """Writes all blocks, or stops before one as if it were killed; returns the blocks skipped."""
    arrays = {"labels": ("float32", (2,))}
    settings = {"size": vocabulary_size}
    with PreparedWriter(path, ("source", "target"), vocabulary_size, arrays, settings) as writer:
        skipped = writer.num_blocks
        for number, (columns, labels) in enumerate(blocks):
            if number == stop:
                return skipped
            if number >= skipped:
                writer.append(columns, labels, {"seen": number + 1})
        writer.finish({"kind": "translation", "counts": writer.notes})
    return skipped


def content_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(prepared, "_BLOCK", 64)


@pytest.mark.parametrize("vocabulary_size", [VOCABULARY_SIZE, 300])
@pytest.mark.usefixtures("small_blocks")
def test_rows_windows_and_arrays_are_those_that_were_written(tmp_path, vocabulary_size):
    blocks = list(blocks_of(7, vocabulary_size))
    write(tmp_path / "text", blocks, vocabulary_size)
    folder = Prepared(tmp_path / "text")
    assert len(folder) == sum(len(columns["source"]) for columns, _ in blocks)
    assert folder.kind == "translation" and folder.manifest["counts"] == {"seen": 7}
    labels = np.concatenate([arrays["labels"] for _, arrays in blocks])
    np.testing.assert_array_equal(folder.array("labels"), labels)
    draw = np.random.default_rng(5)
    for name in ("source", "target"):
        expected = [row for columns, _ in blocks for row in columns[name].to_list()]
        rows, chosen = folder.columns[name], draw.permutation(len(expected))
        assert rows.lengths.tolist() == [len(row) for row in expected]
        assert rows.take(chosen).to_list() == [expected[row] for row in chosen]
        assert rows.take(chosen).values.dtype == np.int32
        flat = np.concatenate([row for row in expected if row])
        assert rows.num_ids == len(flat)
        starts = np.append(draw.integers(0, len(flat) - 300, 20), [0, len(flat) - 300])
        windows = [flat[start : start + 300] for start in starts]  # some span many blocks
        np.testing.assert_array_equal(rows.read(starts, 300).to_list(), windows)
    row = folder[-1]
    np.testing.assert_array_equal(row["labels"], labels[-1])
    assert row["target"].tolist() == expected[-1]


@pytest.mark.usefixtures("small_blocks")
def test_a_folder_may_move_and_goes_to_other_processes(tmp_path, monkeypatch):
    write(tmp_path / "text", blocks_of(3))
    monkeypatch.chdir(tmp_path)
    folder, expected = Prepared("text"), Prepared(tmp_path / "text")[40]
    pickled = pickle.dumps(folder)
    monkeypatch.chdir("/")
    np.testing.assert_equal(pickle.loads(pickled)[40], expected)
    assert len(pickled) < 1000
    (tmp_path / "text").rename(tmp_path / "moved")
    folder.path = tmp_path / "moved"
    np.testing.assert_equal(folder[40], expected)


@pytest.mark.usefixtures("small_blocks")
def test_numpy_reads_every_array(tmp_path):
    write(tmp_path / "text", blocks_of(2))
    for path in (tmp_path / "text").glob("*.npy"):
        assert len(np.load(path, mmap_mode="r"))


@pytest.mark.parametrize("noted_every", [0.0, 1e9])
@pytest.mark.usefixtures("small_blocks")
def test_an_interrupted_folder_goes_on_and_holds_the_same_bytes(tmp_path, monkeypatch, noted_every):
    monkeypatch.setattr(prepared, "_SECONDS_BETWEEN_NOTES", noted_every)
    write(tmp_path / "whole", blocks_of(7))
    for stop in (0, 3, 6):
        write(tmp_path / "text", blocks_of(7), stop=stop)
        assert not (tmp_path / "text").exists()
    skipped = write(tmp_path / "text", blocks_of(7))
    assert skipped == (0 if noted_every else 6)
    assert content_of(tmp_path / "text") == content_of(tmp_path / "whole")
    assert sorted(os.listdir(tmp_path)) == ["text", "whole"]


def test_an_interrupted_folder_of_other_settings_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(prepared, "_SECONDS_BETWEEN_NOTES", 0.0)
    write(tmp_path / "text", blocks_of(2), stop=1)
    with pytest.raises(ValueError, match="was begun with other settings"):
        write(tmp_path / "text", blocks_of(2), 300)
    assert write(tmp_path / "text", blocks_of(2)) == 1


@pytest.mark.parametrize("content", ["[]", "{}", "", '{"settings": {"size": 70000}}'])
def test_a_damaged_journal_is_named_with_what_to_delete(tmp_path, content):
    write(tmp_path / "text", blocks_of(2), stop=1)
    (tmp_path / ".prepare-text" / "journal.json").write_text(content)
    with pytest.raises(DamagedFile, match=r"journal\.json is damaged: .* Delete .*prepare-text\.$"):
        write(tmp_path / "text", blocks_of(2))
    assert (tmp_path / ".prepare-text").exists()


def test_rows_without_ids_are_read(tmp_path):
    with PreparedWriter(tmp_path / "text", ["source"], 9) as writer:
        writer.append({"source": IdRows([], [0, 0, 0])})
        writer.finish({"kind": "documents"})
    rows = Prepared(tmp_path / "text").columns["source"]
    assert rows.num_ids == 0 and rows.take([2, 0]).to_list() == [[], []]
    assert rows.lengths.tolist() == [0, 0, 0] and rows.read([0], 0).to_list() == [[]]


def test_two_processes_do_not_write_one_folder(tmp_path):
    first, second = (PreparedWriter(tmp_path / "text", ["source"], 9) for _ in range(2))
    with first, pytest.raises(ValueError, match="Another process is preparing"), second:
        pass


def test_the_lock_is_deleted_while_it_is_held(tmp_path, monkeypatch):
    """Later it may be that of another process, beside which a third would begin."""
    writer = PreparedWriter(tmp_path / "text", ["source"], 9)
    release = writer._file_lock.release
    seen = []
    monkeypatch.setattr(
        writer._file_lock, "release", lambda: seen.append(os.listdir(tmp_path)) or release()
    )
    with writer:
        assert ".prepare-text.lock" in os.listdir(tmp_path)
    assert seen == [[".prepare-text"]]


@pytest.mark.parametrize("kind", ["plain", "mounted", "new disk"])
def test_an_empty_folder_is_filled_where_it_is(kind, tmp_path, request):
    path = request.getfixturevalue("small_disk") if kind == "mounted" else tmp_path / "text"
    path.mkdir(exist_ok=True)
    if kind == "new disk":
        (path / "lost+found").mkdir()
    before, inode = set(os.listdir(path)), path.stat().st_ino
    write(path, blocks_of(2), stop=1)
    assert set(os.listdir(path)) == before | {f".prepare-{path.name}"}
    write(path, blocks_of(2))
    write(tmp_path / "whole", blocks_of(2))
    assert set(os.listdir(path)) == before | set(os.listdir(tmp_path / "whole"))
    assert path.stat().st_ino == inode and len(Prepared(path).columns["source"]) == 41


def test_what_was_begun_beside_a_folder_goes_on_there(tmp_path, monkeypatch):
    monkeypatch.setattr(prepared, "_SECONDS_BETWEEN_NOTES", 0.0)
    write(tmp_path / "text", blocks_of(2), stop=1)
    (tmp_path / "text").mkdir()
    assert write(tmp_path / "text", blocks_of(2)) == 1
    assert os.listdir(tmp_path) == ["text"] and Prepared(tmp_path / "text").kind == "translation"


def test_a_draft_that_a_killed_process_left_is_no_part_of_the_folder(tmp_path):
    write(tmp_path / "text", blocks_of(2), stop=1)
    (tmp_path / ".prepare-text" / ".draft-7-tokenizer.model").write_text("half")
    write(tmp_path / "text", blocks_of(2))
    write(tmp_path / "whole", blocks_of(2))
    assert content_of(tmp_path / "text") == content_of(tmp_path / "whole")


def test_a_folder_is_not_written_over(tmp_path):
    write(tmp_path / "text", blocks_of(1))
    with pytest.raises(ValueError, match="already exists"):
        PreparedWriter(tmp_path / "text", ["source"], 9)


@pytest.mark.parametrize(("ids", "received"), [([0, 5], "0 to 5"), ([5, 9], "5 to 9")])
def test_ids_that_the_vocabulary_lacks_are_refused(tmp_path, ids, received):
    with PreparedWriter(tmp_path / "text", ["source"], 9) as writer:
        with pytest.raises(ValueError, match=f"below 9. Received: source with ids from {received}"):
            writer.append({"source": IdRows(np.array(ids), [2])})
        with pytest.raises(ValueError, match="No row is left"):
            writer.finish({"kind": "translation"})


@pytest.mark.usefixtures("small_blocks")
def test_every_damaged_byte_is_found_when_it_is_read(tmp_path):
    write(tmp_path / "text", blocks_of(2))
    folder = tmp_path / "text"
    for path in sorted(folder.iterdir()):
        content = path.read_bytes()
        # Of an archive, the table of contents has bytes that mean nothing.
        places = [300] if path.suffix == ".npz" else [len(content) // 2, len(content) - 1]
        for place in places:
            damaged = bytearray(content)
            damaged[place] ^= 1
            path.write_bytes(damaged)
            with pytest.raises(DamagedFile, match=path.name):
                text = Prepared(folder)
                text.array("labels")
                for rows in text.columns.values():
                    rows.take(np.arange(len(text)))
                    assert len(rows.lengths)
        path.write_bytes(content)
    Prepared(folder).check()


def test_only_blocks_that_are_read_are_checked(tmp_path, monkeypatch):
    monkeypatch.setattr(prepared, "_BLOCK", 64)
    write(tmp_path / "text", blocks_of(4))
    path = tmp_path / "text" / "source.ids.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    rows = Prepared(tmp_path / "text").columns["source"]
    assert len(rows.take(np.arange(len(rows) // 2)))
    with pytest.raises(DamagedFile, match=r"source\.ids\.npy is damaged"):
        rows.take(np.arange(len(rows)))
    with pytest.raises(DamagedFile, match=r"source\.ids\.npy is damaged"):
        Prepared(tmp_path / "text").check()


def test_a_truncated_file_is_named_when_the_folder_is_opened(tmp_path):
    write(tmp_path / "text", blocks_of(1))
    path = tmp_path / "text" / "target.ids.npy"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(DamagedFile, match=f"expected {size:,} bytes. Received: {size - 2:,} bytes"):
        Prepared(tmp_path / "text")
    path.unlink()
    with pytest.raises(DamagedFile, match="Received: no such file"):
        Prepared(tmp_path / "text")


def test_what_is_no_prepared_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"has no manifest\.json"):
        Prepared(tmp_path)
    write(tmp_path / "text", blocks_of(1))
    manifest = tmp_path / "text" / "manifest.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(content | {"kind": "pretraining"}))
    with pytest.raises(DamagedFile, match="was edited"):
        Prepared(tmp_path / "text")
    manifest.write_text(json.dumps([content]))
    with pytest.raises(DamagedFile, match=r"manifest\.json is damaged"):
        Prepared(tmp_path / "text")


def test_a_full_disk_is_said_and_no_folder_appears(small_disk):
    blocks = ({"source": IdRows(np.ones(100_000, int), [100_000])} for _ in range(20))
    writer = PreparedWriter(small_disk / "text", ["source"], 9)
    with pytest.raises(OSError, match="could not be written: No space left"), writer:
        for block in blocks:
            writer.append(block)
    assert not (small_disk / "text").exists()


READ_THROUGH_GRAIN = """
import sys
import grain
from keras_transformer.data.prepared import Prepared

dataset = grain.MapDataset.source(Prepared(sys.argv[1])).shuffle(seed=1)
print(sorted(len(row["source"]) for row in dataset))
"""


@pytest.mark.oracle
def test_grain_reads_the_folder(tmp_path):
    write(tmp_path / "text", blocks_of(2))
    # In a process of its own: its imports leave files open, and begin threads.
    command = [sys.executable, "-c", READ_THROUGH_GRAIN, tmp_path / "text"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    lengths = Prepared(tmp_path / "text").columns["source"].lengths
    assert result.stdout.strip() == str(sorted(lengths.tolist()))
