"""Workers as processes on this machine, restarted when one is lost."""

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time

from ..gpus import HIDDEN, divide, gpu_count, visible_gpus
from ..settings import EXIT_CODE_MISTAKE

EXIT_CODE_STOPPED = 75  # os.EX_TEMPFAIL, where it exists: told to stop, and can resume
EXIT_CODE_NOT_STARTED = 77
SECONDS_TO_SAVE = 60  # for workers that were told to stop
POLL_SECONDS = 0.1


def run_here(command, count, restarts=3, start_timeout=300, gpus_per_worker=None):
    """Runs a command in `count` workers on this machine until all succeed.

    The GPUs that this process may use are divided among the workers with CUDA_VISIBLE_DEVICES.

    Returns:
        The exit code: 0, or that of the first worker that failed, if restarting is no use or
        all `restarts` are used up.

    Raises:
        ValueError: if there are GPUs, but too few for so many workers.
    """
    gpus = divide(visible_gpus(gpu_count(), os.environ), count, gpus_per_worker)
    for attempt in range(restarts + 1):
        with Workers(command, count, gpus) as workers, workers.forwarding_signals():
            code = workers.wait(start_timeout)
        if code in (0, EXIT_CODE_MISTAKE, EXIT_CODE_STOPPED) or workers.told_to_stop:
            return code
        again = f"restarting all workers ({attempt + 1} of {restarts})"
        print(
            f"{workers.what_happened}; {again if attempt < restarts else 'giving up'}.",
            file=sys.stderr,
            flush=True,
        )
    return code


class Workers:
    """Processes on this machine that find each other through TF_CONFIG; all are killed on exit.

    Args:
        command: the command that each runs, a list.
        count: number of workers.
        gpus: ids of the GPUs of each, a list of lists; None to leave the environment unchanged.
    """

    def __init__(self, command, count, gpus=None):
        self.command, self.count, self.gpus = command, count, gpus
        self.processes = []
        self.told_to_stop = False
        self.what_happened = ""

    def __enter__(self):
        self._ports = _free_ports(self.count)
        addresses = [f"localhost:{port}" for port in self._ports]
        for index in range(self.count):
            config = {
                "cluster": {"worker": addresses},
                "task": {"type": "worker", "index": index},
            }
            environment = {**os.environ, "TF_CONFIG": json.dumps(config)}
            if self.gpus is not None:
                environment["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpus[index]) or HIDDEN
            self.processes.append(
                subprocess.Popen(
                    self.command,
                    env=environment,
                    start_new_session=True,  # so that its children are killed with it
                    preexec_fn=end_with_parent,
                )
            )
        return self

    def __exit__(self, *_):
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def wait(self, start_timeout):
        """Waits until all workers have succeeded or one has failed; returns its code, or 0."""
        deadline = time.monotonic() + start_timeout
        unconnected = set(range(self.count)) if self.count > 1 else set()
        while True:
            codes = [process.poll() for process in self.processes]
            for index, code in enumerate(codes):
                if code not in (None, 0):
                    return self._ended(index, code)
            if None not in codes:
                return 0
            unconnected -= {i for i in unconnected if codes[i] == 0 or _listens(self._ports[i])}
            if unconnected and time.monotonic() > deadline:
                names = ", ".join(map(str, sorted(unconnected)))
                self.what_happened = f"Worker {names} did not connect within {start_timeout:g} s"
                return EXIT_CODE_NOT_STARTED
            time.sleep(POLL_SECONDS)

    @contextlib.contextmanager
    def forwarding_signals(self):
        """Forwards SIGTERM and Ctrl-C, so that the workers save their step before they exit."""

        def forward(*_):
            self.told_to_stop = True
            for process in self.processes:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)

        before = {
            number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _ended(self, index, code):
        how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
        self.what_happened = f"Worker {index} {how}"
        if code == EXIT_CODE_STOPPED or self.told_to_stop:  # the others are saving too
            deadline = time.monotonic() + SECONDS_TO_SAVE
            for process in self.processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0, deadline - time.monotonic()))
        return code


def end_with_parent():
    """Called in a new process on Linux: kills it when its parent dies, for whatever reason."""
    if sys.platform == "linux":
        set_death_signal = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGKILL)


def _free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("localhost", 0))
        return [each.getsockname()[1] for each in sockets]


def _listens(port):
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("localhost", port)) == 0
