"""Engines in separate processes that take turns, so that their speeds are comparable.

Speeds of two runs, or of two machines, are not comparable: the clock, the memory and the
neighbours differ from minute to minute. Here every engine is built once, stays alive, and does
one round of work on request; the rounds of all engines interleave.
"""

import concurrent.futures
import faulthandler
import multiprocessing
import os
import sys
import time

from ..gpus import HIDDEN, gpu_count, visible_gpus

# Threads of OpenMP spin for a while when their work is done, and would slow the next engine.
SECONDS_BETWEEN_ENGINES = 0.3
# An engine that compiles for longer on a GPU must not keep the others from being measured.
SECONDS_TO_START = 200
_engines = []  # in the process of an engine, that engine


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
            row = {"name": label, "unavailable": None, "seconds": []}
            processes.append(_new_process())
            rows.append(row)
            begun = time.perf_counter()
            row.update(_ask(row, processes[-1], _start, build, workload) or {})
            seconds = time.perf_counter() - begun
            state = row["unavailable"] or f"began in {seconds:.0f} s"
            print(f"{row['name']}: {state}", file=sys.stderr, flush=True)
        for _ in range(repeats):
            for process, row in zip(processes, rows, strict=True):
                time.sleep(SECONDS_BETWEEN_ENGINES)
                row["seconds"].append(_ask(row, process, _seconds_a_unit, steps))
        for process, row in zip(processes, rows, strict=True):
            row.update(_ask(row, process, _details) or {})
            if row["unavailable"]:
                row["seconds"] = []
    finally:
        for process in processes:
            process.shutdown()
    return rows


def in_process(function, workload):
    """What a function of this package returns of a workload, in a process of its own."""
    gpus = visible_gpus(gpu_count(), os.environ) if workload.device == "gpu" else [HIDDEN]
    with _new_process() as process:
        process.submit(set_up, workload.environment(",".join(gpus)))
        return process.submit(function, workload).result()


def _new_process():
    context = multiprocessing.get_context("spawn")  # a fork inherits threads and memory
    return concurrent.futures.ProcessPoolExecutor(1, context)


def set_up(variables, said=os.devnull):
    """Sets variables of this process, and has it write what frameworks say into a file."""
    for stream in (1, 2):  # frameworks greet and warn; failures are raised
        os.dup2(os.open(said, os.O_WRONLY | os.O_APPEND | os.O_CREAT), stream)
    os.environ.update(variables)


def _ask(row, process, function, *arguments):
    """Calls a function in a process; if it fails, writes why into the row and returns None."""
    if row["unavailable"]:
        return None
    try:
        return process.submit(function, *arguments).result()
    except Exception as error:  # whatever a framework raises becomes a line of the table
        row["unavailable"] = why_not(error)
    return None


def why_not(error):
    """One line that says why something was not measured."""
    if isinstance(error, ModuleNotFoundError):
        return f"skipped: {error.name} is not installed"
    if isinstance(error, concurrent.futures.BrokenExecutor):
        return "failed: its process ended"  # or took SECONDS_TO_START
    message = (str(error).strip() or "no message").splitlines()[0]
    return f"failed: {type(error).__name__}: {message}"


def _start(build, workload):
    """Builds the engine of this process and warms it up."""
    on_gpu = workload.device == "gpu"
    visible = visible_gpus(gpu_count(), os.environ)[0] if on_gpu else HIDDEN
    set_up(workload.environment(visible))
    if on_gpu:
        faulthandler.dump_traceback_later(SECONDS_TO_START, exit=True)
    engine = build(workload)
    _engines.append(engine)
    engine.prepare()
    engine.finish(engine.unit())  # traces, compiles and allocates
    result = engine.finish(engine.unit())
    faulthandler.cancel_dump_traceback_later()
    return {"name": engine.name, "parameters": engine.num_parameters, "result": result}


def seconds_a_unit(engine, steps):
    """The time of a unit of work, in seconds, from a number of them."""
    start = time.perf_counter()
    for _ in range(steps):
        result = engine.unit()
    engine.finish(result)  # before reading the clock: a GPU is still working when Python continues
    return (time.perf_counter() - start) / steps


def _seconds_a_unit(steps):
    return seconds_a_unit(_engines[0], steps)


def _details():
    return {key: each for details in _engines[0].details() for key, each in details.items()}
