"""The benchmark of a GPU, on a CPU, in processes that cannot import TensorFlow."""

import contextlib
import functools
import importlib.util
import json
import logging
import multiprocessing
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import time
import types

import numpy as np
import pytest

from train.benchmark import __main__ as benchmark
from train.benchmark import collect, command, device, report
from train.benchmark.engines import SIZES, Engine, NoDevice, Workload, name_of_gpu
from train.benchmark.exactness import largest_difference
from train.benchmark.minutes import Measure, compared, one_by_one, timed
from train.benchmark.on_jax import kernels, summed
from train.benchmark.tables import engine_table, kernel_table, report_table

REPOSITORY = pathlib.Path(__file__).parents[2]
TOY = ["--backend=jax", "--device=cpu", "--toy", "--threads=1"]
EARLIER = {"table": "earlier", "engines": [{"name": "fact", "holds": True}], "marks": []}
WORKLOAD = Workload(SIZES["toy"], "float32", 3, threads=1)
LOG = "LOG_OF_ENGINES"


def note(text):
    with pathlib.Path(os.environ[LOG]).open("a") as file:
        file.write(f"{text}\n")


def engine(workload, name, compiling=0.0, details=tuple):
    """One that notes when it uses the device."""
    note(f"{name} built")

    def prepare():
        note(f"{name} begins")
        time.sleep(compiling)

    def finish(unit):
        note(f"{name} works")
        return unit

    return Engine(name, lambda: 1.5, 5, finish, prepare, details)


def engine_of_a_missing_package(workload):
    import no_such_package

    return no_such_package


def engine_that_dies(workload):
    os.write(2, b"the driver's last words\n")
    os._exit(7)


def details_that_fail():
    yield {"peak_bytes": 7}
    raise RuntimeError("no profiler\nand more")


def fact(workload):
    note("fact built")
    return lambda: {"holds": True}


def measured(works, tmp_path, minutes=2.0, shares=None, used=0.0):
    """The finished rows of `one_by_one`, by label."""
    environment = {LOG: str(tmp_path / "log")}
    measures = [
        Measure(None, label, work, environment, (shares or {}).get(label, 1.0))
        for label, work in works.items()
    ]
    news = one_by_one(measures, time.monotonic() - used, minutes)
    return {measure.label: row for measure, row in news if "doing" not in row}


def of(build, *arguments, **others):
    return functools.partial(timed, functools.partial(build, *arguments, **others), WORKLOAD)


def named(name, **others):
    return of(engine, name=name, **others)


def test_engines_start_ahead_but_use_the_device_one_after_another(tmp_path):
    rows = measured({name: named(name) for name in "abc"}, tmp_path)
    assert [row["result"] for row in rows.values()] == [1.5] * 3
    assert all(len(row["seconds"]) == 4 and row["parameters"] == 5 for row in rows.values())
    assert all(row["unavailable"] is row["afterwards"] is None for row in rows.values())
    log = (tmp_path / "log").read_text().split("\n")
    used = [line[0] for line in log if line.endswith(("begins", "works"))]
    assert used == sorted(used) and len(used) > 3 * (1 + 2 + 4)
    assert log.index("b built") < log.index("c begins"), "while the one before works"


def test_what_is_missing_fails_or_takes_too_long_is_said_and_the_others_go_on(tmp_path):
    works = {
        "missing": of(engine_of_a_missing_package),
        "dies": of(engine_that_dies),
        "slow": named("slow", compiling=600.0),
        "unlooked at": named("unlooked at", details=details_that_fail),
        "fact": functools.partial(compared, fact, WORKLOAD),
        "well": named("well"),
    }
    rows = measured(works, tmp_path, shares={"slow": 0.02})
    assert rows["missing"]["unavailable"] == "skipped: no_such_package is not installed"
    assert rows["missing"]["lacks"] == "no_such_package"
    assert rows["dies"]["unavailable"] == "failed: its process ended with exit code 7"
    assert rows["dies"]["details_of_failure"] == "the driver's last words\n"
    assert re.fullmatch("stopped after [23] s, while compiling", rows["slow"]["unavailable"])
    after = rows["unlooked at"]
    assert after["seconds"] and after["peak_bytes"] == 7, "what was measured stays"
    assert after["afterwards"] == "failed: RuntimeError: no profiler"
    assert "in details_that_fail" in after["details_of_failure"]
    assert rows["fact"]["holds"] and not rows["fact"]["unavailable"]
    assert rows["well"]["seconds"]


