"""Applies a function to many blocks in order, in processes of this machine or on a Ray cluster."""

import collections
import concurrent.futures
import contextlib
import functools
import itertools
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading

from keras_transformer.files import in_one_line

_ATTEMPTS = 4  # to answer a call, of which each but the last ended with a dead process
_BYTES_OF_TASK = 2**30  # of memory that Ray sets aside for a task
_BYTES_OF_STORE = 2**28  # of Ray's object store, where the cluster is this machine
_SECONDS = 20  # to reach a cluster
_PROGRAM = "from keras_transformer.data.runners import _serve; _serve()"


class LocalRunner:
    """Calls functions in processes of this machine; a process that dies is replaced.

    Args:
        processes: how many; None for one on each core. One is this process.
    """

    def __init__(self, processes=None):
        self._processes = processes or os.cpu_count()
        self._of_thread, self._children = threading.local(), []

    def __enter__(self):
        self._threads = concurrent.futures.ThreadPoolExecutor(self._processes)
        return self

    def __exit__(self, *_):
        self._threads.shutdown(wait=False, cancel_futures=True)
        for child in self._children:
            child.kill()
        self._threads.shutdown()
        for child in self._children:
            child.communicate()

    def map(self, function, calls):
        """Yields (arguments, result) for the arguments of each call, in order.

        Few calls are in memory at once. The function, the arguments and the results are pickled.
        """
        calls = iter(calls)
        some = list(itertools.islice(calls, 2))
        calls = itertools.chain(some, calls)
        if self._processes == 1 or len(some) < 2:  # processes take seconds to start
            return ((call, function(*call)) for call in calls)
        packed = pickle.dumps(function)
        submit = functools.partial(self._threads.submit, self._answer, packed)
        return _in_order(submit, calls, 2 * self._processes + 1, lambda future: future.result())

    def _answer(self, packed, call):
        for _ in range(_ATTEMPTS):
            if not hasattr(self._of_thread, "child"):
                self._of_thread.child = self._started()
            child = self._of_thread.child
            with contextlib.suppress(EOFError, OSError, pickle.UnpicklingError):
                pickle.dump((packed, call), child.stdin, pickle.HIGHEST_PROTOCOL)
                child.stdin.flush()
                result, error = pickle.load(child.stdout)
                break
            child.kill()
            child.wait()
            del self._of_thread.child
        else:
            raise ChildProcessError(
                f"A process died {_ATTEMPTS} times at the same block, perhaps for lack of memory. "
                "Use fewer processes."
            )
        if error is not None:
            raise error
        return result

    def _started(self):
        # Which never imports TensorFlow unless the function does.
        environment = {**os.environ, "KERAS_BACKEND": "numpy"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        command = [sys.executable, "-c", _PROGRAM]
        pipe = subprocess.PIPE
        child = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment)
        self._children.append(child)
        return child


def _serve():
    """Answers calls on standard input until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all: the parent ends them
    calls, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    with contextlib.suppress(EOFError):
        while True:
            packed, call = pickle.load(calls)
            try:
                answer = _called(packed, *call), None
            except Exception as error:
                answer = None, error
            pickle.dump(answer, answers, pickle.HIGHEST_PROTOCOL)
            answers.flush()


class RayRunner:
    """Calls functions as tasks of a Ray cluster, which retries those of lost machines.

    The cluster is that of the environment variable `RAY_ADDRESS`, or one of this machine alone.

    Args:
        processes: calls at once; None for as many as the cluster has cores.

    Raises:
        ImportError: if Ray is not installed.
        ConnectionError: if the cluster cannot be reached.
    """

    def __init__(self, processes=None):
        try:
            import ray
        except ImportError as error:
            raise ImportError(f"Running on Ray needs `pip install ray`: {error}.") from None
        self._ray, self._processes, self._is_ours = ray, processes, not ray.is_initialized()

    def __enter__(self):
        if self._is_ours:
            # "local": without an address Ray joins whatever cluster was started last here.
            where = {"address": "local", "object_store_memory": _BYTES_OF_STORE}
            where |= {"num_cpus": self._processes, "include_dashboard": False}
            address = os.environ.get("RAY_ADDRESS")
            try:
                if address:
                    where = {}
                    host, _, port = address.rpartition("/")[2].rpartition(":")
                    if port.isdigit():  # else, Ray tries for minutes
                        socket.create_connection((host, int(port)), _SECONDS).close()
                self._ray.init(log_to_driver=False, logging_level="error", **where)
            except (OSError, RuntimeError, ValueError) as error:
                raise ConnectionError(
                    f"The Ray cluster cannot be reached: {in_one_line(error)}. "
                    f"Received: RAY_ADDRESS={address or ''}."
                ) from None
        return self

    def __exit__(self, *_):
        if self._is_ours:
            self._ray.shutdown()

    def map(self, function, calls):
        """Yields (arguments, result) for the arguments of each call, in order.

        Few calls are in the cluster at once. The function, the arguments and the results are
        pickled.
        """
        ray = self._ray
        packed = ray.put(pickle.dumps(function))
        task = ray.remote(_called).options(
            num_cpus=1, memory=_BYTES_OF_TASK, max_retries=_ATTEMPTS,
            runtime_env={"env_vars": {"KERAS_BACKEND": "numpy"}},
        )  # fmt: skip
        cores = self._processes or int(ray.cluster_resources().get("CPU", 1))

        def result_of(reference):
            try:
                return ray.get(reference)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except ray.exceptions.RayError as error:
                raise ChildProcessError(f"A task of Ray failed: {in_one_line(error)}.") from None

        return _in_order(lambda call: task.remote(packed, *call), calls, 2 * cores + 1, result_of)


RUNNERS = {"local": LocalRunner, "ray": RayRunner}


def _called(packed, *arguments):
    return _unpacked(packed)(*arguments)


@functools.lru_cache(maxsize=1)
def _unpacked(packed):
    return pickle.loads(packed)


def _in_order(submit, calls, window, result_of):
    waiting = collections.deque()
    for call in calls:
        waiting.append((call, submit(call)))
        if len(waiting) == window:
            call, future = waiting.popleft()
            yield call, result_of(future)
    for call, future in waiting:
        yield call, result_of(future)
