import io
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import zipfile

import ml_dtypes
import numpy as np
import pytest

from keras_transformer import files
from keras_transformer.files import (
    DamagedFile,
    NotWritten,
    atomic_path,
    check_archive,
    check_free,
    is_free,
    load_arrays,
    read_arrays,
    remove_drafts,
    save_arrays,
)

# The module without its package, which takes seconds to import.
ALONE = f"import sys; sys.path.append({os.path.dirname(files.__file__)!r}); import files; "

ARRAYS = {
    "float32": np.linspace(-3, 5, 35, dtype="float32").reshape(5, 7),
    "by columns": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "bfloat16": np.arange(11).astype(ml_dtypes.bfloat16),
    "float16": np.array([1.5, -2], "float16"),
    "uint32": np.array([2**32 - 1, 3], "uint32"),
    "bool": np.array([True, False, True]),
    "a/number": np.int64(7),
    "empty": np.zeros((0, 3), "float32"),
    "text": np.array(["ä", "label of some length"]),
}


def test_arrays_of_all_types_come_back_as_they_were(tmp_path):
    save_arrays(tmp_path / "new" / "arrays.npz", ARRAYS.items())
    found = load_arrays(tmp_path / "new" / "arrays.npz")
    assert list(found) == list(ARRAYS), "in their order"
    for name, expected in ARRAYS.items():
        value = found[name].view(ml_dtypes.bfloat16) if name == "bfloat16" else found[name]
        assert value.dtype == expected.dtype and value.shape == expected.shape, name
        np.testing.assert_array_equal(value, expected, err_msg=name)
    with np.load(tmp_path / "new" / "arrays.npz") as theirs:
        np.testing.assert_array_equal(theirs["float32"], ARRAYS["float32"], "NumPy reads it too")


def test_equal_arrays_are_equal_files(tmp_path, monkeypatch):
    for name in ("one", "two"):
        save_arrays(tmp_path / name, ARRAYS.items())
        monkeypatch.setattr("time.time", lambda: 2e9)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_any_flipped_bit_is_harmless_or_detected(tmp_path):
    path, draw = tmp_path / "arrays.npz", random.Random(5)
    save_arrays(path, ARRAYS.items())
    content = path.read_bytes()
    noticed = 0
    for _ in range(2000):
        place, bit = draw.randrange(len(content)), draw.randrange(8)
        path.write_bytes(
            content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :]
        )
        try:
            found = load_arrays(path)
        except DamagedFile as error:
            assert str(error).startswith(f"{path} is damaged: "), place
            noticed += 1
        else:
            assert list(found) == list(ARRAYS), place
            for name in ARRAYS:
                assert found[name].tobytes("A") == ARRAYS[name].tobytes("A"), (place, name)
    assert noticed > 1000