def test_the_minutes_end_for_what_runs_and_for_what_would_follow(tmp_path):
    works = {"slow": named("slow", compiling=600.0), "next": named("next"), "last": named("last")}
    rows = measured(works, tmp_path, minutes=10.0, used=600.0 - 4.0)
    assert re.fullmatch("stopped after 4 s, while compiling", rows["slow"]["unavailable"])
    assert rows["next"]["unavailable"] == "left out: 10 minutes were over"
    assert rows["last"]["unavailable"] == "left out: 10 minutes were over"


def test_what_is_stopped_has_ended_when_the_next_may_use_the_device(tmp_path):
    environment = {LOG: str(tmp_path / "log")}
    measures = [
        Measure(None, "slow", named("slow", compiling=600.0), environment, 0.01),
        Measure(None, "next", named("next"), environment, 1.0),
    ]
    with contextlib.closing(one_by_one(measures, time.monotonic(), 2.0)) as news:
        assert any("doing" not in row for _, row in news)
        assert len(multiprocessing.active_children()) == 1
    assert not multiprocessing.active_children()


def test_rows_are_told_before_their_details(tmp_path):
    environment = {LOG: str(tmp_path / "log")}
    measure = Measure(None, "a", named("a", details=details_that_fail), environment, 1.0)
    told = [dict(row) for _, row in one_by_one([measure], time.monotonic(), 2.0)]
    first = next(row for row in told if row["seconds"])
    assert first["doing"] == "tracing its kernels" and "peak_bytes" not in first


@pytest.fixture
def environment(tmp_path):
    """Variables of a process, and of those that it starts, without TensorFlow and PyTorch."""
    # Not above, for it imports Keras, which the engines of this file do without.
    from tests.layers.test_backends import HIDE_TENSORFLOW

    hidden = HIDE_TENSORFLOW.replace('"tensorflow_text"', '"tensorflow_text", "torch"')
    (tmp_path / "sitecustomize.py").write_text(hidden)
    path = os.pathsep.join([str(tmp_path), str(REPOSITORY)])
    return {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}


def started(environment, *flags):
    command = [sys.executable, "-m", "train.benchmark", *TOY, *flags]
    return subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


@pytest.mark.slow
def test_a_run_measures_all_without_tensorflow_and_keeps_programs(environment, tmp_path):
    output = tmp_path / "device.json"
    output.write_text(json.dumps({"runs": [{"measurements": [EARLIER]}]}))
    environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    said, errors = started(environment, "--minutes=30", f"--json={output}").communicate()
    assert errors.count("\n") == 1 and "was measured but what needs torch, which is" in errors
    earlier, run = json.loads(output.read_text())["runs"]
    assert earlier == {"measurements": [EARLIER]}
    base, exact, big, long = (each["engines"] for each in run["measurements"])
    ours, hub, torch = base
    assert ours["operations"] > 0 and ours["bytes_moved"] > 0 and ours["seconds_to_compile"] > 0
    assert hub["unavailable"] is None and hub["parameters"] == ours["parameters"]
    assert abs(hub["result"] - ours["result"]) < 1.5, "losses of random models, near log(50)"
    assert torch["unavailable"] == "skipped: torch is not installed"
    assert [row["holds"] for row in exact] == [True, True]
    assert len(big) == 1 and big[0]["result"] == ours["result"], "the same toy"
    chunks, dense = long  # cuDNN's kernel is measured on GPUs only
    assert abs(dense["result"] - chunks["result"]) < 1e-4
    lines, all_of_it = said.split("\n\n")
    assert lines.count(" s  ") == 8 and "resumed, deterministic: yes" in lines
    assert all_of_it.count("train-base, bfloat16: keras_transformer, JAX") == 1
    names = [path.name for path in (tmp_path / "jax-cache").iterdir()]
    assert any(name.startswith("jit_train_step-") for name in names)


