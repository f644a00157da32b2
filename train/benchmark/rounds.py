"""Engines in separate processes that take turns, so that their speeds are comparable.

Speeds of two runs, or of two machines, are not comparable: the clock, the memory and the
neighbours differ from minute to minute. Here every engine is built once, stays alive, and does
one round of work on request; the rounds of all engines interleave.
"""

import multiprocessing
import os
import time

from ..gpus import HIDDEN, gpu_count, visible_gpus

# Threads of OpenMP spin for a while when their work is done, and would slow the next engine.
SECONDS_BETWEEN_ENGINES = 0.3


def measure(candidates, repeats, steps):
    """Lets engines take turns.

    Args:
        candidates: list of `Candidate`.
        repeats: rounds of each engine.
        steps: units of work (training steps, or decoded batches) per round.

    Returns:
        One dictionary per candidate, in the same order: `name`; `unavailable`, why it was skipped
        or failed, or None; `parameters`, their number; `result` of the last unit of warm-up
        (the loss, or the lengths of the outputs, to verify that all did the same work);
        `seconds` per unit of work, a list with one number per round; and what an engine has of
        `details`.
    """
    rows, processes = [], []
    try:
        for label, build, workload in candidates:
            process = EngineProcess(build, workload, steps)
            row = {"name": label, "unavailable": None, "seconds": [], **process.introduction}
            rows.append(row)
            processes.append((process, row))
        for _ in range(repeats):
            for process, row in processes:
                time.sleep(SECONDS_BETWEEN_ENGINES)
                row["seconds"].append(process.answer("round"))
        for process, row in processes:
            row.update(process.answer("details") or {})
            if process.failure is not None:
                row.update(unavailable=process.failure, seconds=[])
    finally:
        for process, _ in processes:
            process.close()
    return rows


class EngineProcess:
    """An engine in its own process.

    Args:
        build: function from a `Workload` to an `Engine`.
        workload: the work of the engine.
        steps: units of work per round.
    """

    def __init__(self, build, workload, steps):
        self.failure = None
        context = multiprocessing.get_context("spawn")  # a fork would inherit threads and memory
        self._connection, far_end = context.Pipe()
        self._process = context.Process(target=_serve, args=(far_end, build, workload, steps))
        self._process.start()
        far_end.close()  # otherwise its end would go unnoticed
        self.introduction = self._receive() or {}

    def answer(self, request):
        """Seconds per unit of work of a "round", or the "details"; None if the engine failed."""
        if self.failure is not None:
            return None
        self._connection.send(request)
        return self._receive()

    def close(self):
        self._connection.close()  # the process finds no more requests, and ends
        self._process.join(timeout=30)
        if self._process.is_alive():
            self._process.terminate()

    def _receive(self):
        try:
            answer, self.failure = self._connection.recv()
        except EOFError:
            self._process.join()
            answer = None
            self.failure = f"failed: its process ended with code {self._process.exitcode}"
        return answer


def _serve(connection, build, workload, steps):
    """Runs in the new process: answers each request for a round until the other end closes."""
    for stream in (1, 2):  # frameworks greet and warn; failures go through the connection
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    on_gpu = workload.device == "gpu"
    visible = visible_gpus(gpu_count(), os.environ)[0] if on_gpu else HIDDEN
    os.environ.update(workload.environment(visible))
    try:
        engine = build(workload)
        engine.finish(engine.unit())  # traces, compiles and allocates
        introduction = {
            "name": engine.name,
            "parameters": engine.num_parameters,
            "result": engine.finish(engine.unit()),
        }
        connection.send((introduction, None))
        answers = {"round": lambda: _seconds_a_unit(engine, steps), "details": engine.details}
        while True:
            connection.send((answers[connection.recv()](), None))
    except EOFError:
        return
    except ModuleNotFoundError as error:
        connection.send((None, f"skipped: {error.name} is not installed"))
    except Exception as error:  # whatever a framework raises becomes a line of the table
        message = (str(error).strip() or "no message").splitlines()[0]
        connection.send((None, f"failed: {type(error).__name__}: {message}"))


def _seconds_a_unit(engine, steps):
    start = time.perf_counter()
    for _ in range(steps):
        result = engine.unit()
    engine.finish(result)  # before reading the clock: a GPU is still working when Python continues
    return (time.perf_counter() - start) / steps
