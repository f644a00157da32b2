"""No export leaves a folder behind for good, and none takes that of another."""

import multiprocessing
import os
import random

import pytest

from keras_transformer.serving.publishing.export import draft_folder

from .exporting import Echo, export_for_ever, export_slowly, work_for_ever

pytestmark = pytest.mark.slow

PROCESSES = multiprocessing.get_context("forkserver")  # imports TensorFlow once for all of them
PROCESSES.set_forkserver_preload(["tests.serving.exporting"])


def start(target, *arguments):
    """A process of its own that has begun."""
    has_begun = PROCESSES.Event()
    process = PROCESSES.Process(target=target, args=(*arguments[:2], has_begun, *arguments[2:]))
    process.start()
    assert has_begun.wait(120)
    return process


def kill_after(process, seconds):
    process.join(seconds)
    assert process.is_alive()
    process.kill()
    process.join()


@pytest.fixture
def living(tmp_path):
    """An export of another process in its middle, which must go on unharmed."""
    may_end = PROCESSES.Event()
    process = start(export_slowly, tmp_path, "living", may_end)
    yield
    assert process.is_alive()
    may_end.set()
    process.join()
    assert process.exitcode == 0
    assert os.listdir(tmp_path / "living") == ["1"]
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []


def hidden(folder):
    return sorted(name for name in os.listdir(folder) if name.startswith("."))


def test_an_export_killed_at_any_moment_is_cleaned_up_by_the_next_one(living, tmp_path):
    of_living = hidden(tmp_path)
    assert len(of_living) == 2, "a folder and its lock"
    moments, left = random.Random(5), 0
    for _ in range(3):
        kill_after(start(export_for_ever, tmp_path, "killed"), moments.uniform(0.1, 2))
        left += hidden(tmp_path) != of_living
        assert Echo().export(tmp_path, "another").startswith(str(tmp_path / "another"))
        assert hidden(tmp_path) == of_living
    assert left, "no kill left anything to clean up"
    published = tmp_path / "killed"
    for version in os.listdir(published) if published.exists() else ():
        assert (published / version / "saved_model.pb").is_file()


def test_folders_of_processes_killed_at_any_moment_are_removed(living, tmp_path):
    of_living = hidden(tmp_path)
    moments, left = random.Random(7), 0
    for _ in range(20):
        others = [start(work_for_ever, tmp_path, "killed") for _ in range(2)]
        for process in others:
            kill_after(process, moments.uniform(0, 0.02))
        left += hidden(tmp_path) != of_living
        with draft_folder(tmp_path, "another") as folder:
            assert os.listdir(folder) == []
            assert len(hidden(tmp_path)) == 4
        assert hidden(tmp_path) == of_living
    assert left, "no kill left anything to clean up"


def test_a_folder_in_use_is_kept_in_its_own_process_too(tmp_path):
    (tmp_path / ".mine.export").mkdir()
    with draft_folder(tmp_path, "one") as one, draft_folder(tmp_path, "two") as two:
        assert os.path.isdir(one) and os.path.isdir(two)
    assert os.listdir(tmp_path) == [".mine.export"], "without a lock it is none of ours"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_export_leaves_nothing(tmp_path, error):
    def interrupt():
        raise error

    with pytest.raises(error):
        Echo(interrupt).export(tmp_path, "demo")
    assert os.listdir(tmp_path) == []
