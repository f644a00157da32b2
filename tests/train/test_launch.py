"""The launcher, with workers that are small programs."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from train.launch.local import run_here

HEAD = "import json, os, pathlib, socket, sys, time; c = json.loads(os.environ['TF_CONFIG']); "
HEAD += "i = c['task']['index']; port = int(c['cluster']['worker'][i].split(':')[1]); "
LISTEN = "s = socket.create_server(('localhost', port)); "


def program(body, listen=True):
    return [sys.executable, "-c", HEAD + (LISTEN if listen else "") + body]


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in pathlib.Path(f"/proc/{pid}/stat").read_text().split()[2]


def test_each_worker_knows_all_and_which_it_is(tmp_path):
    body = f"pathlib.Path({str(tmp_path)!r}, str(i)).write_text(os.environ['TF_CONFIG'])"
    assert run_here(program(body), 3) == 0
    configs = [eval((tmp_path / str(index)).read_text()) for index in range(3)]
    assert [config["task"] for config in configs] == [
        {"type": "worker", "index": index} for index in range(3)
    ]
    addresses = configs[0]["cluster"]["worker"]
    assert len(set(addresses)) == 3, "ports of their own"
    assert all(config["cluster"]["worker"] == addresses for config in configs)


def test_all_are_started_again_when_one_is_lost(tmp_path, capfd):
    """Worker 1 dies in the first attempt; worker 0 would wait for it for ever."""
    body = f"d = pathlib.Path({str(tmp_path)!r}); "
    body += "n = len(list(d.glob(f'{i}-*'))); (d / f'{i}-{n}').write_text(str(os.getpid())); "
    body += "n or (os.kill(os.getpid(), 9) if i else time.sleep(100))"
    assert run_here(program(body), 2) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-0", "0-1", "1-0", "1-1"]
    assert (
        "Worker 1 was killed by signal 9; restarting all workers (1 of 3)."
        in capfd.readouterr().err
    )
    assert not any(is_running(int(path.read_text())) for path in tmp_path.iterdir())


def test_it_gives_up_with_the_code_of_the_worker(capfd):
    assert run_here(program("sys.exit(i and 5); time.sleep(100)"), 2, restarts=1) == 5
    err = capfd.readouterr().err
    assert "Worker 1 exited with code 5; restarting all workers (1 of 1)." in err
    assert "Worker 1 exited with code 5; giving up." in err


@pytest.mark.parametrize("code", [2, 75])
def test_mistakes_and_stops_are_final(capfd, code):
    assert run_here(program(f"sys.exit({code})"), 2) == code
    err = capfd.readouterr().err
    assert "restarting" not in err and "again" not in err


def test_a_worker_that_does_not_connect_in_time_ends_all(capfd):
    start = time.monotonic()
    body = "i or globals().update(s=socket.create_server(('localhost', port))); time.sleep(100)"
    assert run_here(program(body, listen=False), 2, restarts=0, start_timeout=1) == 77
    assert time.monotonic() - start < 20
    assert "Worker 1 did not connect within 1 s; giving up." in capfd.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_what_ends_the_launcher_ends_the_workers(tmp_path, number):
    body = "import signal; signal.signal(15, lambda *_: sys.exit(75)); "
    body += f"pathlib.Path({str(tmp_path)!r}, str(i)).write_text(str(os.getpid())); time.sleep(100)"
    command = [sys.executable, "-m", "train.launch", "--workers", "2", "--", *program(body)]
    launcher = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while len([path for path in tmp_path.iterdir() if path.read_text()]) < 2:
        time.sleep(0.05)
    launcher.send_signal(number)
    code = launcher.wait(timeout=300)
    assert code == (-9 if number == signal.SIGKILL else 75)
    pids = [int(path.read_text()) for path in tmp_path.iterdir()]
    deadline = time.monotonic() + 10
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_running, pids))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--workers", "2"], "no command given"),
        (
            ["--workers", "0", "--", "true"],
            "--workers must be a whole number, at least 1. Received: 0.",
        ),
        (
            ["--workers", "1", "--restarts", "-1", "--", "true"],
            "--restarts must be a whole number, at least 0. Received: -1.",
        ),
        (["--workers", "1", "--", "no-such-program"], "no-such-program"),
        (["--workers=2", "--min-workers=1", "--", "true"], "--min-workers needs --launcher ray"),
        (
            ["--workers=2", "--min-workers=3", "--launcher=ray", "--", "true"],
            "must be at most --workers. Received: --min-workers 3, --workers 2.",
        ),
    ],
)
def test_a_mistake_is_one_clear_line(arguments, expected):
    command = [sys.executable, "-m", "train.launch", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and expected in done.stderr
    assert done.stderr.strip().count("\n") == 0
