"""Applies a function to blocks in order, in processes of this machine or in actors of Ray.

A process runs this file by itself, so that it imports no library before its function does.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import itertools
import logging
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading

LOG = logging.getLogger(__name__)

_MAX_DEATHS = 4  # of workers at one block
_SECONDS_TO_CONNECT = 20
_BYTES_OF_STORE = 2**28  # of Ray's object store, where the cluster is this machine


class WorkerPool:
    """Applies functions to blocks in several workers; one that dies is replaced.

    A worker unpickles a function once: what the function holds, such as a model, stays in the
    worker. It takes blocks from then on, so that none waits for a model to be loaded, or for a
    worker that a cluster has no room for.

    Args:
        start: function from the number of a worker, from 0 on, to a worker; None to call functions
            in this process.
        count: number of workers.
    """

    def __init__(self, start, count):
        self._start, self._count, self._is_over = start, count, False
        self._threads, self._workers, self._numbers = [], {}, itertools.count()
        self._tasks = queue.PriorityQueue()  # pairs of a number and a task; the least goes first

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._is_over = True
        for worker in list(self._workers.values()):
            worker.end()
        for _ in self._threads:
            self._tasks.put((-1, None))
        for thread in self._threads:
            thread.join()

    def map(self, function, blocks):
        """Yields each block with the result of the function, in order.

        Only a few blocks are in memory at a time. A single block is handled in this process.

        Args:
            function: is pickled, as are its arguments and results.
            blocks: iterable of pairs: a block, which an error may name, and the arguments, a tuple.

        Raises:
            Exception: what the function raises, but a worker's OSError as a ValueError: callers
                write files meanwhile, and would take it for one of theirs.
            ValueError: if workers die at the same block again and again.
        """
        blocks = iter(blocks)
        first_two = list(itertools.islice(blocks, 2))
        blocks = itertools.chain(first_two, blocks)
        if self._start is None or len(first_two) < 2:  # workers take seconds to start
            yield from ((block, function(*arguments)) for block, arguments in blocks)
            return
        self._function, waiting = pickle.dumps(function), collections.deque()
        for block, arguments in blocks:
            task = _Task(next(self._numbers), block, (self._function, *arguments))
            waiting.append(task)
            self._tasks.put((task.number, task))
            if len(self._threads) < self._count:
                thread = threading.Thread(target=self._run, args=(len(self._threads),), daemon=True)
                self._threads.append(thread)
                thread.start()
            if len(waiting) > 2 * self._count:
                yield waiting[0].block, waiting.popleft().outcome.result()
        while waiting:
            yield waiting[0].block, waiting.popleft().outcome.result()

    def _run(self, number):
        """Keeps one worker alive, and gives it the next block."""
        while not self._is_over:
            task, function = None, self._function
            try:
                if number not in self._workers:
                    self._workers[number] = self._start(number)
                    if self._is_over:
                        break
                    self._workers[number].call(function)
                _, task = self._tasks.get()
                if task is not None:
                    task.outcome.set_result(self._workers[number].call(*task.message))
            except Exception as error:
                if self._is_over:  # which ended the worker
                    break
                if isinstance(error, Died):
                    self._workers.pop(number).end()
                is_own = task is not None
                task = task or self._tasks.get()[1]
                if task is None:
                    continue
                is_later = not is_own and task.message[0] != function  # of another call of `map`
                if is_later or not task.ends_with(error):
                    self._tasks.put((task.number, task))
        if number in self._workers:
            self._workers[number].end()


@dataclasses.dataclass
class _Task:
    number: int
    block: object
    message: tuple  # the pickled function and its arguments
    deaths: int = 0
    outcome: concurrent.futures.Future = dataclasses.field(
        default_factory=concurrent.futures.Future
    )

    def ends_with(self, error):
        """Whether the task fails with this error; a worker's death fails it the fourth time."""
        if isinstance(error, Died):
            self.deaths += 1
            if self.deaths < _MAX_DEATHS:
                LOG.warning("A worker died; its block will be processed again.")
                return False
            error = ValueError(
                f"A worker died {self.deaths} times at {self.block}, perhaps for lack of memory. "
                f"Use fewer processes, or leave this text out. Received: {str(error).rstrip('.')}."
            )
        elif isinstance(error, OSError):
            error = ValueError(f"A worker failed: {str(error).rstrip('.')}.")
        self.outcome.set_exception(error)
        return True


class Died(Exception):
    """A worker ended before it answered."""


def _holder():
    """The class that holds a function in a worker.

    It is local, because Ray sends the code of local classes, and imports the modules of others.
    """

    class Holder:
        def __init__(self):
            self._packed = None

        def call(self, packed, *arguments):
            """Unpickles a function, unless it is there, and calls it if there are arguments."""
            if packed != self._packed:
                self._function, self._packed = pickle.loads(packed), packed
            return self._function(*arguments) if arguments else None

    return Holder