@pytest.mark.slow
def test_a_run_that_is_killed_leaves_what_it_measured(environment, tmp_path):
    output = tmp_path / "device.json"
    process = started(environment, f"--json={output}")
    while not rows_of(output):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()  # which its own processes keep open until they, too, have ended
    rows = rows_of(output)
    assert len(rows) < 4 and all(row["seconds"] for row in rows)


def rows_of(output):
    if not output.exists():
        return []
    [run] = json.loads(output.read_text())["runs"]
    return [row for each in run["measurements"] for row in each["engines"]]


def test_minutes_count_from_the_start_of_the_process(tmp_path, capsys):
    output = tmp_path / "device.json"
    with pytest.raises(SystemExit) as stopped:
        benchmark.main([*TOY, f"--json={output}"], time.monotonic() - 240.0)
    assert stopped.value.code == 0
    rows = rows_of(output)
    assert len(rows) == 8
    assert {row["unavailable"] for row in rows} == {"left out: 4 minutes were over"}
    assert "240 s  train-base, bfloat16: keras_transformer: left out" in capsys.readouterr().out


@pytest.fixture
def rows(monkeypatch):
    """Sets the rows that a run measures: by label, or for all of a table."""

    def set_rows(**by_table):
        def told(measures, begun, minutes):
            seen = {}
            for measure in measures:
                name = measure.table.name.split(",")[0].replace("-", "_")
                place = seen[name] = seen.get(name, -1) + 1
                row = {"name": measure.label, "unavailable": "left out", "seconds": []}
                given = by_table.get(name, ())
                row |= given[place] if place < len(given) else {}
                yield measure, {**row, "unavailable": None, "seconds": [], "doing": "compiling"}
                yield measure, row

        monkeypatch.setattr(device, "one_by_one", told)

    return set_rows


TIMES = {"unavailable": None, "seconds_to_start": 3.0, "seconds_to_compile": 30.0}
OURS = {**TIMES, "name": "keras_transformer, JAX", "seconds": [0.01]}
HUB = {**TIMES, "name": "KerasHub 0.32.0 layers, JAX", "seconds": [0.016]}
TORCH = {**TIMES, "name": "PyTorch 2.11.0 nn.Transformer", "seconds": [0.009]}


@pytest.mark.parametrize(
    ("row", "status"),
    [
        ({"unavailable": "failed: RuntimeError: no memory"}, 1),
        ({**OURS, "afterwards": "failed: RuntimeError: no profiler"}, 1),
        ({"unavailable": "stopped after 3 s, while compiling"}, 0),
    ],
)
def test_the_exit_code_says_whether_ours_failed(row, status, rows, tmp_path):
    rows(train_base=[row, {"unavailable": "failed: RuntimeError: theirs"}])
    assert device.run(TOY, time.monotonic()) == status


def test_the_file_is_written_for_each_row(rows, tmp_path, monkeypatch):
    output, counts = tmp_path / "device.json", []

    def save(path, runs):
        report.save(path, runs)
        counts.append(len(rows_of(path)))

    rows(train_base=[OURS])
    monkeypatch.setattr(device, "save", save)
    assert device.run([*TOY, f"--json={output}"], time.monotonic()) == 0
    assert counts == list(range(1, 9))


def test_a_wrong_number_is_a_failure(rows, capsys):
    rows(exact=[{"unavailable": None, "holds": False, "largest_difference": 0.5}])
    assert device.run(TOY, time.monotonic()) == 1
    assert "CPU = device: NO" in capsys.readouterr().out


