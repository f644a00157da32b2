"""What all tests share: the same random numbers each time, and the public data."""

import collections
import gc
import gzip
import itertools
import os
import pathlib
import resource
import shutil
import subprocess
import sys

import filelock
import keras
import pytest

collect_ignore = ["convert/record_opennmt.py"]  # a script for an environment of its own

# Files of minutes, begun first: two processes take one file after the other.
LONG = (
    "layers/test_backends.py", "train/test_on_jax.py", "train/test_workers.py",
    "training/test_replicas.py", "training/test_on_jax.py",
)  # fmt: skip

# Tests run only when `-m` names their tier: the first of these that they are marked with.
TIERS = ("soak", "oracle", "slow")


def pytest_addoption(parser):
    parser.addoption("--few-cases", action="store_true", help="only the last case of each test")
    parser.addoption(
        "--eighth", type=int, metavar="N", help="of `soak` every eighth test, from N modulo 8"
    )


def pytest_report_header(config):
    eighth = config.getoption("eighth")
    return None if eighth is None else f"soak: every eighth test, from number {eighth % 8}"


def last_cases(items):
    """Of each test with parameters its last case."""
    return {item.nodeid.partition("[")[0]: item for item in items}.values()


def is_asked_for(item, expression):
    """Whether the value of `-m` names the tier of a test, if it has one."""
    return next(filter(item.get_closest_marker, TIERS), "") in expression


def other_eighths(items, number):
    """The tests of `soak` that are not in its eighth of a number."""
    soak = [item for item in items if item.get_closest_marker("soak")]
    return [item for index, item in enumerate(soak) if (index - number) % 8]


@pytest.hookimpl(trylast=True)  # after -m and -k, so that one case is left of what they choose
def pytest_collection_modifyitems(config, items):
    """Begins with the long files, and leaves out the tests of tiers that `-m` does not name."""
    items.sort(key=lambda item: not str(item.path).endswith(LONG))
    asked = config.getoption("markexpr")
    left_out = {item for item in items if not is_asked_for(item, asked)}
    if config.getoption("eighth") is not None:
        left_out.update(other_eighths(items, config.getoption("eighth")))
    if config.getoption("few_cases"):
        asked_for = [item for item in items if item not in left_out]
        left_out.update(set(asked_for) - set(last_cases(asked_for)))
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]
    gc.freeze()  # what has been imported stays


# pytest.importorskip's of a module that is missing, or too old, and that of the tests of pages.
MISSING = ("could not import", "required is:", "needs Chromium")


def fail_if_missing(report):
    """Where CI says so, has a test fail that was skipped because something is not installed."""
    if "KERAS_TRANSFORMER_COMPLETE" in os.environ and report.skipped:  # .ci/run sets it
        reason = str(report.longrepr)
        if any(words in reason for words in MISSING):
            report.outcome = "failed"
            report.longrepr = (
                "Skipped where nothing may be skipped for what is missing. Add it to an extra "
                f"of setup.py that .ci/run installs, or mark the test `oracle`. Received: {reason}"
            )