def local_pool(count, environments=({},)):
    """A `WorkerPool` of processes of this machine; a single one is this process.

    Args:
        count: number of processes.
        environments: further environment variables, a dictionary for each process in turn.
    """

    def start(number):
        return _Process(environments[number % len(environments)])

    return WorkerPool(start if count > 1 else None, count)


class _Process:
    """A process of this machine that calls functions; it ends with this one."""

    def __init__(self, environment):
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        self._child = subprocess.Popen(
            [sys.executable, "-P", __file__],
            env={**os.environ, "PYTHONPATH": paths, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def call(self, *message):
        """The result of a function; raises what it raises, and `Died` if the process ends."""
        try:
            pickle.dump(message, self._child.stdin, pickle.HIGHEST_PROTOCOL)
            self._child.stdin.flush()
            result, error = pickle.load(self._child.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            self._child.kill()
            raise Died(f"exit code {self._child.wait()}") from None
        if error is not None:
            raise error
        return result

    def end(self):
        """Kills the process, even if it is busy."""
        self._child.kill()
        self._child.wait()  # as `communicate`, but several threads may call it at once
        for pipe in (self._child.stdin, self._child.stdout):
            with contextlib.suppress(OSError):  # what the process has not read
                pipe.close()


def _serve():
    """Answers calls on standard input until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all: the parent ends them
    calls, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    holder = _holder()()
    with contextlib.suppress(EOFError, OSError):
        while True:
            message = pickle.load(calls)
            try:
                answer = pickle.dumps((holder.call(*message), None), pickle.HIGHEST_PROTOCOL)
            except Exception as error:  # of the function, or of a result that cannot be pickled
                answer = pickle.dumps((None, error), pickle.HIGHEST_PROTOCOL)
            answers.write(answer)
            answers.flush()


def ray_pool(ray, count, **options):
    """A `WorkerPool` of actors on a cluster of Ray.

    Args:
        ray: what `ray_cluster` yields.
        count: number of actors. Those that the cluster has no room for yet join later.
        options: Ray's, for an actor.
    """
    # One CPU each, whatever they use: Ray would wait forever for cores that others occupy.
    options = {"num_cpus": 1, "scheduling_strategy": "SPREAD", **options}
    actor_class = ray.remote(_holder()).options(**options)
    return WorkerPool(lambda _: _Actor(ray, actor_class.remote()), count)


class _Actor:
    """An actor of Ray that calls functions; the same methods as `_Process`."""

    def __init__(self, ray, actor):
        self._ray, self._actor = ray, actor

    def call(self, *message):
        """The result of a function; raises what it raises, and `Died` if the actor is lost."""
        exceptions = self._ray.exceptions
        try:
            return self._ray.get(self._actor.call.remote(*message))
        except exceptions.RayTaskError as error:
            raise error.cause from None
        except exceptions.RayError as error:
            raise Died(_in_one_line(error)) from None

    def end(self):
        """Kills the actor, even if it is busy."""
        self._ray.kill(self._actor)


@contextlib.contextmanager
def ray_cluster(num_cpus=None, **options):
    """Yields the module ray, connected to the cluster of RAY_ADDRESS, or one of this machine.

    A connection that exists already is used, and kept.

    Args:
        num_cpus: number of cores that a cluster of this machine has; None for all.
        options: further ones of `ray.init`.

    Raises:
        ImportError: without Ray.
        ConnectionError: if the cluster cannot be reached, or started.
    """
    # "local": without an address Ray joins whatever cluster was started last on this machine.
    address = os.environ.get("RAY_ADDRESS") or "local"
    if address == "local":
        # Ray reads this when it is imported: it keeps a cluster of one machine on 127.0.0.1.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        options |= {"num_cpus": num_cpus, "object_store_memory": _BYTES_OF_STORE}
        options["include_dashboard"] = False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # sends no usage statistics
    try:
        import ray
    except ImportError as error:
        raise ImportError(
            f"Ray is needed: pip install 'keras-transformer-toolkit[ray]'. Received: {error}"
        ) from error
    if ray.is_initialized():
        yield ray
        return
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        if port.isdecimal():  # neither "local" nor "auto"; Ray ends this process after minutes
            socket.create_connection((host.strip("[]"), int(port)), _SECONDS_TO_CONNECT).close()
        ray.init(address, **options)
    except (OSError, RuntimeError, ValueError) as error:
        expected = (
            "Ray could not start a cluster on this machine. "
            if address == "local"
            else "RAY_ADDRESS must be the address of a cluster that can be reached from here. "
        )
        raise ConnectionError(f"{expected}Received: {address}: {_in_one_line(error)}.") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _in_one_line(error):
    return getattr(error, "strerror", None) or " ".join(str(error).split())[:300]


if __name__ == "__main__":
    _serve()
