"""The command in a process of its own, and its clients."""

import contextlib
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

from tests.serving.hostile import is_equal


class Client:
    """One connection to the server."""

    def __init__(self, port):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def send(self, method, path, body=None, headers=()):
        """The status and the body of an answer, decoded if it is JSON."""
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
        body = body.encode() if isinstance(body, str) else body
        self.connection.request(method, path, body, dict(headers))
        answer = self.connection.getresponse()
        content = answer.read()
        is_json = answer.headers.get("content-type") == "application/json"
        return answer.status, json.loads(content) if is_json else content

    def close(self):
        self.connection.close()

    def get(self, path):
        return self.send("GET", path)

    def predict(self, name, body):
        return self.send("POST", f"/v1/models/{name}:predict", body)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@contextlib.contextmanager
def serving(
    folder, *flags, program=(sys.executable, "-m", "train.serve"), place=None, environment=None
):
    """Runs the command; yields a port, the one of its metrics, and its process.

    Args:
        folder: folder of models.
        *flags: of the command.
        program: a list that starts it.
        place: folder that holds the package; None for the repository.
        environment: further variables of the process.
    """
    port, metrics = free_port(), free_port()
    ports = [f"--port={port}", f"--metrics-port={metrics}"]
    place = place or pathlib.Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(place), **(environment or {})}
    environment.pop("RAY_ADDRESS", None)
    process = subprocess.Popen(
        [*program, str(folder), *ports, *flags],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline().startswith("Serving ")
        yield port, metrics, process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        process.stdout.close()


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "in vain"
        time.sleep(0.2)


def ask_for_ever(port, name, texts, expected, may_end):
    """Asks one row after the other; returns the number of answers and the differing ones."""
    count, wrong = 0, []
    with contextlib.closing(Client(port)) as client:
        while not may_end.is_set():
            row = count % len(texts)
            status, answer = client.predict(name, {"instances": [texts[row]]})
            if status != 200 or answer["predictions"] != [expected[row]]:
                wrong.append((status, answer, expected[row]))
            count += 1
    return count, wrong


def measure(port, name, texts, expected, first, may_end):
    """Pairs of the seconds at which a request began and that it lasted; the wrong answers."""
    times, wrong, start = [], [], time.monotonic()
    with contextlib.closing(Client(port)) as client:
        while not may_end.is_set():
            row = (first + len(times)) % len(texts)
            begin = time.monotonic()
            status, answer = client.predict(name, {"instances": [texts[row]]})
            times.append((begin - start, time.monotonic() - begin))
            if status != 200 or any(
                not is_equal(value, answer["predictions"][0][key])
                for key, value in expected[row].items()
            ):
                wrong.append((status, answer, expected[row]))
    return times, wrong


def descendants(pid):
    """A process and all that it started, through others."""
    parents = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            status = (folder / "status").read_text()
            parents[int(folder.name)] = int(status.split("PPid:")[1].split()[0])
    found = []
    for child in parents:
        above = child
        while above in parents and above != pid:
            above = parents[above]
        found += [child] * (above == pid)
    return found


def listening(pid):
    """The addresses, in hexadecimal, on which a process and all that it started listen."""
    sockets = set()
    for child in descendants(pid):
        for handle in pathlib.Path(f"/proc/{child}/fd").glob("*"):
            with contextlib.suppress(OSError):  # it has been closed
                sockets.add(os.readlink(handle))
    found = []
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            (
                _,
                local,
                _,
                state,
                *_,
            ) = line.split()
            if state == "0A" and f"socket:[{line.split()[9]}]" in sockets:
                found.append(local.split(":")[0])
    return found


def is_alive(pid):
    with contextlib.suppress(OSError):
        return "State:\tZ" not in pathlib.Path(f"/proc/{pid}/status").read_text()
    return False


def replica_memory(pid):
    """Resident MiB of the replicas that a process started, through Ray's processes."""
    found = 0.0
    for child in descendants(pid):
        with contextlib.suppress(OSError):
            line = pathlib.Path(f"/proc/{child}/cmdline").read_text()
            if line.startswith("ray::ServeReplica"):
                status = pathlib.Path(f"/proc/{child}/status").read_text()
                found += int(status.split("VmRSS:")[1].split()[0]) / 1024
    assert found
    return found