def test_a_truncated_file_is_damaged(tmp_path):
    path = tmp_path / "arrays.npz"
    save_arrays(path, ARRAYS.items())
    content = path.read_bytes()
    for length in [0, 1, *range(2, len(content), 37), len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(DamagedFile, match=r"arrays.npz is damaged: "):
            check_archive(path)


def test_a_missing_file_is_not_damaged(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none.npz"):
        next(read_arrays(tmp_path / "none.npz"))


def test_a_failed_write_leaves_the_old_content(tmp_path):
    (tmp_path / "file").write_text("old")
    with pytest.raises(KeyError), atomic_path(tmp_path / "file") as draft:
        draft.write_text("new")
        raise KeyError
    with pytest.raises(NotWritten, match=r"folder could not be written: Is a directory\."):
        (tmp_path / "folder").mkdir()
        with atomic_path(tmp_path / "folder") as draft:
            draft.write_text("new")
    assert {path.name for path in tmp_path.iterdir()} == {"file", "folder"}, "no drafts"
    assert (tmp_path / "file").read_text() == "old"


def test_a_folder_appears_with_all_its_content(tmp_path):
    with atomic_path(tmp_path / "folder") as draft:
        (draft / "inner").mkdir(parents=True)
        (draft / "inner" / "file").write_text("text")
        assert not (tmp_path / "folder").exists()
    assert (tmp_path / "folder" / "inner" / "file").read_text() == "text"
    expected = r"folder could not be written: Directory not empty\."
    with pytest.raises(NotWritten, match=expected), atomic_path(tmp_path / "folder") as draft:
        draft.mkdir()
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def empty_folder(path, kind):
    if kind == "link":
        path.with_name("elsewhere").mkdir()
    if "link" in kind:
        path.symlink_to("elsewhere")
    else:
        path.mkdir(exist_ok=True)
    if kind == "new disk":
        (path / "lost+found").mkdir()
    return path


def fill(path):
    with atomic_path(path) as draft:
        (draft / "inner").mkdir(parents=True)
        for name in ("inner/a", "config.json", "z"):
            (draft / name).write_text(name)


def content(path):
    return {
        str(file.relative_to(path)): file.read_text() for file in path.rglob("*") if file.is_file()
    }


FILLED = {name: name for name in ("inner/a", "config.json", "z")}


@pytest.mark.parametrize("kind", ["plain", "link", "dangling link", "new disk"])
def test_a_folder_that_is_there_is_filled_whole(kind, tmp_path):
    path = empty_folder(tmp_path / "folder", kind)
    before = path.stat().st_ino if path.exists() else None
    check_free(path, "")
    fill(path)
    assert content(path) == FILLED and path.is_symlink() == ("link" in kind)
    assert before in (None, path.stat().st_ino), "the same folder: it may be a mount point"
    assert not [name for name in os.listdir(path) if name.startswith(".")]
    with pytest.raises(ValueError, match=r"folder already exists. Choose another."):
        check_free(path, "Choose another.")


def test_a_mounted_disk_is_filled_whole(small_disk):
    check_free(small_disk, "")
    fill(small_disk)
    assert content(small_disk) == FILLED


def test_an_empty_folder_that_another_process_has_filled_is_left_alone(tmp_path):
    path = empty_folder(tmp_path / "folder", "plain")
    other = multiprocessing.get_context("fork").Process(target=fill, args=(path,))
    expected = r"folder could not be written: Directory not empty\."
    with pytest.raises(NotWritten, match=expected), atomic_path(path) as draft:
        (draft / "inner").mkdir(parents=True)
        other.start()
        other.join()
    assert content(path) == FILLED and sorted(os.listdir(path)) == ["config.json", "inner", "z"]


def _fill_and_be_killed(path, moves):
    replace, count = files.pathlib.Path.replace, iter(range(moves))

    def replace_or_die(*paths):
        if next(count, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return replace(*paths)

    files.pathlib.Path.replace = replace_or_die
    fill(path)


@pytest.mark.parametrize("moves", range(4))
def test_a_process_killed_at_any_move_leaves_the_folder_empty_or_to_be_completed(moves, tmp_path):
    path = empty_folder(tmp_path / "folder", "link")
    process = multiprocessing.get_context("fork").Process(
        target=_fill_and_be_killed, args=(path, moves)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not (path / "config.json").exists(), "nothing takes it for whole"
    assert is_free(path) == (moves == 0)
    if moves == 0:
        remove_drafts(path)
        fill(path)
    assert content(path) == FILLED and sorted(os.listdir(path)) == ["config.json", "inner", "z"]


def test_a_place_that_cannot_be_written_is_named_before_any_work(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("text")
    for path in (tmp_path / "file/run", tmp_path / "file/deep/run"):
        with pytest.raises(NotWritten, match=r"run could not be written: .*file is not a folder\."):
            check_free(path, "")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(NotWritten, match=r"c could not be written: no permission to write in .*"):
        check_free(tmp_path / "a/b/c", "")
    assert os.listdir(tmp_path) == ["file"]


def test_everything_is_on_disk_before_the_rename(tmp_path, monkeypatch):
    calls = []
    flush, replace = files.flush, files.pathlib.Path.replace
    monkeypatch.setattr(files, "flush", lambda path: calls.append(str(path)) or flush(path))
    monkeypatch.setattr(
        files.pathlib.Path, "replace", lambda *paths: calls.append("named") or replace(*paths)
    )
    with atomic_path(tmp_path / "folder") as draft:
        draft.mkdir()
        (draft / "file").write_text("text")
    before = calls[: calls.index("named")]
    assert str(draft / "file") in before and any(path.endswith("/.") for path in before)
    assert calls[-2:] == ["named", str(tmp_path)]


def _write_and_be_killed(path):
    with atomic_path(path) as draft:
        draft.mkdir()
        (draft / "file").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)


def test_drafts_of_killed_processes_are_removed_by_their_names(tmp_path):
    for name in ("run [1]", "run"):
        process = multiprocessing.get_context("fork").Process(
            target=_write_and_be_killed, args=(tmp_path / name,)
        )
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    (tmp_path / ".draft-of-mine").write_text("not ours")
    assert len(list(tmp_path.iterdir())) == 3
    remove_drafts(tmp_path, of=["run"])
    assert len(list(tmp_path.glob(".draft-*-run*"))) == 1, "that of the other run"
    remove_drafts(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".draft-of-mine"]
    remove_drafts(tmp_path / "none")


@pytest.mark.slow
def test_processes_of_one_id_write_drafts_of_their_own(tmp_path):
    """As in containers that share a disk: in most the id is 1."""
    code = f"import os; os.getpid = lambda: 1; {ALONE}"
    code += f"print(files.draft_of({str(tmp_path / 'file')!r}))"
    drafts = {subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout}
    drafts |= {subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout}
    assert len(drafts) == 2 and all(b".draft-" in draft for draft in drafts)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(files.this_process) != files.this_process()
    assert files.this_process() == files.this_process()


def test_a_folder_is_filled_whole_while_another_process_looks_at_it(tmp_path, monkeypatch):
    path = empty_folder(tmp_path / "folder", "plain")
    names, looks = files._content, []

    def look(folder):
        if not looks:
            looks.append(threading.Thread(target=is_free, args=(path,)))
            looks[0].start()
            looks[0].join(1)
        return names(folder)

    monkeypatch.setattr(files, "_content", look)
    fill(path)
    looks[0].join()
    assert content(path) == FILLED and not is_free(path)
    assert sorted(os.listdir(path)) == ["config.json", "inner", "z"]


def test_a_folder_that_goes_while_it_is_looked_at_is_free(tmp_path, monkeypatch):
    path = empty_folder(tmp_path / "folder", "plain")
    names = files._content
    monkeypatch.setattr(files, "_content", lambda folder: path.rmdir() or names(folder))
    assert is_free(path)


FILL = """
import resource, signal, numpy as np
from files import save_arrays
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for room in sys.argv[2:]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(room), resource.RLIM_INFINITY))
    try:
        save_arrays(sys.argv[1], [(str(n), np.full(5000, n)) for n in range(5)])
    except OSError as error:
        print(type(error).__name__, error)
"""


@pytest.mark.slow
def test_a_full_disk_leaves_the_old_file(tmp_path):
    path = tmp_path / "arrays.npz"
    path.write_text("old")
    command = [sys.executable, "-c", ALONE + FILL, path, "0", "70", "41000", "200100"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    line = f"NotWritten {path} could not be written: File too large."
    assert done.stdout.splitlines() == [line] * 4
    assert path.read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def header_of(**values):
    return repr({"descr": "<i4", "fortran_order": False, "shape": (2,), **values}).encode()


FORGED = {
    "objects": header_of(descr="|O", shape=(1,)),
    "objects in a structure": header_of(descr=[("a", "<i4"), ("b", "|O")]),
    "objects by their old name": header_of(descr="i4,O"),
    "objects in a row": header_of(descr=("|O", (2,))),
    "times": header_of(descr="<M8[s]"),
    "structures": header_of(descr=[("a", "<i4")]),
    "rows": header_of(descr=("<i4", (2,)), shape=(1,)),
    "nothing, endlessly": header_of(descr="|V0", shape=(2**62,)),
    "negative sizes": header_of(shape=(-1, 2)),
    "one negative size": header_of(shape=(-2,)),
    "sizes that are truths": header_of(shape=(True, 2)),
    "too few bytes": header_of(shape=(3,)),
    "too many bytes": header_of(shape=(1,)),
    "more than there is memory": header_of(shape=(2**40,)),
    "more than there is of addresses": header_of(shape=(0, 2**62, 2**62)),
    "no type": header_of(descr=3),
    "an unknown type": header_of(descr="<q9"),
    "a type in parts": header_of(descr=[("a",)]),
    "a deep type": header_of(descr=("<i4", (2**31, 2**31))),
    "no shape": b"{'descr': '<i4'}",
    "no dictionary": b"3",
    "no Python": b"\0",
    "brackets": b"(" * 5000,
    "signs": b"-" * 9000 + b"1",
    "a call": b"__import__('os')._exit(3)",
}
LOAD = """
import zipfile
from files import DamagedFile, load_arrays
for path in sys.argv[1:]:
    try:
        print(load_arrays(path))
    except DamagedFile as error:
        print("DamagedFile" if str(error).startswith(f"{path} is damaged: ") else error)
"""


@pytest.mark.slow
def test_a_forged_header_is_damage(tmp_path):
    """In a process of its own, which an address in a file would kill."""
    paths = []
    for number, header in enumerate(FORGED.values()):
        content = b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + b"AAAABBBB"
        paths.append(tmp_path / f"{number}.npz")
        with zipfile.ZipFile(paths[-1], "w") as archive:
            archive.writestr("ids.npy", content)
    done = subprocess.run(
        [sys.executable, "-c", ALONE + LOAD, *paths], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    answers = dict(zip(FORGED, done.stdout.splitlines(), strict=True))
    assert answers == dict.fromkeys(FORGED, "DamagedFile")


def test_an_array_of_another_version_of_the_format_is_damage(tmp_path):
    path = tmp_path / "arrays.npz"
    with zipfile.ZipFile(path, "w") as archive, archive.open("ids.npy", "w") as entry:
        np.lib.format.write_array(entry, np.arange(3), version=(2, 0))
    expected = r"arrays.npz is damaged: version \(2, 0\) of the npy format\."
    with pytest.raises(DamagedFile, match=expected):
        load_arrays(path)


def test_a_compressed_archive_is_refused_before_it_fills_the_memory(tmp_path):
    path = tmp_path / "model.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros.npy", bytes(2**20))
    with pytest.raises(DamagedFile, match=r"model.keras is damaged: 'zeros.npy' is compressed\."):
        check_archive(path)


def test_arrays_are_written_as_numpy_writes_them():
    draw = np.random.default_rng(3)
    for array in (draw.random((3, 5)), draw.random((3, 5)).T, np.int64(7), np.zeros((0, 2)),
                  np.array(["ä", "b"]), np.arange(9)[::2], np.ones(3, bool)):  # fmt: skip
        ours, theirs = io.BytesIO(), io.BytesIO()
        files._write_array(ours, np.asarray(array))
        np.lib.format.write_array(theirs, np.asarray(array))
        assert ours.getvalue() == theirs.getvalue()