def cpu_seconds():
    """Of this process and of those that it started and waited for."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


CPU_SECONDS = pytest.StashKey()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    item.stash[CPU_SECONDS] = cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    fail_if_missing(report)
    if call.when == "teardown":
        report.user_properties.append(("cpu_seconds", cpu_seconds() - item.stash[CPU_SECONDS]))
    return report


def pytest_terminal_summary(terminalreporter):
    """Prints the slowest files, and the tests that take more than 20 CPU seconds."""
    files, tests = collections.Counter(), []
    for report in itertools.chain(*terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            files[report.nodeid.partition("::")[0]] += report.duration
            cpu = dict(report.user_properties).get("cpu_seconds", 0)
            tests += [(cpu, report.nodeid)] * (cpu > 20)
    terminalreporter.section(f"{sum(files.values()):.0f} seconds of tests, by file")
    for file, seconds in files.most_common(20):
        terminalreporter.line(f"{seconds:7.1f} {file}")
    terminalreporter.section("tests of more than 20 CPU seconds, shared fixtures included")
    for seconds, test in sorted(tests, reverse=True):
        terminalreporter.line(f"{seconds:7.1f} {test}")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    if isinstance(collector, pytest.Module):  # whose marks are unknown if it stopped at its imports
        text, asked = collector.path.read_text("utf-8"), collector.config.getoption("markexpr")
        if not any(f"mark.{tier}" in text for tier in ("soak", "oracle") if tier not in asked):
            fail_if_missing(report)
    return report


@pytest.fixture(autouse=True)
def same_random_numbers():
    keras.utils.set_random_seed(7)


@pytest.fixture(autouse=True)
def no_jax_beside_tensorflow():
    """Fails the test that computes on JAX in TensorFlow's process, where later ones fork.

    JAX warns of each fork from then on, so that a test far behind would fail.
    """
    yield
    bridge = sys.modules.get("jax._src.xla_bridge")
    if keras.backend.backend() == "tensorflow" and bridge and bridge.backends_are_initialized():
        pytest.fail("JAX computed in TensorFlow's process: run it in one of its own.")


@pytest.fixture(scope="session")
def made_once(tmp_path_factory, request):
    """`made_once(name, make)` is the folder that `make(folder)` fills, once for both processes.

    A test that changes what is in it copies it first.
    """
    root = tmp_path_factory.getbasetemp()
    root = root.parent if hasattr(request.config, "workerinput") else root

    def made(name, make):
        folder, done = root / "made" / name, root / "made" / f"{name}.done"
        folder.parent.mkdir(exist_ok=True)
        with filelock.FileLock(f"{folder}.lock"):
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)  # of a process in which it failed
                folder.mkdir()
                make(folder)
                done.touch()
        return folder

    return made


@pytest.fixture(scope="session")
def small_pictures():
    """Most of the time of drawing a run's attention is that of its tokens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("train.pictures.LONGEST", 5)
        yield


def leave_results_untold(patch):
    for name in ("classification.Classification", "language_model.LanguageModel",
                 "pretraining.Pretraining", "translation.Translation"):  # fmt: skip
        patch.setattr(f"train.{name}Experiment.show_result", lambda self, run: None)


@pytest.fixture
def untold_results(monkeypatch):
    """Trainings of this process end without pictures and scores, which take as long as they do."""
    leave_results_untold(monkeypatch)


def leave_exports_unchecked(patch):
    patch.setattr("keras_transformer.serving.publishing.export.validate", lambda *_: None)


@pytest.fixture
def unchecked_exports(monkeypatch):
    """Exports of this process are not checked by a fresh one: the test asks one itself."""
    leave_exports_unchecked(monkeypatch)


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A folder with parallel text: multi30k/{train,val}.{en,de}.gz and tatoeba/eng-fra-5000.tsv.

    Generated sentences, with few words and clean spelling. KERAS_TRANSFORMER_DATA names a folder
    with the public corpora instead: with these the tests show the same of rare characters,
    misspellings and sentences of all lengths.
    """
    if "KERAS_TRANSFORMER_DATA" in os.environ:
        return pathlib.Path(os.environ["KERAS_TRANSFORMER_DATA"])
    from train.demo.corpus import demo_corpus  # needs TensorFlow, which many tests do without

    folder = tmp_path_factory.mktemp("data")
    (folder / "multi30k").mkdir()
    (folder / "tatoeba").mkdir()
    corpus = demo_corpus(5000)
    for name, start, stop in (("val", 0, 1014), ("train", 1014, 5000)):
        for language, side in (("en", corpus.sources), ("de", corpus.targets)):
            with gzip.open(
                folder / "multi30k" / f"{name}.{language}.gz", "wt", encoding="utf-8"
            ) as f:
                f.write("\n".join(side[start:stop]) + "\n")
    pairs = zip(*corpus, strict=True)
    lines = "".join(f"{source}\t{target}\n" for source, target in pairs)
    (folder / "tatoeba" / "eng-fra-5000.tsv").write_text(lines, "utf-8")
    return folder


@pytest.fixture
def small_disk(tmp_path):
    """An empty disk of 1.5 MB, if this process may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", disk]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a disk")
    yield disk
    gc.collect()  # of runs whose files are mapped into memory
    # Also of a test that failed, whose traceback holds its files.
    subprocess.run(["umount", "-l", disk], check=True)