def test_a_package_that_was_not_carried_is_named_after_everything_else(rows, capsys):
    missing = {"unavailable": "skipped: keras_hub is not installed", "lacks": "keras_hub"}
    rows(train_base=[OURS, missing])
    with pytest.raises(SystemExit) as stopped:
        benchmark.main(TOY)
    said = capsys.readouterr()
    assert stopped.value.code == 2 and said.err.count("\n") == 1
    assert "error: Everything was measured but what needs keras_hub, which is not inst" in said.err
    assert "train-base, bfloat16: keras_transformer, JAX" in said.out.split("\n\n")[1]


def test_a_gpu_that_jax_does_not_use_is_said_in_one_line(on_gpu, tmp_path, capsys):
    lost = {**TORCH, "has_no_device": True, "trouble": "failed: NoDevice: the driver is too old"}
    with pytest.raises(ValueError, match=r"on NVIDIA H200: failed: NoDevice: the driver is too"):
        on_gpu("NVIDIA H200", tmp_path, train_base=[OURS, HUB, lost])
    assert [row["seconds"] for row in rows_of(tmp_path / "device.json")] == [[0.01], [0.016]]


def test_a_full_disk_is_said_in_one_line_and_what_was_written_stays(rows, tmp_path, capsys):
    output = tmp_path / "device.json"
    rows(train_base=[OURS])
    before = json.dumps({"runs": [{"measurements": [EARLIER]}]})
    output.write_text(before)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, limits[1]))
    try:
        with pytest.raises(SystemExit) as stopped:
            benchmark.main([*TOY, f"--json={output}"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and error.count("\n") == 1
    assert f"{output} could not be written: File too large." in error
    assert output.read_text() == before and os.listdir(tmp_path) == ["device.json"]


def refused(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        benchmark.main(arguments)
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and said.count("\n") == 1
    return said


@pytest.mark.parametrize(
    "content",
    [
        b"my notes", b"\xff\xfe", b'{"machine": {}, "training": []}', b'{"runs": 5}',
        b'{"runs": [{"part": "old"}]}', b'{"runs": [{"measureme',
    ],
)  # fmt: skip
def test_a_file_that_is_no_report_or_damaged_is_left_alone(content, tmp_path, capsys):
    output = tmp_path / "notes.json"
    output.write_bytes(content)
    assert "is not a report of this version" in refused([*TOY, f"--json={output}"], capsys)
    assert output.read_bytes() == content


@pytest.mark.parametrize("flags", [[], ["--gpu=H100"], ["--device=gpu"]])
def test_a_machine_without_the_gpu_keeps_what_was_measured(flags, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    output = tmp_path / "device.json"
    output.write_text(json.dumps({"runs": [{"measurements": [EARLIER]}]}))
    before = output.read_text()
    error = refused(["--backend=jax", "--minutes=4", *flags, f"--json={output}"], capsys)
    assert "needs an NVIDIA GPU" in error and "Received: none" in error
    assert output.read_text() == before


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--minutes=0"], "--minutes: must be a number above zero. Received: 0"),
        (["--minutes=nan"], "--minutes: must be a number above zero. Received: nan"),
        (["--minutes=soon"], "--minutes: must be a number above zero. Received: soon"),
        (["--part", "exact"], "unrecognized arguments: --part exact"),
        (["--json=no/such/folder/out.json"], "there is no folder no/such/folder"),
        (["--gpu=H100"], "--device cpu measures CPUs. Received: --gpu H100"),
    ],
)
def test_wrong_options_are_told_before_anything_runs(flags, message, capsys):
    assert message in refused([*TOY, *flags], capsys)


def test_a_machine_without_what_was_carried_is_told_which_packages_are_missing():
    """-S: none of the installed packages is found."""
    arguments = ["-S", "-m", "train.benchmark", "--backend=jax"]
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "not here: numpy, keras, h5py, rich, filelock, yaml, pydantic. Ins" in done.stderr


def test_a_backend_that_is_not_installed_is_refused(capsys, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "jax" else find_spec(name)
    )
    assert "--backend jax needs jax, which is not installed" in refused(TOY, capsys)


def test_wheels_are_collected_up_to_a_size_with_the_checkout(tmp_path, monkeypatch):
    fake = tmp_path / "pip.py"
    fake.write_text(
        "import pathlib, sys\n"
        "[folder] = [each[7:] for each in sys.argv if each.startswith('--dest=')]\n"
        "name = f'{len(sys.argv)}.whl'\n"
        f"pathlib.Path(folder, name).write_bytes(bytes({2**20}))\n"
    )
    pip = [sys.executable, str(fake)]
    monkeypatch.setattr(collect, "checkout", list)
    assert collect.collect(tmp_path, pip=pip) == (2, 2.0), "one of each call"
    large = tmp_path / "source"
    with large.open("wb") as file:
        file.truncate(62 * 2**20 + 2**19)
    monkeypatch.setattr(collect, "checkout", lambda: [large])
    with pytest.raises(ValueError, match=r"not be larger than 64 MiB.*Received: 64\.5 MiB"):
        collect.collect(tmp_path, pip=pip)


@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="is not a checkout")
def test_the_checkout_is_what_git_does_not_ignore():
    files = {path.relative_to(REPOSITORY) for path in collect.checkout()}
    assert {pathlib.Path("setup.py"), pathlib.Path("train/benchmark/collect.py")} < files
    assert not any(path.parts[0] == ".git" for path in files)


def test_what_pip_does_not_find_is_told_in_one_line(tmp_path, capsys, monkeypatch):
    fake = tmp_path / "pip.py"
    fake.write_text("import sys\nsys.exit('note\\nERROR: No matching distribution found for h5py')")
    with pytest.raises(ValueError, match=r"for Python 3.99. Received: ERROR: No match.* for h5py$"):
        collect.collect(tmp_path, "3.99", [sys.executable, str(fake)])


def test_versions_that_are_collected_are_those_that_the_library_supports():
    setup = (REPOSITORY / "setup.py").read_text("utf-8")
    packages = collect.WITHOUT_REQUIREMENTS + collect.WITH_REQUIREMENTS
    bounded = [each for each in packages if "<" in each]
    assert len(bounded) > 4 and not [each for each in bounded if f'"{each}"' not in setup]


@pytest.mark.parametrize(
    ("sees", "flags", "message"),
    [
        (None, ["--device=gpu"], "--device gpu needs an NVIDIA GPU.*Received: none"),
        ("", ["--device=gpu"], r"Received: NVIDIA GPUs that jax does not see \(1\)"),
        ("NVIDIA T4", ["--gpu=H100"], "--gpu H100 needs.*Received: NVIDIA T4"),
        (
            RuntimeError("CUDA driver is too old\nfor this"),
            ["--gpu=H100"],
            r"see \(1\): CUDA driver is t",
        ),
    ],
)
def test_another_device_than_asked_for_is_refused(sees, flags, message, monkeypatch, capsys):
    def in_process(*_):
        if isinstance(sees, Exception):
            raise sees
        return sees

    monkeypatch.setattr(command, "visible_gpus", lambda *_: [] if sees is None else ["0"])
    monkeypatch.setattr(command, "in_process", in_process)
    assert re.search(message, refused(["--backend=jax", *flags], capsys))


def test_kernels_are_summed_by_name_and_overlapping_ones_are_busy_once():
    ms = 1_000_000
    events = [(0, 4 * ms, "a"), (2 * ms, 4 * ms, "b"), (10 * ms, 2 * ms, "a"), (3 * ms, ms, "c")]
    assert summed(events, steps=2) == {
        "busy_ms": 4.0,
        "span_ms": 6.0,
        "by_name": [("a", 3.0, 1.0), ("b", 2.0, 0.5), ("c", 0.5, 0.5)],
    }
    assert summed([], steps=2) == {}


def test_a_profiler_that_fails_costs_no_measurement(monkeypatch):
    def finish(_):
        raise RuntimeError("no permission\nat all")

    # JAX's own profiler would begin its computation in this process, which forks.
    profiler = types.SimpleNamespace(trace=contextlib.nullcontext)
    monkeypatch.setitem(sys.modules, "jax", types.SimpleNamespace(profiler=profiler))
    row = {"kernels": kernels(lambda: None, finish), "name": "ours", "seconds": [0.5]}
    assert row["kernels"] == {"failed": "RuntimeError: no permission"}
    assert kernel_table(row)[-1] == "No kernels: the profiler failed. RuntimeError: no permission"
    assert engine_table([row])[1].split() == ["ours", "500.00"]


def test_jax_says_why_it_sees_no_gpu(monkeypatch):
    def devices():
        try:
            raise RuntimeError("CUDA driver version is insufficient")
        except RuntimeError:
            logging.getLogger("jax._src.xla_bridge").exception("Jax plugin configuration error")
        return [types.SimpleNamespace(platform="cpu")]

    monkeypatch.setitem(sys.modules, "jax", types.SimpleNamespace(devices=devices))
    with pytest.raises(NoDevice, match=r"^CUDA driver version is insufficient$"):
        name_of_gpu(Workload(None, "", 1, 1, "gpu", backend="jax"))


@pytest.fixture
def on_gpu(rows, monkeypatch, capsys):
    """Runs as on a GPU with rows that were measured; returns the report and what was printed."""

    def run_on(gpu, tmp_path, **by_table):
        rows(**by_table)
        monkeypatch.setattr(command, "choose_device", lambda *_: ("gpu", gpu))
        monkeypatch.setattr(device, "visible_gpus", lambda *_: ["0"])
        output = tmp_path / "device.json"
        assert device.run(["--backend=jax", f"--json={output}"], time.monotonic()) == 0
        *_, run = json.loads(output.read_text())["runs"]
        return {each["table"]: each for each in run["measurements"]}, capsys.readouterr().out

    return run_on


def test_what_a_gpu_should_reach_stands_in_the_table(on_gpu, tmp_path):
    moved = {**OURS, "bytes_moved": 4.8e9, "peak_bytes": 2**31, "result": 5.0}
    big = {**OURS, "seconds": [0.1]}
    tables, said = on_gpu("NVIDIA H200", tmp_path, train_base=[moved, HUB, TORCH], train_big=[big])
    assert said.split("\n")[-4:-1] == [
        "train-base, bfloat16: mark: 1.60 times as fast as KerasHub, at least 1.5: reached",
        "train-base, bfloat16: mark: 0.90 times as fast as PyTorch, at least 1.0: MISSED",
        "train-big, bfloat16: mark: 81,920.00 target tokens a second, at least 120,000: MISSED",
    ]
    [line] = [line for line in said.split("\n") if line.startswith("train-base, bfloat16: keras")]
    assert {"819,200", "10.00", "1.00", "2.00", "3.0", "30.0", "5.0000"} <= set(line.split())
    row = tables["train-base, bfloat16"]["engines"][0]
    assert row["share_of_peak"] == pytest.approx(row["gflops"] * 1e9 / 989e12)
    assert "cuDNN's kernel" in [row["name"] for row in tables["long, bfloat16"]["engines"]]


def test_marks_that_nothing_was_measured_for_say_so(on_gpu, tmp_path):
    _, said = on_gpu("NVIDIA H100 80GB HBM3", tmp_path, train_base=[OURS])
    assert "mark: times as fast as PyTorch, at least 1.0: not measured" in said
    assert "mark: target tokens a second, at least 120,000: not measured" in said


@pytest.mark.parametrize("gpu", ["NVIDIA A100", "NVIDIA H100 PCIe", "NVIDIA GH200 480GB"])
def test_other_gpus_have_no_marks(gpu, on_gpu, tmp_path):
    moved = {**OURS, "bytes_moved": 1e9}
    tables, said = on_gpu(gpu, tmp_path, train_base=[moved, HUB, TORCH])
    assert "mark" not in said and "bound_ms" not in tables["train-base, bfloat16"]["engines"][0]


def test_what_is_measured_first_is_worth_the_most():
    options = types.SimpleNamespace(device="gpu", toy=False, threads=1, json=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device, "visible_gpus", lambda *_: ["3"])
        patch.setenv("XLA_FLAGS", "--xla_of_the_user")
        measures = device.measures_of(options)
    assert [(measure.table.name, measure.label.split()[0]) for measure in measures] == [
        ("train-base, bfloat16", "keras_transformer"), ("train-base, bfloat16", "KerasHub"),
        ("train-base, bfloat16", "PyTorch"), ("exact", "loss"),
        ("train-big, bfloat16", "keras_transformer"), ("long, bfloat16", "cuDNN's"),
        ("long, bfloat16", "in"), ("long, bfloat16", "all"), ("exact", "trained"),
    ]  # fmt: skip
    assert {measure.environment["CUDA_VISIBLE_DEVICES"] for measure in measures} == {"3"}
    assert measures[0].table.size.batch_size == 256 and measures[5].table.size.length == 4096
    assert {measure.environment["XLA_FLAGS"] for measure in measures[:-1]} == {"--xla_of_the_user"}
    flags = measures[-1].environment["XLA_FLAGS"].split(" ")
    assert flags == ["--xla_of_the_user", "--xla_gpu_deterministic_ops=true"]


def test_jax_keeps_its_programs_beside_the_report_unless_it_was_told_where(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    cache = device.cache_of(pathlib.Path("out.json"))
    assert cache["JAX_COMPILATION_CACHE_DIR"] == str(tmp_path / "jax-cache")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "elsewhere")
    assert "JAX_COMPILATION_CACHE_DIR" not in device.cache_of(pathlib.Path("out.json"))
    assert device.cache_of(None) == {}


def test_gradients_that_are_no_numbers_differ():
    ones, bad = np.ones(3), np.array([1.0, np.nan, 1.0])
    assert largest_difference([ones, ones], [ones, ones]) == 0.0
    assert np.isnan(largest_difference([ones, ones], [ones, bad]))


def test_runs_on_another_device_are_no_rows_of_the_last_ones_table():
    def run(gpu, name):
        row = {"name": name, "seconds": [0.01]}
        measured = {"table": "long, bfloat16", "engines": [row], "marks": []}
        return {"machine": {"gpu": gpu, "processor": "x"}, "measurements": [measured]}

    runs = [run("H100", "first"), run(None, "check"), run("H100", "second")]
    text = "\n".join(report_table(runs))
    assert "second" in text and "check" not in text and "first" not in text
    assert "check" in "\n".join(report_table(runs[:2]))


def test_of_what_was_measured_twice_the_last_counts(on_gpu, tmp_path):
    on_gpu("NVIDIA H200", tmp_path, train_base=[{**OURS, "seconds": [0.02]}, HUB])
    _, said = on_gpu("NVIDIA H200", tmp_path, train_base=[{**OURS, "seconds": [0.008]}, HUB])
    lines = [line.split("  ") for line in said.split("\n\n")[-1].split("\n")]
    words = [[word.strip() for word in line if word] for line in lines]
    assert words[0][:4] == ["engine", "tokens/s", "ms", "first faster by"]
    assert words[1][:3] == [f"train-base, bfloat16: {OURS['name']}", "1,024,000", "8.00"]
    assert words[2][2:4] == ["16.00", "2.00 (2.00-2.00)"]


def test_a_report_is_on_the_disk_when_it_is_saved(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(report.os, "fsync", lambda handle: flushed.append(os.fstat(handle).st_size))
    report.save(tmp_path / "out.json", [])
    assert flushed == [(tmp_path / "out.json").stat().st_size]
