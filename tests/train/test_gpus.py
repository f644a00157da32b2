"""GPUs that are found, divided among workers, or there and not used; none is needed."""

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from train import classification, cli, language_model, translation
from train.gpus import divide, gpu_count, visible_gpus, warn_of_idle_gpus
from train.launch.local import run_here
from train.launch.on_ray import gpus_of_a_worker


def test_gpus_are_the_numbered_devices_of_the_driver(machine):
    machine(0)
    assert gpu_count() == 0
    machine(3)
    assert gpu_count() == 3


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, ["0", "1", "2"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("2, 0", ["2", "0"]),
        ("1,7,0", ["1"]),
        ("GPU-8a,MIG-3f", ["GPU-8a", "MIG-3f"]),
    ],
)
def test_a_process_sees_what_cuda_shows_it(variable, expected):
    environment = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    assert visible_gpus(3, environment) == expected
    assert visible_gpus(0, environment) == [], "a machine without GPUs has none to show"


def test_workers_share_no_gpu_and_have_equally_many():
    chance = np.random.default_rng(11)
    for _ in range(300):
        count, workers = chance.integers(1, 17), int(chance.integers(1, 6))
        gpus = chance.permutation(count).astype(str).tolist()
        if count < workers:
            with pytest.raises(ValueError, match=rf"too few GPUs.*{workers} workers, {count} GPUs"):
                divide(gpus, workers)
            continue
        parts = divide(gpus, workers)
        assert {len(part) for part in parts} == {count // workers} and len(parts) == workers
        used = [gpu for part in parts for gpu in part]
        assert used == gpus[: len(used)], "each once, in their order"


def test_gpus_that_stay_unused_are_told(caplog):
    divide(list("abcdefg"), 3)
    divide(list("abcdef"), 3)
    assert caplog.messages == [
        "7 GPUs do not divide equally among 3 workers: each gets 2, 1 stays unused."
    ]


def test_a_number_of_gpus_may_be_asked_for():
    assert divide(list("abc"), 2, each=1) == [["a"], ["b"]]
    assert divide(list("abc"), 2, each=0) == [[], []]
    assert divide([], 2) is None, "the environment is left alone"
    with pytest.raises(ValueError, match=r"for --gpus-per-worker 2 each.*2 workers, 3 GPUs"):
        divide(list("abc"), 2, each=2)


def seen_by_workers(folder, workers, *flags):
    """What CUDA_VISIBLE_DEVICES is in each worker that the launcher starts, and its exit code."""
    body = "import json, os, pathlib; i = json.loads(os.environ['TF_CONFIG'])['task']['index']; "
    body += f"pathlib.Path({str(folder)!r}, f'{{i}}.json').write_text(json.dumps(["
    body += "os.environ.get(k) for k in ('CUDA_VISIBLE_DEVICES', 'TF_FORCE_GPU_ALLOW_GROWTH')]))"
    with pytest.raises(SystemExit) as ended:
        cli.main(["launch", f"--workers={workers}", *flags, "--", sys.executable, "-c", body])
    return [json.loads(p.read_text()) for p in sorted(folder.glob("*.json"))], ended.value.code


def test_the_launcher_divides_the_gpus_of_a_machine(machine, tmp_path, monkeypatch, caplog):
    machine(5)
    seen, code = seen_by_workers(tmp_path, 2)
    assert seen == [["0,1", "true"], ["2,3", "true"]], "their memory grows, too"
    unused = "5 GPUs do not divide equally among 2 workers: each gets 2, 1 stays unused."
    assert caplog.messages == [unused] and code == 0
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,1,3")
    monkeypatch.setenv("TF_FORCE_GPU_ALLOW_GROWTH", "false")
    seen, code = seen_by_workers(tmp_path, 3)
    assert seen == [["4", "false"], ["1", "false"], ["3", "false"]] and code == 0
    seen, code = seen_by_workers(tmp_path, 3, "--gpus-per-worker", "0")
    assert [gpus for gpus, _ in seen] == ["-1"] * 3 and code == 0
    assert caplog.messages == [unused]


def test_more_workers_than_gpus_are_refused_before_one_starts(machine, tmp_path, capsys):
    machine(2)
    assert seen_by_workers(tmp_path, 3) == ([], 2)
    assert capsys.readouterr().err.strip() == (
        "error: There are too few GPUs for one each. Start fewer workers, or train on the CPU "
        "with --gpus-per-worker 0. Received: 3 workers, 2 GPUs."
    )


def test_a_machine_without_gpus_keeps_its_environment(machine, monkeypatch):
    machine(0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    body = "import os; os.environ['CUDA_VISIBLE_DEVICES'] == '0' or os._exit(3)"
    assert run_here([sys.executable, "-c", body], 1) == 0


def test_ray_is_asked_for_gpus_that_it_has():
    assert gpus_of_a_worker([0, 0], 2) == 0
    assert gpus_of_a_worker([1, 3], 4) == 1
    assert gpus_of_a_worker([2, 4], 3, wanted=2) == 2
    assert gpus_of_a_worker([2, 4], 9, wanted=0) == 0
    with pytest.raises(ValueError, match=r"2 on each.*4 workers, machines with 3, 3 GPUs"):
        gpus_of_a_worker([3, 3], 4, wanted=2)  # a worker's GPUs are in one machine
    with pytest.raises(ValueError, match=r"1 on each.*3 workers, machines with 0, 2 GPUs"):
        gpus_of_a_worker([0, 2], 3)


WARNING = (
    "This machine has 2 NVIDIA GPUs, but TensorFlow sees no GPU and will use the CPU. Install the "
    "CUDA libraries: pip install 'keras-transformer-toolkit[cuda]'. If you have them, see GPUs in "
    "docs/install.md."
)


def test_a_training_warns_once_of_gpus_that_tensorflow_does_not_see(machine, tmp_path, caplog):
    machine(2)
    with pytest.raises(SystemExit):
        translation.main([f"--run={tmp_path}/run", "--source=no.en", "--target=no.de"])
    assert caplog.messages == [WARNING]


@pytest.mark.parametrize(
    ("module", "subcommand"),
    [
        (translation, ["translate"]),
        (translation, ["evaluate", "--source=no.en", "--target=no.de"]),
        (language_model, ["sample"]),
        (classification, ["classify"]),
    ],
)
def test_a_command_that_uses_a_run_warns_once_too(machine, tmp_path, caplog, module, subcommand):
    machine(2)
    with pytest.raises(SystemExit):
        module.main([*subcommand, f"--run={tmp_path}/none"])
    assert caplog.messages == [WARNING]


@pytest.mark.parametrize(
    ("chief", "job", "index", "warnings"),
    [
        *((False, "worker", 0, 1), (False, "worker", 1, 0), (False, "worker", 2, 1)),
        *((True, "chief", 0, 1), (True, "worker", 0, 0), (True, "worker", 1, 1)),
    ],
)
def test_one_worker_of_a_machine_warns(machine, caplog, monkeypatch, chief, job, index, warnings):
    machine(2)
    addresses = ["host0:1", "host0:2", "host1:1"]
    cluster = {"chief": addresses[:1], "worker": addresses[1:]} if chief else {"worker": addresses}
    config = {"cluster": cluster, "task": {"type": job, "index": index}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    warn_of_idle_gpus()
    assert caplog.messages == [WARNING] * warnings


def test_hidden_gpus_are_not_missed(machine, caplog, monkeypatch):
    machine(2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    warn_of_idle_gpus()
    assert not caplog.messages


def test_a_driver_without_a_gpu_is_told_and_a_machine_without_it_silent(machine, caplog):
    version = machine(0) / "proc" / "driver" / "nvidia" / "version"
    warn_of_idle_gpus()
    assert not caplog.messages
    version.parent.mkdir(parents=True)
    version.touch()
    warn_of_idle_gpus()
    assert caplog.messages == [WARNING.replace("2 NVIDIA GPUs", "an NVIDIA driver")]


def test_under_jax_it_is_jax_that_is_asked(machine):
    if importlib.util.find_spec("jax") is None:
        pytest.skip("needs jax")
    code = "import pathlib; from train import gpus; "
    code += f"gpus.ROOT = pathlib.Path({str(machine(1))!r}); gpus.warn_of_idle_gpus()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "KERAS_BACKEND": "jax"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "has an NVIDIA GPU, but JAX sees no GPU" in done.stderr
    assert "pip install 'jax[cuda12]'" in done.stderr
