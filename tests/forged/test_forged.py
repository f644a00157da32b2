"""A forged file is read or refused with one clear line: no crash, no other exception.

Libraries that are not Python read some of the files. They do so in a process of its own, which
may die; each death is listed, and must be one of those that `docs/security.md` admits.
"""

import collections
import contextlib
import pathlib
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from .forging import forge, forgeries
from .readers import MODELS, PARSERS, READERS, attempt

ROOT = pathlib.Path(__file__).parents[2]
DEATH = "the process died"


class Folder:
    """A folder of a sample, of which one file at a time is forged."""

    def __init__(self, path, reader):
        self.path, self.reader = path, reader
        reader.make(path)
        files = sorted(file for file in path.glob(reader.files) if file.is_file())
        self.contents = {file: file.read_bytes() for file in files}

    @contextlib.contextmanager
    def forged(self, number, is_parsed, edits):
        file = [*self.contents][number % len(self.contents)]
        file.write_bytes(forge(file.name, self.contents[file], is_parsed, edits))
        try:
            yield file.name
        finally:
            file.write_bytes(self.contents[file])


class Worker:
    """A process that reads a folder whenever it is asked, begun again if it dies."""

    def __init__(self):
        self.process = None

    def attempt(self, name, path):
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.forged.worker"], cwd=ROOT, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            assert self.process.stdout.readline() == "ready\n"
        self.process.stdin.write(f"{name}\t{path}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().rstrip("\n")
        if not answer:
            code = self.process.wait()
            self.close()
            return f"{DEATH}, exit code {code}"
        return answer

    def close(self):
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait(60)
            self.process.stdout.close()
            self.process = None


@pytest.fixture(scope="module")
def worker():
    """One process for all readers: each takes seconds to import TensorFlow."""
    worker = Worker()
    yield worker
    worker.close()


def check(name, path, count, worker):
    """Has a reader read `count` forged files; returns how often each thing came out."""
    reader = READERS[name]
    folder = Folder(path, reader)
    outcomes, examples = collections.Counter(), {}

    def read():
        return worker.attempt(name, path) if reader.is_foreign else attempt(reader, path)

    @settings(
        max_examples=count, derandomize=True, database=None, deadline=None,
        phases=[Phase.generate], suppress_health_check=[*HealthCheck],
    )  # fmt: skip
    @given(forgeries())
    def draw(forgery):
        with folder.forged(*forgery) as file:
            outcome = read()
        kind = outcome if outcome in ("read", "refused") else f"{file}: {outcome.split(':')[0]}"
        outcomes[kind] += 1
        examples.setdefault(kind, (outcome, forgery))

    assert read() == "read"
    draw()
    return outcomes, {kind: e for kind, e in examples.items() if kind not in ("read", "refused")}


@pytest.mark.parametrize("name", [name for name in PARSERS if not READERS[name].is_foreign])
def test_a_forged_file_is_read_or_refused_in_one_line(name, tmp_path, worker):
    outcomes, wrong = check(name, tmp_path, 50, worker)
    assert not wrong and outcomes["refused"] > 9, wrong


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SentencePiece", "model.keras", "SavedModel"])
def test_a_forged_file_does_not_end_a_process_that_reads_it_with_foreign_code(
    name, tmp_path, worker
):
    outcomes, wrong = check(name, tmp_path, 30, worker)
    assert not wrong and outcomes["refused"] > 3, wrong


@pytest.mark.soak
@pytest.mark.parametrize("name", READERS)
def test_thousands_of_forged_files_are_read_or_refused_in_one_line(name, tmp_path, worker):
    count = 100 if name in MODELS else 2000
    outcomes, wrong = check(name, tmp_path, count, worker)
    print(name, dict(outcomes))
    assert not wrong and outcomes["refused"] > outcomes.total() // 20, wrong
