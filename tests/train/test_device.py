"""The benchmark for a GPU machine, on a CPU, in processes that cannot import TensorFlow."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests.layers.test_backends import HIDE_TENSORFLOW
from train.device import __main__ as device
from train.device.carry import collect
from train.device.machine import check_machine
from train.device.training import summed

REPOSITORY = pathlib.Path(__file__).parents[2]
TOY = ["--device=cpu", "--toy", "--repeats=1", "--steps=1", "--threads=1"]


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
    command = [sys.executable, "-m", "train.device", *TOY, f"--output={output}", "--part"]
    done = subprocess.run(
        [*command, "train-small", "decode", "exact", "long"],
        env=environment, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    earlier, training, decode, exact, long = json.loads(output.read_text())["runs"]
    assert earlier == {"part": "earlier"}
    rows = [row for table in training["tables"] for row in table["rows"]]
    ours, hub = rows[:2]
    assert ours["operations"] > 0 and ours["bytes_moved"] > 0
    assert hub["unavailable"] is None and hub["parameters"] == ours["parameters"]
    assert abs(hub["result"] - ours["result"]) < 1.5, "losses of random models, near log(50)"
    assert [row["result"] for row in decode["tables"][0]["rows"][::2]] == [50, 50]
    assert all(row["holds"] for row in exact["tables"][0]["rows"])
    dense, chunks, cudnn = long["tables"][0]["rows"]
    assert abs(dense["result"] - chunks["result"]) < 1e-4
    assert "needs an NVIDIA GPU" in cudnn["unavailable"]
    text = output.with_suffix(".txt").read_text()
    assert "ours, greedy" in text and "first faster by" in text


def run(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        device.main(arguments)
    return stopped.value.code, capsys.readouterr().err


def test_a_file_that_is_no_report_is_left_alone(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(device, "check_machine", lambda options: "cpu")
    output = tmp_path / "notes.json"
    output.write_text("my notes")
    code, message = run([*TOY, f"--output={output}"], capsys)
    assert code == 2 and "is no report of this command" in message
    assert output.read_text() == "my notes"


def test_a_machine_without_a_gpu_is_told_so_in_one_line(capsys, monkeypatch):
    monkeypatch.setattr("train.device.machine.gpu_count", lambda: 0)
    code, message = run(["--part", "long"], capsys)
    assert code == 2 and "no NVIDIA GPU" in message and message.count("\n") == 1


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setattr("train.device.machine.NEEDED", ("keras", "no_such_package"))
    with pytest.raises(ValueError, match=r"not installed: no_such_package\. .*device\.carry"):
        check_machine(None)


class Options:
    device, gpu = "gpu", None


@pytest.mark.parametrize(
    ("sees", "gpu", "message"),
    [
        (("cpu", "cpu"), None, "JAX sees only: cpu"),
        (("gpu", "NVIDIA T4"), "H100", "--gpu H100 is wanted, and this machine has: NVIDIA T4"),
        (RuntimeError("CUDA driver is too old\nfor this"), None, "use the gpu: CUDA driver is too"),
    ],
)
def test_another_device_than_asked_for_is_refused(sees, gpu, message, monkeypatch):
    def in_process(*_):
        if isinstance(sees, Exception):
            raise sees
        return sees

    monkeypatch.setattr("train.device.machine.gpu_count", lambda: 1)
    monkeypatch.setattr("train.device.machine.in_process", in_process)
    options = Options()
    options.gpu = gpu
    with pytest.raises(ValueError, match=message):
        check_machine(options)


@pytest.mark.parametrize("flag", ["--repeats=0", "--output=/no/such/folder/a.json", "--part=fast"])
def test_wrong_flags_are_refused(flag, capsys):
    code, message = run([flag], capsys)
    assert code == 2 and flag.split("=")[0] in message


def test_kernels_are_summed_by_name_and_overlapping_ones_are_busy_once():
    ms = 1_000_000
    events = [(0, 4 * ms, "a"), (2 * ms, 4 * ms, "b"), (10 * ms, 2 * ms, "a"), (3 * ms, ms, "c")]
    assert summed(events, steps=2) == {
        "busy_ms": 4.0,
        "span_ms": 6.0,
        "by_name": [("a", 3.0, 1.0), ("b", 2.0, 0.5), ("c", 0.5, 0.5)],
    }
    assert summed([], steps=2) == {}


def test_tables_give_the_share_of_the_peak_and_the_bound():
    row = {"name": "ours", "seconds": [0.01], "gflops": 494_500, "bytes_moved": 3.35e9}
    row |= {"tokens_per_second": 1234.0, "result": 5.0, "peak_bytes": 2**31}
    _, line = device.step_table([row], device.peaks("NVIDIA H100 80GB HBM3"), "bfloat16")
    assert {"1,234", "50%", "1.00", "2.00", "5.0000"} <= set(line.split())


def test_carried_packages_never_replace_a_folder(tmp_path):
    with pytest.raises(ValueError, match="exists"):
        collect(tmp_path, "3.12")
