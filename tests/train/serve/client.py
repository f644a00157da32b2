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
def serving(folder, *flags, program=(sys.executable, "-m", "train.serve"), place=None, stderr=None):
    """Runs the command; yields a port and its process.

    Args:
        folder: folder of models.
        *flags: of the command.
        program: a list that starts it.
        place: folder that holds the package; None for the repository.
        stderr: a file; None for that of this process.
    """
    port = free_port()
    place = place or pathlib.Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(place)}
    process = subprocess.Popen(
        [*program, str(folder), f"--port={port}", *flags],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )
    try:
        assert process.stdout.readline().startswith("Serving ")
        yield port, process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        process.stdout.close()


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "in vain"
        time.sleep(0.2)


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


def listening(pid):
    """The addresses, in hexadecimal, on which a process listens."""
    sockets = set()
    for handle in pathlib.Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):  # it has been closed
            sockets.add(os.readlink(handle))
    found = []
    for table in ("tcp", "tcp6"):
        for line in pathlib.Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            if state == "0A" and f"socket:[{line.split()[9]}]" in sockets:
                found.append(local.split(":")[0])
    return found


def memory_of(pid):
    """Resident MiB of a process."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024
