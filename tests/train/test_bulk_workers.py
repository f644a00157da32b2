"""Files answered by several workers, which are played here: in order, whole, none lost."""

import gzip
import itertools

import pytest

from keras_transformer import worker_pool
from train import bulk
from train.lines import NAMED, FirstPlaces, report_cut_texts
from train.options import FilesOptions


def answering(options):
    return lambda texts: ([text.upper() for text in texts], [False] * len(texts))


class PlayedProcess:
    """Answers as `answering` in this process; dies at some calls, and at the text `poison`."""

    environments, calls, dies_at = [], itertools.count(), ()

    def __init__(self, environment):
        self.environments.append(environment)

    def call(self, packed, *arguments):
        if arguments:
            if next(self.calls) in self.dies_at or "poison" in arguments[0]:
                raise worker_pool.Died("played")
            return answering(None)(*arguments)
        return None

    def end(self):
        pass


@pytest.fixture
def played(monkeypatch):
    monkeypatch.setattr(bulk, "BLOCK", 2)
    monkeypatch.setattr(worker_pool, "_Process", PlayedProcess)
    monkeypatch.setattr(PlayedProcess, "environments", [])
    monkeypatch.setattr(PlayedProcess, "calls", itertools.count())
    return monkeypatch


def answer(folder, **options):
    files = {"input": f"{folder}/*.*", "output": f"{folder}/out"}
    bulk.answer_input(answering, FilesOptions(run="a", **files, **options), 8)
    return folder / "out"


@pytest.mark.parametrize("processes", [1, 2])
def test_a_damaged_file_loses_no_other(played, tmp_path, processes, capsys):
    for name in ("a.txt", "c.txt"):
        (tmp_path / name).write_text(name * 3 + "\n")
    whole = gzip.compress(b"one\ntwo\nthree\n" * 99, 0)
    (tmp_path / "b.gz").write_bytes(whole[:-9])
    with pytest.raises(ValueError, match=r"must be a complete gzip file.*b\.gz") as error:
        answer(tmp_path, processes=processes)
    assert "\n" not in str(error.value)
    names = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert names == {"a.txt": "A.TXTA.TXTA.TXT\n", "c.txt": "C.TXTC.TXTC.TXT\n"}
    assert "holds the answers to 2 lines of 2 files" in capsys.readouterr().out
    (tmp_path / "b.gz").write_bytes(whole)
    answer(tmp_path, processes=processes)
    packed = (tmp_path / "out" / "b.gz").read_bytes()
    assert gzip.decompress(packed) == b"ONE\nTWO\nTHREE\n" * 99
    assert "2 of 3 files are answered already" in capsys.readouterr().err


def test_workers_that_die_now_and_then_change_nothing(played, tmp_path, caplog):
    played.setattr(PlayedProcess, "dies_at", range(1, 1000, 3))
    texts = {f"{name}.txt": "".join(f"{name} {n}\n" for n in range(31)) for name in "abc"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    output = answer(tmp_path, processes=3)
    assert {path.name: path.read_text() for path in output.iterdir()} == {
        name: text.upper() for name, text in texts.items()
    }
    died = caplog.messages.count("A worker died; its block will be processed again.")
    assert died == len(PlayedProcess.environments) - 3 > 9


def test_lines_that_kill_each_worker_are_named(played, tmp_path):
    lines = ["good"] * 60
    lines[20] = "poison"
    (tmp_path / "a.txt").write_text("\n".join(lines))
    (tmp_path / "0.txt").write_text("good")
    message = r"died 4 times at .*a\.txt, lines 21 to 22, perhaps"
    with pytest.raises(ValueError, match=message):
        answer(tmp_path, processes=2)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["0.txt"]


def test_a_mistake_that_a_worker_finds_ends_all(played, tmp_path):
    def call(worker, *message):
        raise ValueError("--num-best must be at most --num-beams.")

    played.setattr(PlayedProcess, "call", call)
    (tmp_path / "a.txt").write_text("good\n" * 60)
    with pytest.raises(ValueError, match="--num-best must be at most"):
        answer(tmp_path, processes=2)


def test_each_process_has_one_of_the_gpus_that_this_one_may_use(played, tmp_path, machine):
    machine(4)
    played.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    (tmp_path / "a.txt").write_text("good\n" * 60)
    answer(tmp_path)
    gpus = [environment["CUDA_VISIBLE_DEVICES"] for environment in PlayedProcess.environments]
    assert sorted(gpus) == ["1", "3"]
    played.setenv("CUDA_VISIBLE_DEVICES", "-1")
    PlayedProcess.environments.clear()
    (tmp_path / "b.txt").write_text("good\n" * 60)
    answer(tmp_path, processes=2)
    assert PlayedProcess.environments == [{}, {}]


def test_no_model_is_loaded_when_all_files_are_there(played, tmp_path):
    (tmp_path / "a.txt").write_text("good\n")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.txt").write_text("mine\n")
    played.setattr(bulk, "_answered", None)
    assert (answer(tmp_path, processes=2) / "a.txt").read_text() == "mine\n"


def test_places_to_report_take_no_room(capsys):
    places = FirstPlaces()
    places.add(str(number) for number in range(1000))
    assert len(places) == 1000 and len(list(places)) == NAMED
    report_cut_texts(places, 2000, 8)
    assert "1,000 of 2,000 texts" in (printed := capsys.readouterr().err)
    assert printed.endswith("lines 0, 1, 2, 3, 4 and 995 more.\n")
