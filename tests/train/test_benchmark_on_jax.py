"""The benchmark on JAX, on a CPU, in processes that cannot import TensorFlow."""

import json
import os
import pathlib
import re
import subprocess
import sys
import types

import pytest

from tests.layers.test_backends import HIDE_TENSORFLOW
from train.benchmark import __main__ as benchmark
from train.benchmark.on_jax import summed
from train.benchmark.tables import compare, engine_table

REPOSITORY = pathlib.Path(__file__).parents[2]
TOY = ["--backend=jax", "--device=cpu", "--size=toy", "--decode-size=toy", "--decode-batch=2"]
TOY += ["--dtype=float32", "--repeats=1", "--steps=1", "--threads=1"]


@pytest.fixture
def environment(tmp_path):
    """Variables of a process, and of those that it starts, without TensorFlow."""
    (tmp_path / "sitecustomize.py").write_text(HIDE_TENSORFLOW)
    path = os.pathsep.join([str(tmp_path), str(REPOSITORY)])
    return {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}


@pytest.mark.slow
def test_all_parts_run_without_tensorflow_and_are_appended_to_a_report(environment, tmp_path):
    output = tmp_path / "device.json"
    output.write_text(json.dumps({"runs": [{"part": "earlier"}]}))
    command = [sys.executable, "-m", "train.benchmark", *TOY, f"--json={output}"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    earlier, run = json.loads(output.read_text())["runs"]
    assert earlier == {"part": "earlier"}
    training, beams, greedy, exact, long = (each["engines"] for each in run["measurements"])
    ours, hub = training[:2]
    assert ours["operations"] > 0 and ours["bytes_moved"] > 0
    assert hub["unavailable"] is None and hub["parameters"] == ours["parameters"]
    assert abs(hub["result"] - ours["result"]) < 1.5, "losses of random models, near log(50)"
    assert beams[0]["result"] == greedy[0]["result"] == 50
    assert all(row["holds"] for row in exact)
    dense, chunks, cudnn = long
    assert abs(dense["result"] - chunks["result"]) < 1e-4
    assert "needs an NVIDIA GPU" in cudnn["unavailable"]
    assert "ours, beam 1, JAX" in done.stdout and "first faster by" in done.stdout


def refused(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        benchmark.run(arguments)
    said = capsys.readouterr().err
    assert stopped.value.code == 2 and said.count("\n") == 1
    return said


def test_a_file_that_is_no_report_is_left_alone(tmp_path, capsys):
    output = tmp_path / "notes.json"
    for content in ("my notes", '{"machine": {}, "training": []}'):
        output.write_text(content)
        assert "is not a report of this version" in refused([*TOY, f"--json={output}"], capsys)
        assert output.read_text() == content


def test_engines_are_compared_with_ours_of_as_many_beams(monkeypatch):
    options = types.SimpleNamespace(
        backend="jax", device="cpu", decode_size="toy", decode_batch=[2], dtype=["float32"],
        threads=1, repeats=1, steps=1,
    )  # fmt: skip
    row = {"unavailable": None, "seconds": [1.0]}
    monkeypatch.setattr(
        benchmark, "measure", lambda candidates, *_: [{"name": c.label, **row} for c in candidates]
    )
    tables = {title: rows for title, rows, _ in benchmark.measure_decoding(options)}
    for (title, rows), beams in zip(tables.items(), (4, 1), strict=True):
        assert f"beam {beams}," in title
        assert [r["name"] for r in rows] == [f"{s}, beam {beams}" for s in ("ours", "Hugging Face")]


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

    monkeypatch.setattr(benchmark, "visible_gpus", lambda *_: [] if sees is None else ["0"])
    monkeypatch.setattr(benchmark, "in_process", in_process)
    assert re.search(message, refused(["--backend=jax", *flags], capsys))


def test_parts_of_another_backend_are_refused(capsys):
    assert "--exact needs another --backend" in refused(["--exact"], capsys)
    assert "--scaling needs another --backend" in refused([*TOY, "--scaling"], capsys)


@pytest.mark.parametrize("flag", ["--device=cpu", "--scaling"])
def test_a_gpu_is_not_asked_for_where_cpus_are_measured(flag, capsys, monkeypatch):
    monkeypatch.setattr(benchmark, "choose_device", lambda *_: pytest.fail("not refused"))
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


class OnH100:
    gpu = "NVIDIA H100 80GB HBM3"


def test_tables_give_the_share_of_the_peak_and_the_bound():
    row = {"name": "ours", "seconds": [0.01], "gflops": 494_500, "bytes_moved": 3.35e9}
    row |= {"tokens_per_second": 1234.0, "result": 5.0, "peak_bytes": 2**31}
    _, line = engine_table([row], benchmark.peak_of(OnH100, "bfloat16"))
    assert {"1,234", "50%", "1.00", "2.00", "5.0000"} <= set(line.split())
