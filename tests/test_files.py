import multiprocessing
import os
import random
import signal
import subprocess
import sys
import zipfile

import ml_dtypes
import numpy as np
import pytest

from keras_transformer import files
from keras_transformer.files import (
    DamagedFile,
    NotWritten,
    check_archive,
    load_arrays,
    read_arrays,
    remove_drafts,
    save_arrays,
    whole,
)

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
    with pytest.raises(KeyError), whole(tmp_path / "file") as draft:
        draft.write_text("new")
        raise KeyError
    with pytest.raises(NotWritten, match=r"folder could not be written: Is a directory\."):
        (tmp_path / "folder").mkdir()
        with whole(tmp_path / "folder") as draft:
            draft.write_text("new")
    assert {path.name for path in tmp_path.iterdir()} == {"file", "folder"}, "no drafts"
    assert (tmp_path / "file").read_text() == "old"


def test_a_folder_appears_with_all_its_content(tmp_path):
    with whole(tmp_path / "folder") as draft:
        (draft / "inner").mkdir(parents=True)
        (draft / "inner" / "file").write_text("text")
        assert not (tmp_path / "folder").exists()
    assert (tmp_path / "folder" / "inner" / "file").read_text() == "text"
    expected = r"folder could not be written: Directory not empty\."
    with pytest.raises(NotWritten, match=expected), whole(tmp_path / "folder") as draft:
        draft.mkdir()
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_everything_is_on_disk_before_the_rename(tmp_path, monkeypatch):
    calls = []
    flush, replace = files._flush, files.pathlib.Path.replace
    monkeypatch.setattr(files, "_flush", lambda path: calls.append(str(path)) or flush(path))
    monkeypatch.setattr(
        files.pathlib.Path, "replace", lambda *paths: calls.append("named") or replace(*paths)
    )
    with whole(tmp_path / "folder") as draft:
        draft.mkdir()
        (draft / "file").write_text("text")
    before = calls[: calls.index("named")]
    assert str(draft / "file") in before and any(path.endswith("/.") for path in before)
    assert calls[-2:] == ["named", str(tmp_path)]


def _write_and_be_killed(path):
    with whole(path) as draft:
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
    remove_drafts(tmp_path, of="run")
    assert len(list(tmp_path.glob(".draft-*-run*"))) == 1, "that of the other run"
    remove_drafts(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".draft-of-mine"]
    remove_drafts(tmp_path / "none")


FILL = """
import resource, signal, sys, numpy as np
from keras_transformer.files import save_arrays
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
for room in sys.argv[2:]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(room), resource.RLIM_INFINITY))
    try:
        save_arrays(sys.argv[1], [(str(n), np.full(5000, n)) for n in range(5)])
    except OSError as error:
        print(type(error).__name__, error)
"""


def test_a_full_disk_leaves_the_old_file(tmp_path):
    path = tmp_path / "arrays.npz"
    path.write_text("old")
    command = [sys.executable, "-c", FILL, path, "0", "70", "41000", "200100"]
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
import sys
import zipfile
from keras_transformer.files import DamagedFile, load_arrays
for path in sys.argv[1:]:
    try:
        print(load_arrays(path))
    except DamagedFile as error:
        print("DamagedFile" if str(error).startswith(f"{path} is damaged: ") else error)
"""


def test_a_forged_header_is_damage(tmp_path):
    """In a process of its own, which an address in a file would kill."""
    paths = []
    for number, header in enumerate(FORGED.values()):
        content = b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + b"AAAABBBB"
        paths.append(tmp_path / f"{number}.npz")
        with zipfile.ZipFile(paths[-1], "w") as archive:
            archive.writestr("ids.npy", content)
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *paths], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    answers = dict(zip(FORGED, done.stdout.splitlines(), strict=True))
    assert answers == dict.fromkeys(FORGED, "DamagedFile")


def test_a_compressed_archive_is_refused_before_it_fills_the_memory(tmp_path):
    path = tmp_path / "model.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros.npy", bytes(2**20))
    with pytest.raises(DamagedFile, match=r"model.keras is damaged: 'zeros.npy' is compressed\."):
        check_archive(path)
