"""The benchmark on JAX, on a CPU, in processes that cannot import TensorFlow."""

import contextlib
import importlib.util
import json
import logging
import os
import pathlib
import re
import subprocess
import sys
import types

import numpy as np
import pytest

from tests.layers.test_backends import HIDE_TENSORFLOW
from train.benchmark import collect, command, parts
from train.benchmark.engines import Workload, name_of_gpu
from train.benchmark.exactness import largest_difference
from train.benchmark.on_jax import kernels, summed
from train.benchmark.tables import compare, engine_table, kernel_table, mark_lines, report_table

REPOSITORY = pathlib.Path(__file__).parents[2]
TOY = ["--backend=jax", "--device=cpu", "--part=all", "--toy", "--decode-batch=2"]
TOY += ["--dtype=float32", "--repeats=1", "--steps=1", "--threads=1"]
EARLIER = {"table": "exact", "engines": [{"name": "fact", "holds": True}], "marks": []}


@pytest.fixture
def environment(tmp_path):
    """Variables of a process, and of those that it starts, without TensorFlow."""
    (tmp_path / "sitecustomize.py").write_text(HIDE_TENSORFLOW)
    path = os.pathsep.join([str(tmp_path), str(REPOSITORY)])
    return {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}


@pytest.mark.soak
def test_all_parts_run_without_tensorflow_and_are_appended_to_a_report(environment, tmp_path):
    output = tmp_path / "device.json"
    output.write_text(json.dumps({"runs": [{"measurements": [EARLIER]}]}))
    command = [sys.executable, "-m", "train.benchmark", *TOY, f"--json={output}"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    earlier, run = json.loads(output.read_text())["runs"]
    assert earlier == {"measurements": [EARLIER]}
    training, beams, greedy, exact, long = (each["engines"] for each in run["measurements"])
    ours, hub = training[:2]
    assert ours["operations"] > 0 and ours["bytes_moved"] > 0
    assert hub["unavailable"] is None and hub["parameters"] == ours["parameters"]
    assert abs(hub["result"] - ours["result"]) < 1.5, "losses of random models, near log(50)"
    assert beams[0]["result"] == greedy[0]["result"] == 50
    assert all(row["holds"] for row in exact)
    dense, chunks = long  # cuDNN's kernel is measured on GPUs only
    assert abs(dense["result"] - chunks["result"]) < 1e-4
    tables, all_of_it = done.stdout.split(f"All of {output}:")
    assert "ours, beam 1, JAX" in tables and "first faster by" in tables
    assert all_of_it.count("train-toy, float32: keras_transformer, JAX") == 1
    assert "fact" not in all_of_it, "exactness was measured again"


def refused(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.run(arguments)
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


def test_a_machine_without_the_gpu_that_is_asked_for_keeps_what_was_measured(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    output = tmp_path / "device.json"
    output.write_text(json.dumps({"runs": [{"measurements": [EARLIER]}]}))
    before = output.read_text()
    flags = ["--backend=jax", "--gpu=H100", f"--json={output}"]
    assert "--gpu H100 needs an NVIDIA GPU" in refused(flags, capsys)
    assert output.read_text() == before


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


def test_wheels_are_collected_up_to_a_size(tmp_path):
    fake = tmp_path / "pip.py"
    fake.write_text(
        "import pathlib, sys\n"
        "[folder] = [each[7:] for each in sys.argv if each.startswith('--dest=')]\n"
        "name = f'{len(sys.argv)}.whl'\n"
        f"pathlib.Path(folder, name).write_bytes(bytes({2**20}))\n"
    )
    pip = [sys.executable, str(fake)]
    assert collect.collect(tmp_path, pip=pip) == (2, 2.0), "one of each call"
    with (tmp_path / "earlier.whl").open("wb") as file:
        file.truncate(62 * 2**20 + 2**19)
    with pytest.raises(ValueError, match=r"not be larger than 64 MiB.*Received: 64\.5 MiB"):
        collect.collect(tmp_path, pip=pip)


def test_what_pip_does_not_find_is_told_in_one_line(tmp_path, capsys, monkeypatch):
    fake = tmp_path / "pip.py"
    fake.write_text("import sys\nsys.exit('note\\nERROR: No matching distribution found for h5py')")
    with pytest.raises(ValueError, match=r"for Python 3.99. Received: ERROR: No match.* for h5py$"):
        collect.collect(tmp_path, "3.99", [sys.executable, str(fake)])


def test_versions_that_are_collected_are_those_that_the_library_supports():
    setup = (REPOSITORY / "setup.py").read_text("utf-8")
    packages = collect.WITHOUT_REQUIREMENTS + collect.WITH_REQUIREMENTS
    bounded = [each for each in packages if "<" in each]
    assert len(bounded) > 6 and not [each for each in bounded if f'"{each}"' not in setup]


def test_engines_are_compared_with_ours_of_as_many_beams(monkeypatch):
    options = types.SimpleNamespace(
        backend="jax", device="cpu", decode_batch=[2], dtype=["float32"], threads=1, repeats=1,
        steps=1,
    )  # fmt: skip
    row = {"unavailable": None, "seconds": [1.0]}
    monkeypatch.setattr(
        parts, "measure", lambda candidates, *_: [{"name": c.label, **row} for c in candidates]
    )
    tables = list(parts.measure_decoding(options, "toy"))
    for table, beams in zip(tables, (4, 1), strict=True):
        assert f"beam {beams}," in table.name
        assert [r["name"] for r in table.rows] == [
            f"{s}, beam {beams}" for s in ("ours", "Hugging Face")
        ]


def test_ratios_to_another_kernel_of_ours_say_so():
    rows = [{"name": name, "unavailable": None, "seconds": [1.0]} for name in ("dense", "chunks")]
    compare(rows, tokens=1)
    assert "first faster by" in engine_table(rows, first="first")[0]


@pytest.mark.parametrize(
    ("sees", "flags", "message"),
    [
        (None, ["--device=gpu"], "--device gpu needs an NVIDIA GPU.*Received: none"),
        ("", ["--device=gpu"], "Received: 1 NVIDIA GPUs that jax does not see"),
        ("NVIDIA T4", ["--gpu=H100"], "--gpu H100 needs.*Received: NVIDIA T4"),
        (RuntimeError("CUDA driver is too old\nfor this"), ["--gpu=H100"], "see: CUDA driver is t"),
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


def test_parts_of_another_backend_are_refused(capsys):
    assert "--part exact needs another --backend" in refused(["--part=exact"], capsys)
    scaling = ["--backend=jax", "--part", "long", "scaling"]
    assert "--part scaling needs another --backend" in refused(scaling, capsys)


@pytest.mark.parametrize("flag", ["--device=cpu", "--part=scaling"])
def test_a_gpu_is_not_asked_for_where_cpus_are_measured(flag, capsys, monkeypatch):
    monkeypatch.setattr(command, "choose_device", lambda *_: pytest.fail("not refused"))
    assert "measures CPUs. Received: --gpu H100" in refused([flag, "--gpu=H100"], capsys)


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
    with pytest.raises(RuntimeError, match=r"^CUDA driver version is insufficient$"):
        name_of_gpu(Workload(None, "", 1, 1, "gpu", backend="jax"))


H100 = types.SimpleNamespace(
    backend="jax", device="gpu", gpu="NVIDIA H100 80GB HBM3", dtype=["bfloat16"], threads=1,
    repeats=1, steps=None, decode_batch=None,
)  # fmt: skip
OURS = {"name": "keras_transformer, JAX", "unavailable": None, "seconds": [0.01]}
HUB = {"name": "KerasHub 0.32.0 layers, JAX", "unavailable": None, "seconds": [0.016]}
TORCH = {"name": "PyTorch 2.11.0 nn.Transformer", "unavailable": None, "seconds": [0.009]}
ABSENT = {"name": "PyTorch nn.Transformer", "unavailable": "skipped: no torch", "seconds": []}


def trained(size, rows, monkeypatch):
    monkeypatch.setattr(parts, "measure", lambda *_: [dict(row) for row in rows])
    [table] = parts.measure_training(H100, size)
    return table


def test_tables_give_the_share_of_the_peak_and_the_bound(monkeypatch):
    ours = {**OURS, "bytes_moved": 3.35e9, "peak_bytes": 2**31, "result": 5.0}
    table = trained("base", [ours, HUB, TORCH], monkeypatch)
    line = table.lines[1]
    assert {"819,200", "10.00", "1.00", "2.00", "5.0000"} <= set(line.split())
    flops = table.rows[0]["gflops"] * 1e9
    assert table.rows[0]["share_of_peak"] == pytest.approx(flops / 989e12)


def test_what_an_h100_should_reach_is_marked(monkeypatch):
    moved = {**OURS, "bytes_moved": 3.35e9}
    assert mark_lines(trained("base", [moved, HUB, TORCH], monkeypatch).marks) == [
        "mark: 1.60 times as fast as KerasHub, at least 1.5: reached",
        "mark: 0.90 times as fast as PyTorch, at least 1.0: MISSED",
        "mark: 10.00 ms a step, at least 1.00 by what it moves",
    ]
    table = trained("big", [{**OURS, "seconds": [0.1]}, HUB, ABSENT], monkeypatch)
    assert table.lines[-3:] == [
        "mark: 0.16 times as fast as KerasHub, at least 1.5: MISSED",
        "mark: times as fast as PyTorch, at least 1.0: not measured",
        "mark: 81,920.00 target tokens a second, at least 120,000: MISSED",
    ]


def test_other_devices_have_no_marks(monkeypatch):
    for gpu in ("NVIDIA A100", "NVIDIA H100 PCIe", "NVIDIA GH200 480GB"):
        monkeypatch.setattr(H100, "gpu", gpu)
        table = trained("big", [{**OURS, "bytes_moved": 1e9}, HUB, TORCH], monkeypatch)
        assert table.marks == [] and "bound_ms" not in table.rows[0]


def test_runs_on_another_device_are_no_rows_of_the_last_ones_table():
    def run(gpu, name):
        row = {"name": name, "seconds": [0.01]}
        measured = {"table": "long, bfloat16", "engines": [row], "marks": []}
        return {"machine": {"gpu": gpu, "processor": "x"}, "measurements": [measured]}

    runs = [run("H100", "first"), run(None, "check"), run("H100", "second")]
    text = "\n".join(report_table(runs))
    assert "second" in text and "check" not in text and "first" not in text
    assert "check" in "\n".join(report_table(runs[:2]))


def test_an_engine_of_ours_that_is_not_the_first_may_not_fail_either(monkeypatch):
    failed = {"name": "cuDNN's kernel", "unavailable": "failed: RuntimeError", "seconds": []}
    monkeypatch.setattr(parts, "measure", lambda *_: [dict(OURS), failed])
    monkeypatch.setattr(command, "machine", lambda *_: {"processor": "x", "threads": 1})
    assert command.run([*TOY, "--part=long"]) == 1


def test_gradients_that_are_no_numbers_differ():
    ones, bad = np.ones(3), np.array([1.0, np.nan, 1.0])
    assert largest_difference([ones, ones], [ones, ones]) == 0.0
    assert np.isnan(largest_difference([ones, ones], [ones, bad]))


def test_a_gpu_decodes_and_trains_as_much_as_the_report_needs():
    assert parts.parts_of("jax") == [
        "train-tiny", "train-small", "train-base", "train-big", "decode", "exact", "long"
    ]  # fmt: skip
    tensorflow = parts.parts_of("tensorflow")
    assert tensorflow == ["train-tiny", "train-small", "train-base", "train-big", "decode"], (
        "without scaling"
    )
    assert parts.dtypes_of(H100) == ["bfloat16"] and parts.steps_of(H100, on_gpu=10) == 10
    on_cpu = types.SimpleNamespace(device="cpu", dtype=None, steps=None)
    assert parts.dtypes_of(on_cpu) == parts.DTYPES and parts.steps_of(on_cpu, on_gpu=10) == 3


def test_exactness_that_cannot_be_measured_stops_no_other_part(monkeypatch):
    def measure_exactness(_):
        raise RuntimeError("out of memory\nand more")

    monkeypatch.setattr(parts, "measure_exactness", measure_exactness)
    [table] = parts.measure_exact(H100, "toy")
    assert table.lines[-1] == "exactness  failed: RuntimeError: out of memory"
    run = {"measurements": [{"table": table.name, "engines": table.rows, "marks": table.marks}]}
    assert report_table([run])[-1] == f"exact: {table.lines[-1]}"


def test_a_report_is_one_table_in_which_the_last_measurement_counts(monkeypatch):
    def run(*seconds):
        rows = [{**OURS, "seconds": list(seconds)}, {**HUB, "seconds": [0.032]}, ABSENT]
        table = trained("base", rows, monkeypatch)
        return {"table": table.name, "engines": table.rows, "marks": table.marks}

    lines = report_table([{"measurements": [run(0.02), EARLIER]}, {"measurements": [run(0.016)]}])
    words = [[word.strip() for word in line.split("  ") if word] for line in lines]
    assert words[0][:4] == ["engine", "tokens/s", "ms", "first faster by"]
    assert words[1][:3] == [f"train-base, bfloat16: {OURS['name']}", "512,000", "16.00"]
    assert words[2][2:4] == ["32.00", "2.00 (2.00-2.00)"]
    assert words[3] == ["exact: fact", "yes"]
    assert lines[4] == f"train-base, bfloat16: {ABSENT['name']}  skipped: no torch"
    assert lines[5].startswith("train-base, bfloat16: mark: 2.00 times as fast as KerasHub")
